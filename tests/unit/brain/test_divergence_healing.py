"""What the brain does about a loss that rose and stays."""

from story import JOB, Story, running

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.policy import LossPolicy, XidAction
from holdfast.api.round import Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.step import Notify, changed

RISEN = {"cause": "the loss rose and stays", "confidence": Confidence.UNKNOWN, "subject": Subject(JOB)}


def diverging(story: Story, step: int, **fields: object) -> Story:
    return story.find(FindingKind.DIVERGENCE, 1, **{**RISEN, "step": step, **fields})


def test_all_go_back_to_the_newest_checkpoint_before_it_and_leave_out_what_led_to_it() -> None:
    loss = LossPolicy(50, learning_rate_scale=0.5, skip_batches=20)
    story = diverging(running(step=150, commit=40, loss=loss).commit(90).commit(140), 97)
    assert (story.incident.kind, story.incident.rung) == (FindingKind.DIVERGENCE, Rung.REWIND)
    restore = story.round.restore
    assert (restore.tier, restore.step) == (Tier.CHECKPOINT, 90)
    # Steps 91 to 96 led to it, and 20 more.
    assert (restore.skip_until, restore.learning_rate_scale) == (116, 0.5)
    assert "pass over the batches up to it and 20 more, with the learning rate times 0.5" in story.round.reason
    assert (story.members, story.state.avoided) == (["node-1", "node-2", "node-3"], ())
    story.run(91, restored=90)
    assert story.incident.state is IncidentState.RECOVERED


def test_nothing_but_the_steps_is_changed_where_the_spec_asks_for_no_more() -> None:
    restore = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97).round.restore
    assert (restore.step, restore.skip_until, restore.learning_rate_scale) == (90, None, 1.0)


def test_the_same_again_without_progress_asks_a_human_and_stops_nothing() -> None:
    story = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97)
    story.run(91, restored=90)
    number = story.round.number
    diverging(story, 96)
    assert (story.round.number, story.state.phase, story.state.recovery) == (number, JobPhase.RUNNING, None)
    assert (story.incident.state, story.incident.rung) == (IncidentState.PAGED, Rung.PAGE)
    told = [effect.text for effect in story.effects if isinstance(effect, Notify)]
    assert "has saved nothing beyond that since; training goes on" in told[-1]


def test_without_a_checkpoint_of_before_a_human_is_asked_and_nobody_begins_anew() -> None:
    story = diverging(running(step=150, commit=140, loss=LossPolicy(50)), 97)
    assert (story.state.phase, story.incident.state) == (JobPhase.RUNNING, IncidentState.PAGED)
    assert "no checkpoint of a step before it is there" in story.incident.actions[-1].reason


def test_one_rank_that_is_apart_from_the_others_is_told_of_and_left_alone() -> None:
    story = running(step=150, commit=90, loss=LossPolicy(50))
    number = story.round.number
    diverging(story, 97, subject=Subject(JOB, node="node-1", member="node-1", rank=0), asks=XidAction.WATCH)
    assert (story.round.number, story.state.avoided) == (number, ())
    assert (story.incident.state, story.incident.culprit.rank) == (IncidentState.RECOVERED, 0)


def test_a_nan_after_a_divergence_is_another_fault() -> None:
    story = diverging(running(step=150, commit=90, loss=LossPolicy(50)), 97)
    story.run(91, restored=90)
    story.find(FindingKind.NON_FINITE, 1, cause="loss is nan", step=96)
    assert (story.state.phase, story.round.restore.step) == (JobPhase.RECOVERING, 90)


def test_a_checkpoint_that_is_not_healthy_is_none_of_before() -> None:
    story = running(step=150, commit=90, loss=LossPolicy(50)).stored(90, unhealthy=(90,))
    story.state = changed(story.state, unhealthy_from=85)
    diverging(story, 97)
    assert (story.state.phase, story.incident.state) == (JobPhase.RUNNING, IncidentState.PAGED)
