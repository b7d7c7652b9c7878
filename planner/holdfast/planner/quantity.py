"""A figure that explains itself: its value, how it came about, and where the formula was taken from."""

import math
from collections.abc import Iterable, Iterator, Mapping
from typing import Final, NamedTuple

import msgspec

_SCALES: Final[Mapping[str, tuple[tuple[float, str], ...]]] = {
    "s": ((86400.0, "days"), (3600.0, "h"), (60.0, "min"), (1.0, "s"), (1e-3, "ms"), (1e-6, "us")),
    "bytes": ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"), (1.0, "bytes")),
    "bytes/s": ((1e12, "TB/s"), (1e9, "GB/s"), (1e6, "MB/s"), (1e3, "kB/s"), (1.0, "bytes/s")),
    "FLOP": ((1e24, "YFLOP"), (1e21, "ZFLOP"), (1e18, "EFLOP"), (1e15, "PFLOP"), (1e12, "TFLOP"), (1e9, "GFLOP")),
}


class Quantity(msgspec.Struct, frozen=True):
    """`value` in `unit`. `formula` is for people, `of` are the quantities that it is made from, `source` a URL."""

    name: str
    value: float
    unit: str
    formula: str = ""
    source: str = ""
    of: tuple["Quantity", ...] = ()

    def lines(self, depth: int = 0) -> Iterator[str]:
        """The quantity and what it is made from, a line each, indented; a part told before is only named."""
        return _told(self, depth, set())


class Took(NamedTuple):
    """How long something takes, in seconds, and how that comes about."""

    s: float
    says: str

    def times(self, count: float, what: str) -> "Took":
        """So often; nothing stays nothing."""
        return NOTHING if not self.s else Took(self.s * count, f"{count:.4g} {what} x {self.says}")


NOTHING: Final = Took(0.0, "there is none")


def total(name: str, unit: str, parts: Iterable[Quantity], *, formula: str = "the sum of its parts") -> Quantity:
    """The sum of `parts`, which must be of one unit."""
    of = tuple(parts)
    return Quantity(name, sum(each.value for each in of), unit, formula, of=of)


def shown(value: float, unit: str) -> str:
    """The value as people write it: `75.7 GB`, `12.3 ms`, `41.2%`."""
    if unit == "share":
        return f"{value:.1%}"
    for scale, name in _SCALES.get(unit, ()):
        if abs(value) >= scale and math.isfinite(value):
            return f"{value / scale:.3g} {name}"
    return f"{value:.4g} {unit}".rstrip()


def _told(quantity: Quantity, depth: int, told: set[str]) -> Iterator[str]:
    known = quantity.name in told
    told.add(quantity.name)
    line = f"{'  ' * depth}{quantity.name} = {shown(quantity.value, quantity.unit)}"
    if known and quantity.of:
        yield f"{line}  (above)"
        return
    if quantity.formula:
        line += f"  [{quantity.formula}]"
    yield f"{line}  {quantity.source}".rstrip()
    for each in quantity.of:
        yield from _told(each, depth + 1, told)
