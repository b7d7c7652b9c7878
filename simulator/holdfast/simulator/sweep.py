"""Settings that are varied: `spares=0..64 interval=auto,5m`, every combination of them, and the best of these."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Final

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.simulator.comparison import Side
from holdfast.simulator.estimate import is_beyond_noise
from holdfast.simulator.verdict import Figure, Verdict, deciding, verdict

POINTS_MAX: Final = 10_000
FIX: Final = "give NAME=VALUE,VALUE or NAME=FIRST..LAST, or FIRST..LAST..STEP, as spares=0..64..8"


class Axis(msgspec.Struct, frozen=True):
    """One setting and the values that it takes, as texts."""

    name: str
    values: tuple[str, ...]


Point = Mapping[str, str]
"""A value for each setting."""


def axes(words: Iterable[str]) -> tuple[Axis, ...]:
    """The axes that the words say. Raises InvalidInput."""
    found = [_axis(word) for word in words]
    names = [each.name for each in found]
    for place, name in enumerate(names):
        if name in names[:place]:
            raise InvalidInput(Problem("--sweep", name, "give each setting once, with all its values"))
    if not found:
        raise InvalidInput(Problem("--sweep", "", FIX))
    count = prod(len(each.values) for each in found)
    if count > POINTS_MAX:
        raise InvalidInput(Problem("--sweep", count, f"these are too many combinations; {POINTS_MAX} is the most"))
    return tuple(found)


def points(found: Sequence[Axis]) -> Iterator[Point]:
    """Every combination, the last axis the fastest."""
    for values in product(*(each.values for each in found)):
        yield dict(zip((each.name for each in found), values, strict=True))


def says(point: Point) -> str:
    """A point as people read it."""
    return " ".join(f"{name}={value}" for name, value in point.items())


class Ranked(msgspec.Struct, frozen=True):
    """One point and what became of it. `ties`: by noise alone it may be as good as the best."""

    point: dict[str, str]
    verdict: Verdict
    ties: bool


def ranked(tried: Sequence[tuple[Point, Side]], by: str) -> tuple[Ranked, ...]:
    """The best first, by the figure `by`, of points with at least one outcome each.

    A point ties with the best when their difference, paired by seed, is noise. Raises InvalidInput where there is
    no figure of that name that can be better or worse.
    """
    figure = deciding(by, [each.scenario for _, each in tried])
    told = [(point, verdict(each.says, each.scenario, each.outcomes), each) for point, each in tried]
    told.sort(key=lambda each: -figure.better * each[1].figures[by].mean)
    return tuple(Ranked(dict(point), said, _ties(told[0][2], each, figure)) for point, said, each in told)


def _ties(best: Side, other: Side, figure: Figure) -> bool:
    """Whether nothing but noise is between them, by the seeds that both have seen."""
    ours = {each.seed: figure.of(each, best.scenario) for each in best.outcomes}
    theirs = {each.seed: figure.of(each, other.scenario) for each in other.outcomes}
    changes = [theirs[seed] - ours[seed] for seed in sorted(ours.keys() & theirs.keys())]
    return not is_beyond_noise(changes, counts=figure.is_count)


def _axis(word: str) -> Axis:
    name, has_values, values = word.partition("=")
    parts = [each.strip() for each in values.split(",")]
    if not (name.strip() and has_values and all(parts)):
        raise InvalidInput(Problem("--sweep", word, FIX))
    told: list[str] = []
    for part in parts:
        told += _range(word, part) if ".." in part else [part]
    return Axis(name.strip(), tuple(dict.fromkeys(told)))


def _range(word: str, part: str) -> list[str]:
    ends = part.split("..")
    if len(ends) not in (2, 3) or not all(each.isascii() and each.isdigit() and len(each) < 10 for each in ends):
        raise InvalidInput(Problem("--sweep", word, FIX))
    first, last, step = (int(each) for each in [*ends, "1"][:3])
    if first > last or step < 1:
        raise InvalidInput(Problem("--sweep", word, FIX))
    if (last - first) // step >= POINTS_MAX:
        raise InvalidInput(Problem("--sweep", word, f"these are too many values; {POINTS_MAX} is the most"))
    return [str(value) for value in range(first, last + 1, step)]
