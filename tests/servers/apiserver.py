"""A real Kubernetes API server of a test's own: etcd and kube-apiserver on free loopback ports.

Nothing else runs unless it is asked for: no pod is scheduled or started (fake_kubelet.py plays that), nothing
that lost its owner is collected, a deleted namespace stays. `controller_manager()` and `scheduler()` start the
real ones.
"""

import http.client
import json
import os
import shutil
import ssl
import tempfile
import urllib.parse
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import uuid4

from cluster_keys import Authority
from etcd_server import EtcdServer
from kubernetes_binaries import kubernetes_program
from patience import patient
from server_process import ServerProcess, free_port

READY_S_MAX = patient(60.0)
ISSUER = "https://kubernetes.default.svc"
FOLDER_PREFIX = "holdfast-api-"  # followed by the test run's process number
ADMIN_TOKEN = "admin-token"  # of a server on loopback that lives as long as one test run


@dataclass(frozen=True)
class ApiServerSettings:
    """How the server is started.

    `mounts_service_accounts` turns the admission on that mounts tokens into pods. It needs a controller manager,
    which makes the `default` accounts: a bare API server goes without, else no pod could be created.
    """

    address: str = "127.0.0.1"
    names: tuple[str, ...] = ()  # more names it is called by
    addresses: tuple[str, ...] = ()  # more addresses it is reached at
    service_range: str = "10.96.0.0/16"
    service_address: str = "10.96.0.1"  # the first of the range: the VIP of service `kubernetes`
    mounts_service_accounts: bool = False
    flags: tuple[str, ...] = ()


class Refused(RuntimeError):
    """The API server answered with an error."""

    def __init__(self, code: int, body: dict[str, Any]):
        super().__init__(f"{code} {body.get('reason', '')}: {body.get('message', '')}")
        self.code = code
        self.body = body


