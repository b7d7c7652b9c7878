"""What the fields of dcgm-exporter are called, in which unit, and which of a GPU's details each fills.

Two generations of names are in use. Until 4.8 the exporter kept DCGM's first names (DCGM_FI_DEV_SM_CLOCK, in MHz);
4.9 took over the names that DCGM 4.7 introduced, most of which end with their unit and count in base units
(DCGM_FI_DEV_SM_CLOCK_HERTZ). A custom field list may mix them.

    https://github.com/NVIDIA/dcgm-exporter/releases (4.9.0: 23 names, 11 of them with another unit)
    https://github.com/NVIDIA/DCGM, bindings/python (dcgm_fields.py: names of DCGM 4.6, old ones as aliases)
    https://github.com/NVIDIA/go-dcgm (base-unit fields of DCGM 4.7 beside the ones they replace)

A name that is in neither list is still understood when it is an old one with the suffix of its base unit.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, NamedTuple

PREFIX: Final = "DCGM_FI_DEV_"
XID_GAUGES: Final = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
XID_TOTAL: Final = "DCGM_EXP_XID_ERRORS_TOTAL"


class Filling(NamedTuple):
    """The detail that a field fills, and by what its value is multiplied to be in the detail's unit."""

    detail: str
    factor: float = 1.0


# By the first names.
_FIRST: Final[Mapping[str, Filling]] = MappingProxyType(
    {
        "GPU_TEMP": Filling("temperature_c"),
        "MEMORY_TEMP": Filling("memory_temperature_c"),
        "SLOWDOWN_TEMP": Filling("slowdown_c"),
        "SHUTDOWN_TEMP": Filling("shutdown_c"),
        "GPU_TEMP_LIMIT": Filling("margin_c"),
        "POWER_USAGE": Filling("power_w"),
        "ENFORCED_POWER_LIMIT": Filling("power_limit_w"),
        "TOTAL_ENERGY_CONSUMPTION": Filling("energy_j", 1e-3),
        "SM_CLOCK": Filling("sm_clock_mhz"),
        "MEM_CLOCK": Filling("memory_clock_mhz"),
        "GPU_UTIL": Filling("utilization_ratio", 1e-2),
        "FB_USED": Filling("memory_used_bytes", 2.0**20),
        "FB_TOTAL": Filling("memory_total_bytes", 2.0**20),
        "CLOCKS_EVENT_REASONS": Filling("throttle"),
        "CLOCK_THROTTLE_REASONS": Filling("throttle"),
        "THERMAL_VIOLATION": Filling("thermal_throttled_s", 1e-9),
        "POWER_VIOLATION": Filling("power_throttled_s", 1e-9),
        "BOARD_LIMIT_VIOLATION": Filling("board_limit_throttled_s", 1e-9),
        "RELIABILITY_VIOLATION": Filling("reliability_throttled_s", 1e-9),
        "ECC_SBE_VOL_TOTAL": Filling("ecc_corrected"),
        "ECC_DBE_VOL_TOTAL": Filling("ecc_uncorrected"),
        "ECC_SBE_AGG_TOTAL": Filling("ecc_corrected_aggregate"),
        "ECC_DBE_AGG_TOTAL": Filling("ecc_uncorrected_aggregate"),
        "CORRECTABLE_REMAPPED_ROWS": Filling("remapped_rows_correctable"),
        "UNCORRECTABLE_REMAPPED_ROWS": Filling("remapped_rows_uncorrectable"),
        "ROW_REMAP_PENDING": Filling("row_remap_pending"),
        "ROW_REMAP_FAILURE": Filling("row_remap_failed"),
        "RETIRED_SBE": Filling("retired_pages_single_bit"),
        "RETIRED_DBE": Filling("retired_pages_double_bit"),
        "RETIRED_PENDING": Filling("page_retirement_pending"),
        "PCIE_LINK_GEN": Filling("pcie_generation"),
        "PCIE_MAX_LINK_GEN": Filling("pcie_generation_max"),
        "PCIE_LINK_WIDTH": Filling("pcie_width"),
        "PCIE_MAX_LINK_WIDTH": Filling("pcie_width_max"),
        "PCIE_REPLAY_COUNTER": Filling("pcie_replays"),
        "GET_GPU_RECOVERY_ACTION": Filling("recovery_action"),
    }
)
# By the newer names, where those are not the first ones with a suffix.
_NEWER: Final[Mapping[str, Filling]] = MappingProxyType(
    {
        "GPU_TEMP_SLOWDOWN_CELSIUS": Filling("slowdown_c"),
        "GPU_TEMP_MARGIN_CELSIUS": Filling("margin_c"),
        "BOARD_POWER_WATTS": Filling("power_w"),
        "BOARD_POWER_LIMIT_ENFORCED_WATTS": Filling("power_limit_w"),
        "GPU_ENERGY_JOULES_TOTAL": Filling("energy_j"),
        "MEMORY_CLOCK_HERTZ": Filling("memory_clock_mhz", 1e-6),
        "FB_CAPACITY_BYTES": Filling("memory_total_bytes"),
        "GPU_THERMAL_THROTTLE_SECONDS_TOTAL": Filling("thermal_throttled_s"),
        "GPU_POWER_THROTTLE_SECONDS_TOTAL": Filling("power_throttled_s"),
        "ROW_REMAP_CORRECTABLE_TOTAL": Filling("remapped_rows_correctable"),
        "ROW_REMAP_UNCORRECTABLE_TOTAL": Filling("remapped_rows_uncorrectable"),
        "ROW_REMAP_FAILED": Filling("row_remap_failed"),
        "PAGE_RETIRED_SBE_TOTAL": Filling("retired_pages_single_bit"),
        "PAGE_RETIRED_DBE_TOTAL": Filling("retired_pages_double_bit"),
        "PAGE_RETIRED_PENDING": Filling("page_retirement_pending"),
        "PCIE_REPLAY_TOTAL": Filling("pcie_replays"),
        "GPU_RECOVERY_ACTION": Filling("recovery_action"),
    }
)
# The suffix of a base unit, how a detail in its unit is named, and the factor between the two.
_SUFFIXES: Final[tuple[tuple[str, str, float], ...]] = (
    ("_CELSIUS", "_c", 1.0),
    ("_WATTS", "_w", 1.0),
    ("_HERTZ", "_mhz", 1e-6),
    ("_JOULES_TOTAL", "_j", 1.0),
    ("_RATIO", "_ratio", 1.0),
    ("_BYTES", "_bytes", 1.0),
    ("_SECONDS_TOTAL", "_s", 1.0),
)


def filling_of(metric: str) -> Filling | None:
    """What a metric fills, None for one that says nothing we use."""
    name = metric.removeprefix(PREFIX)
    if name == metric:
        return None
    known = _FIRST.get(name) or _NEWER.get(name)
    if known is not None:
        return known
    for suffix, ending, factor in _SUFFIXES:
        first = _FIRST.get(name.removesuffix(suffix)) if name.endswith(suffix) else None
        if first is not None and first.detail.endswith(ending):
            return Filling(first.detail, factor)
    return None
