from pathlib import Path
from typing import Any

import msgspec

from holdfast.agent.launch.localset import (
    Effect,
    KillWorker,
    LocalSet,
    MemoryPlace,
    Report,
    Start,
    TellWorker,
)
from holdfast.agent.launch.processes import worker_environment
from holdfast.agent.launch.slot import SlotState
from holdfast.api.control import (
    Assignment,
    Entered,
    Entering,
    Finished,
    Reenters,
    RoundEnded,
    RoundLeft,
    round_environment,
)
from holdfast.api.membership import (
    CheckpointCommitted,
    CollectiveFailed,
    RoundEntered,
    SaveWanted,
    TrainingBegan,
    Verified,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.memory import MemoryOrder, NodeMemory
from holdfast.api.round import (
    Closed,
    Endpoint,
    Entry,
    Idle,
    MemberRanks,
    Reentry,
    Restore,
    Round,
    Seat,
    Shown,
    shown_to,
)
from holdfast.api.telemetry import NonFinite, RankNonFinite


def ended(**said: Any) -> WorkerExited:
    """How a process ended; its round and rank are the set's to say."""
    return WorkerExited(-1, -1, said.pop("age_s", 0.0), **said)


KILLED = ended(signal=9)
WELL = ended(exit_code=0)


def a_round(
    number: int,
    *,
    entry: Entry = Entry.REENTER,
    fresh: tuple[int, ...] = (),
    members: tuple[str, ...] = ("a", "b"),
) -> Shown:
    """What member b is shown."""
    shares = tuple(MemberRanks(member, f"node-{member}", 2 * place, 2) for place, member in enumerate(members))
    formed = Round(
        "default/j", number, shares, Endpoint("h", 1000 + number), Restore(), entry, "because", fresh, 100
    )
    return shown_to(formed, "b")


def seat(number: int) -> Seat:
    shown = a_round(number)
    assert isinstance(shown, Seat)
    return shown


def idle(number: int) -> Idle:
    return Idle("default/j", number, "because")


def closed(number: int) -> Closed:
    return Closed("default/j", number, succeeded=True, reason="because")


def a_set() -> LocalSet:
    return LocalSet(local_size=2, leave_timeout_s=1.0, attach_grace_s=0.5)


def starts(effects: list[Effect]) -> list[Start]:
    return [effect for effect in effects if isinstance(effect, Start)]


def reports(effects: list[Effect]) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, Report)]


def running(number: int = 7, *, attached: bool = True, local: LocalSet | None = None) -> LocalSet:
    """A set whose two workers, processes 100 and 101, run round `number`."""
    local = local or a_set()
    for place, start in enumerate(starts(local.show(a_round(number), 0.0))):
        local.started(start.ticket, 100 + place, 0.0)
        if attached:
            local.attached(100 + place, 0.0)
            local.heard(100 + place, Entered(number), 0.0)
    return local


def tells(effects: list[Effect], pid: int) -> list[object]:
    return [effect.message for effect in effects if isinstance(effect, TellWorker) and effect.pid == pid]


def assignments(effects: list[Effect], pid: int) -> list[Assignment]:
    return [message for message in tells(effects, pid) if isinstance(message, Assignment)]


def test_a_first_round_starts_every_local_rank() -> None:
    effects = starts(a_set().show(a_round(7), 0.0))
    assert [(start.local_rank, start.rank, start.restarts) for start in effects] == [(0, 2, 0), (1, 3, 0)]


def test_a_repeated_or_older_state_changes_nothing() -> None:
    local = running(7)
    assert local.show(a_round(7), 1.0) == []
    assert local.show(a_round(6), 1.0) == []
    assert local.show(idle(5), 1.0) == []


def test_an_attached_worker_is_told_its_assignment() -> None:
    local = a_set()
    (start, _) = starts(local.show(a_round(7), 0.0))
    local.started(start.ticket, 100, 0.0)
    (message,) = tells(local.attached(100, 0.1), 100)
    assert isinstance(message, Assignment)
    assert (message.round, message.rank, message.local_rank, message.world_size) == (7, 2, 0, 4)
    assert message.fingerprint_every == 100


def test_a_worker_may_attach_before_its_start_is_confirmed() -> None:
    local = a_set()
    (start, _) = starts(local.show(a_round(7), 0.0))
    assert local.attached(100, 0.1) == []
    assert len(tells(local.started(start.ticket, 100, 0.1), 100)) == 1


