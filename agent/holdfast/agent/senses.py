"""Which sensors of the node there are, as the settings ask, from their start to their end."""

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Final, Protocol

from holdfast.agent.allclear import GPU_KINDS, KERNEL_KINDS, NODE_KINDS, PORT_KINDS
from holdfast.agent.gpunames import GpuNames
from holdfast.agent.sensors.clouds import CloudName, cloud_here
from holdfast.agent.sensors.conditionmemory import ConditionMemory
from holdfast.agent.sensors.dcgmexporter import DcgmExporter
from holdfast.agent.sensors.infiniband import Infiniband
from holdfast.agent.sensors.kernelbookmark import FILE_NAME as BOOKMARK
from holdfast.agent.sensors.kernellog import KernelLog
from holdfast.agent.sensors.kernelsource import source_at
from holdfast.agent.sensors.nodebasics import NodeBasics
from holdfast.agent.sensors.preemption import PreemptionNotices
from holdfast.agent.sensors.sensor import Sensor
from holdfast.agent.sensors.simulated_gpu import SimulatedGpus
from holdfast.agent.settings import AgentSettings, Cloud, Use
from holdfast.api.condition import ConditionKind

NVML: Final = "nvml"
_JUDGED: Final[Mapping[str, frozenset[ConditionKind]]] = MappingProxyType(
    {
        KernelLog.name: KERNEL_KINDS,
        NVML: GPU_KINDS,
        Infiniband.name: PORT_KINDS,
        NodeBasics.name: NODE_KINDS,
    }
)


class ClosableSensor(Sensor, Protocol):
    """A sensor that holds something open."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Senses:
    """`sensors` each speak for themselves; `exporter` fills what they leave open about GPUs.

    `judges` has the kinds of conditions that each of them judges, by its name; nothing where nothing is sensed.
    """

    sensors: tuple[Sensor, ...] = ()
    exporter: Sensor | None = None
    closable: tuple[ClosableSensor, ...] = ()
    judges: Mapping[str, frozenset[ConditionKind]] = field(default_factory=dict)

    def close(self) -> None:
        """No sensor is read any more."""
        for sensor in self.closable:
            sensor.close()


def senses_of(settings: AgentSettings) -> Senses:
    """Start them. A machine that only pretends to have GPUs is somebody's own: nothing of it is sensed."""
    if settings.simulated_gpus and settings.run_dir is not None:
        return Senses((SimulatedGpus(settings.run_dir, node=settings.node, count=settings.simulated_gpus),))
    closable = tuple(_wanted(settings))
    exporter = None if settings.dcgm_exporter is None else DcgmExporter(settings.dcgm_exporter)
    judges = {each.name: _JUDGED[each.name] for each in closable if each.name in _JUDGED}
    if exporter is None:
        return Senses(closable, None, closable, judges)
    if NVML not in judges:
        judges[exporter.name] = GPU_KINDS
    return Senses(closable, exporter, (*closable, exporter), judges)


def _wanted(settings: AgentSettings) -> list[ClosableSensor]:
    sensors: list[ClosableSensor] = []
    if settings.kernel_log is not None:
        state_file = None if settings.run_dir is None else os.path.join(settings.run_dir, BOOKMARK)
        sensors.append(KernelLog(source_at(settings.kernel_log), names=GpuNames(), state_file=state_file))
    if settings.nvml is Use.AUTO:
        sensors.append(_nvml(settings.run_dir))
    if settings.infiniband is Use.AUTO:
        sensors.append(Infiniband(memory=ConditionMemory.of(Infiniband.name, settings.run_dir)))
    if settings.node_checks is Use.AUTO:
        memory = ConditionMemory.of(NodeBasics.name, settings.run_dir)
        sensors.append(NodeBasics(disks=settings.disks, memory=memory))
    cloud = _cloud(settings.preemption)
    if cloud is not None:
        sensors.append(PreemptionNotices(cloud))
    return sensors


def _cloud(chosen: Cloud) -> CloudName | None:
    if chosen is Cloud.AUTO:
        return cloud_here()
    return None if chosen is Cloud.NONE else CloudName(chosen.value)


def _nvml(run_dir: str | None) -> ClosableSensor:
    # The bindings cost memory that an agent without GPUs has no use for.
    from holdfast.agent.nvml.presence import has_nvidia_gpus
    from holdfast.agent.nvml.sensor import NvmlSensor

    return NvmlSensor(known=has_nvidia_gpus, memory=ConditionMemory.of(NVML, run_dir))
