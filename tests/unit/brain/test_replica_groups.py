"""Replica groups: a fault takes one group out, the others go on, and the group comes back."""

import pytest
from story import JOB, Story, running

from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.event import CheckpointRecorded, MemberEntered, MemberReady, RoundProgressed, StorageListed
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.ledger import Row
from holdfast.api.policy import RestartBudget
from holdfast.api.round import Closed, Entry, Idle, Round, Seat, Tier, shown_to
from holdfast.api.status import JobPhase


def groups(count: int = 2, *, least: int = 1, spares: int = 0, **fields: object) -> Story:
    """`count` groups of two nodes that train."""
    return running(2 * count, spares=spares, nodes_min=2 * least, replica_nodes=2, **fields)


def trained(story: Story) -> list[tuple[int, bool]]:
    return [(each.epoch, each.trains) for each in story.round.groups]


def seat(story: Story, number: int) -> Seat:
    shown = shown_to(story.round, f"node-{number}")
    assert isinstance(shown, Seat)
    return shown


def ready(story: Story, epoch: int, *numbers: int) -> Story:
    for number in numbers:
        story.tell(MemberReady(f"node-{number}", epoch))
    return story


def test_a_round_of_everybody_has_all_its_groups_from_the_start() -> None:
    story = groups(2)
    assert trained(story) == [(2, True), (2, True)]
    assert story.round.training_size == story.round.world_size == 4
    first, last = seat(story, 1).group, seat(story, 4).group
    assert first is not None
    assert last is not None
    assert (first.index, first.first_rank, first.size, first.count) == (0, 0, 2, 2)
    assert (last.index, last.first_rank, last.endpoint.host) == (1, 2, "10.0.0.3")
    assert last.meets_in == 2
    assert seat(story, 4).endpoint == first.endpoint


def test_a_dead_worker_takes_its_group_out_and_the_other_goes_on_from_its_step() -> None:
    story = groups(2).die(4)
    assert trained(story) == [(2, True), (3, False)]
    stays, comes = seat(story, 1).group, seat(story, 4).group
    assert stays is not None
    assert comes is not None
    assert (stays.epoch, stays.index, stays.count, stays.broke_in) == (2, 0, 1, 3)
    assert (comes.epoch, comes.index, comes.first_rank) == (3, None, 2)
    assert story.round.training_size == 2
    assert story.state.step == story.state.restored_step == 50
    assert seat(story, 4).restore.tier is Tier.PEER
    assert seat(story, 1).restore.tier is Tier.CHECKPOINT

    assert seat(story, 4).fresh_ranks == (3,)
    assert not seat(story, 3).fresh_ranks


def test_the_incident_is_over_with_the_next_step_of_those_that_stay_and_cost_none() -> None:
    story = groups(2).die(4)
    story.now += 0.2
    story.tell(MemberEntered("node-1", 3, reentrant=True, last_step=52))
    story.tell(RoundProgressed(3, 51))
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.lost_steps == 0
    assert story.state.phase is JobPhase.RUNNING


def test_the_group_trains_once_all_its_workers_wait_at_the_door() -> None:
    story = groups(2).die(4).run_on(51)
    ready(story, 3, 3)
    assert story.round.number == 3
    ready(story, 3, 4)
    assert trained(story) == [(2, True), (3, True)]
    first, back = seat(story, 1).group, seat(story, 4).group
    assert first is not None
    assert back is not None
    assert first.broke_in == 3
    assert (back.epoch, back.index, back.count) == (3, 1, 2)
    assert story.state.restart_count == 1
    assert not story.state.forming


def test_a_word_of_readiness_of_another_group_counts_for_nothing() -> None:
    story = groups(2).die(4).run_on(51)
    ready(story, 2, 3, 4)
    ready(story, 10, 3, 4)
    assert trained(story) == [(2, True), (3, False)]


