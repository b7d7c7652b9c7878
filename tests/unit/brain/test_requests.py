"""What people ask for."""

import msgspec
import pytest
from story import Story, running
from trials import asked, examined

from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import InterventionAction, InterventionRequest, InterventionState
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.policy import EvictionBudget
from holdfast.api.round import Entry, Idle, Restore, Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.step import Pardon, Publish

DONE, REFUSED, PENDING = InterventionState.DONE, InterventionState.REFUSED, InterventionState.PENDING


def test_a_node_that_was_evicted_and_is_gone_may_be_returned_all_the_same() -> None:
    job = running(3, spares=1)
    job.xid(2, 79)
    job.gone(2)
    assert job.state.avoided == ()
    outcome = job.ask(InterventionAction.RETURN, node="node-2")
    assert outcome.state is InterventionState.DONE
    assert outcome.outcome == "node node-2 returned; it is used again once it is back in the cluster"
    assert job.plan.returned == ("node-2",)
    again = job.ask(InterventionAction.RETURN, id="i2", node="node-2")
    assert again.outcome == "node node-2 is not avoided"


def test_an_evicted_node_leaves_the_round_and_comes_back_when_returned() -> None:
    story = running(2, spares=1)
    assert story.ask(InterventionAction.EVICT, node="node-1").state is DONE
    assert story.members == ["node-3", "node-2"]
    assert story.ask(InterventionAction.RETURN, "i2", node="node-1").state is DONE
    assert story.state.avoided == ()


def test_the_same_request_twice_is_done_once() -> None:
    story = running(2, spares=1)
    story.ask(InterventionAction.EVICT, node="node-1")
    before = story.state
    story.tell(
        InterventionRequested(InterventionRequest("i1", "team/run", InterventionAction.EVICT, "x", node="node-1"))
    )
    assert story.state == before


def test_a_paused_job_holds_no_round_and_resumes_from_the_checkpoint() -> None:
    story = running(2)
    story.ask(InterventionAction.PAUSE)
    assert story.state.phase is JobPhase.RUNNING, "the round is to be saved first"
    story.save(43)
    assert story.state.phase is JobPhase.SUSPENDED
    assert isinstance(story.state.desired, Idle)
    story.ask(InterventionAction.RESUME, "i2")
    assert story.round.restore.step == 43
    assert story.members == ["node-1", "node-2"]


def test_a_rewind_restores_the_newest_checkpoint_not_above_the_step() -> None:
    story = running(2, step=75, commit=40).commit(60)
    outcome = story.ask(InterventionAction.REWIND, to_step=50, skip_batches=7, learning_rate_scale=0.5)
    assert outcome.state is PENDING
    assert story.round.restore == Restore(
        Tier.CHECKPOINT,
        40,
        "/ckpt",
        7,
        0.5,
        "team/run@1000.000",
        learning_rate_cuts=(LearningRateCut(0.5, after=40),),
    )
    story.run(41, restored=40)
    answer = story.answer()
    assert answer is not None
    assert answer.state is DONE
    story.die(1)
    assert story.round.restore.skip_batches == 7, "nothing behind the rewind is saved yet"
    story.run(45, restored=40).commit(50).die(2).wait(11)
    assert story.round.restore.skip_batches == 0


def test_a_resize_shrinks_once_the_round_is_saved() -> None:
    story = running(3)
    assert story.ask(InterventionAction.RESIZE, nodes=2).state is DONE
    assert len(story.members) == 3
    story.save(44)
    assert len(story.members) == 2
    assert story.round.restore.step == 44


def test_a_restart_starts_every_worker_anew() -> None:
    story = running(2)
    story.ask(InterventionAction.RESTART)
    assert story.round.entry is Entry.RESPAWN


