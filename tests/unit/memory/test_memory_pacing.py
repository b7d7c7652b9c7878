"""Copies are done in time, and no faster than that takes."""

import pytest

from holdfast.checkpoint.memory.copies import MIB, Pace, rate_for

GB = 10**9


@pytest.mark.parametrize(
    ("image_bytes", "interval_s", "expected"),
    [
        (GB, None, 0.5 * GB),  # Not known yet.
        (GB, 10.0, 0.2 * GB),  # Half the time to the next one.
        (GB, 0.1, 2 * GB),  # As fast as it may.
        (GB, 0.0, 2 * GB),
        (MIB, 1000.0, 64 * MIB),  # A small one is over soon.
    ],
)
def test_a_copy_takes_half_the_time_to_the_next_snapshot(
    image_bytes: int, interval_s: float | None, expected: float
) -> None:
    assert rate_for(image_bytes, interval_s, 2 * GB) == expected


def test_bytes_leave_at_the_pace_that_was_set() -> None:
    pace, now_s = Pace(100.0), 50.0
    for _ in range(100):
        now_s += pace.delay_s(10, now_s)
    assert now_s - 50.0 == pytest.approx(10.0, abs=0.2)


def test_a_pause_is_not_made_up_for_by_a_burst() -> None:
    pace = Pace(100.0)
    pace.delay_s(10, 0.0)
    waited = sum(pace.delay_s(10, 1000.0) for _ in range(3))
    assert waited > 0.1
