from holdfast.agent.launch.outbox import Outbox
from holdfast.api.membership import Beat, CheckpointCommitted, Departing, RoundEntered, WorkerExited
from holdfast.api.selftest import Tested, TestLevel, Verdict


def test_ages_grow_while_a_message_is_kept() -> None:
    box = Outbox()
    box.keep(WorkerExited(1, 3, 0.5, exit_code=1), 10.0)
    assert box.messages(12.0) == [WorkerExited(1, 3, 2.5, exit_code=1)]


def test_one_message_of_a_kind_is_kept_per_rank() -> None:
    box = Outbox()
    for at in range(1000):
        box.keep(CheckpointCommitted(1, at, "u"), float(at))
        box.keep(WorkerExited(1, at % 2, 0.0, exit_code=1), float(at))
    assert [type(message) for message in box.messages(1000.0)].count(CheckpointCommitted) == 1
    assert len(box.messages(1000.0)) == 3


def test_a_newer_round_empties_the_box_and_older_facts_do_not_enter_it() -> None:
    box = Outbox()
    box.keep(RoundEntered(1, reentrant=False), 1.0)
    box.advance(2)
    box.keep(RoundEntered(1, reentrant=True), 2.0)
    assert box.messages(3.0) == []


def test_what_does_not_last_is_not_kept() -> None:
    box = Outbox()
    box.keep(Beat(), 1.0)
    assert box.messages(1.0) == []


def test_a_commit_that_was_asked_for_is_kept_beside_a_later_one_that_was_due() -> None:
    box = Outbox()
    box.keep(CheckpointCommitted(1, 10, "u", wanted=4), 1.0)
    box.keep(CheckpointCommitted(1, 20, "u"), 2.0)
    assert box.messages(3.0) == [CheckpointCommitted(1, 10, "u", wanted=4), CheckpointCommitted(1, 20, "u")]


def test_a_departure_outlives_rounds_and_says_how_much_time_is_left() -> None:
    box = Outbox()
    box.keep(Departing("told to end", within_s=20.0), 1.0)
    box.advance(2)
    assert box.messages(6.0) == [Departing("told to end", within_s=15.0)]
    assert box.messages(60.0) == [Departing("told to end", within_s=0.0)]


def test_the_newest_answer_to_a_self_test_outlives_rounds() -> None:
    box = Outbox()
    for number in (1, 2):
        box.keep(Tested(number, TestLevel.LIGHT, Verdict.PASSED, 1.0), 1.0)
    box.advance(3)
    assert box.messages(2.0) == [Tested(2, TestLevel.LIGHT, Verdict.PASSED, 1.0)]
