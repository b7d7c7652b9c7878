"""Planned changes: drains, pods told to end, suspension, shrinking. Each saves first, and loses nothing."""

import pytest
from story import Story

from holdfast.api.event import (
    CheckpointRecorded,
    InterventionRequested,
    MemberDeparting,
    MemberWarmed,
    NodeChanged,
)
from holdfast.api.intervention import InterventionAction, InterventionRequest, InterventionState
from holdfast.api.plan import NodeState, PodState
from holdfast.api.round import Entry, Idle
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.plan import LOST_FOR_GOOD_S
from holdfast.watchdog.brain.saves import FIRST_SAVE_S
from holdfast.watchdog.brain.step import Answered


def running(nodes: int, *, spares: int = 0, step: int = 50, reentrant: bool = True, **fields: object) -> Story:
    """A job that trains on `nodes` members beside `spares`, with step 40 saved."""
    story = Story(nodes_max=nodes, spares=spares, **fields).join(*range(1, nodes + spares + 1))
    story.run(40, reentrant=reentrant)
    return story.commit(40).run_on(step) if reentrant else story


def checkpoint(story: Story, id: str = "c1") -> None:
    request = InterventionRequest(id, "team/run", InterventionAction.CHECKPOINT, "before the upgrade")
    story.tell(InterventionRequested(request))


def answers(story: Story) -> list[tuple[str, InterventionState, str]]:
    return [
        (each.outcome.id, each.outcome.state, each.outcome.outcome)
        for each in story.effects
        if isinstance(each, Answered)
    ]


def test_a_drained_node_is_left_for_a_spare_once_the_round_is_saved() -> None:
    story = running(2, spares=1).drain(1)
    before = story.round.number
    assert [each.round for each in story.wanted] == [before]
    assert story.round.number == before, "training goes on while it is saved"
    story.save(53)
    assert set(story.members) == {"node-2", "node-3"}
    assert (story.round.restore.step, story.round.entry) == (53, Entry.REENTER)
    assert "step 53 is saved" in story.round.reason
    assert story.state.incidents == (), "nothing was broken"
    assert story.plan.release == ("node-1",)


def test_a_drained_node_is_kept_until_somebody_can_take_its_ranks() -> None:
    story = running(2).drain(1)
    assert story.wanted == []
    assert story.plan.release == ()
    story.join(3).wait(1)
    assert len(story.wanted) == 1
    story.save(60)
    assert set(story.members) == {"node-2", "node-3"}


def test_a_drained_node_is_left_with_fewer_members_when_nobody_came_in_time() -> None:
    story = running(2).drain(1).wait(239)
    assert story.wanted == []
    story.wait(2).save(70)
    assert story.members == ["node-2"]
    assert story.round.restore.step == 70


def test_a_job_that_cannot_shrink_saves_before_the_node_goes_and_stays_on_it() -> None:
    story = running(2, nodes_min=2).drain(1).wait(241)
    before = story.round.number
    assert len(story.wanted) == 1
    story.save(70).wait(500)
    assert story.round.number == before
    assert len(story.wanted) == 1, "it is not asked for again and again"
    story.join(3)
    assert len(story.wanted) == 2
    story.save(90)
    assert set(story.members) == {"node-2", "node-3"}


def test_a_drain_that_was_called_off_changes_nothing() -> None:
    story = running(2).drain(1).node(1, NodeState.READY)
    story.join(3).wait(400)
    assert story.wanted == []
    assert story.state.departures == ()


def test_draining_a_spare_moves_nothing_and_releases_it() -> None:
    story = running(2, spares=1).drain(3)
    assert story.wanted == []
    assert story.plan.release == ("node-3",)


def test_a_save_that_never_comes_delays_the_move_no_longer_than_its_grace() -> None:
    story = running(2, spares=1).drain(1).wait(61)
    assert set(story.members) == {"node-2", "node-3"}
    assert story.round.restore.step == 40


def test_a_script_without_the_trainer_is_moved_at_once() -> None:
    story = running(2, spares=1, reentrant=False).drain(1)
    assert story.wanted == []
    assert set(story.members) == {"node-2", "node-3"}


