"""The API server goes away, forgets what happened, and comes back."""

from fake_kubelet import FakeKubelet
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually


async def test_an_api_server_that_restarts_is_gone_on_with(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    operator.start("--lease-seconds", "900")  # the pause outlasts no lease, on a slow machine either
    await cluster.apply()
    await kubelet.wait_running(2)
    cluster.server.restart()
    await kubelet.end_pod("gpt-0", 1)
    await cluster.until_pods("gpt-1", "gpt-2")
    assert operator.exit_code is None
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]


async def test_watches_that_expired_are_listed_again(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    operator.start("--lease-seconds", "900")  # the pause outlasts no lease, on a slow machine either
    await cluster.apply()
    await kubelet.wait_running(2)
    operator.pause()
    # What the paused operator is to go on from is forgotten before it can.
    await cluster.api.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/gpt-0")
    cluster.server.expire_watches()
    operator.resume()
    await cluster.until_pods("gpt-1", "gpt-2")

    async def restarted() -> bool:
        return await operator.metric("holdfast_operator_watch_restarts_total") > 0

    async def all_seen() -> bool:
        # The test's own watch expired as well, and is behind for a moment.
        return sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]

    await eventually("a restarted watch counted", restarted)
    await eventually("one pod of each name made", all_seen)
