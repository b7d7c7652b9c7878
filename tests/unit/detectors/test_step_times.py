"""How long a job's steps take."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.watchdog.detectors.hang import STEPS_KEPT, StepTimes


def after(*times: float) -> StepTimes:
    """Step 0 is the round's first; `times` are those of steps 1, 2, …"""
    steps = StepTimes()
    steps.take(0, 60.0)
    for step, time_s in enumerate(times, start=1):
        steps.take(step, time_s)
    return steps


def test_too_few_steps_say_nothing() -> None:
    assert StepTimes().p99_s() is None
    assert after(0.1, 0.1).p99_s() is None


def test_steps_trained_between_two_reports_count_though_they_were_not_seen() -> None:
    steps = StepTimes()
    steps.take(1, 60.0)
    steps.take(3, 0.1)
    assert steps.p99_s() is None
    steps.take(4, 0.2)
    assert steps.p99_s() == 0.2


def test_the_first_step_of_a_round_is_left_out() -> None:
    steps = after(0.1, 0.2, 0.1)
    assert steps.p99_s() == 0.2
    steps.begin_round()
    steps.take(1, 60.0)
    steps.take(1, 70.0)
    assert steps.p99_s() == 0.2


def test_the_slowest_rank_of_a_step_counts() -> None:
    steps = after(0.1, 0.1, 0.1)
    steps.take(3, 0.4)
    steps.take(3, 0.2)
    assert steps.p99_s() == 0.4


def test_a_late_word_of_an_older_step_is_ignored() -> None:
    steps = after(0.1, 0.1, 0.1)
    steps.take(2, 9.0)
    assert steps.p99_s() == 0.1


@pytest.mark.parametrize("nonsense", [0.0, -1.0, math.nan, math.inf])
def test_a_time_that_cannot_be_is_ignored(nonsense: float) -> None:
    steps = after(0.1, 0.1, 0.1)
    steps.take(4, nonsense)
    assert steps.p99_s() == 0.1


def test_old_steps_are_forgotten() -> None:
    steps = after(*[9.0] * 50, *[0.1] * STEPS_KEPT)
    assert steps.p99_s() == 0.1


@given(st.lists(st.floats(0.001, 1000.0), min_size=3, max_size=STEPS_KEPT + 50))
def test_all_but_one_in_a_hundred_steps_take_no_longer(times: list[float]) -> None:
    kept = times[-STEPS_KEPT:]
    p99_s = after(*times).p99_s()
    assert p99_s in kept
    assert sum(time_s > p99_s for time_s in kept) <= len(kept) / 100
