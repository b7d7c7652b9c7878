"""Holdfast's own parts in the test cluster, as somebody with kubectl sees them."""

import json
from contextlib import suppress
from typing import Any

from cluster import Cluster
from holdfast_images import chart_values

NAMESPACE = "holdfast"
PARTS = ("operator", "watchdog", "agent", "redis")
REDIS_PODS = 3


def values() -> dict[str, Any]:
    """What only a cluster without a registry needs; its storage is a SharedVolume."""
    given: dict[str, Any] = chart_values()
    return {**given, "redis": {**given["redis"], "persistence": {"enabled": True, "size": "1Gi"}}}


class Installation:
    """What `helm install holdfast` made."""

    def __init__(self, cluster: Cluster):
        self.cluster = cluster

    def kubectl(self, *arguments: str) -> str:
        return self.cluster.kubectl("-n", NAMESPACE, *arguments)

    def field(self, kind: str, name: str, path: str) -> str:
        return self.kubectl("get", kind, name, "-o", f"jsonpath={{{path}}}")

    def pods(self, part: str) -> dict[str, dict[str, Any]]:
        """The pods of one of PARTS, by name."""
        return self.cluster.pods(NAMESPACE, f"app.kubernetes.io/component={part}")

    def leader(self) -> str:
        """The watchdog's pod that leads, empty while none does."""
        for name in self.pods("watchdog"):
            proxy = f"/api/v1/namespaces/{NAMESPACE}/pods/{name}:7077/proxy/readyz"
            with suppress(RuntimeError):  # it has just gone, or is not there yet
                if '"leading"' in self.kubectl("get", "--raw", proxy, "--request-timeout=3s"):
                    return name
        return ""

    def primary(self) -> str:
        """The Redis' pod that takes writes, empty while none does."""
        for name in self.pods("redis"):
            with suppress(RuntimeError):  # it is not there, or its node is not
                said = self.kubectl("exec", name, "-c", "redis", "--", "redis-cli", "ROLE")
                if said.startswith("master"):
                    return name
        return ""

    def is_whole(self) -> bool:
        """Every pod is ready, Redis' primary has both its replicas, and each Sentinel can call for another one.

        Asked of the programs themselves: of a node that has just come back the API server has old news.
        """
        pods = [pod for part in PARTS for pod in self.pods(part).values()]
        if not all(is_ready(pod) for pod in pods) or not (primary := self.primary()):
            return False
        asked = ("redis-cli", "-p", "26379", "SENTINEL", "CKQUORUM", "holdfast")
        try:
            replicas = self.kubectl("exec", primary, "-c", "redis", "--", "redis-cli", "INFO", "replication")
            quorum = [self.kubectl("exec", name, "-c", "sentinel", "--", *asked) for name in self.pods("redis")]
        except RuntimeError:  # a container that is just being made anew
            return False
        replicated = replicas.count("state=online") == REDIS_PODS - 1
        return replicated and all(said.startswith(f"OK {REDIS_PODS} usable Sentinels") for said in quorum)

    def lease_holder(self) -> str:
        """The operator's pod that acts."""
        path = f"/apis/coordination.k8s.io/v1/namespaces/{NAMESPACE}/leases/holdfast-operator"
        holder: str = self.cluster.server.call("GET", path)["spec"]["holderIdentity"]
        return holder

    def kill(self, *pods: str) -> None:
        """SIGKILL to every process of them, as when each crashed at once; other pods come in their place.

        Without the signal a watchdog would have the time to hand its lead over.
        """
        for pod in pods:
            there = json.loads(self.kubectl("get", "pod", pod, "-o", "json"))
            assert self.cluster.nodes[there["spec"]["nodeName"]].kill_pod(there["metadata"]["uid"]), pod
        self.kubectl("delete", "pod", *pods, "--grace-period=0", "--force")

    def definitions(self) -> int:
        """How many of Holdfast's definitions there are."""
        return self.kubectl("get", "crd", "-o", "name").count(".holdfast.dev")


def is_ready(pod: dict[str, Any]) -> bool:
    """A pod that is on its way out does not count against the whole: another one is in its place."""
    if "deletionTimestamp" in pod["metadata"]:
        return True
    return any(
        each["type"] == "Ready" and each["status"] == "True" for each in pod["status"].get("conditions", ())
    )
