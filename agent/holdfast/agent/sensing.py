"""The agent's sensors, as the settings ask for them, and its look at its node, ten times a second."""

import logging
import os
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.agent.amd.sensor import NAME as AMD_SMI
from holdfast.agent.amd.sensor import AmdSmiSensor, has_amd_gpus
from holdfast.agent.conditions.book import all_clear
from holdfast.agent.conditions.gpus import AMD_KINDS, GPU_KINDS
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.conditions.nodes import NODE_KINDS
from holdfast.agent.conditions.ports import PORT_KINDS
from holdfast.agent.jobstream import JobStreams
from holdfast.agent.kernel.faults import KERNEL_KINDS
from holdfast.agent.kernel.log import FILE_NAME as BOOKMARK
from holdfast.agent.kernel.log import KernelLog
from holdfast.agent.kernel.slots import GpuNames
from holdfast.agent.kernel.source import source_at
from holdfast.agent.nodeview import RANKS, NodeView
from holdfast.agent.reading import Reading, Sensor, joined
from holdfast.agent.sensors.dcgmexporter import DcgmExporter
from holdfast.agent.sensors.infiniband import Infiniband
from holdfast.agent.sensors.nodebasics import NodeBasics
from holdfast.agent.sensors.preemption import CloudName, PreemptionNotices, cloud_here
from holdfast.agent.sensors.simulated_gpu import SimulatedGpus
from holdfast.agent.settings import AgentSettings, Cloud
from holdfast.agent.tenants import Tenants
from holdfast.agent.union import GpuUnion, XidEcho
from holdfast.api.condition import ConditionKind
from holdfast.api.telemetry import NodeEvent, PreemptionNoticed, Unreadable

_LOG = logging.getLogger(__name__)

# Ten looks a second report a fault at most 0.1 s late and cost a fraction of a percent of a core.
LOOK_INTERVAL_S: Final = 0.1
NVML: Final = "nvml"
_JUDGED: Final[Mapping[str, frozenset[ConditionKind]]] = MappingProxyType(
    {
        KernelLog.name: KERNEL_KINDS,
        NVML: GPU_KINDS,
        AMD_SMI: AMD_KINDS,
        Infiniband.name: PORT_KINDS,
        NodeBasics.name: NODE_KINDS,
    }
)


@dataclass(frozen=True, slots=True)
class NodeSensors:
    """`sensors` each speak for themselves; `exporter` fills what they leave open about GPUs.

    `judges` has the kinds of conditions that each of them judges, by its name; nothing where nothing is sensed.
    """

    sensors: tuple[Sensor, ...] = ()
    exporter: Sensor | None = None
    judges: Mapping[str, frozenset[ConditionKind]] = field(default_factory=dict)

    def close(self) -> None:
        """No sensor is read any more."""
        for sensor in self.sensors if self.exporter is None else (*self.sensors, self.exporter):
            sensor.close()


def node_sensors(settings: AgentSettings) -> NodeSensors:
    """Start them. A machine that only pretends to have GPUs is somebody's own: nothing of it is sensed."""
    run_dir = settings.run_dir
    if settings.simulated_gpus and run_dir is not None:
        return NodeSensors((SimulatedGpus(run_dir, node=settings.node, count=settings.simulated_gpus),))
    sensors: list[Sensor] = []
    if settings.kernel_log is not None:
        state_file = None if run_dir is None else os.path.join(run_dir, BOOKMARK)
        sensors.append(KernelLog(source_at(settings.kernel_log), names=GpuNames(), state_file=state_file))
    is_amd = settings.amd_smi and has_amd_gpus()
    if settings.nvml:
        # Only here: the bindings cost memory that an agent without GPUs has no use for.
        from holdfast.agent.nvml.sensor import NvmlSensor, has_nvidia_gpus

        if not is_amd or has_nvidia_gpus():
            sensors.append(NvmlSensor(known=has_nvidia_gpus, memory=ConditionMemory.of(NVML, run_dir)))
    if is_amd:
        sensors.append(AmdSmiSensor(memory=ConditionMemory.of(AMD_SMI, run_dir)))
    if settings.infiniband:
        sensors.append(Infiniband(memory=ConditionMemory.of(Infiniband.name, run_dir)))
    if settings.node_checks:
        memory = ConditionMemory.of(NodeBasics.name, run_dir)
        sensors.append(NodeBasics(disks=settings.disks, memory=memory))
    if settings.preemption is not Cloud.NONE:
        cloud = cloud_here() if settings.preemption is Cloud.AUTO else CloudName(settings.preemption.value)
        if cloud is not None:
            sensors.append(PreemptionNotices(cloud))
    judges = {each.name: _JUDGED[each.name] for each in sensors if each.name in _JUDGED}
    exporter = None if settings.dcgm_exporter is None else DcgmExporter(settings.dcgm_exporter)
    if exporter is not None and NVML not in judges:
        judges[exporter.name] = GPU_KINDS
    return NodeSensors(tuple(sensors), exporter, judges)


class Sensing:
    """Reads every sensor and hands the readings to whoever needs them.

    `sensors` are the node's own: every job on the node is told what they say.
    """

    def __init__(self, sensors: NodeSensors, *, tenants: Tenants, streams: JobStreams, view: NodeView) -> None:
        self._sensors = sensors
        self._tenants = tenants
        self._streams = streams
        self._view = view
        self._echo = XidEcho()
        self._notices = StandingNotices()
        self._union = GpuUnion()
        self._broken: set[str] = set()
        self._logs = tuple(each for each in sensors.sensors if isinstance(each, KernelLog))

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
            self._view.kernel_records_lost = sum(each.records_lost for each in self._logs)
        self._view.observe(node, readings, now)

    def _node(self, now: float) -> Reading:
        sensed = [(sensor.name, self._read(sensor, now, sensor.name)) for sensor in self._sensors.sensors]
        exporter = self._sensors.exporter
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
        return replace(node, all_clear=all_clear(self._sensors.judges, readings))

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
            self._view.timed(counted_as, time.perf_counter() - began)
        self._broken.discard(sensor.name)
        return reading


class StandingNotices:
    """Notices that the machine is taken away, kept for jobs that come after they were given.

    A notice stands until its time is up; every job on the node is told of it once.
    """

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
