"""Everything the driver tells of one GPU: for the node's metrics and for judging conditions. Stays on the node."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class NvlinkDetail:
    """One NVLink of a GPU. Counters are since the driver was loaded; None is Unknown."""

    link: int
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
    it.
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
