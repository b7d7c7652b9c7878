"""The agent's look at its node, and who is told what of it."""

import asyncio
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import cast

import pytest
from record_writer import RecordWriter, step_zone

from holdfast.agent.conditions.gpus import GPU_KINDS
from holdfast.agent.conditions.ports import PORT_KINDS
from holdfast.agent.jobstream import JobStream, JobStreams, Reporter
from holdfast.agent.nodeview import NodeView
from holdfast.agent.outbox import Outbox
from holdfast.agent.reading import GpuDetail, Reading, Sensor
from holdfast.agent.sensing import NodeSensors, Sensing
from holdfast.agent.sensors.process import PidMap
from holdfast.agent.tenants import Tenant
from holdfast.api.condition import AllClear, ConditionKind
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, Unreadable, XidRaised

GPU = GpuSample("GPU-a", 0, GpuHealth.HEALTHY)
XID = XidRaised("GPU-a", 79, 0.0)
PCIE = ConditionKind.PCIE_DEGRADED


class Sound:
    name = "sound"

    def read(self, now: float) -> Reading:
        return Reading(gpus=(GPU,))


class Broken:
    name = "broken"

    def read(self, now: float) -> Reading:
        raise ZeroDivisionError("a bug")


class Failing:
    """Tells of an error at second 101."""

    name = "failing"

    def read(self, now: float) -> Reading:
        return Reading(gpus=(GPU,), events=(XID,) if now == 101.0 else ())


class Silent:
    """A reporter without a watchdog."""

    async def run(self) -> None:
        await asyncio.Event().wait()


class Fallen(Silent):
    async def run(self) -> None:
        raise ZeroDivisionError("a bug")


class Here:
    """Tenants that a test moves in and out."""

    unreadable: tuple[Unreadable, ...] = ()

    def __init__(self, *tenants: Tenant) -> None:
        self.tenants = tenants

    def look(self, now: float) -> tuple[Tenant, ...]:
        return self.tenants


class Begun(list[str]):
    """Makes streams and remembers for which jobs."""

    reporter = Silent

    def __call__(self, job: str) -> JobStream:
        self.append(job)
        outbox = Outbox(node="node-1", boot=f"{job} {len(self)}", interval_s=1.0)
        return JobStream(job, outbox, cast(Reporter, self.reporter()))


@pytest.fixture
def begun() -> Begun:
    return Begun()


@pytest.fixture
async def streams(begun: Begun) -> AsyncIterator[JobStreams]:
    streams = JobStreams(begun, PidMap())
    yield streams
    await streams.close()


def tenant(folder: Path, member: str, *, job: str = "ns/job", rank: int = 0) -> Tenant:
    """A member with one rank that has completed step 41."""
    run_dir = folder / member
    run_dir.mkdir()
    RecordWriter(run_dir).step(step_zone(rank=rank))
    return Tenant(job, str(run_dir), member=member)


def sensing(tenants: Here, streams: JobStreams, *sensors: Sensor, view: NodeView | None = None) -> Sensing:
    return Sensing(NodeSensors(sensors), tenants=tenants, streams=streams, view=view or NodeView())


def reports(streams: JobStreams, now: float) -> dict[str, NodeReport]:
    taken = {stream.job: stream.outbox.take(now) for stream in streams}
    return {job: report for job, report in taken.items() if report is not None}


def ranks(streams: JobStreams, now: float) -> dict[str, list[int]]:
    return {job: [rank.rank for rank in report.ranks] for job, report in reports(streams, now).items()}


async def test_a_sensor_that_raises_is_unknown_and_does_not_blind_the_others(
    tmp_path: Path, streams: JobStreams, caplog: pytest.LogCaptureFixture
) -> None:
    picture = NodeView()
    looks = sensing(Here(tenant(tmp_path, "a")), streams, Broken(), Sound(), view=picture)
    with caplog.at_level(logging.ERROR):
        looks.look(100.0)
        looks.look(100.1)
    expected = (Unreadable("broken", "sensor failed: ZeroDivisionError('a bug')"),)
    assert picture.node.gpus == (GPU,)
    assert picture.node.unreadable == expected
    assert reports(streams, 100.1)["ns/job"].unreadable == expected
    assert len(caplog.records) == 1


