"""Which sensors of the node there are, as the settings ask, from their start to their end."""

import os
from dataclasses import dataclass
from typing import Protocol

from holdfast.agent.gpunames import GpuNames
from holdfast.agent.sensors.clouds import CloudName, cloud_here
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


class ClosableSensor(Sensor, Protocol):
    """A sensor that holds something open."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class Senses:
    """`sensors` each speak for themselves; `exporter` fills what they leave open about GPUs."""

    sensors: tuple[Sensor, ...] = ()
    exporter: Sensor | None = None
    closable: tuple[ClosableSensor, ...] = ()

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
    return Senses(closable, exporter, closable if exporter is None else (*closable, exporter))


def _wanted(settings: AgentSettings) -> list[ClosableSensor]:
    sensors: list[ClosableSensor] = []
    if settings.kernel_log is not None:
        state_file = None if settings.run_dir is None else os.path.join(settings.run_dir, BOOKMARK)
        sensors.append(KernelLog(source_at(settings.kernel_log), names=GpuNames(), state_file=state_file))
    if settings.nvml is Use.AUTO:
        sensors.append(_nvml())
    if settings.infiniband is Use.AUTO:
        sensors.append(Infiniband())
    if settings.node_checks is Use.AUTO:
        sensors.append(NodeBasics(disks=settings.disks))
    cloud = _cloud(settings.preemption)
    if cloud is not None:
        sensors.append(PreemptionNotices(cloud))
    return sensors


def _cloud(chosen: Cloud) -> CloudName | None:
    if chosen is Cloud.AUTO:
        return cloud_here()
    return None if chosen is Cloud.NONE else CloudName(chosen.value)


def _nvml() -> ClosableSensor:
    # The bindings cost memory that an agent without GPUs has no use for.
    from holdfast.agent.nvml.presence import has_nvidia_gpus
    from holdfast.agent.nvml.sensor import NvmlSensor

    return NvmlSensor(known=has_nvidia_gpus)
