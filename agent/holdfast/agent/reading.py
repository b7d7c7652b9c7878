"""What sensors tell: GPUs, ports and the node in detail, and the reading that one look at a source gives. Pure."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, fields
from enum import StrEnum
from itertools import chain
from types import MappingProxyType
from typing import Any, Final, Protocol

from holdfast.api.condition import AllClear, Condition
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeEvent, RankSample, Unreadable


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkDetail:
    """One link between GPUs: an NVLink, or of AMD's GPUs an XGMI link; `fabric` names it so, as conditions do.

    Counters are since the driver was loaded; None is Unknown.
    """

    link: int
    fabric: str = "nvlink"
    active: bool | None = None
    replays: int | None = None
    recoveries: int | None = None
    crc_errors: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDetail:
    """One GPU as the driver last described it. None is Unknown: not supported, not permitted or not readable.

    Temperatures are in degrees Celsius. `margin_c` is how much hotter the GPU may get before it slows itself
    down, which it does at `slowdown_c`; at `shutdown_c` it switches itself off. `throttle` are NVML's bits of why
    the clocks are held down now. The `*_throttled_s` counters and all error counters only grow until the driver is
    loaded again; the "aggregate" ones outlive that. `utilization_ratio` is from 0 to 1. `recovery_action` is what
    the driver says it needs, as in `holdfast.api.xid.RecoveryAction` or newer. `processes` is how many compute on
    it. `words` are the driver's own about its memory errors, empty where the counters say all.
    """

    uuid: str
    index: int
    model: str | None = None
    pci_bus_id: str | None = None

    temperature_c: float | None = None
    memory_temperature_c: float | None = None
    slowdown_c: float | None = None
    shutdown_c: float | None = None
    margin_c: float | None = None

    power_w: float | None = None
    power_limit_w: float | None = None
    energy_j: float | None = None
    sm_clock_mhz: int | None = None
    memory_clock_mhz: int | None = None
    utilization_ratio: float | None = None
    memory_used_bytes: int | None = None
    memory_total_bytes: int | None = None

    throttle: int | None = None
    thermal_throttled_s: float | None = None
    power_throttled_s: float | None = None
    board_limit_throttled_s: float | None = None
    reliability_throttled_s: float | None = None

    ecc_corrected: int | None = None
    ecc_uncorrected: int | None = None
    ecc_corrected_aggregate: int | None = None
    ecc_uncorrected_aggregate: int | None = None
    remapped_rows_correctable: int | None = None
    remapped_rows_uncorrectable: int | None = None
    row_remap_pending: bool | None = None
    row_remap_failed: bool | None = None
    retired_pages_single_bit: int | None = None
    retired_pages_double_bit: int | None = None
    page_retirement_pending: bool | None = None

    pcie_generation: int | None = None
    pcie_generation_max: int | None = None
    pcie_width: int | None = None
    pcie_width_max: int | None = None
    pcie_replays: int | None = None
    nvlinks: tuple[NvlinkDetail, ...] = ()

    recovery_action: int | None = None
    processes: int | None = None
    words: str = ""


def sample_of(detail: GpuDetail) -> GpuSample:
    """The sample of a GPU that answers: healthy where it says how it does, else unknown."""
    vital = (detail.temperature_c, detail.power_w, detail.utilization_ratio)
    return GpuSample(
        uuid=detail.uuid,
        index=detail.index,
        health=GpuHealth.UNKNOWN if vital == (None, None, None) else GpuHealth.HEALTHY,
        temperature_c=detail.temperature_c,
        memory_temperature_c=detail.memory_temperature_c,
        power_w=detail.power_w,
        utilization_ratio=detail.utilization_ratio,
        margin_c=detail.margin_c,
        throttled_s=detail.thermal_throttled_s,
        throttle=detail.throttle,
        memory_used_bytes=None if detail.memory_used_bytes is None else float(detail.memory_used_bytes),
    )


class PortState(StrEnum):
    """Whether data passes."""

    UP = "Up"
    DOWN = "Down"
    UNKNOWN = "Unknown"


class PortCounter(StrEnum):
    """Counters of errors, by their names in sysfs. Which of them a port has depends on its driver.

    Source: https://www.kernel.org/doc/Documentation/ABI/stable/sysfs-class-infiniband (`counters`) and
    https://enterprise-support.nvidia.com/s/article/understanding-mlx5-linux-counters-and-status-parameters
    (`hw_counters`)
    """

    LINK_DOWNED = "link_downed"
    LINK_ERROR_RECOVERY = "link_error_recovery"
    SYMBOL_ERROR = "symbol_error"
    RECEIVE_ERRORS = "port_rcv_errors"
    RECEIVE_REMOTE_PHYSICAL_ERRORS = "port_rcv_remote_physical_errors"
    LOCAL_LINK_INTEGRITY = "local_link_integrity_errors"
    BUFFER_OVERRUN = "excessive_buffer_overrun_errors"
    BAD_CRC = "rx_icrc_encapsulated"
    OUT_OF_SEQUENCE = "out_of_sequence"
    PACKET_SEQUENCE = "packet_seq_err"
    ACK_TIMEOUT = "local_ack_timeout_err"
    ADAPTIVE_RETRANSMISSION = "roce_adp_retrans"
    ADAPTIVE_RETRANSMISSION_TIMEOUT = "roce_adp_retrans_to"
    CARRIER_DOWN = "carrier_down_count"  # of the port's network interface, where it has one


@dataclass(frozen=True, slots=True, kw_only=True)
class PortDetail:
    """One port of an adapter (`device`), `model` of its kind.

    `state_text` is the kernel's own word. `rate_gbps` is in gigabits a second; None is Unknown. `downs` counts how
    often the link was seen to go down since the agent started. `counters` are raw: they start again with the
    driver, and the classic ones stop at their limit. `sent_bytes` and `received_bytes` are since the driver was
    loaded.
    """

    device: str
    port: int
    state: PortState
    state_text: str = ""
    link_layer: str = ""
    model: str = ""
    rate_gbps: float | None = None
    downs: int = 0
    sent_bytes: int | None = None
    received_bytes: int | None = None
    counters: Mapping[PortCounter, int] = field(default_factory=lambda: MappingProxyType({}))

    @property
    def name(self) -> str:
        """ADAPTER/PORT, as conditions name it: "mlx5_0/1"."""
        return f"{self.device}/{self.port}"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskDetail:
    """The file system that `path` is on. `free_bytes` and `free_inodes` are what an ordinary user may still take.

    A file system that counts no inodes has None of them.
    """

    path: str
    total_bytes: int
    free_bytes: int
    total_inodes: int | None
    free_inodes: int | None
    read_only: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDetail:
    """The system clock, as the kernel's discipline sees it.

    `offset_s` is what is still to be corrected, `error_s_max` the most it may be wrong by. `unsynchronised` is the
    kernel's word for it; where nothing ever set the clock it says so too.
    """

    offset_s: float
    error_s_max: float
    unsynchronised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDetail:
    """Memory that processes may have, and what of it they can still take without swapping."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """The node. `load` is of one minute."""

    memory: MemoryDetail | None = None
    load: float | None = None
    uptime_s: float | None = None
    clock: ClockDetail | None = None
    disks: tuple[DiskDetail, ...] = ()


@dataclass(frozen=True, slots=True)
class Reading:
    """What one look at a source gave. Ages in samples and events are seconds before the `now` of that look.

    Samples and `unreadable` describe the present and replace what an earlier look said. Events happened once:
    each is in exactly one reading. `conditions` are all that hold, and those cleared less than a minute ago.
    `all_clear` is what the source can say so of now; empty while it cannot be read, or in part only. `details`,
    `ports` and `node` stay on the node, for its metrics.
    """

    ranks: tuple[RankSample, ...] = ()
    gpus: tuple[GpuSample, ...] = ()
    events: tuple[NodeEvent, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    conditions: tuple[Condition, ...] = ()
    all_clear: tuple[AllClear, ...] = ()
    details: tuple[GpuDetail, ...] = ()
    ports: tuple[PortDetail, ...] = ()
    node: NodeDetail | None = None


class Sensor(Protocol):
    """One source. `name` names it in `Unreadable` and in metrics."""

    @property
    def name(self) -> str: ...

    def read(self, now: float) -> Reading:
        """Look at the source. Called about ten times a second, always from one thread.

        `now` is the node's CLOCK_MONOTONIC in seconds. Must return within a millisecond: a slow source is read
        on a thread of its own and answers from what it last saw. A device that is sick, or a source that is
        not there, is `Unreadable` in the reading, never an exception.
        """
        ...

    def close(self) -> None:
        """Let go of what it holds open; it is read no more."""
        ...


_JOINED: Final = tuple(each.name for each in fields(Reading) if each.name != "node")


def joined(readings: Iterable[Reading]) -> Reading:
    """Several sensors' readings as one."""
    every = tuple(readings)
    parts: dict[str, Any] = {
        name: tuple(chain.from_iterable(getattr(reading, name) for reading in every)) for name in _JOINED
    }
    return Reading(**parts, node=next((each.node for each in every if each.node is not None), None))
