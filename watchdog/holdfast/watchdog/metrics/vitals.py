"""What all ranks of a job do, as one. Pure.

At 100,000 ranks a pass takes 90 ms, in which no fault would be heard: it is made in slices of some 4 ms, between
which others get their turn.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from typing import Final

import msgspec

from holdfast.api.telemetry import RankSample
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


def slices(newest: Newest, *, stale_after_s: float, now: float) -> Iterator[Vitals | None]:
    """None after each slice but the last, then the vitals at `now`."""
    gathering = _Gathering(stale_after_s, now)
    for first in range(0, len(newest.samples), SLICE):
        gathering.take(newest.samples[first : first + SLICE], newest.heard_at[first : first + SLICE])
        yield None
    yield gathering.vitals(newest.world_size)


class _Values:
    """One quantity so far: its finite values. Whether others were not is counted by rank."""

    def __init__(self) -> None:
        self._finite: list[float] = []
        self._least, self._greatest = math.inf, -math.inf

    def take(self, values: list[float]) -> None:
        finite = list(filter(math.isfinite, values))
        if finite:
            self._finite += finite
            self._least, self._greatest = min(self._least, *finite), max(self._greatest, *finite)

    def spread(self) -> Spread | None:
        if not self._finite:
            return None
        ordered = sorted(self._finite[:: math.ceil(len(self._finite) / SORTED_MAX)])
        median, p99 = ordered[(len(ordered) - 1) // 2], ordered[math.ceil(0.99 * len(ordered)) - 1]
        return Spread(self._least, median, p99, self._greatest)


class _Gathering:
    def __init__(self, stale_after_s: float, now: float) -> None:
        self._stale_after_s = stale_after_s
        self._now = now
        self._stale = 0
        self._heard = 0
        self._nonfinite = 0
        self._loss, self._grad_norm, self._step_s = _Values(), _Values(), _Values()
        self._tokens_per_s: float | None = None
        self._heard_age_s = self._progress_age_s = -math.inf

    def take(self, samples: Sequence[RankSample], heard_at: Sequence[float]) -> None:
        ages = [self._now - at for at in heard_at]
        fresh = [each for age, each in zip(ages, samples, strict=True) if age <= self._stale_after_s]
        self._heard += len(ages)
        self._stale += len(ages) - len(fresh)
        self._heard_age_s = max(self._heard_age_s, *ages)
        behind = [age + sample.progress_age_s for age, sample in zip(ages, samples, strict=True)]
        self._progress_age_s = max(self._progress_age_s, *behind)
        self._nonfinite += sum(1 for each in fresh if _is_odd(each.loss) or _is_odd(each.grad_norm))
        self._loss.take(_known(fresh, lambda sample: sample.loss))
        self._grad_norm.take(_known(fresh, lambda sample: sample.grad_norm))
        self._step_s.take(_known(fresh, lambda sample: sample.step_time_s))
        self._take_speed(fresh)

    def _take_speed(self, samples: Sequence[RankSample]) -> None:
        rates = [
            each.tokens / each.step_time_s for each in samples if each.tokens is not None and each.step_time_s
        ]
        if rates:
            self._tokens_per_s = (self._tokens_per_s or 0.0) + math.fsum(rates)

    def vitals(self, world_size: int) -> Vitals:
        return Vitals(
            fresh=self._heard - self._stale,
            stale=self._stale,
            unheard=max(0, world_size - self._heard),
            loss=self._loss.spread(),
            grad_norm=self._grad_norm.spread(),
            step_s=self._step_s.spread(),
            nonfinite=self._nonfinite,
            tokens_per_s=self._tokens_per_s,
            heard_age_s=max(0.0, self._heard_age_s) if self._heard else None,
            progress_age_s=max(0.0, self._progress_age_s) if self._heard else None,
        )


def _is_odd(value: float | None) -> bool:
    return value is not None and not math.isfinite(value)


def _known(samples: Sequence[RankSample], value_of: Callable[[RankSample], float | None]) -> list[float]:
    return [value for sample in samples if (value := value_of(sample)) is not None]
