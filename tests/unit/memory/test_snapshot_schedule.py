"""Snapshots as far apart as copies need, alike on all ranks."""

from holdfast.checkpoint.capture.tier import SnapshotSchedule


class Ranks:
    """A group in which every rank says what this one says, and `others` besides."""

    def __init__(self, *others: int) -> None:
        self._others = [str(each).encode() for each in others]

    def exchange(self, words: bytes) -> list[bytes]:
        return [words, *self._others]


def rhythm(*others: int, every_steps: int = 1) -> SnapshotSchedule:
    made = SnapshotSchedule(Ranks(*others), every_steps)  # type: ignore[arg-type]
    made.agree(copy_s=0.0, step=1, now_s=100.0)
    return made


def test_every_step_is_due_until_copies_are_known_to_be_slow() -> None:
    assert [step for step in range(1, 5) if rhythm().is_due(step)] == [1, 2, 3, 4]


def test_copies_that_are_done_in_time_change_nothing() -> None:
    made = rhythm(1)
    made.agree(copy_s=0.5, step=9, now_s=108.0)
    assert made.copies_apart_steps == 1


def test_slow_copies_take_the_snapshots_apart_with_some_slack() -> None:
    made = rhythm(1)
    made.agree(copy_s=3.0, step=9, now_s=108.0)  # steps of 1 s
    assert made.copies_apart_steps == 4
    assert [step for step in range(9, 20) if made.is_copied(step)] == [12, 16]


def test_the_slowest_rank_decides() -> None:
    made = rhythm(7)
    made.agree(copy_s=0.1, step=9, now_s=108.0)
    assert made.copies_apart_steps == 7


def test_the_order_of_the_job_stays_the_least() -> None:
    made = rhythm(1, every_steps=5)
    made.agree(copy_s=12.0, step=11, now_s=110.0)
    assert made.copies_apart_steps == 15


def test_when_copies_are_quicker_again_snapshots_are_as_well() -> None:
    made = rhythm(1)
    made.agree(copy_s=3.0, step=9, now_s=108.0)
    made.agree(copy_s=0.2, step=19, now_s=118.0)
    assert made.copies_apart_steps == 1


def test_a_copy_that_never_ended_slows_nobody_down() -> None:
    made = rhythm(1)
    made.agree(copy_s=0.0, step=9, now_s=108.0)
    assert made.copies_apart_steps == 1


def test_steps_that_take_no_time_have_a_bound() -> None:
    made = rhythm(1)
    made.agree(copy_s=60.0, step=9, now_s=100.0)
    assert made.copies_apart_steps == 1000


def test_agreeing_twice_after_one_step_changes_nothing() -> None:
    made = rhythm(1)
    made.agree(copy_s=3.0, step=9, now_s=108.0)
    made.agree(copy_s=3.0, step=9, now_s=108.5)
    assert made.copies_apart_steps == 4
