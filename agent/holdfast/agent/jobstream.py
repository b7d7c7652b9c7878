"""What the jobs on this node are told of it: each has a connection of its own, with its ranks and all GPUs."""

import asyncio
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from holdfast.agent.outbox import Outbox
from holdfast.agent.reporter import Reporter
from holdfast.agent.sensors.process import PidMap
from holdfast.agent.sensors.ranks import RankSensor
from holdfast.agent.tenants import Tenant

# A pod that is replaced on the same node finds its job's connection still there, and events get their answer.
_LINGER_S: Final = 10.0


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
        self._task = asyncio.create_task(reporter.run())

    def check(self) -> None:
        """Raises what ended the reporter, which nothing should."""
        if self._task.done():
            self._task.result()

    def close(self) -> asyncio.Task[None]:
        """End the connection and let go of the records. The task is to be waited for."""
        for sensor in self.sensors.values():
            sensor.close()
        self._task.cancel()
        return self._task


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
            stream.check()
            for tenant in [tenant for tenant in stream.sensors if tenant not in present]:
                stream.sensors.pop(tenant).close()
            if stream.sensors:
                stream.empty_since = None
            elif stream.empty_since is None:
                stream.empty_since = now
            elif now - stream.empty_since >= _LINGER_S:
                self._end(stream.job)

    async def close(self) -> None:
        """End every stream."""
        for job in tuple(self._streams):
            self._end(job)
        await asyncio.gather(*self._ending, return_exceptions=True)

    def _end(self, job: str) -> None:
        task = self._streams.pop(job).close()
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)
