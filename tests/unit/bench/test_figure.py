"""How a figure is judged, and when it is not."""

import json
from pathlib import Path

import pytest
from figure import MISSED, Goal, measured, publish


@pytest.mark.parametrize(
    ("goal", "target", "met"),
    [
        (Goal.AT_MOST, 0.5, True),
        (Goal.AT_MOST, 0.4, False),
        (Goal.AT_LEAST, 0.5, True),
        (Goal.AT_LEAST, 0.6, False),
    ],
)
def test_the_ratio_of_the_medians_is_judged(goal: Goal, target: float, met: bool) -> None:
    figure = measured("x", ours=[9.0, 1.0, 2.0], other=[4.0], unit="s", target=target, goal=goal)
    assert (figure.ratio, figure.met, figure.reason) == (0.5, met, "")


def test_less_than_nothing_against_something_is_judged() -> None:
    """A loop that lost no time may seem to have won some."""
    assert measured("lost", ours=[-0.1], other=[0.15], unit="s", target=1.0).met is True


@pytest.mark.parametrize("goal", Goal)
@pytest.mark.parametrize("other", [-0.847, 0.0])
@pytest.mark.parametrize("ours", [0.103, -2.0])
def test_nothing_is_met_against_what_is_not_above_zero(
    goal: Goal, other: float, ours: float, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    figure = measured("lost", ours=[ours], other=[other, other, 1.0], unit="s", target=1.0, goal=goal)
    publish("x", [figure], folder=tmp_path)
    (written,) = json.loads((tmp_path / "x.json").read_text())
    assert (written["met"], written["ratio"]) == (None, None)
    assert written["reason"] == f"ours {ours:.4g} s, the other {other:.4g} s: no ratio to what is not above 0"
    assert (written["ours"], written["other"]) == (ours, other)
    assert capsys.readouterr().out.startswith("?     lost: not measured (ours")


def test_a_bench_fails_where_a_figure_missed_its_target(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    met = measured("met", ours=[1.0], other=[2.0], unit="s", target=1.0)
    late = measured("late", ours=[3.0], other=[2.0], unit="s", target=1.0)
    publish("x", [met], folder=tmp_path)
    with pytest.raises(SystemExit) as ended:
        publish("x", [met, late], folder=tmp_path)
    assert ended.value.code == MISSED
    assert [each["met"] for each in json.loads((tmp_path / "x.json").read_text())] == [True, False]
    assert capsys.readouterr().out.endswith("1 of 2 figures missed their target\n")