def test_attached_workers_are_moved_in_their_process() -> None:
    local = running(7)
    effects = local.show(a_round(8, members=("b", "a")), 1.0)
    for place, pid in enumerate((100, 101)):
        ended, assigned = tells(effects, pid)
        assert ended == RoundEnded(7, "because")
        assert isinstance(assigned, Assignment)
        assert (assigned.round, assigned.rank) == (8, place)
    assert len(effects) == 4


def test_a_fresh_rank_is_replaced_after_its_death_is_confirmed() -> None:
    local = running(7)
    effects = local.show(a_round(8, fresh=(3,)), 1.0)
    assert [effect for effect in effects if isinstance(effect, KillWorker)] == [KillWorker(101)]
    assert starts(effects) == []
    (start,) = starts(local.exited(101, KILLED, 1.1))
    assert (start.local_rank, start.round.number, start.restarts) == (1, 8, 1)


def test_respawn_replaces_attached_workers_too() -> None:
    effects = running(7).show(a_round(8, entry=Entry.RESPAWN), 1.0)
    assert effects == [KillWorker(100), KillWorker(101)]


def test_an_unattached_or_detached_or_finished_worker_is_replaced() -> None:
    assert running(7, attached=False).show(a_round(8), 1.0) == [KillWorker(100), KillWorker(101)]
    local = running(7)
    local.detached(100)
    local.heard(101, Finished(7), 0.5)
    assert local.show(a_round(8), 1.0) == [KillWorker(100), KillWorker(101)]


def test_a_worker_that_does_not_leave_in_time_is_replaced() -> None:
    local = running(7)
    local.show(a_round(8), 1.0)
    local.heard(100, RoundLeft(7, step=41), 1.2)
    assert local.next_wakeup() == 2.0
    assert local.elapse(1.9) == []
    assert local.elapse(2.0) == [KillWorker(101)]
    (start,) = starts(local.exited(101, KILLED, 2.1))
    assert start.local_rank == 1


def test_a_burst_of_rounds_does_not_give_a_stuck_worker_more_time() -> None:
    local = running(7)
    local.show(a_round(8), 1.0)
    effects = local.show(a_round(9), 1.9)
    assert tells(effects, 100)[0] == RoundEnded(8, "because")
    assert local.elapse(2.0) == [KillWorker(100), KillWorker(101)]
    (start,) = starts(local.exited(100, KILLED, 2.0))
    assert start.round.number == 9


def test_an_exit_while_leaving_is_not_reported_but_replaced() -> None:
    local = running(7)
    local.show(a_round(8), 1.0)
    effects = local.exited(100, ended(exit_code=1), 1.1)
    assert reports(effects) == []
    assert len(starts(effects)) == 1


def test_only_the_newest_state_is_started_when_one_is_overtaken() -> None:
    local = a_set()
    first = starts(local.show(a_round(7), 0.0))
    assert local.show(a_round(8), 0.1) == []
    assert local.started(first[0].ticket, 100, 0.2) == [KillWorker(100)]
    (start,) = starts(local.exited(100, KILLED, 0.3))
    assert start.round.number == 8


def test_idle_parks_attached_workers_and_ends_others() -> None:
    assert running(7, attached=False).show(idle(8), 1.0) == [KillWorker(100), KillWorker(101)]
    local = running(7)
    effects = local.show(idle(8), 1.0)
    assert tells(effects, 100) == [RoundEnded(7, "because")]
    for pid in (100, 101):
        local.heard(pid, RoundLeft(7), 1.1)
    assert {slot.state for slot in local.slots} == {SlotState.PARKED}
    assert local.next_wakeup() is None
    assert local.held_round is None
    effects = local.show(a_round(9), 5.0)
    assert [type(message) for message in tells(effects, 100)] == [Assignment]


def test_a_worker_that_left_by_itself_needs_no_time_to_leave() -> None:
    local = running(7)
    local.heard(100, RoundLeft(7), 0.5)
    local.heard(101, RoundLeft(7), 0.5)
    local.show(a_round(8), 1.0)
    assert local.next_wakeup() is None


def test_a_spare_does_as_when_idle() -> None:
    local = running(7)
    effects = local.show(a_round(8, members=("a",)), 1.0)
    assert tells(effects, 100) == [RoundEnded(7, "because")]
    assert a_set().show(a_round(8, members=("a",)), 1.0) == []


def test_closed_ends_everything_and_starts_nothing() -> None:
    local = running(7)
    assert local.show(closed(8), 1.0) == [KillWorker(100), KillWorker(101)]
    assert local.exited(100, KILLED, 1.1) == []
    assert local.exited(101, KILLED, 1.1) == []
    assert not any(slot.holds_process for slot in local.slots)


