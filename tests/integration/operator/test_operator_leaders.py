"""Two operators: one acts."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually

SHORT_S = 2.0  # who takes over waits for its end
LOOKS_OFTEN_S = 4.0  # a standby looks ten times in the length of its own


@pytest.fixture
def standby(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """Not started yet."""
    operator = OperatorProcess(cluster.server, cluster.namespace, watchdog.endpoint, tmp_path, name="two")
    try:
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text() if operator.log.exists() else "the standby was never started")


async def started_after(first: OperatorProcess, second: OperatorProcess, *, lease_s: float) -> None:
    """Both run, the first one leads with a lease of that length."""
    first.start("--lease-seconds", str(lease_s))
    await eventually("the first one leading", first.leads)
    second.start("--lease-seconds", str(LOOKS_OFTEN_S))
    await eventually("the second one ready", second.ready)
    assert not await second.leads()


async def test_the_standby_takes_over_from_a_leader_that_died(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, standby: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    await started_after(operator, standby, lease_s=SHORT_S)
    await cluster.apply()
    await kubelet.wait_running(2)
    operator.kill()
    await kubelet.end_pod("gpt-0", 1)
    await cluster.until_pods("gpt-1", "gpt-2")
    assert await standby.leads()
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]


async def test_a_leader_that_ends_in_order_is_followed_at_once(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, standby: OperatorProcess
) -> None:
    await started_after(operator, standby, lease_s=60.0)
    operator.stop()
    assert operator.exit_code == 0
    # Long before the lease of a leader that died would run out.
    await eventually("the standby leading", standby.leads)


async def test_a_leader_that_stood_still_does_nothing_when_it_wakes(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, standby: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    await started_after(operator, standby, lease_s=SHORT_S)
    await cluster.apply()
    await kubelet.wait_running(2)
    operator.pause()
    await kubelet.end_pod("gpt-0", 1)
    await cluster.until_pods("gpt-1", "gpt-2")
    operator.resume()

    async def stands_by() -> bool:
        return "begins anew as a standby" in operator.log.read_text() and await operator.ready()

    await eventually("the old leader stands by", stands_by)
    assert operator.exit_code is None, "to Kubernetes nothing has ended"
    assert not await operator.leads()
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1", "gpt-2"]
