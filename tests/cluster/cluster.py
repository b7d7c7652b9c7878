"""A real Kubernetes cluster on this machine: its control plane, and nodes in namespaces of their own.

One at a time per machine. What an earlier run left, even one that was killed, is cleared away at the start.
Source: https://kubernetes.io/docs/reference/command-line-tools-reference/ (what the flags mean)
"""

import fcntl
import subprocess
import sys
import time
import urllib.parse
import urllib.request
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any, Self

import bridge
import cgroups
import cluster_dns
import cluster_images
import cluster_packages
import machine
from apiserver import ADMIN_TOKEN, ApiServer, ApiServerSettings
from debian_packages import cache_folder
from kubernetes_binaries import CONTAINERD, NEWEST, kubernetes_program
from node_files import DNS_ADDRESS, POD_RANGE, NodeAddress
from nodes import Node
from patience import patient
from server_process import ServerProcess, free_port

POLL_S = 0.2
# How long anything is waited for. A kubelet lets a deleted pod go only once its collector of dead containers has
# been round, which it is once a minute. Source: pkg/kubelet/kubelet.go of Kubernetes (ContainerGCPeriod)
WITHIN_S = patient(180.0)
KUBECTL_S_MAX = WITHIN_S + 20.0
FETCH_S_MAX = patient(10.0)