def test_a_failure_is_reported_and_its_place_stays_empty() -> None:
    local = running(7)
    effects = local.exited(101, ended(exit_code=3, age_s=0.01, error="loss is nan"), 1.0)
    assert reports(effects) == [WorkerExited(7, 3, 0.01, 3, None, "loss is nan")]
    assert starts(effects) == []
    assert local.elapse(100.0) == []
    assert len(starts(local.show(a_round(8), 101.0))) == 1


def test_a_process_that_cannot_be_started_is_a_failure() -> None:
    local = a_set()
    (start, _) = starts(local.show(a_round(7), 0.0))
    effects = local.not_started(start.ticket, "no memory")
    assert reports(effects) == [WorkerExited(7, 2, 0.0, 1, None, "no memory")]


def test_the_member_has_finished_when_its_last_worker_has() -> None:
    local = running(7)
    assert reports(local.exited(100, WELL, 1.0)) == [WorkerExited(7, 2, 0.0, exit_code=0)]
    assert reports(local.exited(101, WELL, 1.1)) == [WorkerExited(7, 3, 0.0, exit_code=0), WorkersFinished(7)]
    assert len(starts(local.show(a_round(8), 2.0))) == 2


def test_the_last_word_of_its_workers_goes_with_the_word_that_the_member_has_finished() -> None:
    local = running(7)
    odd = NonFinite(40, 0.1, 40, 1, loss="nan")
    local.heard(101, Finished(7, odd), 0.9)
    local.exited(101, WELL, 1.0)
    said = reports(local.exited(100, WELL, 1.1))
    assert said[-1] == WorkersFinished(7, nonfinite=(RankNonFinite(3, odd),))
    for start in starts(local.show(a_round(8), 2.0)):
        local.started(start.ticket, 200 + start.local_rank, 2.0)
    local.exited(201, WELL, 3.0)
    assert reports(local.exited(200, WELL, 3.0))[-1] == WorkersFinished(8)


def test_who_ends_with_zero_before_training_is_over_leaves_its_place_empty() -> None:
    local = running(7)
    for pid, word in ((100, Entering(7)), (101, Entering(7)), (101, Finished(7))):
        local.heard(pid, word, 0.5)
    slot, other = local.slots
    assert (slot.inside, other.inside) == (True, False)
    assert reports(local.exited(101, WELL, 1.0)) == [WorkerExited(7, 3, 0.0, exit_code=0)]
    left = msgspec.structs.replace(WELL, left=True)
    assert reports(local.exited(100, left, 1.0)) == [WorkerExited(7, 2, 0.0, exit_code=0, left=True)]
    assert (slot.state, slot.inside) == (SlotState.ABSENT, False)
    assert len(starts(local.show(a_round(8), 2.0))) == 2


def test_who_was_asked_to_end_leaves_its_place_empty_also_when_training_had_returned() -> None:
    local = running(7)
    local.heard(100, Finished(7), 0.5)
    asked = msgspec.structs.replace(WELL, asked_by=15)
    assert [each for each in reports(local.exited(100, asked, 1.0)) if isinstance(each, WorkersFinished)] == []
    assert local.slots[0].state is SlotState.ABSENT


def test_training_that_is_asked_for_again_is_not_over() -> None:
    local = running(7)
    for word in (Entering(7), Finished(7), Entering(7)):
        local.heard(100, word, 0.5)
    assert local.slots[0].inside
    local.heard(100, Finished(6), 0.6)
    assert not local.slots[0].inside, "its replica group has gone on to another round meanwhile"


def test_unattached_workers_count_as_entered_after_the_grace() -> None:
    local = running(7, attached=False)
    assert local.next_wakeup() == 0.5
    assert local.elapse(0.4) == []
    assert reports(local.elapse(0.5)) == [RoundEntered(7, reentrant=False)]
    assert local.next_wakeup() is None
    assert local.elapse(1.0) == []


def test_entering_is_said_again_when_workers_attach_late() -> None:
    local = running(7, attached=False)
    local.elapse(0.5)
    for pid in (100, 101):
        local.attached(pid, 2.0)
    assert local.heard(100, Entered(7), 2.1) == []
    assert reports(local.heard(101, Entered(7), 2.2)) == [RoundEntered(7, reentrant=True)]


def test_attached_workers_have_entered_when_they_say_so() -> None:
    local = running(7)
    local.show(a_round(8), 1.0)
    for pid, step in ((100, 40), (101, 41)):
        local.heard(pid, RoundLeft(7, step=step), 1.1)
    assert local.heard(100, Entered(8), 1.2) == []
    assert local.elapse(100.0) == []
    assert reports(local.heard(101, Entered(8), 1.3)) == [RoundEntered(8, reentrant=True, last_step=41)]


