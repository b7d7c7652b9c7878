"""Points over time: bounded, thinner the older they are."""

import json
import math
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.console import keeping
from holdfast.console.keeping import SeriesKeeper
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


class TestKeeping:
    def feed(self, *ats: float) -> Any:
        """What a console has heard of one job."""
        series = Series()
        for at in ats:
            series.add(point(at, step=at))
        return SimpleNamespace(jobs={"a/b": SimpleNamespace(series=series)})

    def kept(self, file: Path) -> Any:
        return json.loads(file.read_text())

    def test_what_one_console_kept_the_next_one_goes_on_with(self, tmp_path: Path) -> None:
        file = tmp_path / "series.json"
        SeriesKeeper(self.feed(1.0, 2.0, 3.0), file).write()
        SeriesKeeper(self.feed(3.0, 4.0), file).write()
        assert self.kept(file)["a/b"]["at"] == [1.0, 2.0, 3.0, 4.0]
        assert self.kept(file)["a/b"]["step"] == [1.0, 2.0, 3.0, 4.0]
        assert [each.name for each in tmp_path.iterdir()] == ["series.json"]

    def test_a_console_that_heard_nothing_leaves_what_there_is(self, tmp_path: Path) -> None:
        file = tmp_path / "series.json"
        SeriesKeeper(self.feed(), file).write()
        assert not file.exists()
        SeriesKeeper(self.feed(1.0), file).write()
        SeriesKeeper(SimpleNamespace(jobs={}), file).write()  # type: ignore[arg-type]
        assert self.kept(file)["a/b"]["at"] == [1.0]

    def test_it_is_bounded_and_the_newest_stay(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(keeping, "POINTS", 16)
        file = tmp_path / "series.json"
        SeriesKeeper(self.feed(*map(float, range(100))), file).write()
        SeriesKeeper(self.feed(*map(float, range(100, 200))), file).write()
        at = self.kept(file)["a/b"]["at"]
        assert (len(at), at[0], at[-1]) == (16, 0.0, 199.0)
        assert at == sorted(at)

    def test_a_file_that_is_none_is_as_no_file_and_a_bad_place_ends_nothing(self, tmp_path: Path) -> None:
        file = tmp_path / "series.json"
        for content in ("[", "{}", '{"a/b": {"at": [1]}}'):
            file.write_text(content)
            SeriesKeeper(self.feed(5.0), file).write()
            assert self.kept(file)["a/b"]["at"] == [5.0]
        SeriesKeeper(self.feed(5.0), tmp_path / "gone" / "series.json").write()