def test_a_lost_member_without_a_spare_leaves_its_group_waiting_until_somebody_comes() -> None:
    story = groups(2).lose(4)
    assert trained(story) == [(2, True)]
    assert story.incident.rung is Rung.SHRINK
    assert isinstance(shown_to(story.round, "node-3"), Idle)
    story.run_on(51).join(5)
    assert trained(story) == [(2, True), (4, False)]
    assert story.members == ["node-1", "node-2", "node-3", "node-5"]


def test_a_spare_takes_the_place_at_once() -> None:
    story = groups(2, spares=1).lose(3)
    assert trained(story) == [(2, True), (3, False)]
    assert set(story.members[2:]) == {"node-4", "node-5"}


def test_a_second_fault_while_a_group_is_formed_takes_out_only_who_it_concerns() -> None:
    story = groups(3).die(6).run_on(51)
    assert trained(story) == [(2, True), (2, True), (3, False)]
    story.die(1)
    assert trained(story) == [(2, True), (3, False), (4, False)]
    assert story.members == ["node-3", "node-4", "node-5", "node-6", "node-1", "node-2"]
    stays = seat(story, 3)
    assert stays.group is not None
    assert stays.group.index == 0
    assert stays.endpoint.host == "10.0.0.3"
    assert stays.first_rank == 0


def test_too_few_groups_are_a_round_of_everybody() -> None:
    story = groups(2, least=2).die(4)
    assert trained(story) == [(3, True), (3, True)]
    assert story.round.entry is Entry.REENTER
    assert story.state.step is None


def test_a_rewind_is_of_everybody() -> None:
    story = groups(2).find(FindingKind.NON_FINITE, 4, step=50)
    assert trained(story) == [(3, True), (3, True)]
    assert seat(story, 4).restore.step == 40


@pytest.mark.parametrize("named", [True, False], ids=["one rank stands out", "no rank stands out"])
def test_a_hang_takes_out_the_group_of_who_is_named_and_everybody_when_nobody_is(*, named: bool) -> None:
    story = groups(2)
    fields: dict[str, object] = {} if named else {"subject": Subject(JOB), "confidence": Confidence.UNKNOWN}
    story.find(FindingKind.HANG, 3, **fields)
    assert trained(story) == ([(2, True), (3, False)] if named else [(3, True), (3, True)])


def test_what_was_saved_before_groups_went_on_is_no_step_of_the_round_they_went_on_into() -> None:
    story = groups(2).die(4)
    story.tell(CheckpointRecorded(2, 50, "/ckpt"))
    assert story.incident.state is IncidentState.OPEN
    assert not story.state.progressed
    assert [each.step for each in story.state.checkpoints] == [40, 50]
    story.run_on(51)
    assert story.incident.state is IncidentState.RECOVERED


def test_who_saw_a_hang_in_which_nobody_stands_out_is_not_blamed_for_it() -> None:
    story = groups(2)
    saw = tuple(Subject(JOB, node=f"node-{each}", member=f"node-{each}", rank=each - 1) for each in (1, 2))
    story.find(FindingKind.HANG, 3, subject=Subject(JOB), confidence=Confidence.UNKNOWN, also=saw)
    assert trained(story) == [(3, True), (3, True)]


def test_a_collective_that_failed_between_groups_alone_takes_nobody_out() -> None:
    story = groups(2).find(FindingKind.COLLECTIVE_FAILED, 1, subject=Subject(JOB), confidence=Confidence.UNKNOWN)
    assert trained(story) == [(2, True), (2, True)]
    assert story.round.number == 3
    assert story.round.broke_in == 3


def test_when_groups_fail_to_meet_again_everybody_starts_anew() -> None:
    story = groups(2)
    for _ in range(2):
        story.find(FindingKind.COLLECTIVE_FAILED, 1, subject=Subject(JOB), confidence=Confidence.UNKNOWN)
    story.wait(11)  # restarts.backoff
    assert {epoch for epoch, _ in trained(story)} == {story.round.number}
    assert story.round.entry is Entry.RESPAWN