def test_a_script_that_never_saved_is_not_waited_for_long() -> None:
    story = Story(nodes_max=2, spares=1).join(1, 2, 3).run(5).drain(1)
    assert len(story.wanted) == 1
    story.wait(FIRST_SAVE_S + 1)
    assert set(story.members) == {"node-2", "node-3"}


def test_a_fault_while_the_round_is_saved_heals_without_the_one_that_leaves() -> None:
    story = running(3, spares=1).drain(1).die(2)
    assert set(story.members) == {"node-2", "node-3", "node-4"}
    assert story.state.saving is None


def test_a_member_told_to_end_is_replaced_before_it_goes() -> None:
    story = running(2, spares=1).told_to_end(2)
    assert len(story.wanted) == 1
    story.save(51)
    assert set(story.members) == {"node-1", "node-3"}
    story.leave(2)
    assert story.state.departures == ()
    assert story.state.incidents == ()


def test_a_member_told_to_end_is_not_waited_for_beyond_its_time() -> None:
    story = running(2).told_to_end(2, within_s=25)
    assert len(story.wanted) == 1, "nobody can come in 25 s: what there is is saved at once"
    story.wait(26)
    assert story.members == ["node-1"]


def test_the_launcher_and_the_operator_may_both_say_that_a_pod_ends() -> None:
    story = running(2, spares=1).pod(2, PodState.LEAVING, "preempted").told_to_end(2, within_s=10)
    assert [each.until for each in story.state.departures] == [story.now + 10]
    assert len(story.wanted) == 1


def test_who_is_not_a_member_cannot_depart() -> None:
    story = running(2)
    before = story.state
    story.tell(MemberDeparting("nobody", "SIGTERM", 5))
    story.pod(9, PodState.LEAVING, "preempted")
    assert story.state == before


def test_a_spec_that_suspends_saves_then_gives_up_everything() -> None:
    story = running(2, spares=1).resubmit(suspend=True, generation=2)
    assert story.state.phase is JobPhase.RUNNING
    assert (story.plan.members, story.plan.spares) == (2, 1), "pods stay until the round is saved"
    story.save(66)
    assert story.state.phase is JobPhase.SUSPENDED
    assert isinstance(story.state.desired, Idle)
    assert "step 66 is saved" in story.state.reason
    assert (story.plan.members, story.plan.spares) == (0, 0)
    for number in (1, 2, 3):
        story.leave(number).pod(number, PodState.GONE, "deleted")
    assert not story.state.eligible()
    story.resubmit(suspend=False, generation=3)
    assert (story.plan.members, story.plan.spares) == (2, 1)
    story.join(4, 5)
    assert story.members == ["node-4", "node-5"]
    assert story.round.restore.step == 66
    assert story.state.incidents == ()


def test_a_suspension_that_cannot_save_happens_all_the_same() -> None:
    story = running(2).resubmit(suspend=True).wait(61)
    assert story.state.phase is JobPhase.SUSPENDED


def test_a_job_that_is_not_training_is_suspended_at_once() -> None:
    story = Story(nodes_max=2).join(1).resubmit(suspend=True)
    assert story.state.phase is JobPhase.SUSPENDED
    assert story.plan.members == 0


def test_a_resume_cannot_override_the_spec() -> None:
    story = running(2).resubmit(suspend=True).wait(61)
    outcome = story.ask(InterventionAction.RESUME)
    assert outcome.state is InterventionState.REFUSED
    assert "spec.suspend" in outcome.outcome


def test_whoever_paused_a_job_that_its_spec_suspends_can_take_that_back() -> None:
    story = running(2).resubmit(suspend=True).save(66)
    assert story.ask(InterventionAction.PAUSE, "i1").state is InterventionState.DONE
    assert story.state.reason == "suspended on request and by the job's spec; step 66 is saved"
    assert "keeps it suspended" in story.ask(InterventionAction.RESUME, "i2").outcome
    assert story.state.reason == "suspended by the job's spec; step 66 is saved"
    story.resubmit(suspend=False, generation=3)
    assert story.state.phase is not JobPhase.SUSPENDED


def test_a_job_paused_and_suspended_says_who_still_holds_it() -> None:
    story = running(2).resubmit(suspend=True).save(66)
    story.ask(InterventionAction.PAUSE, "i1")
    story.resubmit(suspend=False, generation=3)
    assert story.state.phase is JobPhase.SUSPENDED
    assert story.state.reason == "suspended on request; step 66 is saved"


