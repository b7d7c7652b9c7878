"""Nodes that come, go and are taken out of service."""

from typing import Any

from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually

from holdfast.api.plan import NodeOrder, NodeState

TAINT = "holdfast.dev/cordoned"
STRATEGIC = "application/strategic-merge-patch+json"
FOREIGN = {"key": "somebody.example/broken", "value": "yes", "effect": "NoSchedule"}


async def node_of(cluster: Cluster, name: str) -> dict[str, Any]:
    return await cluster.api.call("GET", f"/api/v1/nodes/{name}")


def keys(node: dict[str, Any]) -> list[str]:
    return [taint["key"] for taint in node["spec"].get("taints", [])]


async def until_cordoned(cluster: Cluster, name: str, *, cordoned: bool) -> dict[str, Any]:
    async def so() -> bool:
        return (TAINT in keys(await node_of(cluster, name))) is cordoned

    await eventually(f"cordoned={cordoned}", so)
    return await node_of(cluster, name)


async def test_a_member_whose_node_is_gone_is_replaced_once_the_plan_says_so(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    lost = kubelet.pods["gpt-0"].node
    await kubelet.delete_node(lost)
    job = watchdog.job(cluster.id())
    await watchdog.until("the node told as gone", lambda: job.nodes[lost].state is NodeState.GONE)
    order = NodeOrder(lost, "it is gone", "inc-1")
    await watchdog.script(cluster.id(), avoid=(order,), release=("gpt-0",))
    await cluster.until_pods("gpt-1", "gpt-2")
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]


async def test_a_node_is_cordoned_and_returned_as_planned_and_foreign_taints_stay(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    names = await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    sick = kubelet.pods["gpt-0"].node
    patch = {"spec": {"taints": [FOREIGN]}}
    await cluster.api.call("PATCH", f"/api/v1/nodes/{sick}", patch, content=STRATEGIC)
    order = NodeOrder(sick, "XID 79", "inc-1")
    await watchdog.script(cluster.id(), avoid=(order,), cordon=(order,), release=("gpt-0",))
    node = await until_cordoned(cluster, sick, cordoned=True)
    assert FOREIGN in node["spec"]["taints"]
    assert "inc-1" in node["metadata"]["annotations"]["holdfast.dev/cordoned-by"]
    await cluster.until_pods("gpt-1", "gpt-2")
    await watchdog.script(cluster.id(), avoid=(), cordon=(), release=(), returned=(sick,))
    node = await until_cordoned(cluster, sick, cordoned=False)
    assert node["spec"]["taints"] == [FOREIGN]
    assert "holdfast.dev/cordoned-by" not in node["metadata"].get("annotations", {})
    assert not [each for each in names if TAINT in keys(await node_of(cluster, each))]


async def test_a_node_somebody_else_cordoned_is_left_as_it_is(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    names = await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    free = next(name for name in names if name not in {each.node for each in kubelet.pods.values()})
    patch = {"spec": {"unschedulable": True}}
    await cluster.api.call("PATCH", f"/api/v1/nodes/{free}", patch, content=STRATEGIC)
    before = await node_of(cluster, free)
    # A plan that follows, on another node, proves that the one before it was carried out.
    used = kubelet.pods["gpt-0"].node
    order = NodeOrder(used, "XID 79", "inc-1")
    await watchdog.script(cluster.id(), returned=(free,), cordon=(order,), avoid=(order,))
    await until_cordoned(cluster, used, cordoned=True)
    after = await node_of(cluster, free)
    assert after["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"]


async def test_a_node_that_somebody_drains_is_told_as_draining(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    drained = kubelet.pods["gpt-1"].node
    patch = {"spec": {"unschedulable": True}}
    await cluster.api.call("PATCH", f"/api/v1/nodes/{drained}", patch, content=STRATEGIC)
    job = watchdog.job(cluster.id())
    await watchdog.until("told as draining", lambda: job.nodes[drained].state is NodeState.DRAINING)


async def test_an_operator_that_leaves_cordoning_to_others_writes_no_node_and_does_the_rest(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    names = await add_nodes(kubelet, 3)
    before = [await node_of(cluster, name) for name in names]
    operator.start("--cordoning", "consume")
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    sick = kubelet.pods["gpt-0"].node
    order = NodeOrder(sick, "XID 79", "inc-1")
    await watchdog.script(cluster.id(), avoid=(order,), cordon=(order,), release=("gpt-0",))
    await cluster.until_pods("gpt-1", "gpt-2")
    await watchdog.until_seen_running(cluster.id(), "gpt-2")
    assert kubelet.pods["gpt-2"].node != sick, "the plan's node is kept away from all the same"
    await watchdog.script(cluster.id(), avoid=(), cordon=(), returned=(sick,), release=("gpt-1",))
    await cluster.until_pods("gpt-2", "gpt-3")
    # A job that is gone was looked at after all of that.
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert [await node_of(cluster, name) for name in names] == before
    told = {each["reason"] for each in await cluster.listed("events")}
    assert "MemberReplaced" in told
    assert not told & {"NodeCordoned", "NodeReturned"}
