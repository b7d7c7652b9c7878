"""GPUs under Holdfast's names, and under those of dcgm-exporter 4.8 and older for a node that runs none."""

from collections.abc import Callable
from typing import Final

from holdfast.agent.nodeview import NodeView
from holdfast.agent.reading import GpuDetail, NvlinkDetail
from holdfast.api.exposition import Page
from holdfast.api.telemetry import GpuHealth

_GAUGES: Final[tuple[tuple[str, Callable[[GpuDetail], float | None]], ...]] = (
    ("holdfast_gpu_temperature_margin_celsius", lambda gpu: gpu.margin_c),
    ("holdfast_gpu_power_limit_watts", lambda gpu: gpu.power_limit_w),
    ("holdfast_gpu_processes", lambda gpu: gpu.processes),
    ("holdfast_gpu_pcie_width_max", lambda gpu: gpu.pcie_width_max),
    ("holdfast_gpu_pcie_generation_max", lambda gpu: gpu.pcie_generation_max),
)
_LIMITS_C: Final[tuple[tuple[str, Callable[[GpuDetail], float | None]], ...]] = (
    ("slowdown", lambda gpu: gpu.slowdown_c),
    ("shutdown", lambda gpu: gpu.shutdown_c),
)
_THROTTLED_S: Final[tuple[tuple[str, Callable[[GpuDetail], float | None]], ...]] = (
    ("thermal", lambda gpu: gpu.thermal_throttled_s),
    ("power", lambda gpu: gpu.power_throttled_s),
    ("board_limit", lambda gpu: gpu.board_limit_throttled_s),
    ("reliability", lambda gpu: gpu.reliability_throttled_s),
)
# An idle GPU, and clocks that somebody has set, are not held down.
# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_THROTTLE_BITS: Final = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}


def details_in(view: NodeView) -> tuple[GpuDetail, ...]:
    """Every GPU that is seen now, as well as it is known."""
    detailed = {each.uuid for each in view.node.details}
    plain = tuple(
        GpuDetail(
            uuid=sample.uuid,
            index=sample.index,
            temperature_c=sample.temperature_c,
            memory_temperature_c=sample.memory_temperature_c,
            margin_c=sample.margin_c,
            power_w=sample.power_w,
            utilization_ratio=sample.utilization_ratio,
            throttle=sample.throttle,
            thermal_throttled_s=sample.throttled_s,
        )
        for sample in view.node.gpus
        if sample.uuid not in detailed
    )
    return view.node.details + plain


def write_gpus(page: Page, view: NodeView, *, node: str, now: float) -> None:
    """Every GPU that is seen now, and every one that ever had an error."""
    for sample in view.node.gpus:
        unknown = sample.health is GpuHealth.UNKNOWN
        healthy = None if unknown else float(sample.health is GpuHealth.HEALTHY)
        page.put("holdfast_gpu_healthy", healthy, str(sample.index), sample.uuid, node)
    for gpu in details_in(view):
        _write_gpu(page, gpu, (str(gpu.index), gpu.uuid, node))
    for (uuid, xid), count in view.xids.items():
        error = (*gpu_labels(view, uuid), node, str(xid))
        page.put("holdfast_xid_errors_total", count, *error)
        page.put("holdfast_xid_age_seconds", max(0.0, now - view.xid_at[uuid, xid]), *error)
    for uuid, count in view.lost.items():
        labels = (*gpu_labels(view, uuid), node)
        page.put("holdfast_gpu_lost_total", count, *labels)
        page.put("holdfast_gpu_lost_age_seconds", max(0.0, now - view.lost_at[uuid]), *labels)


def gpu_labels(view: NodeView, uuid: str) -> tuple[str, str]:
    """Its index, empty when it was never seen, and its UUID."""
    index = view.indices.get(uuid)
    return ("" if index is None else str(index), uuid)


def _write_gpu(page: Page, gpu: GpuDetail, labels: tuple[str, ...]) -> None:
    for name, value_of in _GAUGES:
        page.put(name, value_of(gpu), *labels)
    for limit, celsius_of in _LIMITS_C:
        page.put("holdfast_gpu_temperature_limit_celsius", celsius_of(gpu), *labels, limit)
    for reason, seconds_of in _THROTTLED_S:
        page.put("holdfast_gpu_throttled_seconds_total", seconds_of(gpu), *labels, reason)
    if gpu.throttle is not None:
        for bit, reason in _THROTTLE_BITS.items():
            page.put("holdfast_gpu_throttled", float(bool(gpu.throttle & bit)), *labels, reason)
    known = [link.active for link in gpu.nvlinks if link.active is not None]
    if known:
        page.put("holdfast_gpu_nvlinks", known.count(True), *labels, "up")
        page.put("holdfast_gpu_nvlinks", known.count(False), *labels, "down")