def test_a_spec_with_fewer_nodes_shrinks_the_round_and_releases_the_rest() -> None:
    story = running(3).resubmit(nodes_max=2, generation=2).save(55)
    assert len(story.members) == 2
    story.run(56, restored=55)
    assert story.plan.release == ("node-3",)


def test_a_checkpoint_on_request_is_answered_once_it_is_committed() -> None:
    story = running(2)
    checkpoint(story)
    assert answers(story) == []
    checkpoint(story)
    assert len(story.wanted) == 1
    story.save(58)
    assert answers(story) == [("c1", InterventionState.DONE, "checkpoint of step 58 committed")]
    checkpoint(story)
    assert len(answers(story)) == 1
    assert story.state.phase is JobPhase.RUNNING
    checkpoint(story, "c2")
    assert len(story.wanted) == 2


def test_two_requests_for_a_checkpoint_share_one() -> None:
    story = running(2)
    checkpoint(story, "c1")
    checkpoint(story, "c2")
    story.save(58)
    assert [each[0] for each in answers(story)] == ["c1", "c2"]


def test_a_regular_checkpoint_is_not_taken_for_the_requested_one() -> None:
    story = running(2)
    checkpoint(story)
    story.commit(55)
    assert answers(story) == []


@pytest.mark.parametrize("ends", ["time", "fault"])
def test_a_checkpoint_on_request_that_does_not_come_is_refused(ends: str) -> None:
    story = running(2)
    checkpoint(story)
    if ends == "time":
        story.wait(61)
    else:
        story.die(1)
    ((id, state, _),) = answers(story)
    assert (id, state) == ("c1", InterventionState.REFUSED)


def test_a_checkpoint_cannot_be_asked_of_a_job_that_does_not_train() -> None:
    story = Story(nodes_max=2).join(1)
    checkpoint(story)
    ((_, state, says),) = answers(story)
    assert state is InterventionState.REFUSED
    assert "Running" in says


def test_a_lost_members_pod_is_released_once_the_job_trains_without_it() -> None:
    story = running(2, spares=1).lose(1)
    assert story.plan.release == (), "its round has not shown that the others are well"
    story.run(51, restored=40)
    assert story.plan.release == ("node-1",)
    story.pod(1, PodState.GONE, "deleted")
    assert story.plan.release == ()


def test_a_lost_members_pod_is_released_when_its_node_is_unwell() -> None:
    story = running(2, nodes_min=2).lose(1)
    assert story.plan.release == ()
    story.node(1, NodeState.NOT_READY, "kubelet stopped posting")
    assert story.plan.release == ("node-1",)


def test_a_lost_members_pod_is_released_after_a_while_when_others_are_there() -> None:
    story = running(2, nodes_min=2).lose(1).wait(LOST_FOR_GOOD_S + 1)
    assert story.plan.release == ("node-1",)


def test_nobody_is_released_when_everybody_fell_silent() -> None:
    story = running(2, nodes_min=2).lose(1).lose(2).wait(10 * LOST_FOR_GOOD_S)
    assert story.plan.release == ()


def test_a_member_that_came_back_is_kept() -> None:
    story = running(2, nodes_min=2).lose(1).join(1).wait(LOST_FOR_GOOD_S + 1)
    assert story.plan.release == ()
    assert story.state.missing == {}


def test_a_pod_that_ended_is_a_lost_member_and_says_why() -> None:
    story = running(2, spares=1).pod(1, PodState.GONE, "OOMKilled")
    assert story.incident.cause == "pod gone: OOMKilled"
    assert set(story.members) == {"node-2", "node-3"}


def test_how_a_pod_ended_is_evidence_for_a_loss_that_was_seen_before() -> None:
    story = running(2, spares=1).lose(1).pod(1, PodState.GONE, "Evicted: low on memory")
    assert len(story.state.incidents) == 1
    assert any("Evicted" in each.says for each in story.incident.evidence)


def test_a_finished_members_pod_may_end() -> None:
    story = running(2)
    story.finish_one(1)
    story.pod(1, PodState.GONE, "Completed")
    assert story.state.incidents == ()


