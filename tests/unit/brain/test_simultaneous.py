"""Faults that come together, and directives that must outlive the round they were first given in."""

from story import JOB, Story, running

from holdfast.api.event import CheckpointRecorded, MemberEntered, RoundProgressed
from holdfast.api.finding import FindingKind, Subject
from holdfast.api.incident import IncidentState
from holdfast.api.intervention import InterventionAction
from holdfast.api.policy import RestartBudget
from holdfast.api.round import Idle
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.step import Notify


def test_one_bad_kernel_on_every_gpu_is_one_failure() -> None:
    story = running(2)
    began = story.now - 0.2
    for gpu in range(6):
        subject = Subject(JOB, node="node-1", gpu=f"GPU-{gpu}")
        story.xid(1, 43, subject=subject, began_at=began, evidence=())
    assert story.state.phase is not JobPhase.FAILED
    assert len(story.state.failures) == 1
    assert len(story.state.incidents) == 1
    story.run(60)
    assert story.incident.state is IncidentState.RECOVERED


def test_gpus_lost_on_spares_beyond_the_budget_leave_the_job_training_and_call_a_human() -> None:
    story = running(3, spares=2)
    before = story.round
    for node in (4, 5):
        story.find(FindingKind.GPU_LOST, node, cause="GPU lost", round=None)
    assert story.round == before
    assert story.state.phase is JobPhase.RUNNING
    assert story.incident.state is IncidentState.PAGED
    assert any(isinstance(effect, Notify) for effect in story.effects)
    assert {order.node for order in story.state.avoided} == {"node-4", "node-5"}
    assert story.state.plan is not None
    assert [order.node for order in story.state.plan.cordon] == ["node-4"]


def test_launchers_that_restart_for_ever_use_up_the_restart_budget() -> None:
    story = running(2, restarts=RestartBudget(count=10))
    for count in range(40):
        if story.state.phase is JobPhase.FAILED:
            break
        story.join(1 + count % 2, boot=f"b{count}").wait(0.3)
    assert story.state.phase is JobPhase.FAILED
    assert "used up the budget" in story.state.reason


def test_an_incident_that_never_ends_stays_bounded() -> None:
    story = running(2, restarts=RestartBudget(count=1000))
    for count in range(200):
        story.join(1, boot=f"b{count}")
    assert len(story.incident.timeline) <= 64
    assert len(story.incident.actions) <= 64


def test_a_round_grows_at_a_commit_that_training_has_outrun() -> None:
    story = running(3, step=50, commit=40).lose(3).run(51, restored=40).join(4)
    story.tell(RoundProgressed(story.round.number, 62))
    story.tell(CheckpointRecorded(story.round.number, 60, "/ckpt"))
    assert "node-4" in story.members


def test_a_culprits_process_is_new_under_whatever_rank_it_comes_back() -> None:
    story = running(3, nodes_min=3)
    story.lose(1)
    story.find(FindingKind.HANG, 3, cause="stuck")
    assert isinstance(story.state.desired, Idle)
    story.join(4)
    assert story.members == ["node-4", "node-2", "node-3"]
    story.wait(11)
    fresh = {story.members[rank] for rank in story.round.fresh_ranks}
    assert fresh == {"node-3"}


def test_ranks_that_move_up_take_the_order_to_start_anew_with_them() -> None:
    story = running(3)
    story.find(FindingKind.HANG, 3, cause="stuck").lose(1).wait(0.3)
    assert story.members == ["node-2", "node-3"]
    assert story.round.fresh_ranks == (1,), "node-3, which has not entered the round that asked for it"
    story.run(60).lose(2)
    assert story.round.fresh_ranks == (), "and once it has, nothing is owed"


def test_a_commit_is_a_first_step_as_good_as_any() -> None:
    story = running(2).die(1)
    for share in story.round.ranks:
        story.tell(MemberEntered(share.member, story.round.number, reentrant=True))
    story.tell(CheckpointRecorded(story.round.number, 60, "/ckpt"))
    assert story.incident.state is IncidentState.RECOVERED
    assert story.state.phase is JobPhase.RUNNING


def test_a_commit_of_what_is_to_be_rewound_does_not_count() -> None:
    story = running(2, nodes_min=2, step=75, commit=40).commit(60)
    story.leave(1)
    assert "to restore step 40" in story.ask(InterventionAction.REWIND, to_step=50).outcome
    assert story.state.round is not None
    story.tell(CheckpointRecorded(story.state.round.number, 70, "/ckpt"))
    assert [each.step for each in story.state.checkpoints] == [40]


def test_a_worker_that_entered_a_broken_round_late_ends_no_incident() -> None:
    story = Story(nodes_max=2, nodes_min=2).join(1, 2)
    story.tell(MemberEntered("node-1", story.round.number, reentrant=False))
    number = story.round.number
    story.lose(1)
    story.tell(MemberEntered("node-2", number, reentrant=False))
    assert story.incident.state is IncidentState.OPEN


def test_members_lost_after_the_end_are_not_counted_on_by_a_restart() -> None:
    story = running(2)
    for _ in range(6):
        story.die(1, cause="exit code 1").wait(400)
    assert story.state.phase is JobPhase.FAILED
    story.lose(1).die(2)
    story.ask(InterventionAction.RESTART)
    assert story.state.member("node-1") is None
    assert story.members == ["node-2"]


def test_another_fault_on_another_node_is_no_evidence_for_the_first() -> None:
    story = running(3)
    story.lose(1)
    story.xid(2, 94, began_at=story.now - 0.5, subject=Subject(JOB, node="node-2", gpu="GPU-1"))
    lost, contained = story.state.incidents
    assert (lost.kind, lost.culprit.node) == (FindingKind.MEMBER_LOST, "node-1")
    assert (contained.kind, contained.culprit.node) == (FindingKind.XID, "node-2")
