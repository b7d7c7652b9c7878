"""Kueue's own controller beside a real API server, with its definitions and the webhooks that judge what the
operator writes.

The program comes from the cache, or build_kueue.sh makes it.
"""

import base64
import json
import os
import subprocess
import time
import urllib.request
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

import yaml
from apiserver import ApiServer, Refused
from debian_packages import cache_folder
from patience import patient
from server_process import ServerProcess, free_port

VERSION: Final = "0.19.2"
BUILD_SCRIPT: Final = Path(__file__).parent / "build_kueue.sh"
CRDS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
SERVED: Final = "/apis/kueue.x-k8s.io/v1beta2"
ADMISSION: Final = "/apis/admissionregistration.k8s.io/v1"
JUDGED: Final = ("workloads", "clusterqueues", "localqueues", "resourceflavors")
READY_S_MAX: Final = 120.0
SERVED_S_MAX: Final = 30.0
# Its metrics want their certificates at a fixed place: in an /etc of its own, which is laid over the machine's.
WITH_CERTIFICATES: Final = """
    set -e
    folder=$1
    shift
    mkdir -p "$folder/etc-kueue/upper/kueue/metrics" "$folder/etc-kueue/work"
    cp -r "$folder/kueue-keys" "$folder/etc-kueue/upper/kueue/metrics/certs"
    mount -t overlay kueue -o "lowerdir=/etc,upperdir=$folder/etc-kueue/upper,workdir=$folder/etc-kueue/work" /etc
    exec "$@"
"""
GATES: Final = {
    # It would be an API server of its own, for people who look.
    "VisibilityOnDemand": False,
    # It asks for kinds of devices that an old API server does not know.
    "KueueDRAIntegration": False,
    "KueueDRAIntegrationExtendedResource": False,
    "KueueDRAIntegrationPartitionableDevices": False,
    "KueueDRAIntegrationConsumableCapacity": False,
}

Manifest = dict[str, Any]


class KueueController:
    """`start` it once; it ends with the API server's other programs."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server
        self._folder = cache_folder() / f"kueue-{VERSION}"
        self._webhook_port, self._health_port = free_port(), free_port()
        self.log = server.folder / "kueue.log"

    def start(self) -> None:
        """Returns when it leads and its webhooks are asked."""
        if not (self._folder / "kueue").exists():
            print(f"building Kueue {VERSION}: minutes, once on this machine", flush=True)
            subprocess.run([BUILD_SCRIPT, self._folder], check=True)
        definitions = [yaml.safe_load(path.read_text()) for path in (self._folder / "definitions").glob("*.yaml")]
        for each in definitions:
            self._server.call("POST", CRDS, _newest_only(each))
        self._wait_served({each["spec"]["names"]["plural"] for each in definitions})
        with suppress(Refused):
            self._server.call("POST", "/api/v1/namespaces", {"metadata": {"name": "kueue-system"}})
        configuration = self._configuration()
        command = ["unshare", "--mount", "sh", "-c", WITH_CERTIFICATES, "sh", str(self._server.folder)]
        command += [str(self._folder / "kueue"), f"--config={configuration}", "--zap-log-level=2"]
        # An old API server does not send what a list by watching waits for.
        env = {
            **os.environ,
            "KUBECONFIG": str(self._server.admin_kubeconfig()),
            "KUBE_FEATURE_WatchListClient": "false",
            "POD_NAMESPACE": "kueue-system",
        }
        process = ServerProcess("kueue", command, self.log, env)
        self._server.others.append(process)
        process.start()
        process.wait_until(self._ready, patient(READY_S_MAX))
        self._ask_webhooks()

    def _wait_served(self, plurals: set[str]) -> None:
        """Until every kind is served: a definition is a moment before that."""
        deadline = time.monotonic() + patient(SERVED_S_MAX)
        while True:
            with suppress(Refused):
                served = {each["name"] for each in self._server.call("GET", SERVED)["resources"]}
                if plurals <= served:
                    return
            if time.monotonic() > deadline:
                raise RuntimeError(f"{SERVED} does not serve {sorted(plurals)}")
            time.sleep(0.2)

    def _configuration(self) -> Path:
        serving = self._server.authority.server("kueue", ["localhost"], ["127.0.0.1"])
        keys = self._server.folder / "kueue-keys"
        keys.mkdir()
        (keys / "tls.crt").write_bytes(serving.certificate.read_bytes())
        (keys / "tls.key").write_bytes(serving.key.read_bytes())
        configuration = {
            "apiVersion": "config.kueue.x-k8s.io/v1beta2",
            "kind": "Configuration",
            "health": {"healthProbeBindAddress": f"127.0.0.1:{self._health_port}"},
            "metrics": {"bindAddress": "0"},
            "webhook": {"host": "127.0.0.1", "port": self._webhook_port, "certDir": str(keys)},
            "leaderElection": {"leaderElect": False},
            "internalCertManagement": {"enable": False},
            "integrations": {
                "frameworks": ["batch/job"],
                "externalFrameworks": ["TrainingJob.v1alpha1.holdfast.dev"],
            },
            "featureGates": GATES,
        }
        path = self._server.folder / "kueue.yaml"
        path.write_text(json.dumps(configuration))  # JSON is YAML
        return path

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self._health_port}/readyz", timeout=5.0) as answer:
                ready: bool = answer.status == 200
                return ready
        except OSError:
            return False

    def _ask_webhooks(self) -> None:
        authority = base64.b64encode(self._server.authority.certificate.read_bytes()).decode()
        for document in yaml.safe_load_all((self._folder / "webhooks.yaml").read_text()):
            asked = [each for each in document["webhooks"] if set(each["rules"][0]["resources"]) & {*JUDGED}]
            for each in asked:
                path = each["clientConfig"]["service"]["path"]
                each["clientConfig"] = {
                    "url": f"https://127.0.0.1:{self._webhook_port}{path}",
                    "caBundle": authority,
                }
            plural = f"{document['kind'].lower()}s"
            self._server.call("POST", f"{ADMISSION}/{plural}", {**document, "webhooks": asked})


def _newest_only(definition: Manifest) -> Manifest:
    """Without the older versions: nobody would convert between them."""
    versions = [each for each in definition["spec"]["versions"] if each["storage"]]
    return {**definition, "spec": {**definition["spec"], "versions": versions}}
