"""An agent's picture of a node of eight GPUs and eight ranks of which everything is known."""

from dataclasses import fields
from types import UnionType
from typing import Any, get_args, get_type_hints

import msgspec

from holdfast.agent.nodeview import NodeView
from holdfast.agent.reading import (
    ClockDetail,
    DiskDetail,
    GpuDetail,
    MemoryDetail,
    NodeDetail,
    NvlinkDetail,
    PortCounter,
    PortDetail,
    PortState,
    Reading,
)
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    PreemptionNoticed,
    ProcessState,
    RankSample,
    StepWork,
    XidRaised,
)

SIZE = 8


def full_picture() -> NodeView:
    """The picture at 100 s of CLOCK_MONOTONIC, with every field known and every condition raised."""
    events = (
        *(XidRaised(f"GPU-{index}", 31, 0.0) for index in range(SIZE)),
        GpuDisappeared("GPU-0", 0.0),
        PreemptionNoticed("aws", within_s=120.0, age_s=0.0),
    )
    reading = Reading(
        gpus=tuple(GpuSample(f"GPU-{index}", index, GpuHealth.HEALTHY) for index in range(SIZE)),
        details=tuple(_gpu(index) for index in range(SIZE)),
        events=events,
        conditions=tuple(
            Condition(kind, ConditionState.RAISED, 1.0, "it does", f"GPU-{index % SIZE}")
            for index, kind in enumerate(ConditionKind)
        ),
        ports=(_PORT,),
        node=_NODE,
    )
    picture = NodeView()
    picture.timed("nvml", 0.1)
    picture.kernel_records_lost = 5
    picture.observe(reading, {"ns/job": Reading(ranks=tuple(map(_rank, range(SIZE))))}, 100.0)
    return picture


def _rank(rank: int) -> RankSample:
    work = StepWork(9, 4.5, 0.1, 0.1, 0.1, 0.1, 1.0, 0.1, 0.0, 36_864, 4096)
    known = RankSample(4, rank, ProcessState.RUNNING, Phase.DATA, 1.0, 1.0, 0.1, 7, 9, 0.5, 2.5, 1.0, 4096)
    return msgspec.structs.replace(known, work=work)


def _gpu(index: int) -> GpuDetail:
    links = tuple(
        NvlinkDetail(link=link, active=True, replays=1, recoveries=1, crc_errors=1) for link in range(18)
    )
    hints = get_type_hints(GpuDetail)
    numbers: dict[str, Any] = {each.name: 1 for each in fields(GpuDetail) if _is_number(hints[each.name])}
    names = {"uuid": f"GPU-{index}", "index": index, "model": "H100", "pci_bus_id": "00000000:3B:00.0"}
    return GpuDetail(**{**numbers, **names, "nvlinks": links})


def _is_number(kind: object) -> bool:
    return isinstance(kind, UnionType) and bool({int, float, bool} & set(get_args(kind)))


_PORT = PortDetail(
    device="mlx5_0",
    port=1,
    state=PortState.UP,
    rate_gbps=400.0,
    sent_bytes=1,
    received_bytes=1,
    counters=dict.fromkeys(PortCounter, 1),
)
_DISK = DiskDetail(path="/", total_bytes=10, free_bytes=4, total_inodes=10, free_inodes=5, read_only=False)
_NODE = NodeDetail(
    memory=MemoryDetail(total_bytes=100, available_bytes=40),
    load=1.5,
    uptime_s=5.0,
    clock=ClockDetail(offset_s=0.25, error_s_max=2.0, unsynchronised=True),
    disks=(_DISK,),
)
