"""Nodes that a test makes sick: each is the agent's real exporter over readings that are made up."""

import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from types import MappingProxyType

from holdfast.agent.exporter import NodeMetrics
from holdfast.agent.metrics.itself import Line
from holdfast.agent.picture import Picture
from holdfast.agent.sensors.gpu_detail import GpuDetail, NvlinkDetail
from holdfast.agent.sensors.node_detail import ClockDetail, DiskDetail, MemoryDetail, NodeDetail, Writability
from holdfast.agent.sensors.port_detail import PortCounter, PortDetail, PortState
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuHealth,
    GpuSample,
    PreemptionNoticed,
    ProcessKilledForMemory,
    ProcessState,
    RankSample,
    Unreadable,
    XidRaised,
)

UUID = "GPU-00000000-0000-0000-0000-000000000000"
HW_THERMAL = 0x40
GPU = GpuDetail(
    uuid=UUID,
    index=0,
    model="H100",
    pci_bus_id="00000000:3B:00.0",
    temperature_c=55.0,
    memory_temperature_c=60.0,
    margin_c=32.0,
    power_w=500.0,
    power_limit_w=700.0,
    energy_j=9e6,
    sm_clock_mhz=1980,
    memory_clock_mhz=2619,
    utilization_ratio=0.97,
    memory_used_bytes=1 << 36,
    memory_total_bytes=1 << 37,
    throttle=0,
    thermal_throttled_s=0.0,
    ecc_corrected=0,
    ecc_uncorrected=0,
    remapped_rows_uncorrectable=0,
    pcie_generation=5,
    pcie_width=16,
    pcie_width_max=16,
    pcie_replays=0,
    nvlinks=(NvlinkDetail(link=0, active=True, replays=0, recoveries=0, crc_errors=0),),
)
PORT = PortDetail(
    device="mlx5_0",
    port=1,
    state=PortState.UP,
    rate_gbps=400.0,
    counters=MappingProxyType(dict.fromkeys(PortCounter, 0)),
)
DISK = DiskDetail(
    path="/ckpt",
    total_bytes=1 << 40,
    free_bytes=1 << 39,
    total_inodes=1 << 20,
    free_inodes=1 << 19,
    writability=Writability.WRITABLE,
)
MACHINE = NodeDetail(
    memory=MemoryDetail(total_bytes=1 << 40, available_bytes=1 << 39),
    load=4.0,
    uptime_s=86400.0,
    clock=ClockDetail(offset_s=0.0, error_s_max=0.001, unsynchronised=False),
    disks=(DISK,),
)
WELL = Reading(
    gpus=(GpuSample(UUID, 0, GpuHealth.HEALTHY, margin_c=32.0),), details=(GPU,), ports=(PORT,), node=MACHINE
)


@dataclass
class StagedNode:
    """One node and what it suffers from. `ails` makes the reading of so many seconds of sickness."""

    name: str
    alert: str
    ails: Callable[[float], Reading]
    befalls: Callable[[Picture, float], None] = lambda picture, now: None
    silent: bool = False  # its agent answers no scrape while it is sick
    rack: str = ""
    culprit: dict[str, str] = field(default_factory=dict)
    jobs: Mapping[str, Reading] = field(default_factory=dict)  # what its ranks do while it is sick
    dropped: int = 0
    sick_since: float | None = None
    picture: Picture = field(default_factory=Picture)

    def metrics(self) -> NodeMetrics:
        """As the agent serves them."""

        def lines() -> tuple[Line, ...]:
            return (Line("a/rich", connected=True, reports=10, dropped=self.dropped),)

        return NodeMetrics(self.picture, node=self.name, build=("staged", ""), clock=time.monotonic, lines=lines)

    def fall_sick(self) -> None:
        self.sick_since = time.monotonic()
        self.dropped += self.alert == "HoldfastEventsDropped"
        self.befalls(self.picture, self.sick_since)

    def recover(self) -> None:
        self.sick_since = None
        self.picture.preempted_at = None  # the machine that comes instead has no notice

    def look(self) -> None:
        """What the sensing loop does, about ten times a second."""
        now = time.monotonic()
        reading, jobs = (WELL, {}) if self.sick_since is None else (self.ails(now - self.sick_since), self.jobs)
        self.picture.kernel_records_lost = self.picture.kernel_records_lost or 0
        self.picture.observe(reading, jobs, now)


def _gpu(**changes: object) -> Callable[[float], Reading]:
    return lambda _: replace(WELL, details=(replace(GPU, **changes),))  # type: ignore[arg-type]


def _holds(kind: ConditionKind, *, gpu: str = "", device: str = "") -> Callable[[float], Reading]:
    condition = Condition(kind, ConditionState.RAISED, 1.0, "it is so", gpu=gpu, device=device)
    return lambda _: replace(WELL, conditions=(condition,))


def _well(_: float) -> Reading:
    return WELL


def _rises(sick_s: float) -> Reading:
    """From 14 degrees of margin down to 4, one degree a second."""
    return replace(WELL, details=(replace(GPU, margin_c=max(4.0, 14.0 - sick_s)),))


def _slows_down(sick_s: float) -> Reading:
    return replace(WELL, details=(replace(GPU, thermal_throttled_s=sick_s, throttle=HW_THERMAL),))


def _unreadable(_: float) -> Reading:
    return replace(WELL, unreadable=(Unreadable("nvml", "nvmlInit has not returned for 12 s"),))


