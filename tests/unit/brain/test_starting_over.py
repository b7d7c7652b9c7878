"""Checkpoints are there and none can be restored: a human decides, and only who is told so starts over."""

from story import JOB, Story, running

from holdfast.api.event import RestoreReported
from holdfast.api.finding import FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.policy import MemoryPolicy
from holdfast.api.round import Closed, Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.step import Notify

CAUSE = "checkpoints are there and none can be used: step-00000004: its manifest is of step 3"


def refused(story: Story) -> Story:
    error = f"Traceback (most recent call last):\nholdfast.checkpoint.errors.NothingToRestore: {CAUSE}"
    return story.find(FindingKind.NOTHING_TO_RESTORE, 1, subject=Subject(JOB, rank=0), cause=CAUSE, error=error)


def fresh(story: Story, id: str = "i1") -> tuple[InterventionState, str]:
    answer = story.ask(InterventionAction.RESTART, id, fresh=True)
    return answer.state, answer.outcome


def test_the_job_stops_at_once_and_pages_with_the_reason_and_the_way_on() -> None:
    story = refused(Story(nodes_max=2).join(1, 2))
    assert story.state.phase is JobPhase.FAILED
    assert story.state.reason == (
        f"{CAUSE}; a job never starts over unasked: mend one of them and restart it, or restart it with --fresh"
    )
    assert isinstance(story.state.desired, Closed)
    incident = story.incident
    assert (incident.state, incident.actions[-1].rung) == (IncidentState.PAGED, Rung.PAGE)
    assert incident.culprit.node is None
    assert story.state.suspicions == ()
    assert [each.text for each in story.effects if isinstance(each, Notify)] == [story.state.reason]


def test_a_plain_restart_looks_again_and_a_fresh_one_starts_over() -> None:
    story = refused(Story(nodes_max=2).join(1, 2))
    story.ask(InterventionAction.RESTART, "i0")
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.CHECKPOINT, None)
    refused(story)
    assert fresh(story) == (InterventionState.DONE, "every worker starts anew, from the beginning")
    assert story.round.restore.tier is Tier.NONE
    assert story.round.restore.uri == "/ckpt"


def test_how_far_the_script_means_to_go_is_what_it_said_last() -> None:
    story = running(2)
    story.die(1).wait(15)
    story.tell(RestoreReported(story.round.number, 40, until=400))
    assert story.state.until_step == 400
    story.die(1).wait(15)
    assert story.state.until_step == 400, "a fault changes no plan"
    story.tell(RestoreReported(story.round.number, 40))
    assert story.state.until_step is None


def test_an_end_that_training_is_beyond_is_none() -> None:
    story = running(2)
    story.die(1).wait(15)
    story.tell(RestoreReported(story.round.number, 40, until=64))
    story.run(64)
    assert story.state.until_step == 64
    story.run(65)
    assert story.state.until_step is None, "it was the end of one pass over the data"
    story.die(1).wait(15)
    story.tell(RestoreReported(story.round.number, 60, until=64))
    story.run(61)
    assert story.state.until_step == 64, "what is trained again is before it again"


def test_an_end_that_the_restored_step_is_beyond_is_none() -> None:
    story = running(2)
    story.die(1).wait(15)
    story.tell(RestoreReported(story.round.number, 450, until=64))
    assert story.state.until_step is None


def test_what_starts_over_does_so_until_it_has_saved() -> None:
    story = running(2, commit=40).stored(20, 40)
    assert fresh(story)[0] is InterventionState.DONE
    assert story.round.restore.tier is Tier.NONE
    story.tell(RestoreReported(story.round.number, None))
    assert (story.state.checkpoints, story.state.storage and story.state.storage.checkpoints) == ((), ())
    story.die(1).wait(15)
    assert story.round.restore.tier is Tier.NONE, "nothing of the new history is saved yet"
    story.run(3, restored=0).commit(3).die(1).wait(15)
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.CHECKPOINT, 3)


def test_what_has_started_over_is_remembered_in_memory_and_looks_for_nothing_in_storage() -> None:
    story = Story(nodes_max=2, memory=MemoryPolicy()).join(1, 2)
    assert fresh(story)[0] is InterventionState.DONE
    assert story.round.restore.tier is Tier.NONE
    story.run(3, restored=None).die(1).wait(15)
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.MEMORY, 0)


def test_a_job_that_is_not_there_yet_cannot_start_over() -> None:
    story = Story()
    story.state = type(story.state)(JOB)
    assert fresh(story) == (InterventionState.REFUSED, "the job is not submitted yet")
