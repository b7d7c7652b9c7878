"""What the queue lets a job have: none keeps it out as a suspension does, fewer bound members and spares."""

from story import Story
from test_departures import running

from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.plan import PodState
from holdfast.api.status import JobPhase


def test_a_job_that_is_not_let_in_has_no_pods_and_trains_once_it_is() -> None:
    story = Story(nodes_max=2, spares=1, admitted=0).wait(1)
    assert story.state.phase is JobPhase.SUSPENDED
    assert story.state.reason == "suspended by the cluster's queue"
    assert (story.plan.members, story.plan.spares) == (0, 0)
    story.resubmit(admitted=3)
    assert (story.plan.members, story.plan.spares) == (2, 1)
    story.join(1, 2)
    assert story.state.phase is not JobPhase.SUSPENDED
    assert story.members == ["node-1", "node-2"]


def test_a_job_that_is_put_out_saves_first_and_goes_on_from_there() -> None:
    """Of the same version of the spec: what the cluster says needs no other one."""
    story = running(2, spares=1, admitted=3).resubmit(admitted=0)
    assert (story.plan.members, story.plan.spares) == (2, 1), "pods stay until the round is saved"
    story.save(66)
    assert story.state.reason == "suspended by the cluster's queue; step 66 is saved"
    assert (story.plan.members, story.plan.spares) == (0, 0)
    for number in (1, 2, 3):
        story.leave(number).pod(number, PodState.GONE, "deleted")
    story.resubmit(admitted=1)
    assert (story.plan.members, story.plan.spares) == (1, 0), "members come before spares"
    story.join(4)
    assert story.round.restore.step == 66
    assert story.state.incidents == ()


def test_of_fewer_nodes_than_asked_for_members_come_first() -> None:
    for admitted, members, spares in ((7, 4, 2), (6, 4, 2), (5, 4, 1), (4, 4, 0), (3, 3, 0)):
        story = Story(nodes_max=4, spares=2, admitted=admitted).wait(1)
        assert (story.plan.members, story.plan.spares) == (members, spares)


def test_a_partly_admitted_job_makes_a_legal_world_and_waits_for_no_more() -> None:
    story = Story(nodes_max=4, admitted=3, processes_per_node=1, model_ranks=2).join(1, 2, 3)
    assert story.round.world_size == 2


def test_a_resize_beyond_what_is_admitted_says_that_no_more_will_run() -> None:
    story = running(2, admitted=2)
    outcome = story.ask(InterventionAction.RESIZE, nodes=4)
    assert outcome.state is InterventionState.DONE
    assert "the cluster's queue has admitted 2" in outcome.outcome
    assert story.plan.members == 2
    story.resubmit(admitted=4)
    assert story.plan.members == 4, "what was resized stands, whatever the queue says later"


def test_a_resume_cannot_override_the_queue() -> None:
    story = running(2, admitted=2).resubmit(admitted=0).save(66)
    assert story.ask(InterventionAction.RESUME).outcome == "the cluster's queue has not admitted the job"
    story.ask(InterventionAction.PAUSE, "i2")
    assert story.state.reason == "suspended on request and by the cluster's queue; step 66 is saved"
    assert "keeps it suspended" in story.ask(InterventionAction.RESUME, "i3").outcome


def test_each_of_queue_and_spec_has_to_let_the_job_go() -> None:
    story = running(2, admitted=2).resubmit(admitted=0, suspend=True, generation=2).save(66)
    assert story.state.reason.startswith("suspended by the job's spec and by the cluster's queue")
    story.resubmit(suspend=False, generation=3)
    assert story.state.phase is JobPhase.SUSPENDED
    story.resubmit(admitted=2)
    assert story.state.phase is not JobPhase.SUSPENDED