def test_the_last_step_is_said_after_a_round_that_was_not_entered() -> None:
    local = running(7)
    local.show(a_round(8), 1.0)
    for pid in (100, 101):
        local.heard(pid, RoundLeft(7, step=40), 1.1)
    local.show(a_round(9), 1.2)
    local.heard(100, Entered(9), 1.3)
    assert reports(local.heard(101, Entered(9), 1.4)) == [RoundEntered(9, reentrant=True, last_step=40)]


def test_the_last_step_of_a_dead_worker_counts_and_that_of_an_older_round_does_not() -> None:
    local = running(7)
    local.exited(101, KILLED, 1.0, completed=(7, 44))
    (start,) = starts(local.show(a_round(8), 1.1))
    local.heard(100, RoundLeft(7, step=43), 1.1)
    local.heard(100, Entered(8), 1.2)
    (report,) = reports(local.started(start.ticket, 101, 1.2) + local.elapse(1.8))
    assert report == RoundEntered(8, reentrant=False, last_step=44)
    local.show(a_round(9), 2.0)
    local.heard(100, Entered(9), 2.1)
    local.exited(101, KILLED, 2.1)
    assert local._last_step == (7, 44)


def test_what_concerns_another_round_is_not_passed_on() -> None:
    local = running(7)
    failed = CollectiveFailed(7, 2, 0.0, "reset")
    committed = CheckpointCommitted(7, 100, "file:///c")
    assert reports(local.heard(100, failed, 1.0)) == [failed]
    assert reports(local.heard(100, committed, 1.0)) == [committed]
    local.show(a_round(8), 2.0)
    assert local.heard(100, failed, 2.1) == []
    assert local.heard(100, committed, 2.1) == []


def test_what_an_attached_worker_says_of_a_round_it_is_not_in_changes_nothing() -> None:
    local = running(7)
    assert local.heard(100, Entered(6), 1.0) == []
    assert local.heard(100, Finished(6), 1.0) == []
    assert not local.slots[0].finished
    local.detached(999)
    local.show(closed(8), 2.0)
    assert local.heard(100, Entered(7), 2.1) == []


def test_unknown_processes_change_nothing() -> None:
    local = running(7)
    assert local.exited(999, KILLED, 1.0) == []
    assert local.heard(999, Entered(7), 1.0) == []
    assert local.started(999, 999, 1.0) == [KillWorker(999)]
    assert local.not_started(999, "x") == []


def test_a_wanted_save_is_passed_to_every_worker_of_its_round() -> None:
    request = SaveWanted(round=7, number=1)
    assert running(7).pass_on(request) == [TellWorker(100, request), TellWorker(101, request)]


def test_a_wanted_save_of_another_round_is_nobodys() -> None:
    local = running(7)
    assert local.pass_on(SaveWanted(round=6, number=1)) == []
    assert local.pass_on(SaveWanted(round=8, number=1)) == []
    local.show(idle(8), 1.0)
    assert local.pass_on(SaveWanted(round=7, number=1)) == []


def test_a_worker_that_attaches_later_hears_of_the_wanted_save_after_its_assignment() -> None:
    request = SaveWanted(round=7, number=1)
    local = running(7, attached=False)
    assert local.pass_on(request) == []
    told = tells(local.attached(100, 0.1), 100)
    assert [type(message) for message in told] == [Assignment, SaveWanted]
    assert local.pass_on(request) == [TellWorker(100, request)]


def test_a_wanted_save_does_not_outlive_its_round() -> None:
    local = running(7)
    local.pass_on(SaveWanted(round=7, number=1))
    told = tells(local.show(a_round(8), 1.0), 100)
    assert [type(message) for message in told] == [RoundEnded, Assignment]


def test_workers_are_told_where_their_snapshots_lie_only_when_the_round_keeps_any() -> None:
    local = LocalSet(
        local_size=2, leave_timeout_s=1.0, attach_grace_s=0.5, memory=MemoryPlace("/shm/x", "10.0.0.2:7900")
    )
    running(7, local=local)
    order = MemoryOrder(every_steps=1, since_round=3, keepers=("10.0.0.1:7900",))
    keeping = msgspec.structs.replace(seat(8), memory=order, restore=Restore(owner="life-1"))
    (told,) = assignments(local.show(keeping, 1.0), 101)
    assert told.memory == NodeMemory(order, "/shm/x", "10.0.0.2:7900")
    (told,) = assignments(local.show(a_round(9), 2.0), 101)
    assert told.memory is None


