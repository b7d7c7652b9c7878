"""What the brain does about a loss or gradient norm that is not finite."""

import pytest
from story import JOB, Story, running

from holdfast.api.event import MemberFinished
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.membership import Verified
from holdfast.api.round import Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import KEPT_CHECKPOINTS, REWINDS_THAT_PAGE, vouch
from holdfast.watchdog.brain.step import Notify, Vouch


def nan(story: Story, step: int, node: int = 2, **fields: object) -> Story:
    known: dict[str, object] = {"cause": "loss is nan", "step": step, "confidence": Confidence.PROBABLE}
    return story.find(FindingKind.NON_FINITE, node, **{**known, **fields})


def test_a_nan_sends_all_back_to_the_newest_checkpoint_before_it_once() -> None:
    story = nan(running(step=50, commit=40).commit(45), 47)
    assert (story.incident.kind, story.incident.rung) == (FindingKind.NON_FINITE, Rung.REWIND)
    assert story.incident.culprit.node == "node-2"
    restore = story.round.restore
    assert (restore.tier, restore.step, restore.unhealthy_from) == (Tier.CHECKPOINT, 45, 47)
    assert story.members == ["node-1", "node-2", "node-3"]  # nobody is evicted for it
    story.run(46, restored=45)
    assert (story.incident.state, story.state.unhealthy_from) == (IncidentState.RECOVERED, None)


def test_nothing_saved_at_or_after_it_is_gone_back_to() -> None:
    story = nan(running(step=50, commit=40).commit(47).commit(50), 47)
    assert story.round.restore.step == 40
    assert [each.step for each in story.state.checkpoints] == [40]


def test_nobody_is_blamed_where_nobody_was_first() -> None:
    story = nan(running(step=50, commit=40), 47, subject=Subject(JOB), confidence=Confidence.UNKNOWN)
    assert (story.round.restore.step, story.incident.confidence) == (40, Confidence.UNKNOWN)
    assert (story.incident.culprit.node, story.state.suspicions) == (None, ())


def test_the_same_again_without_a_checkpoint_beyond_it_pages_and_keeps_what_is_healthy() -> None:
    story = nan(running(step=50, commit=40), 47)
    nan(story.run(41, restored=40), 48)
    assert (story.state.phase, story.incident.state) == (JobPhase.FAILED, IncidentState.PAGED)
    assert "has saved nothing beyond that since" in story.state.reason
    assert any(isinstance(effect, Notify) for effect in story.effects)
    assert [each.step for each in story.state.checkpoints] == [40]
    story.ask(InterventionAction.RESTART)
    assert story.round.restore.step == 40


def test_the_same_batch_twice_is_the_datas_and_is_passed_over_by_a_job_that_has_failed() -> None:
    story = nan(running(step=50, commit=40), 47)
    assert [each.node for each in story.state.suspicions] == ["node-2"]
    nan(story.run(41, restored=40), 47)
    assert (story.state.phase, story.state.suspicions) == (JobPhase.FAILED, ())
    assert "the batch of step 47" in story.state.reason
    assert "holdfast skip-batches 7 " in story.state.reason
    story.ask(InterventionAction.SKIP_BATCHES, skip_batches=7)
    restore = story.round.restore
    assert (restore.step, restore.skip_batches, story.state.phase) == (40, 7, JobPhase.RECOVERING)
    story.run(41, restored=40)
    assert story.state.phase is JobPhase.RUNNING


def test_what_a_batch_gave_twice_clears_no_node_of_what_it_gave_at_another_step_or_on_another_rank() -> None:
    story = nan(running(step=50, commit=40), 45, node=3)
    nan(story.run(47, restored=40).commit(46), 48)
    assert [each.node for each in story.state.suspicions] == ["node-3", "node-2"]
    nan(story.run(47, restored=46), 48, node=1)
    assert [each.node for each in story.state.suspicions] == ["node-3", "node-2", "node-1"]
    assert "the batch of step" not in story.state.reason


def test_a_failed_job_goes_back_further_where_it_is_asked_to() -> None:
    story = nan(running(step=50, commit=20).commit(40), 47)
    nan(story.run(41, restored=40), 47)
    story.ask(InterventionAction.REWIND, to_step=20)
    assert (story.round.restore.step, story.state.phase) == (20, JobPhase.RECOVERING)


def test_another_step_says_nothing_of_the_batch_and_counts_against_its_node() -> None:
    story = nan(running(step=50, commit=40), 47)
    nan(story.run(41, restored=40), 48, node=3)
    assert [each.node for each in story.state.suspicions] == ["node-2", "node-3"]
    assert "skip-batches" not in story.state.reason


