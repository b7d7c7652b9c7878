"""The agent's look at its node, ten times a second."""

import logging
import time
from collections.abc import Iterable
from dataclasses import replace
from typing import Final

import msgspec

from holdfast.agent.allclear import all_clear
from holdfast.agent.jobstream import JobStreams
from holdfast.agent.picture import RANKS, Picture
from holdfast.agent.senses import NVML, Senses
from holdfast.agent.sensors.gpu_union import GpuUnion
from holdfast.agent.sensors.kernellog import KernelLog
from holdfast.agent.sensors.sensor import Reading, Sensor, joined
from holdfast.agent.tenants import Tenants
from holdfast.agent.xidecho import XidEcho
from holdfast.api.telemetry import NodeEvent, PreemptionNoticed, Unreadable

_LOG = logging.getLogger(__name__)

# Ten looks a second report a fault at most 0.1 s late and cost a fraction of a percent of a core.
LOOK_INTERVAL_S: Final = 0.1


class Sensing:
    """Reads every sensor and hands the readings to whoever needs them.

    `senses` are the node's own: every job on the node is told what they say.
    """

    def __init__(self, senses: Senses, *, tenants: Tenants, streams: JobStreams, picture: Picture) -> None:
        self._senses = senses
        self._tenants = tenants
        self._streams = streams
        self._picture = picture
        self._echo = XidEcho()
        self._notices = StandingNotices()
        self._union = GpuUnion()
        self._broken: set[str] = set()
        self._logs = tuple(each for each in senses.sensors if isinstance(each, KernelLog))

    def look(self, now: float) -> None:
        """One look at everything, at `now` (CLOCK_MONOTONIC, seconds)."""
        self._streams.follow(self._tenants.look(now), now)
        node = joined([self._node(now), Reading(unreadable=self._tenants.unreadable)])
        readings = {}
        late = self._notices.for_newcomers((stream.job for stream in self._streams), now)
        self._notices.observe(node.events, now)
        for stream in self._streams:
            if stream.job in late:
                stream.outbox.observe(late[stream.job], now)
            ranks = joined(self._read(sensor, now, RANKS) for sensor in stream.sensors.values())
            stream.outbox.observe(joined((ranks, node)), now)
            readings[stream.job] = ranks
        if self._logs:
            self._picture.kernel_records_lost = sum(each.records_lost for each in self._logs)
        self._picture.observe(node, readings, now)

    def _node(self, now: float) -> Reading:
        sensed = [(sensor.name, self._read(sensor, now, sensor.name)) for sensor in self._senses.sensors]
        exporter = self._senses.exporter
        filling = None if exporter is None else self._read(exporter, now, exporter.name)
        if filling is not None:
            self._echo.learn(filling.details)
        node = joined(self._echo.once(sensed, now))
        readings = dict(sensed)
        if exporter is not None and filling is not None:
            node = self._union.unite(node, filling, now)
            if NVML in readings and not readings[NVML].details:
                readings[NVML] = filling  # where the driver tells nothing, the exporter speaks for it
            readings[exporter.name] = filling
        return replace(node, all_clear=all_clear(self._senses.judges, readings))

    def _read(self, sensor: Sensor, now: float, counted_as: str) -> Reading:
        # A sensor promises not to raise. One that breaks the promise must not blind the agent to all others.
        began = time.perf_counter()
        try:
            reading = sensor.read(now)
        except Exception as error:
            if sensor.name not in self._broken:
                _LOG.exception("sensor failed: sensor=%s", sensor.name)
                self._broken.add(sensor.name)
            return Reading(unreadable=(Unreadable(sensor.name, f"sensor failed: {error!r}"),))
        finally:
            self._picture.timed(counted_as, time.perf_counter() - began)
        self._broken.discard(sensor.name)
        return reading


# Notices that the machine is taken away, kept for jobs that come after they were given.


class StandingNotices:
    """A notice stands until its time is up; every job on the node is told of it once."""

    def __init__(self) -> None:
        self._given: list[tuple[float, PreemptionNoticed]] = []  # when, on the agent's clock
        self._told: set[str] = set()

    def observe(self, events: Iterable[NodeEvent], now: float) -> None:
        """Take in what was sensed at `now`."""
        new = [(now - each.age_s, each) for each in events if isinstance(each, PreemptionNoticed)]
        self._given = [(at, each) for at, each in (*self._given, *new) if now < at + each.within_s]

    def for_newcomers(self, jobs: Iterable[str], now: float) -> dict[str, Reading]:
        """What jobs that were not here at the last look are to be told, by job. Called before `observe`."""
        here = set(jobs)
        newcomers, self._told = here - self._told, here
        if not newcomers or not self._given:
            return {}
        events = tuple(msgspec.structs.replace(each, age_s=now - at) for at, each in self._given)
        return {job: Reading(events=events) for job in newcomers}
