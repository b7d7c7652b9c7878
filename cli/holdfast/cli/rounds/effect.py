"""Whether a figure moved from one round to the next, beyond how it moves by itself.

The last points of the round before are cut into stretches as long as what is looked at of the round after. From
one stretch to the next the figure moves by its trend and its noise; that it moved at the boundary is told only
where it went far further from what is usual than it ever did before. So a falling loss needs no model of how it
falls, and nothing is assumed of how its noise is distributed.
"""

import math
from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import pairwise
from statistics import median
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.cli.figures import Figures
from holdfast.cli.rounds.chronicle import RoundTold

STRETCHES: Final = 8
POINTS_LEAST: Final = 5
"""Of a stretch: a median of fewer says little."""
POINTS_MOST: Final = 60
BEYOND: Final = 2.5
"""Times the furthest that it moved between stretches before: of 1,000 pairs of rounds without a change about four
are told of, and up to 20 where noise hangs together for ten points: our own simulation, of which
tests/unit/runbook/test_rounds.py is a part.
"""
SMALLEST: Final = 0.005
"""Of the figure itself: what moves less matters to nobody."""
WARM_UP: Final = 3
"""Points at the beginning of a round, whose steps take longer; their loss is as good as any."""


class Turn(StrEnum):
    BETTER = "better"
    WORSE = "worse"
    SAME = "same"  # within how it moves by itself
    UNKNOWN = "unknown"  # too few points on one side


class Effect(msgspec.Struct, frozen=True):
    """One figure. `before` and `after` are medians of the stretches on both sides, `expected` is what `after`
    would be if it had gone on as before, `noise` how far it may be from that by itself; None: nothing is known.
    """

    figure: str
    turn: Turn
    before: float | None = None
    after: float | None = None
    expected: float | None = None
    noise: float | None = None


MORE_IS_BETTER: Final[Mapping[str, bool]] = MappingProxyType(
    {"loss": False, "mfu": True, "tokens_s": True, "step_s": False}
)


def effects(before: RoundTold, after: RoundTold, figures: Figures) -> tuple[Effect, ...]:
    """Each figure at the boundary of two rounds. Of a round that went back, the loss is compared with that of
    before at the step it went back to.
    """
    ours = figures.between(before.began, math.nextafter(after.began, -math.inf))
    theirs = figures.between(after.began, after.ended if after.ended is not None else math.inf)
    first = next((step for step in theirs.step if step is not None), None)
    told = []
    for figure in MORE_IS_BETTER:
        is_loss = figure == "loss"
        values = _values(theirs, figure, None)[0 if is_loss else WARM_UP :]
        told.append(moved(figure, _values(ours, figure, first if is_loss else None), values))
    return tuple(told)


def _values(figures: Figures, name: str, until: float | None) -> list[float]:
    """What is known of a figure, up to the step `until`; one value for each step that was seen."""
    values: list[float] = []
    seen: float | None = None
    for step, value in zip(figures.step, getattr(figures, name), strict=True):
        if (
            value is not None
            and (step is None or step != seen)
            and (until is None or step is None or step < until)
        ):
            values.append(value)
            seen = step
    return values


def moved(figure: str, before: Sequence[float], after: Sequence[float]) -> Effect:
    """Whether `after` is where `before` leads to. Both are in the order of time."""
    size = min(len(after), len(before) // STRETCHES, POINTS_MOST)
    if size < POINTS_LEAST:
        return Effect(figure, Turn.UNKNOWN)
    kept = before[len(before) - STRETCHES * size :]
    middles = [median(kept[place : place + size]) for place in range(0, len(kept), size)]
    middle = median(after[:size])
    usual = [later - earlier for earlier, later in pairwise(middles)]
    drift = median(usual)
    noise = max(max(abs(each - drift) for each in usual) * BEYOND, SMALLEST * abs(middles[-1]))
    expected = middles[-1] + drift
    if min((*kept, *after)) >= 0.0:
        expected = max(0.0, expected)  # of what was never below nothing, no line leads there
    turn = Turn.SAME
    if abs(middle - expected) > noise:
        turn = Turn.BETTER if (middle > expected) is MORE_IS_BETTER[figure] else Turn.WORSE
    return Effect(figure, turn, middles[-1], middle, expected, noise)