def test_a_fault_beyond_a_healthy_checkpoint_is_another_one() -> None:
    story = nan(running(step=50, commit=40), 47)
    nan(story.run(41, restored=40).commit(60), 70)
    assert (story.state.phase, story.round.restore.step) == (JobPhase.RECOVERING, 60)


def test_going_back_ends_even_where_each_time_something_was_saved() -> None:
    story, step = running(step=50, commit=40), 47
    for _ in range(REWINDS_THAT_PAGE):
        nan(story, step)
        assert story.state.phase is JobPhase.RECOVERING
        story.run(step - 2, restored=story.round.restore.step).commit(step + 5)
        step += 10
    nan(story, step)
    assert story.state.phase is JobPhase.FAILED


def test_what_a_human_went_back_beyond_does_not_count_any_more() -> None:
    story = nan(running(step=50, commit=20).commit(40), 47)
    story.run(41, restored=40).ask(InterventionAction.REWIND, to_step=20)
    nan(story.run(21, restored=20), 30)
    assert (story.state.phase, story.round.restore.step) == (JobPhase.RECOVERING, 20)


def test_with_nothing_saved_it_begins_anew_and_then_pages() -> None:
    story = Story(nodes_max=1)
    story.join(1).run(5)
    nan(story, 5, node=1)
    assert story.round.restore.tier is Tier.NONE
    nan(story.run(3, restored=None), 5, node=1)
    assert story.state.phase is JobPhase.FAILED


def test_a_round_that_began_from_an_earlier_life_goes_back_to_where_it_began() -> None:
    story = Story(nodes_max=1)
    story.join(1).run(25, restored=20)
    assert nan(story, 24, node=1).round.restore.step == 20


def test_rank_0_is_told_at_once_and_while_it_goes_on() -> None:
    story = running(step=50, commit=40)
    number = story.round.number
    assert vouch(story.state) is None
    nan(story, 47)
    told = [effect.verified for effect in story.effects if isinstance(effect, Vouch)]
    assert told == [Verified(number, None, 47)]


def test_a_skipped_step_is_an_incident_that_is_over_and_changes_nothing() -> None:
    story = running(step=50, commit=40)
    number = story.round.number
    nan(story, 47, skipped=True)
    assert (story.incident.state, story.incident.rung) == (IncidentState.RECOVERED, Rung.SKIP_STEP)
    assert (story.round.number, story.state.phase, story.state.recovery) == (number, JobPhase.RUNNING, None)
    assert (story.state.unhealthy_from, story.state.went_back) == (None, ())
    assert story.commit(50).state.checkpoints[-1].step == 50


def test_a_report_that_comes_after_its_round_has_ended_still_counts_when_history_went_on() -> None:
    story = running(step=50, commit=40).commit(48)
    number = story.round.number
    story.die(1).run(49, restored=48)
    nan(story, 47, round=number)
    assert (story.round.restore.step, story.state.phase) == (40, JobPhase.RECOVERING)


@pytest.mark.parametrize("restored", [40, 46])
def test_a_late_report_of_a_history_that_was_given_up_changes_nothing(restored: int) -> None:
    story = running(step=50, commit=restored)
    number = story.round.number
    story.die(1).run(restored + 1, restored=restored)
    nan(story, 47, round=number)
    assert (story.state.phase, story.state.unhealthy_from) == (JobPhase.RUNNING, None)


def test_an_ordinary_fault_after_a_page_does_not_restore_what_is_not_healthy() -> None:
    """Whatever leads to the next round, its directive says what is not to be restored."""
    story = nan(running(step=50, commit=40), 47)
    story.die(1)
    assert (story.round.restore.step, story.round.restore.unhealthy_from) == (40, 47)


def test_the_newest_healthy_checkpoint_stays_on_record_however_many_follow_it() -> None:
    story = running(step=50, commit=40, observe=True)
    nan(story, 47)
    for step in range(50, 50 + 3 * KEPT_CHECKPOINTS):
        story.commit(step)
    assert story.state.checkpoints[0].step == 40
    assert len(story.state.checkpoints) == 1 + KEPT_CHECKPOINTS


def test_a_round_that_is_to_be_given_up_is_no_success_though_all_have_finished() -> None:
    story = running(step=50, commit=40, nodes_min=3)
    number = story.round.number
    story.finish_one(3).lose(3)  # nobody is there in its place: the round that is owed cannot be formed
    nan(story, 50)
    for member in ("node-1", "node-2"):
        story.tell(MemberFinished(member, number))
    assert (story.state.phase, story.incident.kind) == (JobPhase.RECOVERING, FindingKind.NON_FINITE)
    assert story.join(3).round.restore.step == 40