def test_why_pods_wait_is_told() -> None:
    story = (
        Story(nodes_max=2)
        .join(1)
        .pod(2, PodState.PENDING, "0/3 nodes are available: 3 Insufficient nvidia.com/gpu")
    )
    assert "Insufficient" in story.state.reason
    story.join(2)
    assert story.state.pending == ""


def test_a_node_that_is_gone_takes_all_its_members() -> None:
    story = running(3, nodes_min=1)
    story.tell(NodeChanged("node-1", NodeState.GONE, "deleted"))
    assert set(story.members) == {"node-2", "node-3"}
    assert story.state.incidents[-1].cause == "node gone: deleted"


def test_another_job_of_the_same_name_begins_anew() -> None:
    story = running(2, uid="a").resubmit(uid="b", generation=1)
    number = story.state.desired.number if story.state.desired else 0
    assert isinstance(story.state.desired, Idle)
    assert story.state.incarnation == "b"
    assert story.state.checkpoints == ()
    story.join(1, 2)
    assert story.round.number > number
    assert story.round.restore.owner == "b"


@pytest.mark.parametrize("end", ["succeeded", "failed"])
def test_a_job_that_is_over_makes_room_for_another_of_its_name(end: str) -> None:
    story = running(1, uid="a")
    if end == "succeeded":
        story.finish()
    else:
        story.fail()
    phase = story.state.phase
    story.resubmit(generation=9)
    assert story.state.phase is phase, "the same job stays over"
    story.resubmit(uid="b")
    assert story.state.phase is JobPhase.PENDING


def test_the_ettr_counts_what_was_useful() -> None:
    story = running(2)
    story.wait(100).run_on(60)
    assert story.state.ledger.ettr(story.now) == pytest.approx(1.0, abs=0.01)
    story.die(1).wait(100)
    ratio = story.state.ledger.ettr(story.now)
    assert ratio is not None
    assert ratio == pytest.approx(0.5, abs=0.02)
    story.run(51, restored=40)
    after = story.state.ledger.ettr(story.now)
    assert after is not None
    assert after < ratio, "ten steps are trained again"
    assert Story().state.ledger.ettr(0.0) is None


def test_newcomers_are_taken_in_with_a_checkpoint_of_their_own() -> None:
    story = running(3, nodes_min=1, spares=0).lose(3).run(51, restored=40)
    assert story.members == ["node-1", "node-2"]
    story.join(4)
    assert story.wanted == [], "others may be about to come"
    story.wait(31)
    assert len(story.wanted) == 1
    story.save(60)
    assert set(story.members) == {"node-1", "node-2", "node-4"}
    assert story.round.restore.step == 60


def test_a_growth_that_cannot_be_saved_is_asked_for_again_later() -> None:
    story = running(3, nodes_min=1).lose(3).run(51, restored=40).join(4).wait(31)
    story.wait(60)
    assert len(story.wanted) == 2
    assert story.members == ["node-1", "node-2"]


def test_a_growth_waits_as_long_as_the_jobs_checkpoints_take() -> None:
    """Longer than the grace that the policy gives: else each is asked for when the one before is about to come."""
    story = running(3, nodes_min=1).lose(3).run(51, restored=40)
    story.tell(CheckpointRecorded(story.round.number, 55, "/ckpt", None, 0.5, 100.0))
    story.join(4).wait(31)
    assert len(story.wait(140).wanted) == 1, "it is waited for"
    story.save(60)
    assert set(story.members) == {"node-1", "node-2", "node-4"}


def test_why_a_pod_waited_is_forgotten_with_the_pod() -> None:
    story = running(2)
    story.pod(3, PodState.PENDING, "Unschedulable")
    assert "Unschedulable" in story.state.pending
    story.pod(3, PodState.GONE, "deleted")
    assert story.state.pending == ""


def test_who_comes_to_replace_a_member_that_leaves_is_kept_while_it_warms_up() -> None:
    story = running(2, nodes_min=2).drain(2).join(3, warm=False)
    assert story.plan.release == ()
    story.tell(MemberWarmed("node-3"))
    story.save(50)
    assert story.members == ["node-1", "node-3"]