def test_a_node_without_a_place_in_memory_keeps_no_snapshots() -> None:
    local = running(7)
    order = MemoryOrder(every_steps=1, since_round=3)
    keeping = msgspec.structs.replace(seat(8), memory=order, restore=Restore(owner="life-1"), keep=5)
    (told,) = assignments(local.show(keeping, 1.0), 101)
    assert told.memory is None
    assert told.keep == 5


def test_what_is_verified_is_passed_on_beside_what_is_wanted_and_only_the_newest_counts() -> None:
    local = running(7, attached=False)
    for word in (Verified(round=7, step=20), SaveWanted(round=7, number=1), Verified(round=7, step=40)):
        local.pass_on(word)
    told = tells(local.attached(100, 0.1), 100)
    assert told[1:] == [Verified(round=7, step=40), SaveWanted(round=7, number=1)]


def test_a_worker_that_goes_on_is_given_the_environment_of_a_new_one() -> None:
    shrunk = a_round(8, members=("b",))
    assert isinstance(shrunk, Seat)
    (goes_on,) = assignments(running(7).show(shrunk, 1.0), 101)
    local = running(7)
    local.show(shrunk, 1.0)
    new = next(start for start in starts(local.exited(101, KILLED, 1.0)) if start.local_rank == 1)
    environment = worker_environment(
        new, inherited={}, member="b", control=Path("c"), run_dir=Path("r"), max_restarts=3
    )
    assert round_environment(goes_on).items() <= environment.items()
    assert (environment["WORLD_SIZE"], environment["RANK"], environment["GROUP_RANK"]) == ("2", "1", "0")
    assert environment["TORCHELASTIC_RESTART_COUNT"] == "1"


def test_what_workers_can_go_on_to_is_reported_when_it_changes_and_the_strictest_of_them_counts() -> None:
    local = running(7)
    same, never = Reenters(Reentry.SAME_WORLD, "the script"), Reenters(Reentry.NEVER, "a framework")
    assert reports(local.heard(101, same, 1.0)) == [
        RoundEntered(7, reentrant=True, reentry=Reentry.SAME_WORLD, because="the script")
    ]
    assert reports(local.heard(100, never, 1.0)) == [
        RoundEntered(7, reentrant=True, reentry=Reentry.NEVER, because="a framework")
    ]
    assert reports(local.heard(101, never, 1.0)) == []


def test_what_a_process_could_not_go_on_to_is_no_matter_of_the_one_after_it() -> None:
    local = running(7)
    local.heard(100, Reenters(Reentry.NEVER, "a framework"), 1.0)
    local.show(a_round(8, entry=Entry.RESPAWN), 1.0)
    for pid, new in ((100, 200), (101, 201)):
        (start,) = starts(local.exited(pid, KILLED, 1.0))
        local.started(start.ticket, new, 1.0)
        local.attached(new, 1.0)
        entered = local.heard(new, Entered(8), 1.0)
    assert reports(entered) == [RoundEntered(8, reentrant=True)]


def test_the_first_sign_of_training_is_told_once_a_round_and_with_the_exit() -> None:
    local = running(attached=False)
    assert reports(local.showed_sign(100)) == [TrainingBegan(7)]
    assert local.showed_sign(101) == [], "one is enough"
    assert local.showed_sign(999) == []
    raised = ended(exit_code=1, raised="KeyError: 1", place="a.py:1")
    (told,) = reports(local.exited(100, raised, 9.0))
    assert isinstance(told, WorkerExited)
    assert (told.began, told.raised, told.place) == (True, "KeyError: 1", "a.py:1")


def test_a_worker_that_tells_of_its_steps_has_begun_with_the_first_of_its_round() -> None:
    assert running().showed_sign(100) == [], "its rank record tells"
    for completed, began in ((None, False), ((6, 41), False), ((7, 42), True)):
        (told,) = reports(running().exited(100, ended(exit_code=1), 9.0, completed=completed))
        assert isinstance(told, WorkerExited)
        assert told.began is began


def test_a_new_round_shows_its_own_sign() -> None:
    local = running(attached=False)
    assert reports(local.showed_sign(100)) == [TrainingBegan(7)]
    local.show(a_round(8), 1.0)
    assert local.showed_sign(100) == [], "it is being replaced"


def test_a_process_that_goes_on_to_no_round_is_replaced_whatever_the_next_round_says() -> None:
    local = running(7)
    local.heard(100, Reenters(Reentry.NEVER, "a framework"), 1.0)
    effects = local.show(a_round(8, entry=Entry.REENTER), 1.0)
    assert KillWorker(100) in effects
    assert KillWorker(101) not in effects
