"""What all ranks of a job do, as one. Pure.

At 100,000 ranks a pass takes 90 ms, in which no fault would be heard: it is made in slices of some 4 ms, between
which others get their turn.
"""

import math
from collections.abc import Iterator, Sequence
from typing import Final

import msgspec

from holdfast.watchdog.detectors.progress import Newest

SLICE: Final = 4096
# Medians and the p99 of more values than this are of as many, evenly spread over the ranks: sorting 100,000 takes
# 20 ms in one piece. Least and greatest are of all.
SORTED_MAX: Final = 4096


class Spread(msgspec.Struct, frozen=True):
    """How values are spread over the ranks."""

    least: float
    median: float
    p99: float
    greatest: float


class Vitals(msgspec.Struct, frozen=True):
    """All ranks as one. None is Unknown.

    `fresh` ranks were heard of lately, `stale` ones not lately: what those said last is not the present, and only
    their ages are told. `heard_age_s` and `progress_age_s` are the greatest over the ranks. `nonfinite` counts the
    fresh ranks whose loss or gradient norm, or both, is NaN or infinite.
    """

    fresh: int = 0
    stale: int = 0
    unheard: int = 0
    loss: Spread | None = None
    grad_norm: Spread | None = None
    step_s: Spread | None = None
    nonfinite: int = 0
    tokens_per_s: float | None = None
    heard_age_s: float | None = None
    progress_age_s: float | None = None


class _Values:
    """One quantity so far: its finite values. Whether others were not is counted by rank."""

    def __init__(self) -> None:
        self._finite: list[float] = []
        self._least, self._greatest = math.inf, -math.inf

    def take(self, values: Sequence[float | None]) -> None:
        finite = [value for value in values if value is not None and math.isfinite(value)]
        if finite:
            self._finite += finite
            self._least, self._greatest = min(self._least, *finite), max(self._greatest, *finite)

    def spread(self) -> Spread | None:
        if not self._finite:
            return None
        ordered = sorted(self._finite[:: math.ceil(len(self._finite) / SORTED_MAX)])
        median, p99 = ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.99 * len(ordered)) - 1]
        return Spread(self._least, median, p99, self._greatest)


def slices(newest: Newest, *, stale_after_s: float, now: float) -> Iterator[Vitals | None]:
    """None after each slice but the last, then the vitals at `now`."""
    loss, grad_norm, step_s = _Values(), _Values(), _Values()
    heard, fresh_ranks, nonfinite = len(newest.samples), 0, 0
    tokens_per_s: float | None = None
    heard_age_s = progress_age_s = 0.0
    for first in range(0, heard, SLICE):
        samples = newest.samples[first : first + SLICE]
        ages = [now - at for at in newest.heard_at[first : first + SLICE]]
        heard_age_s = max(heard_age_s, *ages)
        behind = [age + each.progress_age_s for age, each in zip(ages, samples, strict=True)]
        progress_age_s = max(progress_age_s, *behind)
        fresh = [each for age, each in zip(ages, samples, strict=True) if age <= stale_after_s]
        fresh_ranks += len(fresh)
        nonfinite += sum(1 for each in fresh if _is_odd(each.loss) or _is_odd(each.grad_norm))
        loss.take([each.loss for each in fresh])
        grad_norm.take([each.grad_norm for each in fresh])
        step_s.take([each.step_time_s for each in fresh])
        rates = [each.tokens / each.step_time_s for each in fresh if each.tokens is not None and each.step_time_s]
        if rates:
            tokens_per_s = (tokens_per_s or 0.0) + math.fsum(rates)
        yield None
    yield Vitals(
        fresh=fresh_ranks,
        stale=heard - fresh_ranks,
        unheard=max(0, newest.world_size - heard),
        loss=loss.spread(),
        grad_norm=grad_norm.spread(),
        step_s=step_s.spread(),
        nonfinite=nonfinite,
        tokens_per_s=tokens_per_s,
        heard_age_s=heard_age_s if heard else None,
        progress_age_s=progress_age_s if heard else None,
    )


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)
