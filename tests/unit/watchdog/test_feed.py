"""What subscribers of the watchdog are told, and what it costs while there are none."""

import asyncio
from collections.abc import Hashable
from typing import Any, cast

import msgspec
from forgetful_store import MemoryStore

from holdfast.api.event import JobSubmitted, MemberEntered, MemberJoined
from holdfast.api.feed import (
    FeedHello,
    GpusTold,
    HeatTold,
    IncidentTold,
    JobTold,
    NodesTold,
    PlacesTold,
    RanksTold,
    StepsTold,
    Told,
)
from holdfast.api.membership import WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Round
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, ProcessState, RankSample
from holdfast.watchdog import brain
from holdfast.watchdog.detectors.detector import Connected, Exited
from holdfast.watchdog.senses import senses_for
from holdfast.watchdog.server.connection import Connection, Outbox
from holdfast.watchdog.server.feed import Feed
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.jobview import JobView
from holdfast.watchdog.server.watchdog import Watchdog

JOB = "research/gpt"
DECODER: msgspec.msgpack.Decoder[Any] = msgspec.msgpack.Decoder(Told)


class Reader:
    """A subscriber; `told` is what it was told, in order."""

    def __init__(self) -> None:
        self.told: list[Any] = []
        self.connection = Connection(cast(Any, None), Outbox(self._take))

    def _take(self, frame: bytes) -> bool:
        self.told.append(DECODER.decode(frame))
        return True

    def of(self, kind: type[Any]) -> list[Any]:
        return [each for each in self.told if isinstance(each, kind)]


def started() -> tuple[Watchdog, JobHost, int]:
    """A watchdog with a job of two nodes with a rank each, in its first round."""
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=senses_for, fenced=lambda _: None)
    watchdog.start()
    host = watchdog.host(JOB)
    host.record(JobSubmitted(Policy(JOB, 2, 2, lost_after_s=600.0)))
    for name in ("m-0", "m-1"):
        node = f"node-{name}"
        host.observe(Connected(name, node))
        host.record(MemberJoined(name, node, "boot", "127.0.0.1", 1, (7000, 7001), warm=True))
    desired = host.job.state.desired
    assert isinstance(desired, Round)
    for name in ("m-0", "m-1"):
        host.record(MemberEntered(name, desired.number, reentrant=True, last_step=None))
    return watchdog, host, desired.number


def report(host: JobHost, number: int, sequence: int, *, step: int) -> None:
    for rank, name in enumerate(("m-0", "m-1")):
        sample = RankSample(
            *(number, rank, ProcessState.RUNNING, Phase.BACKWARD, 0.1, 0.1, 0.05, 100, step, 2.0, 2.5, 1.0, 4096)
        )
        gpu = GpuSample(f"GPU-{rank}", 0, GpuHealth.HEALTHY, 61.0)
        host.take_report(NodeReport(f"node-{name}", "boot", sequence, ranks=(sample,), gpus=(gpu,)))


async def test_nothing_is_made_while_nobody_subscribes_and_all_is_forgotten_with_the_last() -> None:
    watchdog, host, number = started()
    feed, reader = Feed(watchdog), Reader()
    report(host, number, 1, step=3)
    await asyncio.sleep(0)
    assert feed._views == {}
    feed.subscribe(reader.connection)
    await _looked(feed)
    assert [each.status.job for each in reader.of(JobTold)] == [JOB]
    late = Reader()
    feed.subscribe(late.connection)
    kinds = (PlacesTold, RanksTold, StepsTold, NodesTold, GpusTold, HeatTold, JobTold)
    assert all(late.of(kind) for kind in kinds), "who comes later is told all there is at once"
    feed.unsubscribe(reader.connection)
    assert feed._looking is not None
    feed.unsubscribe(late.connection)
    assert (feed._looking, feed._views) == (None, {})
    watchdog.stop()


async def test_only_what_changed_is_told_again() -> None:
    watchdog, host, number = started()
    report(host, number, 1, step=3)
    told: list[Any] = []

    def put(kind: Hashable, frame: bytes) -> None:
        told.append(DECODER.decode(frame))

    view = JobView(host, watchdog.fleet, put)
    for _ in view.look():
        pass
    (steps,) = [each for each in told if isinstance(each, StepsTold)]
    assert len(steps.columns.step) == 2 * 4
    told.clear()
    for _ in view.look():
        pass
    assert told == [], "nothing was heard, and nothing was decided"
    report(host, number, 2, step=4)
    for _ in view.look():
        pass
    assert {type(each) for each in told} == {StepsTold, JobTold}
    watchdog.stop()


async def test_an_incident_is_told_at_once() -> None:
    watchdog, host, number = started()
    feed, reader = Feed(watchdog), Reader()
    feed.subscribe(reader.connection)
    await _looked(feed)
    reader.told.clear()
    host.observe(Exited("m-0", "node-m-0", WorkerExited(number, 0, 0.0, signal=9, began=True)))
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    (told,) = {each.incident.id: each for each in reader.of(IncidentTold)}.values()
    assert told.incident.kind == "ProcessExit"
    feed.unsubscribe(reader.connection)
    watchdog.stop()


async def test_a_job_that_cannot_be_told_of_costs_no_other_its_place(monkeypatch: Any) -> None:
    watchdog, host, _ = started()
    watchdog.host("research/other")
    real = JobView.look

    def look(self: JobView) -> Any:
        if self.host is host:
            raise RuntimeError("a mistake of ours")
        return real(self)

    monkeypatch.setattr(JobView, "look", look)
    feed, reader = Feed(watchdog), Reader()
    feed.subscribe(reader.connection)
    await _looked(feed)
    assert [each.job for each in reader.of(JobTold)] == ["research/other"]
    feed.unsubscribe(reader.connection)
    watchdog.stop()


def test_the_greeting_is_a_name() -> None:
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(FeedHello("x")), type=FeedHello).client == "x"


async def _looked(feed: Feed) -> None:
    """Let the first look come to its end: it gives way between slices."""
    for _ in range(50):
        await asyncio.sleep(0)
