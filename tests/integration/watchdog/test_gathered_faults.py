"""Hangs of many nodes gather behind one switch: it is named wherever somebody looks, and no node is for it."""

from typing import Any

import msgspec
import pytest
from peers import JOB, LauncherPeer, Rig, policy_of, rigged

from holdfast.api.event import FindingMade
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.fleet import FleetReport
from holdfast.api.place import Place
from holdfast.api.plan import NodeObserved, NodeState, OperatorHello
from holdfast.cli.commands.fleet import fleet_text
from holdfast.watchdog.server.failurebook import FailureBook

NODES, BEHIND_ONE = 64, 4
HOUR = 3600.0
BAD = Place("switch", "leaf-3")


def places_of(number: int) -> tuple[Place, ...]:
    """Sixteen leaf switches of four nodes each, and two spines."""
    leaf = number // BEHIND_ONE
    return Place("spine", f"spine-{leaf // 8}"), Place("switch", f"leaf-{leaf}")


def later(rig: Rig, seconds: float) -> None:
    rig.watchdog.clock._base += seconds  # the only way to let days pass


def hang(rig: Rig, number: int) -> None:
    host = rig.watchdog.host(JOB)
    now = host.clock.now()
    subject = Subject(JOB, node=f"node-m{number}")
    evidence = (Evidence("test", "it did not enter the collective", now),)
    found = Finding(FindingKind.HANG, subject, "all wait for it", evidence, Confidence.PROBABLE, now)
    host.record(FindingMade(found))


async def trains_behind_switches(rig: Rig) -> list[LauncherPeer]:
    """The launchers, which stay for as long as somebody holds them."""
    await rig.submit(policy_of(nodes=NODES, observe=True))
    operator = await rig.connect("/v1/operator")
    await operator.send_bytes(msgspec.msgpack.encode(OperatorHello(JOB)))
    for number in range(NODES):
        seen = NodeObserved(f"node-m{number}", NodeState.READY, places=places_of(number))
        await operator.send_bytes(msgspec.msgpack.encode(seen))
    launchers = [await rig.launcher(f"m{number}") for number in range(NODES)]
    job = rig.watchdog.host(JOB).job
    await rig.until(f"/v1/jobs/{JOB}/status", lambda _: job.state.round and len(job.state.places) == NODES)
    return launchers


async def test_hangs_behind_one_switch_are_told_wherever_somebody_looks() -> None:
    async with rigged() as rig:
        launchers = await trains_behind_switches(rig)
        assert len(launchers) == NODES
        others = iter((0, 21, 33, 40, 52, 60))
        for turn in range(6):
            later(rig, 5 * HOUR)
            hang(rig, 12 + turn % BEHIND_ONE)
            later(rig, 5 * HOUR)
            assert rig.watchdog.failures.gatherings == () or turn > 2
            hang(rig, next(others))
        later(rig, 5 * HOUR)
        hang(rig, 13)
        await told_everywhere(rig)
        state = rig.watchdog.host(JOB).job.state
        assert (state.avoided, rig.watchdog.fleet.quarantined) == ((), ())
        # Another watchdog over the same store knows it too.
        fence = rig.watchdog.leading
        assert fence is not None
        fresh = FailureBook(rig.watchdog.store, fence)
        fresh.book((), rig.watchdog.clock.now())
        assert [each.place for each in fresh.gatherings] == [BAD]
        later(rig, 8 * 24 * HOUR)  # nothing has hung behind it for a week
        rig.watchdog.failures.book(rig.watchdog.hosts(), rig.watchdog.clock.now())
        assert rig.watchdog.failures.gatherings == ()


async def told_everywhere(rig: Rig) -> None:
    _, body = await rig.get("/v1/fleet")
    report = msgspec.convert(body, FleetReport)
    (gathering,) = report.gatherings
    assert (gathering.place, gathering.faults, gathering.total) == (BAD, 7, 13)
    assert gathering.nodes == ("node-m12", "node-m13", "node-m14", "node-m15")
    assert "switch leaf-3" in fleet_text(report)
    assert report.all is not None
    assert report.all.gpu_hours == pytest.approx(NODES * 65.0, rel=0.01)
    assert {each.group for each in report.tables["switch"]} == {f"leaf-{leaf}" for leaf in range(16)}
    assert [(each.job, each.nodes, each.spares, each.advised) for each in report.spares] == [(JOB, NODES, 0, 2)]
    status = await rig.status()
    assert [each["place"] for each in status["gatherings"]] == [{"kind": "switch", "name": "leaf-3"}]
    newest: dict[str, Any] = (await rig.get(f"/v1/jobs/{JOB}/incidents"))[1][0]
    assert newest["evidence"][-1]["says"].startswith("6 of 12 network faults gather behind switch leaf-3")
    page = await rig.page()
    assert 'holdfast_fleet_gathered_faults{family="network",kind="switch",place="leaf-3"} 7' in page
