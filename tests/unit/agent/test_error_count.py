"""How a raw counter grew, whatever becomes of its value."""

from hypothesis import given
from hypothesis import strategies as st

from holdfast.agent.conditions.counting import ErrorCount, LastHour


def test_what_was_counted_before_the_first_look_is_not_new() -> None:
    count = ErrorCount()
    assert count.observe(500, 0.0) == 0
    assert count.observe(507, 1.0) == 7
    assert count.in_the_last_hour(1.0) == 7


def test_a_counter_that_starts_again_counts_from_zero() -> None:
    count = ErrorCount()
    count.observe(500, 0.0)
    assert count.observe(3, 1.0) == 3


def test_a_counter_that_wraps_at_32_bits_goes_on_counting() -> None:
    count = ErrorCount()
    count.observe(2**32 - 5, 0.0)
    assert count.observe(2, 1.0) == 7


def test_a_counter_at_its_limit_knows_nothing_until_it_starts_again() -> None:
    count = ErrorCount(stops_at=255)
    count.observe(250, 0.0)
    assert count.observe(255, 1.0) == 5
    assert (count.known, count.stopped) == (False, True)
    assert count.observe(1, 2.0) == 1
    assert count.known


def test_a_counter_that_cannot_be_read_is_unknown_and_loses_nothing() -> None:
    count = ErrorCount()
    count.observe(10, 0.0)
    assert count.observe(None, 1.0) == 0
    assert not count.known
    assert count.observe(15, 2.0) == 5


def test_the_last_hour_forgets_what_is_older() -> None:
    hour = LastHour()
    hour.add(5, 10.0)
    hour.add(2, 1800.0)
    assert hour.total(3599.0) == 7
    assert hour.total(3665.0) == 2
    assert hour.total(3600.0 + 1861.0) == 0


@given(st.lists(st.tuples(st.integers(0, 400), st.integers(0, 1000)), max_size=60))
def test_the_last_hour_holds_all_of_it_and_at_most_a_minute_more(steps: list[tuple[int, int]]) -> None:
    hour, at, happened = LastHour(), 0.0, []
    for wait, count in steps:
        at += wait
        hour.add(count, at)
        happened.append((at, count))
        within = sum(count for when, count in happened if when > at - 3600.0)
        nearly = sum(count for when, count in happened if when > at - 3660.0)
        assert within <= hour.total(at) <= nearly
