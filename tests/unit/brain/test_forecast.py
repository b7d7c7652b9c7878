"""What an intervention would do is told by the brain that would do it, and nothing is done."""

import copy
from typing import Any

import pytest
from story import JOB, Story, running

from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import Forecast, InterventionAction, InterventionRequest, InterventionState
from holdfast.api.policy import EvictionBudget
from holdfast.api.selftest import TestLevel
from holdfast.watchdog import brain
from holdfast.watchdog.brain.forecast import forecast
from holdfast.watchdog.brain.step import Answered

ACTION = InterventionAction


def foretold(story: Story, action: InterventionAction, **fields: Any) -> Forecast:
    """The forecast, which must leave the state alone and be answered as the intervention itself would be."""
    before = copy.deepcopy(story.state)
    request = InterventionRequest("i9", JOB, action, "why", **fields)
    told = forecast(brain, story.state, request, story.now)
    assert story.state == before
    step = brain.advance(story.state, InterventionRequested(request), story.now)
    truly = [each.outcome for each in step.effects if isinstance(each, Answered) and each.outcome.id == "i9"]
    if truly:
        assert (told.state, told.outcome) == (truly[0].state, truly[0].outcome)
    else:
        assert told.state is InterventionState.PENDING
    return told


def test_evicting_names_the_new_round_who_comes_and_what_is_restored() -> None:
    told = foretold(running(2, spares=1, commit=40), ACTION.EVICT, node="node-1")
    assert told.outcome == "node node-1 evicted"
    assert told.effects == (
        "round 3: 2 members, world size 2 (in: node-3, out: node-1)",
        "the workers re-enter in their processes",
        "it restores step 40 from the checkpoints at /ckpt",
        "node node-1 gets no more pods of this job",
        "the pods of node-1 are removed",
    )


@pytest.mark.parametrize(
    ("action", "fields", "why"),
    [
        (ACTION.EVICT, {"node": "node-9"}, "node node-9 has no member of this job"),
        (ACTION.RETURN, {"node": "node-1"}, "node node-1 is not avoided"),
        (
            ACTION.REWIND,
            {"to_step": 7},
            "toStep: 7 is not accepted; nothing that can be restored is at or before step 7: there is 40",
        ),
        (ACTION.RESIZE, {"nodes": 0}, "nodes: 0 is not accepted; give at least 1"),
        (ACTION.RESUME, {}, "the job is not suspended"),
        (ACTION.SKIP_BATCHES, {"skip_batches": 0}, "skipBatches: 0 is not accepted; give at least 1"),
        (ACTION.TEST, {"node": "node-9"}, "node node-9 has no member of this job"),
    ],
)
def test_a_refusal_says_why(action: InterventionAction, fields: dict[str, Any], why: str) -> None:
    told = foretold(running(2, spares=1, commit=40), action, **fields)
    assert (told.state, told.outcome) == (InterventionState.REFUSED, why)
    assert told.effects == ("nothing else changes now",)


def test_a_full_self_test_of_a_node_that_trains_says_what_it_costs() -> None:
    told = foretold(running(2, commit=40), ACTION.TEST, node="node-1", level=TestLevel.FULL)
    assert told.outcome.startswith("full self-test of node node-1, at most 600 s on GPUs: once a checkpoint")
    assert told.effects == (
        "member node-1 runs the full self-test of its devices, at most 600 s on GPUs",
        "round 2 is asked for one more checkpoint, which is waited for first",
        "once it is committed: training stops and the members wait: waiting for the self-tests of node-1",
    )


def test_returning_a_node_says_that_pods_may_go_there_again() -> None:
    story = running(2, spares=1)
    story.ask(ACTION.EVICT, node="node-1")
    told = foretold(story, ACTION.RETURN, node="node-1")
    assert told.outcome.startswith("node node-1 returned")
    assert "node node-1 may get pods of this job again" in told.effects
    assert "nothing that happened on node node-1 so far is held against it any more, by any job" in told.effects


def test_a_checkpoint_is_answered_once_it_is_committed() -> None:
    told = foretold(running(2, commit=40), ACTION.CHECKPOINT)
    assert told == Forecast(
        InterventionState.PENDING,
        "answered as Done once that checkpoint is committed",
        ("round 2 is asked for one more checkpoint, which is waited for first",),
    )


