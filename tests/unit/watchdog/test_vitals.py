"""What all ranks of a job do, as one."""

import math
import statistics

from hypothesis import given
from hypothesis import strategies as st

from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.progress import Newest
from holdfast.watchdog.metrics.vitals import SLICE, SORTED_MAX, Spread, Vitals, slices


def sample(rank: int, **fields: object) -> RankSample:
    known = {"round": 1, "process": ProcessState.RUNNING, "phase": Phase.DATA, "progress_age_s": 0.0}
    return RankSample(**{**known, "phase_age_s": 0.0, "rank": rank, **fields})  # type: ignore[arg-type]


def vitals(
    *samples: RankSample, heard_at: tuple[float, ...] = (), world_size: int = 0, now: float = 10.0
) -> Vitals:
    newest = Newest(samples, heard_at or (now,) * len(samples), world_size or len(samples))
    *_, last = slices(newest, stale_after_s=3.0, now=now)
    assert last is not None
    return last


def test_before_anything_is_heard_everything_is_unknown() -> None:
    assert vitals(world_size=4) == Vitals(unheard=4)


def test_a_rank_not_heard_of_lately_is_stale() -> None:
    told = vitals(sample(0), sample(1), heard_at=(9.0, 6.9), world_size=3)
    assert (told.fresh, told.stale, told.unheard) == (1, 1, 1)
    assert told.heard_age_s == 10.0 - 6.9


def test_what_stale_ranks_said_last_is_not_the_present() -> None:
    silent = sample(0, loss=9.0, grad_norm=math.nan, step_time_s=4.0, tokens=100, progress_age_s=1.0)
    heard = sample(1, loss=2.0, grad_norm=1.0, step_time_s=0.5, tokens=100)
    told = vitals(silent, heard, heard_at=(6.0, 9.0))
    assert (told.loss, told.grad_norm) == (Spread(2.0, 2.0, 2.0, 2.0), Spread(1.0, 1.0, 1.0, 1.0))
    assert (told.nonfinite, told.tokens_per_s) == (0, 200.0)
    assert (told.heard_age_s, told.progress_age_s) == (4.0, 5.0)
    alone = vitals(silent, heard_at=(6.0,))
    assert (alone.loss, alone.step_s, alone.tokens_per_s) == (None, None, None)


def test_the_rank_furthest_behind_is_told_with_the_age_of_its_report() -> None:
    assert (
        vitals(sample(0, progress_age_s=2.0), sample(1, progress_age_s=1.0), heard_at=(9.0, 8.5)).progress_age_s
        == 3.0
    )


def test_least_median_and_greatest_are_of_the_ranks_that_know_theirs() -> None:
    told = vitals(*(sample(rank, loss=loss) for rank, loss in enumerate((3.0, None, 1.0, 7.0))))
    assert told.loss == Spread(1.0, 3.0, 7.0, 7.0)
    assert told.grad_norm is None


def test_the_speed_is_everybodys() -> None:
    told = vitals(*(sample(rank, step_time_s=0.5 * (1 + rank), tokens=100) for rank in range(3)))
    assert told.tokens_per_s == 200 + 100 + 100 / 1.5
    assert vitals(sample(0, step_time_s=0.5)).tokens_per_s is None
    assert vitals(sample(0, step_time_s=0.0, tokens=5)).tokens_per_s is None


def test_what_is_no_finite_number_is_counted_and_spoils_nothing() -> None:
    told = vitals(sample(0, loss=math.inf, grad_norm=math.nan), sample(1, loss=2.0, grad_norm=1.0))
    assert told.nonfinite == 1  # a rank counts once
    assert told.loss == Spread(2.0, 2.0, 2.0, 2.0)


def test_ranks_that_are_not_finite_are_counted_once_each_and_unknown_ones_not() -> None:
    told = vitals(
        sample(0, loss=math.nan, grad_norm=math.nan),
        sample(1, loss=None, grad_norm=None),
        sample(2, loss=-math.inf, grad_norm=1.0),
        sample(3, loss=1.0, grad_norm=math.inf),
        sample(4, loss=math.nan),
        heard_at=(9.0, 9.0, 9.0, 9.0, 1.0),
    )
    assert told.nonfinite == 3


def test_a_large_job_is_gathered_in_slices_and_its_extremes_are_exact() -> None:
    size = 3 * SLICE + 1
    samples = tuple(sample(rank, step_time_s=1.0 + rank / size) for rank in range(size))
    answers = list(slices(Newest(samples, (10.0,) * size, size), stale_after_s=3.0, now=10.0))
    assert answers[:-1] == [None] * 4
    told = answers[-1]
    assert told is not None
    assert told.step_s is not None
    assert (told.step_s.least, told.step_s.greatest) == (1.0, 1.0 + (size - 1) / size)
    assert abs(told.step_s.median - 1.5) < 2 / SORTED_MAX


@given(st.lists(st.floats(allow_nan=False, allow_infinity=False), min_size=1, max_size=200))
def test_the_spread_is_what_statistics_says(values: list[float]) -> None:
    spread = vitals(*(sample(rank, loss=value) for rank, value in enumerate(values))).loss
    assert spread is not None
    assert spread.median == statistics.median_low(values)
    assert (spread.least, spread.greatest) == (min(values), max(values))
    assert sum(value <= spread.p99 for value in values) >= 0.99 * len(values)