def test_one_that_failed_within_a_group_takes_that_group_out() -> None:
    story = groups(2).find(FindingKind.COLLECTIVE_FAILED, 4, confidence=Confidence.UNKNOWN)
    assert trained(story) == [(2, True), (3, False)]


def test_a_group_that_does_not_get_ready_is_found_and_formed_anew() -> None:
    story = groups(2, startup_timeout_s=600.0).die(4).run_on(51)
    ready(story, 3, 3)
    story.wait(601)
    assert trained(story) == [(2, True)]
    story.wait(10)
    assert trained(story) == [(2, True), (5, False)]
    assert story.incident.kind is FindingKind.HANG
    assert story.incident.culprit.member == "node-4"


def test_a_group_that_fails_again_and_again_backs_off_while_the_others_train() -> None:
    story = groups(2, restarts=RestartBudget(backoff_s=10.0)).die(4).run_on(51)
    for times in range(3):
        story.die(4, cause="exit code 1")
        assert trained(story) == [(2, True)]
        assert isinstance(shown_to(story.round, "node-3"), Idle)
        story.run_on(52 + times).wait(9)
        assert trained(story) == [(2, True)]
        story.wait(2)
        assert [trains for _, trains in trained(story)] == [True, False]
    story.run_on(60)
    assert story.state.phase is JobPhase.RUNNING


def test_the_job_is_done_when_those_that_train_are() -> None:
    story = groups(2).die(4).run_on(51)
    for number in (1, 2):
        story.finish_one(number)
    assert isinstance(story.state.desired, Closed)
    assert story.state.desired.succeeded


def test_a_group_that_is_let_in_while_the_others_finish_does_not_keep_the_job() -> None:
    story = ready(groups(2).die(4).run_on(51), 3, 3, 4).wait(1)
    assert trained(story) == [(2, True), (3, True)]
    story.finish_one(1)
    assert isinstance(story.state.desired, Round)
    story.finish_one(2)
    assert isinstance(story.state.desired, Closed)
    assert story.state.desired.succeeded


def test_a_suspended_job_comes_back_as_a_round_of_everybody() -> None:
    story = groups(2)
    story.ask(InterventionAction.PAUSE)
    story.save(51)
    story.wait(120)
    assert isinstance(story.state.desired, Idle)
    story.ask(InterventionAction.RESUME, id="i2")
    story.wait(1)
    assert {epoch for epoch, _ in trained(story)} == {story.round.number}


def test_a_watchdog_that_restarts_waits_for_who_trains_and_changes_nothing() -> None:
    story = groups(2).restart_watchdog()
    for number in range(1, 5):
        story.join(number, held=1)
    assert story.round.number == 2
    assert trained(story) == [(2, True), (2, True)]


def saved(round: int, step: int) -> CheckpointRecorded:
    return CheckpointRecorded(round, step, f"/ckpt/step-{step:08d}")


def test_a_checkpoint_counts_from_whichever_round_groups_went_on_with() -> None:
    story = groups(2).die(4)
    story.tell(saved(2, 52))
    assert [each.step for each in story.state.checkpoints] == [40, 52], "its group had not heard of the round yet"
    ready(story, 3, 3, 4)
    for said in (RoundProgressed(4, 54), saved(3, 54), saved(3, 54)):
        story.tell(said)
    assert [each.step for each in story.state.checkpoints] == [40, 52, 54]
    story.tell(StorageListed(3, "/ckpt", 1, (StoredCheckpoint(54, 3, "step-00000054"),)))
    assert story.state.storage is not None
    assert story.state.storage.count == 1


def test_a_checkpoint_of_groups_that_all_restored_since_does_not_count() -> None:
    story = groups(2, least=2).die(4)
    assert trained(story) == [(3, True), (3, True)]
    story.tell(saved(2, 52))
    story.tell(StorageListed(2, "/ckpt", 0, ()))
    assert [each.step for each in story.state.checkpoints] == [40]
    assert story.state.storage is None


