"""How far the ranks of the round are."""

import math
from collections.abc import Sequence

import pytest
from signals import policy, rank_sample, reported, started

from holdfast.api.event import RoundProgressed
from holdfast.api.rankrecord import Phase
from holdfast.api.status import RankStatus
from holdfast.api.telemetry import BatchTaken, ProcessState, StepWork
from holdfast.watchdog.detectors.detector import Heard, RoundStopped
from holdfast.watchdog.detectors.progress import Progress

UNSTEPPED = {"step": None, "phase": Phase.STARTUP, "step_time_s": None}


def in_round(number: int = 1) -> Progress:
    progress = Progress(policy())
    progress.observe(started(number), 0.0)
    return progress


def at_step(progress: Progress, step: int, now: float, *, age_s: float = 0.0) -> Sequence[RoundProgressed]:
    """Both nodes report all their ranks at `step`."""
    first = progress.observe(
        reported("n0", *(rank_sample(r, step=step, progress_age_s=age_s) for r in (0, 1))), now
    )
    rest = progress.observe(
        reported("n1", *(rank_sample(r, step=step, progress_age_s=age_s) for r in (2, 3))), now
    )
    return (*first, *rest)


def test_the_first_step_complete_on_every_rank_is_told_at_once_and_backdated() -> None:
    progress = in_round()
    assert progress.observe(reported("n0", rank_sample(0, step=7, progress_age_s=0.4)), 10.0) == ()
    assert progress.observe(reported("n1", rank_sample(2, step=7, progress_age_s=0.3)), 10.1) == ()
    late = (rank_sample(1, step=7, progress_age_s=0.05), rank_sample(3, step=7, progress_age_s=0.5))
    assert progress.observe(reported("n0", late[0]), 10.2) == ()
    (event,) = progress.observe(reported("n1", late[1]), 10.3)
    assert (event.round, event.step) == (1, 7)
    assert event.age_s == pytest.approx(0.15), "rank 1 was the last, at 10.15"


def test_ranks_that_went_on_do_not_move_the_time_of_the_first_step() -> None:
    progress = in_round()
    progress.observe(
        reported("n0", rank_sample(0, step=7, progress_age_s=0.0), rank_sample(1, step=7, progress_age_s=0.0)),
        10.0,
    )
    progress.observe(
        reported("n0", rank_sample(0, step=9, progress_age_s=0.0), rank_sample(1, step=9, progress_age_s=0.0)),
        11.0,
    )
    (event,) = progress.observe(
        reported("n1", rank_sample(2, step=9, progress_age_s=0.9), rank_sample(3, step=9, progress_age_s=1.0)),
        11.1,
    )
    assert event.step == 9
    assert event.age_s == pytest.approx(0.9)


def test_later_progress_is_told_at_most_once_a_second_and_only_when_the_lowest_step_grows() -> None:
    progress = in_round()
    assert [event.step for event in at_step(progress, 1, 10.0)] == [1]
    assert at_step(progress, 2, 10.5) == ()
    assert [event.step for event in at_step(progress, 3, 11.0)] == [2], "n1 is still at 2 when n0 reports"
    assert at_step(progress, 3, 11.9) == ()
    assert [event.step for event in at_step(progress, 3, 12.0)] == [3]
    assert at_step(progress, 3, 13.0) == ()
    assert progress.observe(reported("n0", rank_sample(0, step=4)), 13.0) == ()
    (event,) = at_step(progress, 4, 14.0, age_s=0.25)
    assert event == RoundProgressed(1, 4, 0.25)


def test_a_rank_without_a_step_holds_everything_back() -> None:
    progress = in_round()
    samples = [rank_sample(rank) for rank in (0, 1, 2)]
    progress.observe(reported("n0", *samples[:2]), 1.0)
    assert progress.observe(reported("n1", samples[2], rank_sample(3, **UNSTEPPED)), 1.0) == ()
    assert progress.step() is None


def test_a_rank_that_loses_its_step_again_makes_the_step_unknown() -> None:
    progress = in_round()
    at_step(progress, 5, 1.0)
    assert progress.step() == 5
    assert progress.observe(reported("n0", rank_sample(0, **UNSTEPPED)), 9.0) == ()
    assert progress.step() is None


def test_a_new_round_starts_from_nothing_and_older_samples_are_fenced() -> None:
    progress = in_round(1)
    at_step(progress, 5, 1.0)
    progress.observe(started(2), 2.0)
    assert progress.step() is None
    assert at_step(progress, 6, 3.0) == ()
    assert all(status.step is None for status in progress.ranks(3.0))


def test_a_sample_from_a_node_that_does_not_run_the_rank_is_ignored() -> None:
    progress = in_round()
    progress.observe(reported("n1", rank_sample(0)), 1.0)
    progress.observe(reported("n1", rank_sample(17)), 1.0)
    assert progress.ranks(1.0)[0].heard_age_s is None


