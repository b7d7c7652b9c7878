"""The operator dies at every step of a job's life, as hard as a machine that loses power, and is started again.

Whatever the step: the job comes to the same, and nothing is done twice. Some lives are lived at a time, for most
of each is waiting for a lease to run out.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

import pytest
from apiserver import ApiServer
from many_worlds import World, live_together
from node_writes import NodeWrites
from operator_rig import POLL_S, Cluster, OperatorProcess, add_nodes, eventually

from holdfast.api.plan import NodeOrder
from holdfast.api.status import JobPhase
from holdfast.operator.act.faultpoint import EXIT_CODE
from holdfast.operator.act.faultpoint import POINTS as ALL_POINTS

TAINT = "holdfast.dev/cordoned"
FINISHED = ("before-job-deleted", "after-job-deleted")
"""Reached only by a job that ended: the other life below."""
HANDED_ON = ("before-node-health", "after-node-health", "before-remediation", "after-remediation")
"""Reached only where what is proved is handed on: `test_operator_others`."""
QUEUED = ("before-workload", "after-workload")
"""Reached only by a job in a queue: `test_operator_queues`."""
CHECKED = ("before-check", "after-check")
"""Reached only where a changed policy is tried: `test_operator_policy_checks`."""
TOGETHER = 6
POINTS = [point for point in ALL_POINTS if point not in (*FINISHED, *HANDED_ON, *QUEUED, *CHECKED)]
PATIENCE_S = 40.0


@asynccontextmanager
async def restarted_after(operator: OperatorProcess, fault: str, count: int = 1) -> AsyncIterator[None]:
    """Runs, dies where it is told to, and is started again, once. Raises a group when it ends otherwise."""
    operator.start(fault=f"{fault}:{count}")
    back = asyncio.Event()

    async def died() -> bool:
        assert operator.exit_code in (None, EXIT_CODE), f"the operator ended with {operator.exit_code}"
        return operator.exit_code is not None

    async def supervise() -> None:
        await eventually("the fault reached", died, within_s=60.0)
        operator.start()
        back.set()
        while True:
            assert operator.exit_code is None, f"the operator ended with {operator.exit_code}"
            await asyncio.sleep(POLL_S)

    async with asyncio.TaskGroup() as group:
        supervising = group.create_task(supervise())
        yield
        await back.wait()
        supervising.cancel()


async def whole_life(fault: str, world: World) -> None:
    """With every kind of action in it, checked at each step."""
    cluster, kubelet, watchdog = world.cluster, world.kubelet, world.watchdog
    nodes = await add_nodes(kubelet, 3)
    async with NodeWrites(cluster, nodes) as node_writes, restarted_after(world.operator, fault):
        await cluster.apply()
        await kubelet.wait_running(2, within_s=PATIENCE_S)
        first, second = sorted(kubelet.pods)
        # Both are made at a time: one that was still on its way when the operator died leaves its number out.
        assert (first, second) == ("gpt-0", "gpt-1") or fault == "after-pod-created"
        third = f"gpt-{int(second.removeprefix('gpt-')) + 1}"
        await watchdog.until_seen_running(cluster.id(), first, second, within_s=PATIENCE_S)
        sick = kubelet.pods[first].node
        order = NodeOrder(sick, "XID 79", "inc-1")
        await watchdog.script(cluster.id(), avoid=(order,), cordon=(order,), release=(first,))
        await cluster.until_pods(second, third, within_s=PATIENCE_S)
        await watchdog.until_seen_running(cluster.id(), third, within_s=PATIENCE_S)
        await eventually("cordoned", lambda: _cordoned(cluster, sick, wanted=True), within_s=PATIENCE_S)
        await watchdog.script(cluster.id(), avoid=(), cordon=(), release=(), returned=(sick,))
        await eventually("returned", lambda: _cordoned(cluster, sick, wanted=False), within_s=PATIENCE_S)
        await cluster.api.call("POST", cluster.path(plural="interventions"), _intervention())
        await watchdog.until("asked", lambda: len(watchdog.interventions) == 1, within_s=PATIENCE_S)
        await cluster.delete()
        await cluster.until("gone", lambda job: job is None, within_s=PATIENCE_S)
        # Out of service and back again.
        assert await node_writes.counted() == {name: 2 if name == sick else 0 for name in nodes}
    assert sorted(cluster.pods_created.values()) == [first, second, third]
    assert await cluster.listed("pods") == []
    assert await cluster.listed("services") == []
    assert watchdog.forgotten == [cluster.id()]
    assert len(watchdog.interventions) == 1
    await eventually("the answer written", lambda: _answered(cluster), within_s=PATIENCE_S)
    # Each is told once, or not at all where the operator died before it could; the end, before the job is let go.
    told = [(each["reason"], each["count"]) for each in await cluster.listed("events")]
    assert {count for _, count in told} == {1}, told
    assert [reason for reason, _ in told].count("WoundUp") == 1, told


async def finished_life(fault: str, world: World) -> None:
    """Of a job that ends well and is removed when its time is over."""
    cluster = world.cluster
    await add_nodes(world.kubelet, 2)
    async with restarted_after(world.operator, fault):
        await cluster.apply(ttlAfterFinished="1s")
        await world.kubelet.wait_running(2, within_s=PATIENCE_S)
        await world.watchdog.script(cluster.id(), phase=JobPhase.SUCCEEDED)
        await cluster.until("gone", lambda job: job is None, within_s=PATIENCE_S)
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1"]


async def between_pods(count: int, world: World) -> None:
    """The operator dies when it has made `count` of four pods."""
    cluster = world.cluster
    await add_nodes(world.kubelet, 4)
    async with restarted_after(world.operator, "after-pod-created", count):
        await cluster.apply(nodes={"min": 1, "max": 4})
        await world.kubelet.wait_running(4, within_s=PATIENCE_S)
    await cluster.pods()  # a list is never behind
    names = sorted(cluster.pods_created.values())
    # Many are made at a time, so numbers may be left out; none is used twice.
    assert len(set(names)) == len(names) == 4


@pytest.mark.parametrize(
    "faults",
    [
        pytest.param(POINTS[first : first + TOGETHER], id=f"{POINTS[first]} and after")
        for first in range(0, len(POINTS), TOGETHER)
    ],
)
async def test_a_job_lives_the_same_life_wherever_the_operator_dies(
    defined: ApiServer, tmp_path: Path, faults: list[str]
) -> None:
    await live_together(defined, tmp_path, {fault: partial(whole_life, fault) for fault in faults})


async def test_a_finished_job_is_deleted_and_pods_are_made_once_wherever_the_operator_dies(
    defined: ApiServer, tmp_path: Path
) -> None:
    finished = {fault: partial(finished_life, fault) for fault in FINISHED}
    between = {f"after-{count}-pods": partial(between_pods, count) for count in (2, 3, 4)}
    await live_together(defined, tmp_path, {**finished, **between})


async def _cordoned(cluster: Cluster, name: str, *, wanted: bool) -> bool:
    node = await cluster.api.call("GET", f"/api/v1/nodes/{name}")
    return (TAINT in [taint["key"] for taint in node["spec"].get("taints", [])]) is wanted


async def _answered(cluster: Cluster) -> bool:
    asked = await cluster.get(cluster.path("ask", plural="interventions"))
    return asked is not None and asked.get("status", {}).get("state") == "Done"


def _intervention() -> dict[str, object]:
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Intervention",
        "metadata": {"name": "ask"},
        "spec": {"job": "gpt", "action": "Checkpoint", "reason": "before an upgrade"},
    }
