"""Slow ranks in jobs drawn from seeds: `make bench NAME=detection` plays more and larger ones, and counts."""

from collections.abc import Sequence

import pytest
import slowswaps
from slowness import FAULTS, Fault, eventful, healthy, one_rank, play
from slowswaps import Slow, at_random, comes_and_goes, evaluates, is_slow, short

from holdfast.api.finding import SlowCause

SIZES = (8, 16, 64)
SEEDS = range(3)


@pytest.mark.parametrize("fault", [each for each in FAULTS if each is not healthy], ids=lambda each: each.__name__)
def test_what_is_slow_is_named_for_what_makes_it_so(fault: Fault) -> None:
    outcomes = [play(seed, fault, sizes=SIZES) for seed in SEEDS]
    for seed, each in zip(SEEDS, outcomes, strict=True):
        said = [finding.error for finding in each.found]
        assert not each.looks_like_eviction, f"seed {seed} takes away who has done nothing: {said}"
        if each.truth.cause is None:
            assert not each.found, f"seed {seed}: nothing is slow for long: {said}"
        else:
            assert each.is_named, f"seed {seed} ({each.job.ranks} ranks): {each.truth} is not named, but {said}"
            if each.truth.cause is not SlowCause.MACHINE:
                assert all(finding.slow and finding.slow.cause is not SlowCause.MACHINE for finding in each.found)


def test_a_rank_that_is_slow_by_a_third_is_named_within_some_steps() -> None:
    jobs = [play(seed, one_rank, sizes=SIZES) for seed in range(9)]
    steps = sorted(each.steps_to_name for each in jobs if each.job.step_s >= 1.0)
    assert steps[len(steps) // 2] <= 6, steps


def test_healthy_days_are_no_news() -> None:
    days = [play(seed, fault, sizes=SIZES[:2]) for fault in (healthy, eventful) for seed in range(15)]
    assert [finding.error for day in days for finding in day.found] == []


# In some of these slowness is not there while its ranks are moved or watched: innocent nodes left.
@pytest.mark.parametrize(
    ("slow", "seeds"),
    [(short, (9, 35, 37)), (comes_and_goes, (65, 193)), (at_random, (65, 153, 161)), (evaluates, (8, 25))],
    ids=lambda each: getattr(each, "__name__", ""),
)
def test_no_node_leaves_for_what_goes_with_a_rank(slow: Slow, seeds: Sequence[int]) -> None:
    for seed in seeds:
        played = slowswaps.play(seed, slow)
        assert played.evicted == (), f"seed {seed}: {[each.error for each in played.found]}"


def test_a_node_that_is_slow_itself_leaves() -> None:
    for seed in range(2):
        played = slowswaps.play(seed, is_slow, with_node=True)
        assert (played.evicted, played.swaps) == ((played.first,), 1), f"seed {seed}"
