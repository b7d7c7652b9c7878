"""What the jobs on this node are told of it: each has a connection of its own, with its ranks and all GPUs."""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final, NoReturn

import msgspec

from holdfast.agent.outbox import Outbox
from holdfast.agent.sensors.process import PidMap
from holdfast.agent.sensors.ranks import RankSensor
from holdfast.agent.tenants import Tenant
from holdfast.api.telemetry import AgentHello, FromAgent, Pace, ReportTaken, ToAgent
from holdfast.wire.access import Access
from holdfast.wire.line import Line, Manner

# A pod that is replaced on the same node finds its job's connection still there, and events get their answer.
_LINGER_S: Final = 10.0
MANNER: Final = Manner(
    client="agent",
    retry_first_s=0.1,
    retry_most_s=1.5,  # decisions are to resume within 2 s of the watchdog's return
    steady_s=5.0,  # two agents of one name close each other's connection: neither may retry at full speed
    ping_s=5.0,
    frame_bytes_max=65536,
)


class Reporter:
    """Keeps a connection to the watchdog for as long as it runs; while it is away only events are kept."""

    def __init__(self, outbox: Outbox, hello: AgentHello, access: Access) -> None:
        self._outbox = outbox
        self._hello = hello
        self._due = asyncio.Event()
        self._line = Line(access, "/v1/agent", self, msgspec.msgpack.Decoder(ToAgent), MANNER, hello.job)

    @property
    def connected(self) -> bool:
        """Whether the watchdog listens now."""
        return self._line.connected

    def wake(self) -> None:
        """A report is due."""
        self._due.set()

    async def run(self) -> NoReturn:
        """Ends only by cancellation."""
        await self._line.run()

    async def speech(self) -> AsyncGenerator[FromAgent, None]:
        """Who we are, what the watchdog may not have taken, and every report that is due."""
        yield self._hello
        for again in self._outbox.reconnected(time.monotonic()):
            yield again
        while True:
            while (report := self._outbox.take(time.monotonic())) is not None:
                yield report
            self._due.clear()
            await self._due.wait()

    def hear(self, shown: ToAgent) -> None:
        """The pace to keep, or that reports were taken."""
        match shown:
            case Pace():
                self._outbox.keep_pace(shown, time.monotonic())
            case ReportTaken():
                self._outbox.taken(shown.sequence)

    def lost(self) -> None:
        """The outbox keeps what must arrive."""


@dataclass(frozen=True, slots=True)
class Connection:
    """One job's connection to the watchdog: whether it stands, reports sent, events lost for want of room."""

    job: str
    connected: bool
    reports: int
    dropped: int


class JobStream:
    """One job's reports from this node, from construction until `close`."""

    def __init__(self, job: str, outbox: Outbox, reporter: Reporter) -> None:
        self.job = job
        self.outbox = outbox
        self.reporter = reporter
        self.sensors: dict[Tenant, RankSensor] = {}
        self.empty_since: float | None = None
        self.reporting = asyncio.create_task(reporter.run())

    def close(self) -> asyncio.Task[None]:
        """End the connection and let go of the records. The task is to be waited for."""
        for sensor in self.sensors.values():
            sensor.close()
        self.reporting.cancel()
        return self.reporting


class JobStreams:
    """Opens and closes streams so that each tenant's job has one. `begin` makes the stream of a job."""

    def __init__(self, begin: Callable[[str], JobStream], pids: PidMap) -> None:
        self._begin = begin
        self._pids = pids
        self._streams: dict[str, JobStream] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __iter__(self) -> Iterator[JobStream]:
        return iter(tuple(self._streams.values()))

    def connections(self) -> list[Connection]:
        """How the watchdog hears of each job."""
        return [
            Connection(stream.job, stream.reporter.connected, stream.outbox.reports, stream.outbox.dropped_ever)
            for stream in self
        ]

    def follow(self, tenants: Sequence[Tenant], now: float) -> None:
        """`tenants` are those there are at `now`; the others have gone."""
        for tenant in tenants:
            if tenant.job not in self._streams:
                self._streams[tenant.job] = self._begin(tenant.job)
            sensors = self._streams[tenant.job].sensors
            if tenant not in sensors:
                locate = partial(self._pids.locate, tenant)
                sensors[tenant] = RankSensor(tenant.run_dir, member=tenant.member, locate=locate)
        present = set(tenants)
        for stream in self:
            if stream.reporting.done():
                stream.reporting.result()  # raises what ended the reporter, which nothing should
            for tenant in [tenant for tenant in stream.sensors if tenant not in present]:
                stream.sensors.pop(tenant).close()
            if stream.sensors:
                stream.empty_since = None
            elif stream.empty_since is None:
                stream.empty_since = now
            elif now - stream.empty_since >= _LINGER_S:
                self._end(stream.job)

    async def close(self) -> None:
        for job in tuple(self._streams):
            self._end(job)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, job: str) -> None:
        task = self._streams.pop(job).close()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