class ApiServer:
    """`start`, then use `url`, `kubeconfig(...)`, `call(...)`. Ports, keys and objects outlive `stop` and `kill`.

    `close` stops all and deletes the folder. All calls block; the longest is `start` (about 6 s).
    """

    def __init__(self, settings: ApiServerSettings | None = None):
        self.settings = settings or ApiServerSettings()
        self.folder = _new_folder()
        self.port = free_port()
        self.url = f"https://{self.settings.address}:{self.port}"
        self.authority = Authority(self.folder / "keys")
        self.etcd = EtcdServer(self.folder)
        self.process = ServerProcess("kube-apiserver", self._command(), self.folder / "apiserver.log")
        self.others: list[ServerProcess] = []
        self.ssl = ssl.create_default_context(cafile=str(self.authority.certificate))

    def start(self) -> None:
        """Returns when it is ready, its own roles made."""
        if not self.etcd.process.running:
            self.etcd.start()
        self.process.start()
        self.process.wait_until(self.ready, READY_S_MAX)

    def stop(self) -> None:
        """End it in order. etcd stays, so `start` brings the same objects back."""
        self.process.stop()

    def kill(self) -> None:
        """End it as a crash would. etcd stays."""
        self.process.kill()

    def restart(self) -> None:
        self.kill()
        self.start()

    def expire_watches(self) -> None:
        """Compact etcd and restart: a watch or list from an older resource version then gets 410 Gone.

        Compacting alone is not enough, for the server answers watches from its own cache of recent changes.
        """
        self.etcd.compact()
        self.restart()

    def close(self) -> None:
        for each in (*reversed(self.others), self.process, self.etcd.process):
            each.kill()  # nothing is kept, and an orderly end may wait for open watches
        shutil.rmtree(self.folder, ignore_errors=True)

    def ready(self) -> bool:
        try:
            self.call("GET", "/readyz")
        except (OSError, http.client.HTTPException, Refused):
            return False
        return True

    def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content: str = "application/json",
        token: str = ADMIN_TOKEN,
    ) -> dict[str, Any]:
        """One request, as the administrator unless another token is given. Raises Refused."""
        connection = http.client.HTTPSConnection(
            self.settings.address, self.port, context=self.ssl, timeout=patient(30.0)
        )
        try:
            headers = {"Authorization": f"Bearer {token}", "Content-Type": content}
            connection.request(method, path, None if body is None else json.dumps(body), headers)
            answer = connection.getresponse()
            raw = answer.read()
        finally:
            connection.close()
        is_json = "json" in (answer.getheader("Content-Type") or "")
        decoded = json.loads(raw) if is_json else {"message": raw.decode()}
        if answer.status >= 400:
            raise Refused(answer.status, decoded)
        assert isinstance(decoded, dict)
        return decoded

    def apply(self, path: str, manifest: dict[str, Any]) -> dict[str, Any]:
        """Server-side apply. `path` is the object's own, with its name."""
        query = urllib.parse.urlencode({"fieldManager": "test", "force": "true"})
        return self.call("PATCH", f"{path}?{query}", manifest, content="application/apply-patch+yaml")

    def new_namespace(self, prefix: str = "test") -> str:
        """Make a namespace of a name nobody had, with its `default` service account; returns the name."""
        name = f"{prefix}-{uuid4().hex[:8]}"
        self.call("POST", "/api/v1/namespaces", {"metadata": {"name": name}})
        if not self.settings.mounts_service_accounts:
            self.new_service_account(name, "default")
        return name

    def new_service_account(self, namespace: str, name: str) -> None:
        """Make it, unless it is there: a controller manager may have been faster with `default`."""
        try:
            self.call("POST", f"/api/v1/namespaces/{namespace}/serviceaccounts", {"metadata": {"name": name}})
        except Refused as refused:
            if refused.code != http.client.CONFLICT:
                raise

    def has(self, path: str) -> bool:
        """Whether there is such an object."""
        try:
            self.call("GET", path)
        except Refused as refused:
            if refused.code != http.client.NOT_FOUND:
                raise
            return False
        return True

    def new_endpoints(
        self, namespace: str, service: str, address: str, port: dict[str, Any], *, pod: str = ""
    ) -> None:
        """Say who answers for a service, as a controller does of one with a selector; of `pod` where named.

        `port` is that of an EndpointSlice: name, port, and protocol unless it is TCP.
        """
        endpoint: dict[str, Any] = {"addresses": [address], "conditions": {"ready": True}}
        if pod:
            endpoint["targetRef"] = {"kind": "Pod", "namespace": namespace, "name": pod}
        labels = {"kubernetes.io/service-name": service}
        manifest = {
            "metadata": {"name": f"{service}-test", "labels": labels},
            "addressType": "IPv4",
            "endpoints": [endpoint],
            "ports": [port],
        }
        self.call("POST", f"/apis/discovery.k8s.io/v1/namespaces/{namespace}/endpointslices", manifest)

    def service_account_token(
        self, namespace: str, name: str, audiences: Sequence[str] = (ISSUER,), *, pod: str = ""
    ) -> str:
        """A token as a pod of that account would have it mounted, good for an hour; bound to `pod` where named."""
        path = f"/api/v1/namespaces/{namespace}/serviceaccounts/{name}/token"
        spec: dict[str, Any] = {"audiences": list(audiences), "expirationSeconds": 3600}
        if pod:
            spec["boundObjectRef"] = {"apiVersion": "v1", "kind": "Pod", "name": pod}
        request = {"spec": spec}
        token: str = self.call("POST", path, request)["status"]["token"]
        return token

    def admin_kubeconfig(self) -> Path:
        return self._write_kubeconfig("admin", {"token": ADMIN_TOKEN})

    def kubeconfig(self, user: str, groups: Sequence[str] = ()) -> Path:
        """For any user, by client certificate. What the user may do is up to RBAC."""
        pair = self.authority.user(user, groups)
        login = {"client-certificate": str(pair.certificate), "client-key": str(pair.key)}
        return self._write_kubeconfig(user, login)

    def service_account_kubeconfig(self, namespace: str, name: str) -> Path:
        """For a service account, by a token."""
        return self._write_kubeconfig(
            f"{namespace}.{name}", {"token": self.service_account_token(namespace, name)}
        )

    def controller_manager(self, *flags: str) -> ServerProcess:
        """Start the real one: collection of what lost its owner, namespaces, accounts, budgets, node lifecycle.

        A later flag wins, e.g. `--controllers=*,-nodelifecycle` beside fake nodes that send no heartbeats.
        """
        return self._start_other(
            "kube-controller-manager",
            *("--use-service-account-credentials=true", f"--root-ca-file={self.authority.certificate}"),
            f"--service-account-private-key-file={self._account_key}",
            *("--leader-elect=false", "--node-monitor-period=1s", "--node-monitor-grace-period=8s"),
            *("--concurrent-gc-syncs=8", *flags),
        )

    def scheduler(self, *flags: str) -> ServerProcess:
        """Start the real one. Do not use it beside FakeKubelet, which binds pods itself."""
        return self._start_other("kube-scheduler", "--leader-elect=false", *flags)

    def _start_other(self, name: str, *flags: str) -> ServerProcess:
        config = self.kubeconfig(f"system:{name}", ("system:masters",))
        port = free_port()
        command: list[str | Path] = [kubernetes_program(name), f"--kubeconfig={config}"]
        command += ["--bind-address=127.0.0.1", f"--secure-port={port}"]
        command += [f"--cert-dir={self.folder / name}"]
        process = ServerProcess(name, [*command, *flags], self.folder / f"{name}.log")
        self.others.append(process)
        process.start()
        process.wait_until(lambda: _says_ok(port), READY_S_MAX)
        return process

    def _write_kubeconfig(self, name: str, login: dict[str, str]) -> Path:
        config = {
            "apiVersion": "v1",
            "kind": "Config",
            "current-context": "test",
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": name}}],
            "clusters": [
                {
                    "name": "test",
                    "cluster": {"server": self.url, "certificate-authority": str(self.authority.certificate)},
                }
            ],
            "users": [{"name": name, "user": login}],
        }
        path = self.folder / f"kubeconfig-{name.replace(':', '_').replace('/', '_')}.yaml"
        path.write_text(json.dumps(config, indent=2))  # JSON is YAML
        return path

    def _command(self) -> list[str | Path]:
        settings = self.settings
        tokens = self.folder / "tokens.csv"
        tokens.write_text(f'{ADMIN_TOKEN},admin,admin,"system:masters"\n')
        serving = self.authority.server(
            "apiserver",
            ["localhost", "kubernetes", "kubernetes.default", "kubernetes.default.svc", *settings.names],
            ["127.0.0.1", settings.service_address, *settings.addresses],
        )
        kubelets = self.authority.user("kube-apiserver-kubelet-client", ["system:masters"])
        self._account_key = self.authority.signing_key("service-accounts")
        off = "" if settings.mounts_service_accounts else "ServiceAccount"
        return [
            kubernetes_program("kube-apiserver"),
            *(f"--etcd-servers={self.etcd.endpoint}", f"--service-cluster-ip-range={settings.service_range}"),
            *(f"--bind-address={settings.address}", f"--secure-port={self.port}"),
            *(f"--tls-cert-file={serving.certificate}", f"--tls-private-key-file={serving.key}"),
            *(f"--client-ca-file={self.authority.certificate}", f"--token-auth-file={tokens}"),
            f"--kubelet-client-certificate={kubelets.certificate}",
            *(f"--kubelet-client-key={kubelets.key}", "--kubelet-preferred-address-types=InternalIP"),
            *("--authorization-mode=Node,RBAC", "--allow-privileged=true"),
            *(f"--service-account-issuer={ISSUER}", f"--api-audiences={ISSUER}"),
            *(f"--service-account-signing-key-file={self._account_key}",),
            *(f"--service-account-key-file={self._account_key}",),
            *([f"--disable-admission-plugins={off}"] if off else []),
            *("--max-requests-inflight=2000", "--max-mutating-requests-inflight=1000"),
            *settings.flags,
        ]


def _new_folder() -> Path:
    """In memory where possible, for etcd waits for the disk on every write. Removes those of dead test runs."""
    parent = Path("/dev/shm" if Path("/dev/shm").is_dir() else tempfile.gettempdir())
    for folder in parent.glob(f"{FOLDER_PREFIX}*"):
        owner = folder.name.removeprefix(FOLDER_PREFIX).split("-")[0]
        if owner.isdigit() and not Path(f"/proc/{owner}").exists():
            shutil.rmtree(folder, ignore_errors=True)
    return Path(tempfile.mkdtemp(prefix=f"{FOLDER_PREFIX}{os.getpid()}-", dir=parent))


def _says_ok(port: int) -> bool:
    """Whether a Kubernetes program on loopback says it is well. Its certificate is self-made, so not checked."""
    connection = http.client.HTTPSConnection(
        "127.0.0.1", port, context=ssl._create_unverified_context(), timeout=2.0
    )
    try:
        connection.request("GET", "/healthz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()
