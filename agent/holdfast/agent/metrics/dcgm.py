"""GPU telemetry under the names, labels and units of dcgm-exporter 4.8 and older, for a node that runs none."""

from collections.abc import Callable
from typing import Final

from holdfast.agent.metrics.gpus import details_in
from holdfast.agent.picture import Picture
from holdfast.agent.sensors.gpu_detail import GpuDetail, NvlinkDetail
from holdfast.api.exposition import Page

_MEBIBYTE: Final = 1 << 20


def write_dcgm(page: Page, picture: Picture, *, node: str) -> None:
    """Every GPU that is seen now; the last XID also of one that is not."""
    labels = {}
    for gpu in details_in(picture):
        labels[gpu.uuid] = _labels(gpu, node)
        for name, value_of in _FIELDS:
            page.put(name, value_of(gpu), *labels[gpu.uuid])
    for uuid, xid in picture.last_xid.items():
        index = picture.indices.get(uuid)
        gone = ("" if index is None else str(index), uuid, "", "", "", node)
        page.put("DCGM_FI_DEV_XID_ERRORS", xid, *labels.get(uuid, gone))


def _labels(gpu: GpuDetail, node: str) -> tuple[str, ...]:
    return (str(gpu.index), gpu.uuid, gpu.pci_bus_id or "", f"nvidia{gpu.index}", gpu.model or "", node)


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
