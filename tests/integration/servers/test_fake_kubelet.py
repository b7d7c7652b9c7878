"""The played kubelet does what tests of the operator take for granted."""

from typing import Any

from apiserver import ApiServer
from fake_kubelet import FakeKubelet

ALONE = {
    "podAntiAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": [
            {"topologyKey": "kubernetes.io/hostname", "labelSelector": {"matchLabels": {"job": "j"}}}
        ]
    }
}


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none"}
    return {"metadata": {"name": name, "labels": {"job": "j"}}, "spec": {"containers": [container], **spec}}


class Pods:
    def __init__(self, server: ApiServer, namespace: str):
        self.server = server
        self.path = f"/api/v1/namespaces/{namespace}/pods"

    def create(self, name: str, **spec: Any) -> None:
        self.server.call("POST", self.path, pod(name, **spec))

    def get(self, name: str) -> Any:
        return self.server.call("GET", f"{self.path}/{name}")

    def delete(self, name: str) -> None:
        self.server.call("DELETE", f"{self.path}/{name}")


def names(namespace: str, count: int) -> list[str]:
    return [f"{namespace}-{number}" for number in range(count)]


async def test_a_pod_is_bound_and_runs_and_is_gone_after_deletion(apiserver: ApiServer, namespace: str) -> None:
    pods = Pods(apiserver, namespace)
    async with FakeKubelet(apiserver, namespace) as kubelet:
        await kubelet.add_nodes(names(namespace, 1))
        pods.create("a")
        await kubelet.wait_running(1)

        seen = pods.get("a")
        assert seen["spec"]["nodeName"] == f"{namespace}-0"
        assert seen["status"]["podIP"].startswith("10.")
        assert seen["status"]["containerStatuses"][0]["ready"] is True

        pods.delete("a")
        await kubelet.wait("a gone", lambda seen: not seen)


async def test_pods_that_keep_apart_never_share_a_node(apiserver: ApiServer, namespace: str) -> None:
    pods = Pods(apiserver, namespace)
    async with FakeKubelet(apiserver, namespace) as kubelet:
        await kubelet.add_nodes(names(namespace, 2))
        for name in "abc":
            pods.create(name, affinity=ALONE)
        await kubelet.wait_running(2)
        await kubelet.wait("c told", lambda seen: seen["c"].told_unschedulable)
        assert pods.get("c")["status"]["conditions"][0]["reason"] == "Unschedulable"

        pods.delete("a")
        await kubelet.wait("c running", lambda seen: seen["c"].phase == "Running")
        assert {pods.get(name)["spec"]["nodeName"] for name in "bc"} == set(names(namespace, 2))


async def test_cordons_taints_and_affinity_keep_pods_away(apiserver: ApiServer, namespace: str) -> None:
    pods = Pods(apiserver, namespace)
    cordoned, tainted, avoided, left = names(namespace, 4)
    expression = {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [avoided]}
    terms = {"nodeSelectorTerms": [{"matchExpressions": [expression]}]}
    async with FakeKubelet(apiserver, namespace) as kubelet:
        await kubelet.add_nodes([cordoned, avoided, left])
        await kubelet.add_nodes([tainted], taints=[{"key": "sick", "value": "yes", "effect": "NoSchedule"}])
        patch = {"spec": {"unschedulable": True}}
        apiserver.call("PATCH", f"/api/v1/nodes/{cordoned}", patch, content="application/merge-patch+json")
        away = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": terms}}
        pods.create("a", affinity={**away, **ALONE})
        await kubelet.wait_running(1)
        assert pods.get("a")["spec"]["nodeName"] == left

        pods.create("b", affinity={**away, **ALONE}, tolerations=[{"key": "sick", "operator": "Exists"}])
        await kubelet.wait_running(2)
        assert pods.get("b")["spec"]["nodeName"] == tainted


async def test_a_pod_may_be_evicted_run_out_of_memory_or_never_start(apiserver: ApiServer, namespace: str) -> None:
    pods = Pods(apiserver, namespace)
    async with FakeKubelet(apiserver, namespace) as kubelet:
        await kubelet.add_nodes(names(namespace, 1))
        kubelet.refuse_pod("c", "ErrImagePull")
        for name in "abc":
            pods.create(name)
        await kubelet.wait_running(2)

        await kubelet.evict_pod("a")
        await kubelet.end_pod("b", 137, "OOMKilled")

        assert pods.get("a")["status"]["reason"] == "Evicted"
        status = pods.get("b")["status"]
        assert status["phase"] == "Failed"
        assert status["containerStatuses"][0]["state"]["terminated"]["reason"] == "OOMKilled"
        await kubelet.wait("c bound", lambda seen: bool(seen["c"].node))
        reasons = pods.get("c")["status"]["containerStatuses"][0]["state"]["waiting"]["reason"]
        assert reasons == "ErrImagePull"


async def test_a_lost_node_does_nothing_for_its_pods_until_it_is_back(
    apiserver: ApiServer, namespace: str
) -> None:
    pods = Pods(apiserver, namespace)
    async with FakeKubelet(apiserver, namespace) as kubelet:
        (node,) = names(namespace, 1)
        await kubelet.add_nodes([node])
        pods.create("a")
        await kubelet.wait_running(1)

        await kubelet.set_node(node, "Unknown")
        pods.delete("a")
        await kubelet.wait("a Terminating", lambda seen: seen["a"].deleting)
        pods.create("b")
        await kubelet.wait("b without a place", lambda seen: seen["b"].told_unschedulable)
        shown = apiserver.call("GET", f"/api/v1/nodes/{node}")
        assert [each["key"] for each in shown["spec"]["taints"]] == ["node.kubernetes.io/unreachable"] * 2

        await kubelet.set_node(node, "True")
        await kubelet.wait("a gone, b running", lambda seen: "a" not in seen and seen["b"].phase == "Running")


async def test_the_player_goes_on_after_the_api_server_was_restarted(apiserver: ApiServer, namespace: str) -> None:
    pods = Pods(apiserver, namespace)
    async with FakeKubelet(apiserver, namespace) as kubelet:
        await kubelet.add_nodes(names(namespace, 1))
        pods.create("a")
        await kubelet.wait_running(1)
        apiserver.expire_watches()
        pods.create("b")
        await kubelet.wait_running(2)