@pytest.mark.parametrize(
    ("action", "fields", "says"),
    [
        (InterventionAction.EVICT, {}, "node: nothing given; name the node"),
        (InterventionAction.EVICT, {"node": "nope"}, "node nope has no member of this job"),
        (InterventionAction.RETURN, {"node": "node-1"}, "node node-1 is not avoided"),
        (InterventionAction.RESUME, {}, "the job is not suspended"),
        (InterventionAction.RESIZE, {"nodes": 0}, "nodes: 0 is not accepted; give at least 1"),
        (InterventionAction.REWIND, {}, "toStep: None is not accepted; name the step to go back to"),
        (
            InterventionAction.REWIND,
            {"to_step": 3},
            "toStep: 3 is not accepted; nothing that can be restored is at or before step 3: there is 40",
        ),
        (InterventionAction.SKIP_BATCHES, {}, "skipBatches: 0 is not accepted; give at least 1"),
    ],
)
def test_a_refused_request_says_why_and_changes_nothing_else(
    action: InterventionAction, fields: dict[str, object], says: str
) -> None:
    story = running(2)
    round_before = story.round
    outcome = story.ask(action, **fields)
    assert (outcome.state, outcome.outcome) == (REFUSED, says)
    assert story.round == round_before


def test_a_finished_job_that_no_cluster_keeps_is_started_once_more_from_what_it_saved() -> None:
    story = running(2).finish()
    assert story.state.phase is JobPhase.SUCCEEDED
    before = story.state.checkpoints
    assert story.ask(InterventionAction.RESTART).outcome == "every worker starts anew"
    assert story.state.phase is JobPhase.RECOVERING, "it does not finish once more by what was finished before"
    assert (story.state.checkpoints, story.round.entry) == (before, Entry.RESPAWN)
    story.run(60).finish()
    assert story.state.phase is JobPhase.SUCCEEDED


def test_a_finished_job_of_a_cluster_refuses_everything_but_a_return() -> None:
    story = running(1, uid="u1").finish()
    assert story.ask(InterventionAction.RESTART).outcome == "the job has finished; only Return is possible"
    refused = story.ask(InterventionAction.RETURN, "i2", node="node-1")
    assert (refused.state, refused.outcome) == (REFUSED, "node node-1 is not avoided")


def over(end: JobPhase) -> Story:
    """A job that is over, and that had node-1 taken out of service before."""
    story = running(1, spares=1, evictions=EvictionBudget(count=1, fraction=1.0)).xid(1, 79).run(60)
    story = story.finish() if end is JobPhase.SUCCEEDED else story.xid(2, 79)
    assert (story.state.phase, [each.node for each in story.plan.cordon]) == (end, ["node-1"])
    return story


@pytest.mark.parametrize("end", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_return_after_the_end_reaches_the_plan_and_nothing_else_of_it_changes(end: JobPhase) -> None:
    story = over(end)
    before = story.plan
    assert story.ask(InterventionAction.RETURN, node="node-1").outcome == "node node-1 returned"
    wanted = msgspec.structs.replace(before, number=before.number + 1, avoid=(), cordon=(), returned=("node-1",))
    assert story.plan == wanted
    assert [each.plan for each in story.effects if isinstance(each, Publish)][-1] == wanted
    again = story.ask(InterventionAction.RETURN, "i2", node="node-1")
    assert (again.state, story.plan) == (REFUSED, wanted)


def test_a_node_returned_by_a_finished_job_is_not_asked_for_self_tests() -> None:
    story = examined(1, spares=1).xid(1, 79).run(60).finish()
    tests = asked(story)
    assert story.ask(InterventionAction.RETURN, node="node-1").outcome == "node node-1 returned"
    assert (story.plan.returned, story.state.probation, asked(story)) == (("node-1",), {}, tests)
    assert Pardon("node-1", "asked") in story.effects


def test_an_older_generation_of_the_spec_changes_nothing() -> None:
    story = running(2).resubmit(generation=4, nodes_min=2)
    before = story.state
    story.resubmit(generation=3, nodes_min=1)
    assert story.state == before
