"""What outcomes are worth against a peer or a limit."""

import pytest
from drill.outcome import Outcome, against, within


def outcome(seconds: float | None, *, cap_s: float = 20.0, limit_s: float | None = None) -> Outcome:
    return Outcome(seconds=seconds, cap_s=cap_s, limit_s=limit_s)


def test_medians_are_compared_and_the_spread_is_ours() -> None:
    figure = against(
        "x", [outcome(0.2), outcome(0.1), outcome(0.3)], [outcome(6.0), outcome(9.0)], name="peer", target=1 / 30
    )
    assert (figure.ours, figure.other, figure.n, figure.spread) == (0.2, 7.5, 3, (0.1, 0.3))
    assert figure.ratio == pytest.approx(0.2 / 7.5)
    assert figure.met is True


def test_what_did_not_happen_counts_as_the_time_it_was_waited_for() -> None:
    figure = against("x", [outcome(1.0)], [outcome(None, cap_s=45.0), outcome(5.0)], name="peer", target=1 / 30)
    assert figure.other == 25.0
    assert "1 of 1 in time, the peer 1 of 2 in time" in figure.figure


def test_a_run_of_ours_that_never_heals_is_not_left_out() -> None:
    figure = within("x", [outcome(None), outcome(None), outcome(0.1)], limit_s=0.25)
    assert (figure.ours, figure.met) == (20.0, False)
    assert "1 of 3 in time" in figure.figure


def test_each_run_may_bring_its_own_limit() -> None:
    assert within("x", [outcome(1.0, limit_s=2.0), outcome(3.0, limit_s=4.0)]).ratio == pytest.approx(2 / 3)


@pytest.mark.parametrize(("ours", "peer", "who"), [((), (1.0,), "Holdfast"), ((1.0,), (), "peer")])
def test_without_runs_there_is_no_figure_but_a_reason(
    ours: tuple[float, ...], peer: tuple[float, ...], who: str
) -> None:
    figure = against("x", [outcome(s) for s in ours], [outcome(s) for s in peer], name="peer", target=0.5)
    assert figure.met is None
    assert figure.reason == f"training did not start under {who}"


def test_without_a_target_no_slower_is_enough() -> None:
    assert against("x", [outcome(1.0)], [outcome(1.0)], name="peer").met is True