def test_workers_of_many_groups_that_die_at_once_are_no_crash_loop() -> None:
    story = groups(7)
    for number in (4, 6, 8, 10, 12, 14):
        story.die(number)
        story.now += 0.01
    story.wait(1.0)
    assert trained(story)[0] == (2, True)
    assert [trains for _, trains in trained(story)] == [True, *[False] * 6]
    assert isinstance(story.state.desired, Round)
    assert len(story.state.failures) == 1
    story.die(2).wait(1.0)
    assert isinstance(story.state.desired, Round)
    assert [trains for _, trains in trained(story)] == [True] * 7, "the last one has the state: all restore"


def test_a_death_of_another_group_that_was_there_before_the_new_round_is_healed_too() -> None:
    story = groups(3)
    there = Subject(JOB, node="node-6", member="node-6", rank=5)
    story.die(4)
    story.now += 0.05
    story.die(6, began_at=story.state.round_shown_at - 0.01, round=2, subject=there)
    story.wait(1.0)
    assert [each.culprit.rank for each in story.state.incidents] == [3, 3], "as it is numbered then"
    assert trained(story) == [(2, True), (3, False), (4, False)]
    assert len(story.state.incidents) == 2


def test_groups_that_die_again_and_again_in_turn_are_one() -> None:
    story = groups(2)
    while not isinstance(story.state.desired, Closed):
        for number in (1, 3):
            if isinstance(story.state.desired, Round):
                story.die(number)
        story.wait(400.0)
        assert len(story.state.failures) <= 4
    assert "crash loop" in story.state.reason


def test_without_groups_nothing_of_it_is_shown() -> None:
    story = running(3)
    assert story.round.groups == ()
    assert seat(story, 1).group is None
    assert story.round.training == 3


def test_gpus_of_a_group_that_is_being_formed_are_told_apart_from_those_that_train() -> None:
    story = groups(2).die(4).run_on(51).wait(100)
    ready(story.run_on(52), 3, 3, 4)
    rows = story.state.ledger.accounts.rows
    assert rows[Row.FORMING].gpu_us == pytest.approx(2 * 100e6, rel=0.02)


def test_a_group_whose_worker_is_stopped_while_it_is_formed_is_formed_again_at_once_and_then_backs_off() -> None:
    story = groups(2, restarts=RestartBudget(backoff_s=10.0)).die(4).run_on(51)
    story.find(FindingKind.HANG, 3, cause="the process is stopped")
    assert trained(story) == [(2, True), (4, False)]
    story.run_on(52).find(FindingKind.HANG, 4, cause="the process is stopped")
    assert trained(story) == [(2, True)]
    story.wait(11)
    assert trained(story) == [(2, True), (6, False)]


def test_a_group_that_is_ready_does_not_wait_for_another_that_backs_off() -> None:
    story = groups(3).die(6, cause="exit code 1").run_on(51).die(4, cause="exit code 1").run_on(52)
    assert trained(story) == [(2, True), (3, False), (4, False)]
    story.die(4, cause="exit code 1").run_on(53)
    assert trained(story) == [(2, True), (3, False)]
    ready(story, 3, 5, 6)
    assert trained(story) == [(2, True), (3, True)]
    story.run_on(54).wait(11)
    assert trained(story) == [(2, True), (3, True), (7, False)]


def test_a_fault_right_after_a_restart_of_the_watchdog_waits_until_all_are_heard_of() -> None:
    story = groups(2).restart_watchdog()
    story.join(1, 2, 4, held=2).die(4, cause="exit code 1")
    assert trained(story) == [(2, True), (2, True)]
    story.join(3, held=2)
    assert trained(story) == [(2, True), (3, False)]


def test_a_resize_to_a_part_of_a_group_is_refused_and_one_by_a_group_is_done() -> None:
    story = groups(3)
    refused = story.ask(InterventionAction.RESIZE, nodes=5)
    assert "give a multiple of 2, the nodes of a replica group" in refused.outcome
    story.ask(InterventionAction.RESIZE, id="i2", nodes=4)
    story.save(51) if story.wanted else story.wait(100)
    assert trained(story) == [(2, True), (2, True)]