async def test_each_job_is_told_its_own_ranks_and_all_of_the_nodes_gpus(
    tmp_path: Path, streams: JobStreams
) -> None:
    here = Here(
        tenant(tmp_path, "a", rank=0), tenant(tmp_path, "b", rank=1), tenant(tmp_path, "c", job="ns/other", rank=7)
    )
    looks = sensing(here, streams, Failing())
    looks.look(100.0)
    told = reports(streams, 100.0)
    assert {job: [rank.rank for rank in report.ranks] for job, report in told.items()} == {
        "ns/job": [0, 1],
        "ns/other": [7],
    }
    assert all(report.gpus == (GPU,) for report in told.values())
    assert told["ns/job"].boot != told["ns/other"].boot
    looks.look(101.0)
    assert [report.events for report in reports(streams, 101.0).values()] == [(XID,), (XID,)]


async def test_a_node_without_jobs_has_no_streams_and_still_a_picture(streams: JobStreams) -> None:
    picture = NodeView()
    sensing(Here(), streams, Sound(), view=picture).look(100.0)
    assert list(streams) == []
    assert picture.node.gpus == (GPU,)


async def test_a_stream_outlives_a_gap_between_two_pods_of_its_job(
    tmp_path: Path, streams: JobStreams, begun: Begun
) -> None:
    here = Here(tenant(tmp_path, "a", rank=0))
    looks = sensing(here, streams)
    looks.look(100.0)
    here.tenants = ()
    looks.look(101.0)
    assert ranks(streams, 101.0) == {"ns/job": []}
    here.tenants = (tenant(tmp_path, "b", rank=4),)
    looks.look(105.0)
    assert ranks(streams, 105.0) == {"ns/job": [4]}
    assert begun == ["ns/job"]


async def test_a_stream_ends_some_time_after_its_last_pod_and_begins_anew(
    tmp_path: Path, streams: JobStreams, begun: Begun
) -> None:
    here = Here(tenant(tmp_path, "a"))
    looks = sensing(here, streams)
    looks.look(100.0)
    resident, here.tenants = here.tenants, ()
    for now in (101.0, 110.9):
        looks.look(now)
        assert len(list(streams)) == 1
    looks.look(111.0)
    assert list(streams) == []
    here.tenants = resident
    looks.look(112.0)
    assert ranks(streams, 112.0) == {"ns/job": [0]}
    assert begun == ["ns/job", "ns/job"]


async def test_a_reporter_that_falls_over_ends_the_agent(
    tmp_path: Path, streams: JobStreams, begun: Begun
) -> None:
    begun.reporter = Fallen
    looks = sensing(Here(tenant(tmp_path, "a")), streams)
    looks.look(100.0)
    await asyncio.sleep(0)
    with pytest.raises(ZeroDivisionError):
        looks.look(101.0)


class Judging:
    """A source that says of what it judges that all is clear, unless it is `broken`."""

    def __init__(self, name: str, *kinds: ConditionKind, details: tuple[GpuDetail, ...] = ()) -> None:
        self.name = name
        self.broken = False
        self._reading = Reading(all_clear=tuple(map(AllClear, kinds)), details=details)

    def read(self, now: float) -> Reading:
        if self.broken:
            raise ZeroDivisionError("a bug")
        return self._reading


async def clear_by(senses: NodeSensors, tmp_path: Path, streams: JobStreams) -> set[ConditionKind]:
    """What a report on these senses says is clear."""
    looks = Sensing(senses, tenants=Here(tenant(tmp_path, "a")), streams=streams, view=NodeView())
    looks.look(100.0)
    return {each.kind for each in reports(streams, 100.0)["ns/job"].all_clear}


@pytest.mark.parametrize("broken", [False, True])
async def test_what_is_clear_is_reported_but_for_what_a_sensor_that_raises_judges(
    tmp_path: Path, streams: JobStreams, broken: bool
) -> None:
    ports = Judging("infiniband", ConditionKind.LINK_DOWN)
    ports.broken = broken
    clear = await clear_by(NodeSensors((ports,), judges={"infiniband": PORT_KINDS}), tmp_path, streams)
    assert clear & PORT_KINDS == (set() if broken else {ConditionKind.LINK_DOWN})


@pytest.mark.parametrize(("details", "clear"), [((), {PCIE}), ((GpuDetail(uuid="GPU-a", index=0),), set())])
async def test_an_exporter_says_what_is_clear_where_the_driver_tells_nothing(
    tmp_path: Path, streams: JobStreams, details: tuple[GpuDetail, ...], clear: set[ConditionKind]
) -> None:
    senses = NodeSensors(
        (Judging("nvml", details=details),), Judging("exporter", PCIE), judges={"nvml": GPU_KINDS}
    )
    assert await clear_by(senses, tmp_path, streams) & GPU_KINDS == clear