def _failed(_: float) -> Reading:
    return replace(WELL, gpus=(GpuSample(UUID, 0, GpuHealth.FAILED),), details=())


def _loses_records(picture: Picture, _: float) -> None:
    picture.kernel_records_lost = (picture.kernel_records_lost or 0) + 40


def _published(rank: int, loss: float) -> Reading:
    """What a rank that runs says of its loss."""
    sample = RankSample(1, rank, ProcessState.RUNNING, Phase.DATA, progress_age_s=0.1, phase_age_s=0.1, loss=loss)
    return Reading(ranks=(sample,))


def _event(event: XidRaised | ProcessKilledForMemory | PreemptionNoticed) -> Callable[[Picture, float], None]:
    return lambda picture, now: picture.observe(replace(WELL, events=(event,)), {}, now)


def _condition(alert: str, kind: ConditionKind, *, gpu: str = "", device: str = "") -> StagedNode:
    culprit = {"node": f"n-{alert}"} | ({"UUID": gpu} if gpu else {})
    return StagedNode(f"n-{alert}", alert, _holds(kind, gpu=gpu, device=device), culprit=culprit)


def _on_gpu(alert: str, ails: Callable[[float], Reading], **culprit: str) -> StagedNode:
    return StagedNode(
        f"n-{alert}", alert, ails, culprit={"node": f"n-{alert}", "UUID": UUID, "gpu": "0", **culprit}
    )


def staged_nodes() -> list[StagedNode]:
    """One for each alert about a node, three for the rack, and one on which a job's loss is lost."""
    xid = _on_gpu("HoldfastGpuXid", _well, xid="79")
    xid.befalls = _event(XidRaised(UUID, 79, 0.0, "GPU has fallen off the bus"))
    kill = StagedNode("n-oom", "HoldfastMemoryKill", _well, _event(ProcessKilledForMemory(7, "python", 0.0)))
    taken = StagedNode("n-spot", "HoldfastPreemptionNotice", _well, _event(PreemptionNoticed("aws", 120.0, 0.0)))
    log = StagedNode("n-log", "HoldfastKernelLogLost", _well, _loses_records)
    dumb = StagedNode("n-dumb", "HoldfastSensorUnreadable", _unreadable, culprit={"source": "nvml"})
    silent = StagedNode("n-silent", "HoldfastAgentDown", _well, silent=True)
    cut_off = StagedNode("n-cut-off", "HoldfastEventsDropped", _well)
    hot = [StagedNode(f"n-rack-{at}", "HoldfastRackHot", _gpu(margin_c=1.0), rack="r7") for at in range(3)]
    for each in (kill, taken, log, dumb, silent, cut_off):
        each.culprit["node"] = each.name
    for each in hot:
        each.culprit["rack"] = "r7"
    kinds = ConditionKind
    return [
        StagedNode("n-sound", "", _well),
        StagedNode("n-culprit", "", _well, jobs={"a/HoldfastLossNotFinite": _published(12, math.inf)}),
        *(xid, kill, taken, log, dumb, silent, cut_off, *hot),
        _on_gpu("HoldfastGpuLost", _failed),
        _on_gpu("HoldfastGpuHot", _gpu(margin_c=2.0)),
        _on_gpu("HoldfastGpuTemperatureRising", _rises),
        _on_gpu("HoldfastGpuThrottled", _slows_down),
        _condition("HoldfastGpuPowerBrake", kinds.POWER_BRAKE, gpu=UUID),
        _condition("HoldfastEccUncorrected", kinds.ECC_UNCORRECTED, gpu=UUID),
        _condition("HoldfastRowRemapFailed", kinds.ROW_REMAP_FAILED, gpu=UUID),
        _condition("HoldfastGpuMemoryWearing", kinds.ROW_REMAP_PENDING, gpu=UUID),
        _condition("HoldfastGpuRecoveryNeeded", kinds.RECOVERY_NEEDED, gpu=UUID),
        _condition("HoldfastPcieDegraded", kinds.PCIE_DEGRADED, gpu=UUID),
        _condition("HoldfastPcieFatal", kinds.PCIE_FATAL, device="0000:3b:00.0"),
        _condition("HoldfastNvlinkDown", kinds.NVLINK_DOWN, gpu=UUID, device="nvlink4"),
        _condition("HoldfastNvswitchFault", kinds.NVSWITCH_FAULT, device="nvswitch0"),
        _condition("HoldfastLinkDown", kinds.LINK_DOWN, device="mlx5_0"),
        _condition("HoldfastLinkDegraded", kinds.LINK_DEGRADED, device="mlx5_0"),
        _condition("HoldfastLinkFlapping", kinds.LINK_FLAPPING, device="mlx5_0"),
        _condition("HoldfastLinkErrors", kinds.LINK_ERRORS, device="mlx5_0"),
        _condition("HoldfastNodeDiskFull", kinds.DISK_FULL, device="/ckpt"),
        _condition("HoldfastDiskReadOnly", kinds.DISK_READ_ONLY, device="/ckpt"),
        _condition("HoldfastHostMemoryError", kinds.HOST_MEMORY_ERROR),
        _condition("HoldfastNodeMemoryLow", kinds.MEMORY_LOW),
        _condition("HoldfastClockUnsynchronised", kinds.CLOCK_UNSYNCHRONISED),
    ]
