"""Where the time and the money of a job went."""

import random

import msgspec
import pytest

from holdfast.api.policy import GpuHour
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.ledger import MARKS_MAX, Ledger, Spent

EURO = GpuHour(36.0, "EUR")  # a cent a second
RUN, HEAL = JobPhase.RUNNING, JobPhase.RECOVERING


def spent(ledger: Ledger, now: float) -> Spent:
    told = ledger.spent(now)
    assert told is not None
    return told


def trained(steps: int = 10, *, since: float = 100.0, gpus: int = 2) -> Ledger:
    """Joined at 100, a step a second from 131 on: 30 s of start-up, and the first step."""
    ledger = Ledger().follow(JobPhase.FORMING, gpus, EURO, since).follow(RUN, gpus, EURO, since + 31)
    for step in range(1, steps + 1):
        ledger = ledger.step(step, since + 30 + step)
    return ledger


def test_before_anybody_joined_nothing_is_spent() -> None:
    assert Ledger().follow(JobPhase.PENDING, 0, EURO, 50.0).spent(60.0) is None
    assert Ledger().ettr(60.0) is None


def test_start_up_and_the_first_step_are_lost() -> None:
    told = spent(trained(10), 140.0)
    assert (told.useful_s, told.lost_s) == (9.0, 31.0)
    assert (told.gpu_s, told.useful_gpu_s, told.lost_gpu_s) == (80.0, 18.0, 62.0)
    assert trained(10).ettr(140.0) == pytest.approx(9 / 40)


def test_what_runs_since_the_newest_step_is_neither_yet_and_lost_when_the_round_breaks() -> None:
    ledger = trained(10)
    assert spent(ledger, 145.0).lost_s == 31.0
    assert spent(ledger.follow(HEAL, 2, EURO, 145.0), 145.0).lost_s == 36.0


def test_discarded_steps_are_lost_to_the_second() -> None:
    ledger = trained(10).follow(HEAL, 2, EURO, 141.0).back_to(4).follow(RUN, 2, EURO, 150.0)
    assert spent(ledger, 150.0).useful_s == 3.0
    ledger = ledger.step(5, 150.0).step(6, 153.0)
    assert spent(ledger, 153.0).useful_s == 6.0, "made again, they count once"
    assert ledger.back_to(4).useful_s == 3.0, "and may be lost again"


def test_steps_that_begin_anew_without_a_word_were_discarded() -> None:
    ledger = trained(10).follow(HEAL, 2, EURO, 141.0).follow(RUN, 2, EURO, 150.0).step(5, 150.0)
    assert ledger.useful_s == 3.0


def test_a_restore_of_what_is_not_known_loses_all_and_of_the_newest_nothing() -> None:
    assert trained(10).back_to(0).useful_s == 0.0
    assert trained(10).back_to(10) == trained(10)
    assert Ledger().back_to(5) == Ledger()


def test_between_two_marks_time_is_in_proportion() -> None:
    ledger = trained(1).step(11, 151.0)
    assert ledger.back_to(6).useful_s == 10.0


def test_marks_are_bounded_and_those_of_checkpoints_stay_exact() -> None:
    ledger, at, randomly = trained(1), 131.0, random.Random(7)
    useful, all_marks = {1: 0.0}, 0
    for step in range(2, 3000):
        at += randomly.uniform(0.1, 3.0)
        ledger = ledger.step(step, at)
        useful[step] = at - 131.0
        if step % 300 == 0:
            ledger = ledger.saved(step)
        all_marks = max(all_marks, len(ledger.marks))
    assert all_marks <= 2 * MARKS_MAX
    for step in (*range(300, 3000, 300), *range(2970, 3000)):
        assert ledger.back_to(step).useful_s == pytest.approx(useful[step], abs=1e-6)
    assert ledger.back_to(1234).useful_s == pytest.approx(useful[1234], rel=0.05)
    assert ledger.saved(5000) == ledger


def test_a_commit_that_is_heard_of_late_says_no_more_than_the_pace_of_the_steps() -> None:
    ledger = trained(10)
    assert ledger.reached_at(12, 141.0) == 141.0
    assert ledger.reached_at(12, 200.0) == pytest.approx(142.0)
    assert ledger.reached_at(3, 200.0) == pytest.approx(140.0)
    assert trained(1).reached_at(12, 200.0) == 200.0


def test_money_is_counted_with_the_world_size_of_its_time_and_never_falls() -> None:
    ledger = trained(10)
    costs = [spent(ledger, 140.0).cost]
    for phase, gpus, price, now in (
        (HEAL, 2, EURO, 141.0),
        (RUN, 1, EURO, 150.0),
        (RUN, 1, GpuHour(3.6, "EUR"), 160.0),
        (JobPhase.SUSPENDED, 0, GpuHour(3.6, "EUR"), 170.0),
        (JobPhase.SUCCEEDED, 0, None, 180.0),
    ):
        ledger = ledger.follow(phase, gpus, price, now)
        costs.append(spent(ledger, now).cost)
    assert costs == sorted(costs)
    assert costs[-1] == pytest.approx(0.01 * (50 * 2 + 10 * 1) + 0.001 * 10)
    assert spent(ledger, 500.0).cost == costs[-1], "nothing is held any more"
    assert spent(ledger, 180.0).held_s == 10.0
    dollars = ledger.follow(RUN, 1, GpuHour(3600.0, "USD"), 190.0)
    assert spent(dollars, 191.0).cost == 1.0


def test_what_changes_nothing_is_the_same_ledger() -> None:
    ledger = trained(10)
    assert ledger.follow(RUN, 2, EURO, 141.0) is ledger
    assert ledger.step(10, 160.0) is ledger, "told twice"
    held = ledger.follow(JobPhase.SUSPENDED, 0, EURO, 150.0)
    assert held.follow(JobPhase.SUSPENDED, 0, EURO, 170.0) is held
    assert msgspec.msgpack.decode(msgspec.msgpack.encode(ledger), type=Ledger) == ledger
