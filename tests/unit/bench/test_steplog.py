"""What a log of steps says about a fault."""

import math
from pathlib import Path

import pytest
from drill.steplog import (
    Kind,
    Mark,
    StepLog,
    longest_gap_s,
    lost_steps,
    p99_step_s,
    parse,
    recovered_ns,
    still_ns,
)

MS = 1_000_000
FAULT = 100 * MS


def begun(at_ms: int, rank: int, *, step: int = 0, world: int = 2) -> Mark:
    return Mark(Kind.BEGUN, at_ms * MS, rank, step, world, pid=rank)


def stepped(at_ms: int, rank: int, *, step: int = 1, world: int = 2) -> Mark:
    return Mark(Kind.STEPPED, at_ms * MS, rank, step, world, pid=rank)


def test_a_line_is_read_as_it_was_written() -> None:
    assert parse("S 123 1 40 4 999\n") == Mark(Kind.STEPPED, 123, rank=1, step=40, world=4, pid=999)


@pytest.mark.parametrize("line", ["", "S 1 2", "X 1 2 3 4 5", "S a b c d e"])
def test_anything_else_is_refused(line: str) -> None:
    with pytest.raises(ValueError, match=r"unpack|invalid literal|valid Kind"):
        parse(line)


def test_a_log_is_read_as_it_grows_and_half_a_line_waits_for_its_rest(tmp_path: Path) -> None:
    path = tmp_path / "steps.log"
    log = StepLog(path)
    assert list(log.marks()) == []
    path.write_text("B 1 0 0 2 7\nS 2 0 ")
    assert [mark.kind for mark in log.marks()] == [Kind.BEGUN]
    with path.open("a") as file:
        file.write("1 2 7\n")
    assert [mark.at_ns for mark in log.marks()] == [1, 2]


def test_recovery_is_the_first_step_of_the_last_rank() -> None:
    marks = [begun(200, 0), begun(210, 1), stepped(230, 0), stepped(250, 1), stepped(270, 0, step=2)]
    assert recovered_ns(marks, after_ns=FAULT, world=2) == 250 * MS


def test_steps_of_a_round_begun_before_the_fault_are_no_recovery() -> None:
    marks = [begun(10, 0), begun(10, 1), stepped(110, 0), stepped(110, 1)]
    assert recovered_ns(marks, after_ns=FAULT, world=2) is None


def test_an_attempt_that_failed_has_to_be_made_up_for() -> None:
    failed = [begun(200, 0), stepped(230, 0), begun(200, 1), begun(300, 0)]
    assert recovered_ns([*failed, stepped(330, 1)], after_ns=FAULT, world=2) is None
    whole = [*failed, stepped(330, 1), stepped(340, 0)]
    assert recovered_ns(whole, after_ns=FAULT, world=2) == 340 * MS


def test_a_world_of_another_size_is_not_the_one_waited_for() -> None:
    alone = [begun(200, 0, world=1), stepped(230, 0, world=1)]
    assert recovered_ns(alone, after_ns=FAULT, world=2) is None
    assert recovered_ns(alone, after_ns=FAULT, world=1) == 230 * MS


def test_training_stands_still_from_the_last_old_step_to_the_last_first_new_one() -> None:
    old = [begun(0, 0, world=1), stepped(150, 0, world=1), stepped(170, 0, step=2, world=1)]
    new = [begun(220, 0), begun(225, 1), stepped(250, 0, step=3), stepped(260, 1, step=3)]
    assert still_ns([*old, *new], after_ns=FAULT, world=2) == 90 * MS
    assert still_ns(old, after_ns=FAULT, world=2) is None


@pytest.mark.parametrize(("resumed_at", "lost"), [(10, 2), (12, 0), (13, 0)])
def test_steps_trained_again_are_lost(resumed_at: int, lost: int) -> None:
    before = [stepped(80, 0, step=11), stepped(99, 0, step=12)]
    after = [begun(200, 0, step=resumed_at), stepped(220, 0, step=resumed_at + 1)]
    assert lost_steps([*before, *after], fault_ns=FAULT, recovered_at_ns=220 * MS) == lost


def test_a_gap_counts_for_a_rank_whatever_process_runs_it_and_when_it_never_ends() -> None:
    marks = [stepped(90, 0), stepped(110, 0, step=2), stepped(190, 0, step=3), stepped(300, 0, step=4)]
    assert longest_gap_s(marks, from_ns=FAULT, to_ns=200 * MS) == pytest.approx(0.08)
    assert longest_gap_s(marks, from_ns=200 * MS, to_ns=1000 * MS) == pytest.approx(0.7)


def test_the_slowest_steps_decide_the_percentile_and_too_few_decide_nothing() -> None:
    steady = [stepped(20 * number, 0, step=number) for number in range(200)]
    assert p99_step_s(steady) == pytest.approx(0.02)
    assert p99_step_s([*steady[:100], stepped(3000, 0)]) > 0.9
    assert math.isnan(p99_step_s(steady[:2]))
