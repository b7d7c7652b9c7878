"""What a dcgm-exporter serves, as GPUs. Pure."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Final

from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from holdfast.agent.sensors.dcgm_fields import XID_GAUGES, XID_TOTAL, filling_of
from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.api.bounds import WHOLE_MAX

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
    gpus: dict[str, _Gpu] = {}
    for sample in _samples(text):
        uuid = sample.labels.get("UUID") or sample.labels.get("gpu_uuid") or ""
        if not uuid or (uuid not in gpus and len(gpus) >= GPUS_MAX):
            continue
        gpu = gpus.setdefault(uuid, _Gpu(uuid))
        gpu.take(sample)
    return Scrape(
        details=tuple(sorted((gpu.detail() for gpu in gpus.values()), key=lambda detail: detail.index)),
        xids={uuid: XidsShown(gpu.last_xid, gpu.last_text, dict(gpu.xid_totals)) for uuid, gpu in gpus.items()},
    )


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
            self._total(sample.labels.get("xid", ""), int(value))
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

    def _total(self, label: str, value: int) -> None:
        xid = _number(label)
        if xid:
            self.xid_totals[xid] = max(value, self.xid_totals.get(xid, 0))


def _samples(text: str) -> list[Sample]:
    """The samples that are of use. Most lines are not, and to pass one over costs far less than to parse it."""
    lines = (line for line in text.splitlines() if line.startswith("DCGM_"))
    useful = "\n".join(line for line in lines if _of_use(line.partition("{")[0]))
    if not useful:
        raise NotDcgm("it shows nothing of a GPU")
    try:
        families = text_string_to_metric_families(useful + "\n")
        return [sample for family in families for sample in family.samples]
    except (ValueError, IndexError, KeyError) as error:
        raise NotDcgm(f"not Prometheus text: {str(error)[:100]}") from error


@lru_cache(maxsize=1024)
def _of_use(metric: str) -> bool:
    return metric in XID_GAUGES or metric == XID_TOTAL or filling_of(metric) is not None


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
