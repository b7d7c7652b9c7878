"""The same job failing again and again without getting anywhere."""

import pytest
from story import policy, running

from holdfast.api.finding import FindingKind
from holdfast.api.policy import RestartBudget
from holdfast.api.round import Round
from holdfast.watchdog.brain.crashloop import BACKOFF_S_MAX, crash_loop
from holdfast.watchdog.brain.state import Failure


def failures(count: int) -> tuple[Failure, ...]:
    return tuple(Failure(at=float(n), step=7, cause=f"exit code {n}", error="boom") for n in range(1, count + 1))


@pytest.mark.parametrize("count", [0, 1])
def test_the_first_failure_is_healed_at_once(count: int) -> None:
    assert crash_loop(failures(count), policy()) == (0.0, "")


@pytest.mark.parametrize(("count", "seconds"), [(2, 10.0), (3, 20.0)])
def test_further_failures_wait_twice_as_long_each_time(count: int, seconds: float) -> None:
    assert crash_loop(failures(count), policy()) == (seconds, "")


def test_no_wait_is_longer_than_the_longest() -> None:
    patient = policy(restarts=RestartBudget(backoff_s=1000.0))
    assert crash_loop(failures(2), patient) == (BACKOFF_S_MAX, "")


@pytest.mark.parametrize("count", [4, 5, 100])
def test_four_failures_in_a_row_without_progress_are_no_chance(count: int) -> None:
    _, no_use = crash_loop(failures(count), policy())
    assert f"exit code {count}" in no_use
    assert "step beyond 7" in no_use


def test_what_was_raised_at_the_same_lines_before_any_step_is_tried_twice() -> None:
    first, second, other = (Failure(at=1.0, step=0, cause="KeyError", trace=each) for each in ("ab", "ab", "cd"))
    assert "raised the same twice" in crash_loop((first, second), policy())[1]
    assert crash_loop((first, other), policy())[1] == ""


@pytest.mark.parametrize("first", ["the process is stopped", "the process lost its pulse", "in other words"])
@pytest.mark.parametrize("then", ["the process is stopped", "the process lost its pulse"])
def test_a_successor_that_is_stopped_is_replaced_at_once_and_the_next_one_after_the_back_off(
    first: str, then: str
) -> None:
    story = running(3).die(2)
    number = story.round.number
    story.find(FindingKind.HANG, 2, cause=first).wait(1)
    assert story.round.number == number + 1
    story.find(FindingKind.HANG, 3, cause=then).wait(5)
    shown = story.state.desired
    assert not isinstance(shown, Round) or shown.number == number + 1
    story.wait(60)
    assert story.round.number > number + 1