class Cluster:
    """`with Cluster(archives=[...]) as cluster`: ready nodes, with these images on all of them.

    `archives` are docker- or OCI-archives; the busybox image (cluster_images.BUSYBOX_IMAGE) is always there. Pods
    may not pull (`imagePullPolicy: IfNotPresent`, or Never), for there is no registry.
    `times` says what each stage took, in seconds.
    """

    def __init__(self, *, nodes: int = 3, archives: Sequence[Path] = ()):
        self.folder = cache_folder() / "cluster"
        self.archives = archives
        self.addresses = [NodeAddress(f"node-{number}", number) for number in range(1, nodes + 1)]
        self.nodes: dict[str, Node] = {}
        self.times: dict[str, float] = {}
        self._ends = ExitStack()

    @property
    def server(self) -> ApiServer:
        return self._server

    def __enter__(self) -> Self:
        try:
            self._start()
        except BaseException:
            self._ends.close()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.close()

    def kubectl(self, *arguments: str | Path, given: str | None = None) -> str:
        """What kubectl printed, as the administrator. `given` is its standard input. Raises RuntimeError."""
        command = [kubernetes_program("kubectl"), f"--kubeconfig={self._server.admin_kubeconfig()}", *arguments]
        result = subprocess.run(
            [str(each) for each in command],
            input=given,
            capture_output=True,
            text=True,
            timeout=KUBECTL_S_MAX,
            check=False,
        )
        if result.returncode != 0:
            words = " ".join(map(str, arguments))
            raise RuntimeError(f"kubectl {words} ended with {result.returncode}: {result.stderr}{result.stdout}")
        return result.stdout

    def pods(self, namespace: str, selector: str) -> dict[str, dict[str, Any]]:
        """The pods with these labels by name, also those that ended or are on their way out.

        Asked without kubectl, which takes a tenth of a second of CPU: this is what tests poll.
        """
        query = urllib.parse.urlencode({"labelSelector": selector})
        listed = self._server.call("GET", f"/api/v1/namespaces/{namespace}/pods?{query}")
        return {pod["metadata"]["name"]: pod for pod in listed["items"]}

    def fetch(self, url: str) -> str:
        """GET from this machine: pods and services can be called from here by address."""
        with urllib.request.urlopen(url, timeout=FETCH_S_MAX) as answer:
            body: bytes = answer.read()
        return body.decode().strip()

    def load(self, archive: Path) -> None:
        """Import an image into all nodes at once."""
        with ThreadPoolExecutor() as pool:
            list(pool.map(lambda node: node.load(archive), self.nodes.values()))

    def new_namespace(self, prefix: str = "test") -> str:
        """A namespace in which pods can be created: it has its service account and the API server's authority."""
        name = self._server.new_namespace(prefix)
        for part in ("serviceaccounts/default", "configmaps/kube-root-ca.crt"):
            path = f"/api/v1/namespaces/{name}/{part}"
            self.wait(path, partial(self._server.has, path))
        return name

    def wait(self, what: str, is_so: Callable[[], Any], within_s: float = WITHIN_S) -> None:
        """Poll until `is_so` returns something true. Raises AssertionError that shows nodes, pods and events."""
        deadline = time.monotonic() + within_s
        while not is_so():
            if time.monotonic() > deadline:
                raise AssertionError(f"not {what} within {within_s} s\n{self.describe()}")
            time.sleep(POLL_S)

    def describe(self) -> str:
        """What a person would look at first."""
        events = self.kubectl("get", "events", "-A", "--sort-by=.lastTimestamp").splitlines()[-25:]
        return "\n".join((self.kubectl("get", "nodes,pods", "-A", "-o", "wide"), *events))

    def wait_ready(self, name: str, within_s: float = WITHIN_S) -> None:
        self.wait(f"{name} Ready", lambda: self.nodes[name].is_ready(self._server), within_s)

    def _start(self) -> None:
        self._stage("packages and programs", self._get_programs)
        self._stage("clearing", self._claim)
        self._stage("images", self._prepare_images)
        self._stage("bridge", lambda: bridge.set_up(self.addresses))
        with ThreadPoolExecutor() as pool:
            machines = pool.submit(self._stage, "machines", self._boot_nodes)
            self._stage("API server", self._start_server)
            machines.result()
        self._stage("controllers and DNS", self._start_controllers)
        self._stage("kubelets", self._join_nodes)
        self._stage("nodes Ready", self._wait_for_nodes)

    def _stage(self, name: str, work: Callable[[], Any]) -> None:
        started = time.monotonic()
        work()
        self.times[name] = round(time.monotonic() - started, 2)

    def _get_programs(self) -> None:
        cluster_packages.install()
        for release in (NEWEST, CONTAINERD):
            for program in release.programs:
                release.program(program)

    def _claim(self) -> None:
        self.folder.mkdir(parents=True, exist_ok=True)
        lock = self._ends.enter_context((self.folder / "lock").open("w"))
        fcntl.flock(lock, fcntl.LOCK_EX)  # another run's cluster comes first
        self._clear()
        self._ends.callback(self._clear)

    def _clear(self) -> None:
        machine.kill_lost()
        bridge.tear_down()
        cgroups.remove_all()
        for address in self.addresses:
            machine.erase(self.folder / address.name)

    def _prepare_images(self) -> None:
        archives = [*cluster_images.basic_archives(self.folder / "archives"), *self.archives]
        self._template = cluster_images.template(self.folder / "template", archives)

    def _boot_nodes(self) -> None:
        for address in self.addresses:
            folder = self.folder / address.name
            others = [each for each in self.addresses if each != address]
            cluster_images.copy_root(self._template, folder / "containerd")
            self.nodes[address.name] = Node(address, folder, others)
            self._ends.callback(self.nodes[address.name].machine.kill)
        with ThreadPoolExecutor() as pool:
            list(pool.map(Node.boot, self.nodes.values()))

    def _join_nodes(self) -> None:
        for node in self.nodes.values():
            node.join(self._server)

    def _wait_for_nodes(self) -> None:
        for name in self.nodes:
            self.wait_ready(name)

    def _start_server(self) -> None:
        settings = ApiServerSettings(
            address=bridge.ADDRESS,
            addresses=(bridge.ADDRESS,),
            service_range=bridge.SERVICE_RANGE,
            mounts_service_accounts=True,
            flags=(f"--advertise-address={bridge.ADDRESS}", "--enable-admission-plugins=NodeRestriction"),
        )
        self._server = ApiServer(settings)
        self._ends.callback(self._server.close)
        self._server.start()

    def _start_controllers(self) -> None:
        self._server.controller_manager(f"--cluster-cidr={POD_RANGE}", "--allocate-node-cidrs=false")
        self._server.scheduler()
        port = free_port()
        command: list[str | Path] = [sys.executable, cluster_dns.__file__, bridge.ADDRESS, str(port)]
        command += [self._server.url, self._server.authority.certificate, ADMIN_TOKEN]
        names = ServerProcess("DNS", command, self._server.folder / "dns.log")
        self._server.others.append(names)
        names.start()
        # No selector: the address is this machine's, where the program above listens.
        dns = {"name": "dns", "protocol": "UDP", "port": 53}
        manifest = {
            "metadata": {"name": "kube-dns"},
            "spec": {"clusterIP": DNS_ADDRESS, "ports": [{**dns, "targetPort": port}]},
        }
        self._server.call("POST", "/api/v1/namespaces/kube-system/services", manifest)
        self._server.new_endpoints("kube-system", "kube-dns", bridge.ADDRESS, {**dns, "port": port})
