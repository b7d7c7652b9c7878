"""What a launcher makes of rounds with replica groups: workers of a group that goes on leave nothing."""

from typing import Any

from holdfast.agent.launch.localset import Effect, KillWorker, LocalSet, Report, Start, TellWorker
from holdfast.api.control import Assignment, AtTheDoor, Entered, Finished, RoundEnded
from holdfast.api.membership import CheckpointCommitted, GroupReady, RoundEntered, WorkerExited, WorkersFinished
from holdfast.api.round import (
    Endpoint,
    Entry,
    Idle,
    MemberRanks,
    ReplicaGroup,
    Restore,
    Round,
    Shown,
    Tier,
    shown_to,
)

HOST = Endpoint("h", 1000)


def a_round(number: int, *groups: tuple[int, str, bool], entry: Entry = Entry.REENTER, broke_in: int = 0) -> Shown:
    """What member b is shown of a round of these groups: epoch, the one member of each, whether it trains."""
    shares = tuple(MemberRanks(name, f"node-{name}", 2 * at, 2) for at, (_, name, _) in enumerate(groups))
    formed = tuple(ReplicaGroup(epoch, 1, HOST, trains) for epoch, _, trains in groups)
    restore = Restore(Tier.CHECKPOINT)
    shown = Round("default/j", number, shares, HOST, restore, entry, "because", groups=formed, broke_in=broke_in)
    return shown_to(shown, "b")


def told(effects: list[Effect], kind: type[Any], pid: int = 100) -> list[Any]:
    said = [each.message for each in effects if isinstance(each, TellWorker) and each.pid == pid]
    return [each for each in said if isinstance(each, kind)]


def reports(effects: list[Effect]) -> list[object]:
    return [each.message for each in effects if isinstance(each, Report)]


def running(shown: Shown, number: int) -> LocalSet:
    """Two workers, processes 100 and 101, that have entered the round."""
    local = LocalSet(local_size=2, leave_timeout_s=1.0, attach_grace_s=0.5)
    starts = [each for each in local.show(shown, 0.0) if isinstance(each, Start)]
    for place, start in enumerate(starts):
        local.started(start.ticket, 100 + place, 0.0)
        local.attached(100 + place, 0.0)
        local.heard(100 + place, Entered(number), 0.0)
    return local


def test_workers_of_a_group_that_goes_on_are_assigned_and_told_to_leave_nothing() -> None:
    local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
    effects = local.show(a_round(8, (7, "b", True), entry=Entry.RESPAWN), 1.0)
    assert not [each for each in effects if isinstance(each, KillWorker)]
    assert not told(effects, RoundEnded)
    (part,) = told(effects, Assignment)
    assert (part.round, part.rank, part.group.index, part.group.count, part.group.broke_in) == (8, 0, 0, 1, 0)
    assert (part.inside().rank, part.inside().world_size, part.inside().round) == (0, 2, 7)
    assert not reports(effects)


def test_it_has_entered_once_all_workers_have_taken_it_up() -> None:
    local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
    local.show(a_round(8, (7, "b", True)), 1.0)
    assert not reports(local.heard(100, Entered(8), 1.1))
    assert [type(each) for each in reports(local.heard(101, Entered(8), 1.2))] == [RoundEntered]


def test_what_a_group_has_saved_is_told_also_before_it_has_taken_up_the_newer_round() -> None:
    local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
    local.show(a_round(8, (7, "b", True)), 1.0)
    for round_, is_told in ((6, False), (7, True), (8, True), (9, False)):
        said = CheckpointCommitted(round_, 50, "/ckpt")
        assert (reports(local.heard(100, said, 1.1)) == [said]) is is_told


def test_a_worker_that_trained_in_a_round_of_its_epoch_had_begun_when_it_dies_in_the_next() -> None:
    for before, began in (((7, 50), True), ((6, 50), False), (None, False)):
        local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
        local.show(a_round(8, (7, "b", True)), 1.0)
        (said,) = reports(local.exited(100, WorkerExited(7, 2, 0.0, signal=9), 1.1, completed=before))
        assert isinstance(said, WorkerExited)
        assert (said.round, said.began) == (8, began)


def test_one_of_another_epoch_is_an_ordinary_round() -> None:
    local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
    effects = local.show(a_round(8, (7, "a", True), (8, "b", False)), 1.0)
    assert told(effects, RoundEnded) == [RoundEnded(7, "because")]
    (part,) = told(effects, Assignment)
    assert part.restore.tier is Tier.PEER
    assert (part.group.index, part.group.first_rank) == (None, 2)


def test_a_group_is_ready_when_all_workers_wait_and_says_so_in_each_round_until_it_trains() -> None:
    local = running(a_round(8, (7, "a", True), (8, "b", False)), 8)
    assert not reports(local.heard(100, AtTheDoor(8), 1.0))
    assert reports(local.heard(101, AtTheDoor(8), 1.1)) == [GroupReady(8, 8)]
    again = local.show(a_round(9, (7, "a", True), (8, "b", False)), 2.0)
    assert reports(again) == [GroupReady(9, 8)]
    assert not reports(local.show(a_round(10, (7, "a", True), (8, "b", True)), 3.0))


def test_what_was_ready_in_another_epoch_is_not_ready_in_this_one() -> None:
    local = running(a_round(8, (7, "a", True), (8, "b", False)), 8)
    for pid in (100, 101):
        local.heard(pid, AtTheDoor(8), 1.0)
    assert not reports(local.show(a_round(9, (7, "a", True), (9, "b", False)), 2.0))


def test_a_worker_that_attaches_late_is_shown_the_newest_of_its_epoch() -> None:
    local = LocalSet(local_size=2, leave_timeout_s=1.0, attach_grace_s=0.5)
    starts = [
        each for each in local.show(a_round(7, (7, "a", True), (7, "b", True)), 0.0) if isinstance(each, Start)
    ]
    local.started(starts[0].ticket, 100, 0.0)
    effects = local.show(a_round(8, (7, "b", True)), 0.5)
    effects += local.started(starts[1].ticket, 101, 0.6)
    assert not [each for each in effects if isinstance(each, KillWorker | Start)]
    for pid in (100, 101):
        (part, *_) = told(local.attached(pid, 1.0), Assignment, pid)
        assert part.round == 8


def test_members_without_a_group_wait() -> None:
    local = running(a_round(7, (7, "a", True), (7, "b", True)), 7)
    shown = a_round(8, (7, "a", True))
    assert isinstance(shown, Idle)
    assert told(local.show(shown, 1.0), RoundEnded) == [RoundEnded(7, "because")]


def test_workers_that_have_finished_are_not_started_again_when_a_group_comes_in_behind_them() -> None:
    local = running(a_round(7, (7, "b", True), (8, "c", False)), 7)
    for pid in (100, 101):
        local.heard(pid, Finished(7), 1.0)
        local.exited(pid, WorkerExited(7, pid - 100, 0.0, exit_code=0), 1.0)
    effects = local.show(a_round(9, (7, "b", True), (8, "c", True)), 1.5)
    assert not [each for each in effects if isinstance(each, Start)]
    assert [each for each in reports(effects) if isinstance(each, WorkersFinished)] == [WorkersFinished(9)]
    # After a fault there may be more to do: they go on from what was saved.
    effects = local.show(a_round(10, (7, "b", True), broke_in=10), 2.0)
    assert len([each for each in effects if isinstance(each, Start)]) == 2
