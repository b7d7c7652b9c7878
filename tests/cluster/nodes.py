"""A node of the test cluster: a machine with containerd, kubelet and kube-proxy."""

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

import bridge
import cgroups
from apiserver import ApiServer, Refused
from cluster_images import load, start_containerd
from kubernetes_binaries import kubernetes_program
from machine import Machine
from node_files import CONTAINERD_SOCKET, POD_RANGE, NodeAddress, cni_config, kubelet_config


class Node:
    """`boot`, `join` once the API server is there, then `kill` and `start` as often as a test likes."""

    def __init__(self, address: NodeAddress, folder: Path, others: Sequence[NodeAddress]):
        self.address = address
        self.name = address.name
        self.others = others
        self.machine = Machine(self.name, folder)
        self._server: ApiServer | None = None
        self._joined_at = datetime.now(UTC)

    def boot(self) -> None:
        """The machine with its network and containerd, no Kubernetes yet."""
        self.machine.start()
        bridge.plug(self.address, self.machine.init)
        bridge.connect(self.address, self.machine.init, self.others)
        cni = self.machine.folder / "cni"
        cni.mkdir(exist_ok=True)
        (cni / "10-pods.conflist").write_text(cni_config(self.address))
        start_containerd(self.machine)

    def join(self, server: ApiServer) -> None:
        """Become a node of the cluster. Whether it is Ready is for the cluster to say."""
        self._server = server
        self._joined_at = datetime.now(UTC).replace(microsecond=0)  # the kubelet tells whole seconds
        self.start_kubelet()
        config = server.kubeconfig("system:kube-proxy")
        self.machine.spawn(
            "kube-proxy",
            kubernetes_program("kube-proxy"),
            *(f"--kubeconfig={config}", "--proxy-mode=iptables", f"--cluster-cidr={POD_RANGE}"),
            *(f"--hostname-override={self.name}", "--iptables-min-sync-period=100ms"),
            # These settings belong to the whole machine, and a namespace may not write them.
            *("--conntrack-max-per-core=0", "--conntrack-min=0"),
            *("--conntrack-tcp-timeout-established=0", "--conntrack-tcp-timeout-close-wait=0"),
        )

    def start_kubelet(self) -> None:
        if self._server is None:
            raise RuntimeError(f"{self.name} has not joined a cluster")
        group = cgroups.make(self.name)
        folder = self.machine.folder
        (folder / "kubelet.json").write_text(kubelet_config(self._server.authority.certificate, group))
        config = self._server.kubeconfig(f"system:node:{self.name}", ["system:nodes"])
        self.machine.spawn(
            "kubelet",
            kubernetes_program("kubelet"),
            *("--config=/srv/kubelet.json", f"--kubeconfig={config}", "--root-dir=/var/lib/kubelet"),
            f"--container-runtime-endpoint=unix://{CONTAINERD_SOCKET}",
            *(f"--node-ip={self.address.address}", f"--hostname-override={self.name}"),
            *("--volume-plugin-dir=/srv/volume-plugins", "--cert-dir=/srv/kubelet-keys"),
        )

    def kill_kubelet(self) -> None:
        """Only the kubelet dies; containers run on."""
        self.machine.programs.pop("kubelet").kill()

    def kill(self) -> None:
        """As a machine losing power: nobody is told, connections hang, containers are gone."""
        bridge.unplug(self.address)
        self.machine.kill()
        bridge.remove_port(self.address)

    def start(self) -> None:
        """Bring it back with its disk."""
        if self._server is None:
            raise RuntimeError(f"{self.name} has not joined a cluster")
        self.boot()
        self.join(self._server)

    def load(self, archive: Path) -> None:
        load(self.machine, archive)

    def container_processes(self, text: str) -> list[int]:
        """Process numbers (as the node counts) of what has `text` in its command line."""
        listed = self.machine.run("ps", "-eo", "pid,args").splitlines()[1:]
        return [int(line.split()[0]) for line in listed if text in line]

    def kill_pod(self, uid: str) -> int:
        """SIGKILL to every process of a pod, by its control group; how many there were."""
        listing = 'grep -ls "pod$0" /proc/[0-9]*/cgroup | cut -d/ -f3 || true'
        processes = self.machine.run("sh", "-c", listing, uid).split()
        # The first to go, the pod's sandbox, takes others with it.
        self.machine.run("sh", "-c", 'kill -KILL "$@" 2>/dev/null || true', "kill", *processes)
        return len(processes)

    def is_ready(self, server: ApiServer) -> bool:
        """Whether its kubelet says so since it last joined: for 40 s nobody notices that a node is gone.

        Raises ServerFailed with its log when a program of the node has ended by itself.
        """
        for program in self.machine.programs.values():
            program.check()
        try:
            conditions = server.call("GET", f"/api/v1/nodes/{self.name}")["status"].get("conditions", [])
        except Refused:  # not registered yet
            return False
        ready = next((each for each in conditions if each["type"] == "Ready"), None)
        if ready is None or ready["status"] != "True":
            return False
        return datetime.fromisoformat(ready["lastHeartbeatTime"]) >= self._joined_at