def test_a_checkpoint_that_is_under_way_serves_both() -> None:
    story = running(2, commit=40)
    story.tell(InterventionRequested(InterventionRequest("i1", JOB, ACTION.CHECKPOINT, "why")))
    told = foretold(story, ACTION.CHECKPOINT)
    assert told.effects[0] == "the checkpoint that is being waited for already serves this as well"


def test_a_pause_saves_first_and_then_stops() -> None:
    told = foretold(running(2, commit=40), ACTION.PAUSE)
    first, then = told.effects
    assert first == "round 2 is asked for one more checkpoint, which is waited for first"
    assert then.startswith("once it is committed: training stops and the members wait: suspended on request")


def test_a_resume_tells_where_it_goes_on() -> None:
    story = running(2, commit=40)
    story.ask(ACTION.PAUSE)
    story.save(43)
    told = foretold(story, ACTION.RESUME)
    assert told.effects[:1] == ("round 4: 2 members, world size 2",)
    assert "it restores step 43 from the checkpoints at /ckpt" in told.effects


def test_a_restart_starts_every_worker_anew() -> None:
    told = foretold(running(2, commit=40), ACTION.RESTART)
    assert told.outcome == "every worker starts anew"
    assert told.effects == (
        "round 3: 2 members, world size 2",
        "every worker starts as a new process",
        "it restores step 40 from the checkpoints at /ckpt",
    )


def test_a_rewind_tells_the_step_that_is_truly_restored() -> None:
    story = running(2, step=75, commit=40).commit(60)
    told = foretold(story, ACTION.REWIND, to_step=50, skip_batches=7, learning_rate_scale=0.5)
    assert told.outcome == (
        "goes back to step 40 (nothing from 41 to 50 is in storage); answered with what was restored, once it is"
    )
    assert (
        "it restores step 40 from the checkpoints at /ckpt and passes over 7 batches, "
        "with the learning rate times 0.5" in told.effects
    )


def test_skipping_batches_restores_the_newest() -> None:
    told = foretold(running(2, step=75, commit=40).commit(60), ACTION.SKIP_BATCHES, skip_batches=3)
    assert "it restores step 60 from the checkpoints at /ckpt and passes over 3 batches" in told.effects


def test_a_resize_tells_how_many_pods_come_or_go() -> None:
    story = running(3, commit=40)
    more = foretold(story, ACTION.RESIZE, nodes=5)
    assert more.effects == ("5 members and 0 spares are wanted, in place of 3 and 0: 2 pods are added",)
    fewer = foretold(story, ACTION.RESIZE, nodes=2)
    assert fewer.effects[0] == "round 2 is asked for one more checkpoint, which is waited for first"
    assert "2 members and 0 spares are wanted, in place of 3 and 0: 1 pod is removed" in fewer.effects
    assert any(
        each.startswith("once it is committed: round 3: 2 members, world size 2 (out: ") for each in fewer.effects
    )
    assert "once it is committed: it restores the checkpoint that was just committed" in fewer.effects


def test_a_profile_says_who_is_slower_meanwhile() -> None:
    told = foretold(running(2), ACTION.PROFILE, ranks=(1,), steps=3)
    assert told.effects == ("3 steps of rank 1 are recorded, and take longer meanwhile",)


def test_a_job_that_saved_nothing_begins_again() -> None:
    told = foretold(running(2), ACTION.RESTART)
    assert any("restores" in each or "from the beginning" in each for each in told.effects)


def test_after_the_end_only_what_is_still_possible_is_foretold() -> None:
    story = running(2, evictions=EvictionBudget(fraction=1.0)).xid(1, 79).run(60).finish()
    assert foretold(story, ACTION.PAUSE).outcome == "the job has finished; only Return is possible"
    assert foretold(story, ACTION.RETURN, node="node-1").state is InterventionState.DONE


def test_an_intervention_that_the_brain_cannot_take_is_refused_with_the_reason() -> None:
    class Broken:
        def __getattr__(self, name: str) -> Any:
            raise KeyError("broken")

    told = forecast(Broken(), running(2).state, InterventionRequest("i", JOB, ACTION.PAUSE, "why"), 5.0)  # type: ignore[arg-type]
    assert told.state is InterventionState.REFUSED
    assert "was skipped: KeyError" in told.outcome
