"""Points over time: bounded, thinner the older they are."""

import math

from holdfast.console.series import Point, Series


def point(at: float, **known: float) -> Point:
    values = dict.fromkeys(Point.__slots__, math.nan) | {"at": at} | known
    return Point(**values)


def test_the_newest_half_stays_whole_and_the_first_point_stays() -> None:
    series = Series(rows=64)
    for second in range(1000):
        series.add(point(float(second), step=float(second)))
    columns = series.columns(64)
    at = columns["at"]
    assert len(series) <= 64
    assert at[0] == 0.0
    assert at[-17:] == [float(each) for each in range(983, 1000)]
    assert at == sorted(set(at))
    assert columns["step"] == at


def test_what_is_not_known_is_null_and_points_are_spread_over_the_time() -> None:
    series = Series(rows=512)
    for second in range(500):
        series.add(point(float(second)))
    columns = series.columns(11)
    assert len(columns["at"]) == 11
    assert (columns["at"][0], columns["at"][-1]) == (0.0, 499.0)
    assert columns["loss_min"] == [None] * 11


def test_of_a_clock_that_went_back_the_times_still_rise() -> None:
    series = Series()
    for at in (1.0, 2.0, 3.0, 4.0, 1.5, 2.5):
        series.add(point(at, step=at))
    assert series.columns(9)["at"] == [1.0, 1.5, 2.5]


def test_the_pace_is_of_the_last_ten_minutes_with_its_heals() -> None:
    series = Series()
    for minute in range(60):
        series.add(point(60.0 * minute, step=600.0 * minute))  # a step took 0.1 s
    assert series.pace_s() == 0.1
    for minute, step in ((60, 35_700.0), (65, 35_700.0), (70, 38_400.0)):  # a fault, and five minutes of waiting
        series.add(point(60.0 * minute, step=step))
    assert series.pace_s() == 600.0 / (38_400.0 - 35_700.0)


def test_there_is_no_pace_where_nothing_was_gained() -> None:
    assert Series().pace_s() is None
    series = Series()
    series.add(point(1.0, step=50.0))
    assert series.pace_s() is None
    series.add(point(2.0, step=40.0))  # gone back
    assert series.pace_s() is None
    series.add(point(3.0))
    assert series.pace_s() is None


def test_a_point_of_the_same_time_takes_the_place_of_the_one_before() -> None:
    series = Series()
    series.add(point(1.0, loss_min=3.0))
    series.add(point(1.0, loss_min=2.0))
    assert (len(series), series.columns(5)["loss_min"]) == (1, [2.0])
    assert Series().newest() is None
