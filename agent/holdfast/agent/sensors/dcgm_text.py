"""What a dcgm-exporter serves, as GPUs and XID errors. Pure.

Two generations of names are in use. Until 4.8 the exporter kept DCGM's first names (DCGM_FI_DEV_SM_CLOCK, in MHz);
4.9 took over the names that DCGM 4.7 introduced, most of which end with their unit and count in base units
(DCGM_FI_DEV_SM_CLOCK_HERTZ). A custom field list may mix them.

    https://github.com/NVIDIA/dcgm-exporter/releases (4.9.0: 23 names, 11 of them with another unit)
    https://github.com/NVIDIA/DCGM, bindings/python (dcgm_fields.py: names of DCGM 4.6, old ones as aliases)
    https://github.com/NVIDIA/go-dcgm (base-unit fields of DCGM 4.7 beside the ones they replace)

A name that is in neither list is still understood when it is an old one with the suffix of its base unit.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from holdfast.agent.reading import GpuDetail
from holdfast.api.bounds import WHOLE_MAX
from holdfast.api.telemetry import XidRaised

PREFIX: Final = "DCGM_FI_DEV_"
XID_GAUGES: Final = ("DCGM_FI_DEV_XID_ERRORS", "DCGM_FI_DEV_XID_ERROR")
XID_TOTAL: Final = "DCGM_EXP_XID_ERRORS_TOTAL"
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
# DCGM says "no value", and why, with the largest numbers its types hold.
# Source: DCGM_INT32_BLANK, DCGM_FP64_BLANK and DCGM_INT64_BLANK in https://github.com/NVIDIA/DCGM, dcgm_structs.h
_BLANKS: Final = (range(0x7FFF_FFF0, 0x8000_0000), range(2**47, 2**47 + 16), range(0x7FFF_FFFF_FFFF_FC00, 2**64))
GPUS_MAX: Final = 64
_BEYOND: Final = float(WHOLE_MAX)  # no GPU counts that far, and nobody would be told of one that does
_DIGITS_MAX: Final = 9  # of a GPU's or an XID's number
_WHOLE: Final = frozenset(
    name for name, kind in GpuDetail.__annotations__.items() if kind in (int | None, "int | None")
)
_YES_OR_NO: Final = frozenset(
    name for name, kind in GpuDetail.__annotations__.items() if kind in (bool | None, "bool | None")
)
TOLD_FOR_S: Final = 120.0  # gauge and totals are gathered at their own paces, half a minute apart by default


class Filling(NamedTuple):
    """The detail that a field fills, and by what its value is multiplied to be in the detail's unit."""

    detail: str
    factor: float = 1.0

    def shown(self, gpu: GpuDetail) -> float | None:
        """The other way round: the field's value, in its unit."""
        value: float | None = getattr(gpu, self.detail)
        if value is None or self.factor == 1.0:
            return value
        # 1 / 1e-9 is not a whole number.
        return value * (1.0 / self.factor if self.factor > 1.0 else float(round(1.0 / self.factor)))


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


@dataclass(frozen=True, slots=True)
class XidsShown:
    """What a GPU's series say of XID errors: the last one, `text` that explains it, and totals by XID."""

    last: int | None = None
    text: str = ""
    totals: Mapping[int, int] = field(default_factory=lambda: MappingProxyType({}))


@dataclass(frozen=True, slots=True)
class Scrape:
    """One answer of the exporter, by GPU UUID."""

    details: tuple[GpuDetail, ...] = ()
    xids: Mapping[str, XidsShown] = field(default_factory=lambda: MappingProxyType({}))


class NotDcgm(ValueError):
    """The text is not what a dcgm-exporter serves."""