def test_without_a_round_there_is_nothing_to_see() -> None:
    progress = in_round()
    at_step(progress, 5, 1.0)
    progress.observe(RoundStopped(2), 2.0)
    assert at_step(progress, 6, 3.0) == ()
    assert progress.ranks(3.0) == ()
    assert (progress.step(), progress.loss(), progress.step_time_s()) == (None, None, None)
    assert progress.observe(Heard("m0"), 4.0) == ()


@pytest.mark.parametrize(
    ("losses", "mean"),
    [
        ((1.0, math.nan), "nan"),
        ((math.inf, 1.0), "inf"),
        ((-math.inf, 2.0), "-inf"),
        ((math.inf, -math.inf), "nan"),
    ],
)
def test_a_loss_that_is_not_finite_is_not_averaged_away(losses: tuple[float, ...], mean: str) -> None:
    progress = Progress(policy())
    progress.observe(started(1), 0.0)
    progress.observe(reported("n0", *(rank_sample(rank, loss=loss) for rank, loss in enumerate(losses))), 1.0)
    assert str(progress.loss()) == mean
    assert [str(each.loss) for each in progress.ranks(1.0)[:2]] == [str(loss) for loss in losses]


def test_loss_is_the_mean_of_the_ranks_that_know_theirs() -> None:
    progress = in_round()
    progress.observe(reported("n0", rank_sample(0, loss=2.0), rank_sample(1, loss=None)), 1.0)
    progress.observe(reported("n1", rank_sample(2, loss=4.0)), 1.0)
    assert progress.loss() == 3.0


def test_the_step_time_is_the_slowest_ranks() -> None:
    progress = in_round()
    progress.observe(reported("n0", rank_sample(0, step_time_s=0.2), rank_sample(1, step_time_s=None)), 1.0)
    progress.observe(reported("n1", rank_sample(2, step_time_s=0.3)), 1.0)
    assert progress.step_time_s() == 0.3


def test_every_rank_of_the_round_is_shown_in_order_and_the_unheard_are_unknown() -> None:
    progress = in_round()
    progress.observe(reported("n1", rank_sample(2, loss=1.5, grad_norm=0.5)), 10.0)
    ranks = progress.ranks(11.0)
    assert [status.rank for status in ranks] == [0, 1, 2, 3]
    assert ranks[0] == RankStatus(0, "m0", "n0", ProcessState.UNKNOWN)
    assert ranks[2] == RankStatus(
        rank=2,
        member="m1",
        node="n1",
        process=ProcessState.RUNNING,
        phase=Phase.BACKWARD,
        step=10,
        loss=1.5,
        grad_norm=0.5,
        step_time_s=0.1,
        progress_age_s=0.02,
        heard_age_s=1.0,
        pid=1002,
    )


def test_a_rank_not_heard_of_lately_is_unknown_whatever_it_said_last() -> None:
    progress = in_round()
    progress.observe(reported("n0", rank_sample(0)), 10.0)
    assert progress.ranks(13.0)[0].process is ProcessState.RUNNING
    assert progress.ranks(13.1)[0].process is ProcessState.UNKNOWN


def test_ages_are_never_negative() -> None:
    progress = in_round()
    (event,) = at_step(progress, 1, 10.0, age_s=-0.5)
    assert event.age_s == 0.0


def test_the_newest_sample_of_each_rank_is_given_with_when_it_came() -> None:
    progress = in_round()
    progress.observe(reported("n0", rank_sample(0, step=7), rank_sample(1, step=7)), 10.0)
    progress.observe(reported("n1", rank_sample(3, step=7)), 11.0)
    progress.observe(reported("n0", rank_sample(0, step=8)), 12.0)
    newest = progress.newest()
    told = {each.rank: (each.step, at) for each, at in zip(newest.samples, newest.heard_at, strict=True)}
    assert told == {0: (8, 12.0), 1: (7, 10.0), 3: (7, 11.0)}
    assert newest.world_size == 4


def test_a_rank_says_of_which_step_it_told_the_batch_and_no_other_node_says_so_for_it() -> None:
    progress = in_round()
    told = tuple(BatchTaken(round, rank, step, 7, 0.0) for round, rank, step in ((1, 0, 8), (2, 1, 9), (1, 3, 8)))
    progress.observe(reported("n0", rank_sample(0), rank_sample(1), events=told), 10.0)
    progress.observe(reported("n1", rank_sample(2), rank_sample(3)), 10.0)
    assert [each.batch_step for each in progress.ranks(10.0)] == [8, None, None, None]


def test_a_rank_says_how_long_it_waited_and_what_it_trained() -> None:
    progress = in_round()
    work = StepWork(3, 3.0, 0.1, 0.0, 0.0, 0.0, waited_s=0.5, tokens=4096)
    progress.observe(reported("n0", rank_sample(0, work=work), rank_sample(1)), 10.0)
    assert [(each.waited_s, each.tokens) for each in progress.ranks(10.0)[:2]] == [(0.5, 4096), (None, None)]