_MEBIBYTE: Final = 1 << 20


def write_dcgm(page: Page, view: NodeView, *, node: str) -> None:
    """Every GPU that is seen now; the last XID also of one that is not."""
    labels = {}
    for gpu in details_in(view):
        bus, model, index = gpu.pci_bus_id or "", gpu.model or "", str(gpu.index)
        labels[gpu.uuid] = (index, gpu.uuid, bus, f"nvidia{index}", model, node)
        for name, value_of in _FIELDS:
            page.put(name, value_of(gpu), *labels[gpu.uuid])
    for uuid, xid in view.last_xid.items():
        gone = (*gpu_labels(view, uuid), "", "", "", node)
        page.put("DCGM_FI_DEV_XID_ERRORS", xid, *labels.get(uuid, gone))


def _scaled(value: float | None, by: float) -> float | None:
    return None if value is None else value * by


def _free_mib(gpu: GpuDetail) -> float | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    return (gpu.memory_total_bytes - gpu.memory_used_bytes) / _MEBIBYTE


def _over_links(gpu: GpuDetail, count_of: Callable[[NvlinkDetail], int | None]) -> int | None:
    """The sum over those links of which it is known."""
    known = [count for link in gpu.nvlinks if (count := count_of(link)) is not None]
    return sum(known) if known else None


_FIELDS: Final[tuple[tuple[str, Callable[[GpuDetail], float | None]], ...]] = (
    ("DCGM_FI_DEV_GPU_TEMP", lambda gpu: gpu.temperature_c),
    ("DCGM_FI_DEV_MEMORY_TEMP", lambda gpu: gpu.memory_temperature_c),
    ("DCGM_FI_DEV_POWER_USAGE", lambda gpu: gpu.power_w),
    ("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", lambda gpu: _scaled(gpu.energy_j, 1e3)),
    ("DCGM_FI_DEV_SM_CLOCK", lambda gpu: gpu.sm_clock_mhz),
    ("DCGM_FI_DEV_MEM_CLOCK", lambda gpu: gpu.memory_clock_mhz),
    ("DCGM_FI_DEV_GPU_UTIL", lambda gpu: _scaled(gpu.utilization_ratio, 100.0)),
    ("DCGM_FI_DEV_FB_USED", lambda gpu: _scaled(gpu.memory_used_bytes, 1 / _MEBIBYTE)),
    ("DCGM_FI_DEV_FB_FREE", _free_mib),
    ("DCGM_FI_DEV_CLOCKS_EVENT_REASONS", lambda gpu: gpu.throttle),
    ("DCGM_FI_DEV_THERMAL_VIOLATION", lambda gpu: _scaled(gpu.thermal_throttled_s, 1e9)),
    ("DCGM_FI_DEV_POWER_VIOLATION", lambda gpu: _scaled(gpu.power_throttled_s, 1e9)),
    ("DCGM_FI_DEV_BOARD_LIMIT_VIOLATION", lambda gpu: _scaled(gpu.board_limit_throttled_s, 1e9)),
    ("DCGM_FI_DEV_RELIABILITY_VIOLATION", lambda gpu: _scaled(gpu.reliability_throttled_s, 1e9)),
    ("DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", lambda gpu: gpu.ecc_corrected),
    ("DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", lambda gpu: gpu.ecc_uncorrected),
    ("DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", lambda gpu: gpu.ecc_corrected_aggregate),
    ("DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", lambda gpu: gpu.ecc_uncorrected_aggregate),
    ("DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", lambda gpu: gpu.remapped_rows_correctable),
    ("DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", lambda gpu: gpu.remapped_rows_uncorrectable),
    ("DCGM_FI_DEV_ROW_REMAP_PENDING", lambda gpu: gpu.row_remap_pending),
    ("DCGM_FI_DEV_ROW_REMAP_FAILURE", lambda gpu: gpu.row_remap_failed),
    ("DCGM_FI_DEV_RETIRED_SBE", lambda gpu: gpu.retired_pages_single_bit),
    ("DCGM_FI_DEV_RETIRED_DBE", lambda gpu: gpu.retired_pages_double_bit),
    ("DCGM_FI_DEV_RETIRED_PENDING", lambda gpu: gpu.page_retirement_pending),
    ("DCGM_FI_DEV_PCIE_REPLAY_COUNTER", lambda gpu: gpu.pcie_replays),
    ("DCGM_FI_DEV_PCIE_LINK_GEN", lambda gpu: gpu.pcie_generation),
    ("DCGM_FI_DEV_PCIE_LINK_WIDTH", lambda gpu: gpu.pcie_width),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.replays)),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.recoveries)),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.crc_errors)),
)