def scrape_of(text: str) -> Scrape:
    """The GPUs in a dcgm-exporter's answer, of either generation of names. Raises NotDcgm."""
    # Most lines are of no use, and to pass one over costs far less than to parse it.
    lines = (line for line in text.splitlines() if line.startswith("DCGM_"))
    useful = "\n".join(line for line in lines if _is_of_use(line.partition("{")[0]))
    if not useful:
        raise NotDcgm("it shows nothing of a GPU")
    try:
        samples = [each for family in text_string_to_metric_families(useful + "\n") for each in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise NotDcgm(f"not Prometheus text: {str(error)[:100]}") from error
    gpus: dict[str, _Gpu] = {}
    for sample in samples:
        uuid = sample.labels.get("UUID") or sample.labels.get("gpu_uuid") or ""
        if uuid and (uuid in gpus or len(gpus) < GPUS_MAX):
            gpus.setdefault(uuid, _Gpu(uuid)).take(sample)
    return Scrape(
        details=tuple(sorted((gpu.detail() for gpu in gpus.values()), key=lambda detail: detail.index)),
        xids={uuid: XidsShown(gpu.last_xid, gpu.last_text, dict(gpu.xid_totals)) for uuid, gpu in gpus.items()},
    )


@lru_cache(maxsize=1024)
def _is_of_use(metric: str) -> bool:
    return metric in XID_GAUGES or metric == XID_TOTAL or filling_of(metric) is not None


class _Gpu:
    """One GPU while its samples come in. Of a value said twice (parts of a GPU, several pods) the first counts."""

    def __init__(self, uuid: str) -> None:
        self.uuid = uuid
        self.last_xid: int | None = None
        self.last_text = ""
        self.xid_totals: dict[int, int] = {}
        self._labels: dict[str, str] = {}
        self._values: dict[str, Any] = {}

    def take(self, sample: Sample) -> None:
        value = sample.value
        self._labels = {**sample.labels, **self._labels}
        if not _is_told(value) or any(int(value) in blanks for blanks in _BLANKS):
            return
        if sample.name in XID_GAUGES:
            if self.last_xid is None and value >= 0:  # a negative one is no XID
                self.last_xid, self.last_text = int(value), sample.labels.get("err_msg", "")[:200]
        elif sample.name == XID_TOTAL:
            if xid := _number(sample.labels.get("xid", "")):
                self.xid_totals[xid] = max(int(value), self.xid_totals.get(xid, 0))
        elif (filling := filling_of(sample.name)) is not None:
            self._values.setdefault(filling.detail, _value(filling.detail, value * filling.factor))

    def detail(self) -> GpuDetail:
        labels = self._labels
        index = _number(labels.get("gpu", ""))
        return GpuDetail(
            uuid=self.uuid,
            index=-1 if index is None else index,
            model=labels.get("modelName") or labels.get("model_name"),
            pci_bus_id=labels.get("pci_bus_id"),
            **self._values,
        )


def _is_told(value: float) -> bool:
    """Whether it is a number that can be one of a GPU's."""
    return abs(value) < _BEYOND  # false of NaN too


def _number(label: str) -> int | None:
    return int(label) if label.isdecimal() and len(label) <= _DIGITS_MAX else None


def _value(detail: str, value: float) -> float | int | bool | None:
    """`value` in the detail's type, None where it cannot be that."""
    if not _is_told(value):
        return None
    if detail == "utilization_ratio":
        # DCGM 4.6 gave its percentage the name that is a ratio since 4.7.
        return value if 0.0 <= value <= 1.0 else None
    if detail in _YES_OR_NO:
        return value > 0
    return round(value) if detail in _WHOLE else value


class XidGauge:
    """XID errors out of what an exporter shows of them.

    The gauge holds the last error for good, so only a change of it is an event; what it shows at the first look
    happened nobody knows when, and is none. Totals by XID tell repetitions too. Where both are there, what one
    told the other does not tell again, once for each time. After a gap the exporter may have been restarted: what
    begins to be shown then is history.

    `now` is CLOCK_MONOTONIC in seconds and never goes back. Memory is bounded by the GPUs a scrape may name.
    """

    def __init__(self) -> None:
        self._last: dict[str, int] = {}
        self._totals: dict[tuple[str, int], int] = {}
        self._told: dict[tuple[str, int], tuple[str, float]] = {}
        self._gap = True

    def observe(self, shown: Mapping[str, XidsShown], now: float) -> tuple[XidRaised, ...]:
        """The errors that are new in `shown`, by GPU UUID."""
        self._told = {key: told for key, told in self._told.items() if now - told[1] < TOLD_FOR_S}
        events = []
        for uuid, xids in shown.items():
            for xid, total in xids.totals.items():
                before = self._totals.get((uuid, xid), total if self._gap else 0)  # it begins with its first error
                self._totals[uuid, xid] = total
                if total > before and self._is_news(uuid, xid, "total", now):
                    events.append(XidRaised(uuid, xid, 0.0, f"{total} in all, says the exporter"))
            if xids.last:
                last = self._last.get(uuid, xids.last if self._gap else None)
                self._last[uuid] = xids.last
                if xids.last != last and self._is_news(uuid, xids.last, "gauge", now):
                    events.append(XidRaised(uuid, xids.last, 0.0, xids.text))
        self._gap = False
        return tuple(events)

    def gap(self) -> None:
        """A look failed: the next one may be at an exporter that has started again."""
        self._gap = True

    def _is_news(self, uuid: str, xid: int, source: str, now: float) -> bool:
        """Not when the other source told it lately. What is told twice is paired off."""
        told = self._told.get((uuid, xid))
        if told is not None and told[0] != source:
            del self._told[uuid, xid]
            return False
        self._told[uuid, xid] = (source, now)
        return True
