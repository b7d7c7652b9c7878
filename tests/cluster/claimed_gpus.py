"""GPUs that pods claim (dynamic resource allocation): Kubernetes' own test driver on each node, two devices each.

Scheduler, claims and kubelets are real; a device is a variable in the environment of the container that got it.
Source: test/e2e/dra/test-driver of Kubernetes
"""

import json
from typing import Any

from cluster import Cluster
from kubernetes_binaries import kubernetes_program
from live_job import LiveJob
from nodes import Node

DRIVER = "gpu.example.com"  # the name of the example of a driver for GPUs, which Holdfast counts by
PER_NODE = 2
PROGRAM = "gpu-driver"
TEMPLATE = "two-gpus"
REQUEST = "gpus"
MARK = f"_{REQUEST}=true\n"
"""What a container has in its environment that got its devices."""


class ClaimedGpus:
    """The driver on every node, and the class of its devices."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster

    def start(self) -> None:
        selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
        metadata = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": DRIVER}}
        self._apply({**metadata, "kind": "DeviceClass", "spec": {"selectors": [selector]}})
        for node in self.cluster.nodes.values():
            self.start_on(node)
        self.cluster.wait("devices of every node", self._is_whole)

    def start_on(self, node: Node) -> None:
        """Also after the node was without power."""
        kubelet = "/var/lib/kubelet"
        node.machine.run("mkdir", "-p", f"{kubelet}/plugins/{DRIVER}")
        node.machine.spawn(
            PROGRAM,
            kubernetes_program("dra-test-driver"),
            *(f"--kubeconfig={self.cluster.server.admin_kubeconfig()}", f"--drivername={DRIVER}"),
            *("kubelet-plugin", f"--node-name={node.name}", f"--num-devices={PER_NODE}", "--cdi-dir=/run/cdi"),
            *(f"--datadir={kubelet}/plugins", f"--plugin-registration-path={kubelet}/plugins_registry"),
        )

    def stop(self) -> None:
        for node in self.cluster.nodes.values():
            if driver := node.machine.programs.pop(PROGRAM, None):
                driver.kill()
        self.cluster.kubectl("delete", "deviceclass", DRIVER, "--ignore-not-found")
        self.cluster.kubectl("delete", "resourceslices", "--all")

    def template(self) -> dict[str, Any]:
        """What a job names: a claim of both devices of a node for each of its pods."""
        exactly = {"deviceClassName": DRIVER, "count": PER_NODE}
        spec = {"spec": {"devices": {"requests": [{"name": REQUEST, "exactly": exactly}]}}}
        kind = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaimTemplate"}
        return {**kind, "metadata": {"name": TEMPLATE}, "spec": spec}

    def held(self, job: LiveJob) -> dict[str, str]:
        """The pool, which is a node, of which each pod holds devices. A claim that holds none is left out."""
        claims = json.loads(job.kubectl("get", "resourceclaims", "-o", "json"))["items"]
        held = {}
        for claim in claims:
            results = claim.get("status", {}).get("allocation", {}).get("devices", {}).get("results", [])
            pods = [each["name"] for each in claim.get("status", {}).get("reservedFor", [])]
            if pods and len(results) == PER_NODE:
                held[pods[0]] = results[0]["pool"]
        return held

    def _is_whole(self) -> bool:
        """Raises ServerFailed with its log when a driver has ended."""
        for node in self.cluster.nodes.values():
            node.machine.programs[PROGRAM].check()
        slices = json.loads(self.cluster.kubectl("get", "resourceslices", "-o", "json"))["items"]
        return len(slices) == len(self.cluster.nodes)

    def _apply(self, manifest: dict[str, Any]) -> None:
        self.cluster.kubectl("apply", "-f", "-", given=json.dumps(manifest))
