"""Replicas that differ: who leaves, what is restored, and what happens when nobody is convicted."""

from typing import Any

import pytest
from story import JOB, Story, running
from trials import answer, examined

from holdfast.api.event import CheckpointRecorded, ReplicasAgreed
from holdfast.api.finding import Confidence, FindingKind, ProvedBy, Subject
from holdfast.api.incident import ALSO_KEPT, IncidentState, Rung
from holdfast.api.intervention import InterventionAction
from holdfast.api.membership import Verified
from holdfast.api.policy import EvictionBudget, XidAction
from holdfast.api.round import Idle, Tier
from holdfast.api.selftest import Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.history import vouch
from holdfast.watchdog.brain.reputation import weight_of
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.step import Examine, Vouch


def agree(story: Story, step: int) -> Story:
    story.tell(ReplicasAgreed(story.round.number, step))
    return story


def differ(story: Story, node: int, step: int, agreed: int | None, **fields: Any) -> Story:
    known = {"cause": "fingerprint vote", "step": step, "agreed_step": agreed, "asks": XidAction.EVICT}
    return story.find(FindingKind.CORRUPTION, node, **{**known, **fields})


def tie(story: Story, step: int, agreed: int | None) -> Story:
    also = (Subject(JOB, node="node-2", member="node-2", rank=1),)
    return differ(story, 1, step, agreed, confidence=Confidence.UNKNOWN, cause="fingerprint tie", also=also)


def trained(**fields: Any) -> Story:
    """Three nodes and a spare; checkpoints at 20, 40 and 60, replicas equal after 50, then something is wrong."""
    story = running(3, spares=1, step=50, commit=20, **fields)
    story.commit(40)
    agree(story, 50)
    return story.run_on(60).commit(60).run_on(70)


def test_the_node_that_differs_leaves_and_the_others_restore_what_was_verified() -> None:
    story = differ(trained(), 2, step=70, agreed=50)
    assert story.state.avoided_nodes == {"node-2"}
    assert story.members == ["node-1", "node-4", "node-3"]
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.CHECKPOINT, 40)
    assert [each.step for each in story.state.checkpoints] == [20, 40]
    assert story.incident.rung is Rung.REWIND
    assert story.incident.culprit.node == "node-2"
    story.run(41, restored=40)
    assert story.incident.state is IncidentState.RECOVERED
    assert story.incident.lost_steps == 30


def test_a_later_fault_does_not_bring_back_what_was_not_verified() -> None:
    story = differ(trained(), 2, step=70, agreed=50)
    story.run(41, restored=40).die(1)
    assert story.round.restore.step == 40
    story.run(41, restored=40).commit(60).run_on(61).die(1).wait(11)
    assert story.round.restore.step == 60


def test_without_an_agreement_the_round_goes_back_to_where_it_had_begun() -> None:
    story = differ(agree(running(3, step=50, commit=40), 1), 2, step=50, agreed=None)
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.NONE, None)
    resumed = Story(nodes_max=2).join(1, 2).run(101, restored=100).commit(120)
    differ(agree(resumed, 101), 2, step=120, agreed=None)
    assert (resumed.round.restore.tier, resumed.round.restore.step) == (Tier.CHECKPOINT, 100)


def test_detectors_that_began_anew_do_not_make_the_job_begin_anew() -> None:
    story = differ(trained(), 2, step=70, agreed=None)
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.CHECKPOINT, 40)


def test_what_was_verified_of_a_line_that_was_given_up_says_nothing_of_the_next() -> None:
    story = trained()
    story.ask(InterventionAction.REWIND, to_step=20)
    story.run(21, restored=20).commit(45).run_on(46)
    assert story.state.verified_step == 20
    differ(story, 2, step=46, agreed=None)
    assert story.round.restore.step == 20


def test_what_a_round_saves_after_it_was_found_wrong_is_not_restored_even_if_it_was_itself_a_rewind() -> None:
    story = tie(agree(examined(2), 40), step=50, agreed=40)
    for number in (1, 2):
        answer(story, number, Verdict.PASSED)
    story.run(41, restored=40)
    tie(agree(story, 45), step=50, agreed=45)
    story.tell(CheckpointRecorded(story.state.round.number, 51, "/ckpt"))
    for number in (1, 2):
        answer(story, number, Verdict.PASSED)
    assert story.round.restore.step == 40


def test_the_newest_verified_checkpoint_is_remembered_behind_many_that_are_not() -> None:
    story = trained()
    for step in range(61, 81):
        story.commit(step)
    differ(story, 2, step=80, agreed=50)
    assert story.round.restore.step == 40


def vouched(story: Story) -> list[Vouch]:
    return [effect for effect in story.effects if isinstance(effect, Vouch)]


def test_a_commit_is_answered_with_what_is_verified() -> None:
    story = running(3, step=50, commit=40)
    assert vouched(story) == []
    agree(story, 50).commit(60)
    assert vouched(story) == [Vouch("node-1", Verified(story.round.number, 50))]


def test_nothing_is_vouched_for_until_the_round_says_what_it_restored() -> None:
    story = agree(running(3, step=50, commit=40), 50).die(2)
    assert story.round.restore.verified == 50
    assert vouch(story.state) is None
    assert vouch(story.run(41, restored=40).state) == Vouch("node-1", Verified(story.round.number, 40))


def test_a_policy_that_asks_for_a_restart_keeps_the_node() -> None:
    story = differ(trained(), 2, step=70, agreed=50, asks=XidAction.RESTART)
    assert story.state.avoided == ()
    assert story.round.restore.step == 40


def test_a_policy_that_asks_for_a_report_changes_nothing() -> None:
    story = trained()
    number = story.round.number
    differ(story, 2, step=70, agreed=50, asks=XidAction.WATCH)
    assert story.round.number == number
    assert story.incident.state is IncidentState.RECOVERED
    assert "nothing was changed" in story.incident.timeline[-1].what


def test_when_two_differ_and_neither_is_in_the_majority_both_are_tested_before_the_next_round() -> None:
    story = examined(2)
    agree(story, 45)
    tie(story, step=50, agreed=45)
    assert isinstance(story.state.desired, Idle)
    assert story.state.phase is JobPhase.RECOVERING
    assert "self-tests of node-1, node-2" in story.state.reason
    answer(story, 1, Verdict.PASSED)
    assert isinstance(story.state.desired, Idle)
    answer(story, 2, Verdict.FAILED)
    assert story.state.avoided_nodes == {"node-2"}
    assert story.members == ["node-1"]
    assert story.round.restore.step == 40


def test_when_both_pass_the_same_steps_are_trained_again() -> None:
    story = examined(2)
    agree(story, 45)
    tie(story, step=50, agreed=45)
    answer(story, 1, Verdict.PASSED)
    answer(story, 2, Verdict.PASSED)
    assert story.members == ["node-1", "node-2"]
    assert story.round.restore.step == 40
    differ(story.run(41, restored=40), 1, step=50, agreed=45, cause="fingerprint replay")
    assert story.state.avoided_nodes == {"node-1"}


def test_a_tie_is_not_waited_for_longer_than_a_test_may_take() -> None:
    story = agree(examined(2), 45)
    tie(story, step=50, agreed=45)
    story.wait(121)
    assert story.members == ["node-1", "node-2"]


def test_without_self_tests_a_tie_is_trained_again_at_once() -> None:
    story = tie(agree(running(2, step=50, commit=40), 45), step=50, agreed=45)
    assert not [each for each in story.effects if isinstance(each, Examine)]
    assert story.round.restore.step == 40


def test_a_member_lost_while_it_is_tested_is_not_waited_for() -> None:
    story = agree(examined(2), 45)
    tie(story, step=50, agreed=45)
    answer(story, 1, Verdict.PASSED)
    story.lose(2)
    assert story.state.members.by_name["node-1"].standing is MemberState.PRESENT
    assert story.members == ["node-1"]


def test_ranks_that_never_were_equal_may_be_no_replicas_and_a_human_is_asked() -> None:
    story = running(3, step=50, commit=40)
    number = story.round.number
    differ(story, 2, step=50, agreed=None)
    assert (story.round.number, story.state.phase, story.state.avoided) == (number, JobPhase.RUNNING, ())
    assert story.incident.state is IncidentState.PAGED
    assert weight_of(story.incident) == 0.0, "no other job is told to leave the node"
    assert "part=" in story.incident.actions[0].does
    agree(story, 60)
    assert differ(story, 2, step=70, agreed=60).state.avoided_nodes == {"node-2"}


@pytest.mark.parametrize("stale", [0, 1])
def test_an_agreement_counts_for_its_own_round_only(stale: int) -> None:
    story = running(3, step=50, commit=40)
    story.tell(ReplicasAgreed(story.round.number - stale, 45))
    assert story.state.verified_step == (None if stale else 45)


def test_agreements_only_grow() -> None:
    story = agree(agree(running(3), 50), 40)
    assert story.state.verified_step == 50


def test_two_nodes_that_differ_leave_together_as_far_as_the_budget_goes() -> None:
    also = (Subject(JOB, node="node-3", member="node-3", rank=2),)
    story = differ(trained(), 2, step=70, agreed=50, also=also)
    assert story.state.avoided_nodes == {"node-2", "node-3"}
    assert story.members == ["node-1", "node-4"]
    story = trained()
    story.resubmit(evictions=EvictionBudget(count=1))
    assert differ(story, 2, step=70, agreed=50, also=also).state.phase is JobPhase.FAILED


def test_a_tie_that_comes_back_again_and_again_asks_a_human() -> None:
    story = agree(running(2, step=50, commit=40), 45)
    for _ in range(2):
        tie(story, step=50, agreed=45).run(41, restored=40).run_on(51)
    assert tie(story, step=52, agreed=45).state.phase is JobPhase.FAILED
    assert "neither tests nor training again" in story.state.reason


def test_a_restart_after_a_page_does_not_bring_back_what_may_be_wrong() -> None:
    story = trained()
    story.resubmit(evictions=EvictionBudget(count=0))
    assert differ(story, 2, step=70, agreed=50).state.phase is JobPhase.FAILED
    story.ask(InterventionAction.RESTART)
    assert story.round.restore.step == 40


def prove(story: Story, step: int) -> Story:
    """All devices answered right, and nothing was seen to change, up to a step; nobody holds the same."""
    story.tell(ReplicasAgreed(story.round.number, step, by=ProvedBy.DEVICES))
    return story


def sharded(**fields: Any) -> Story:
    """As `trained`, where every rank holds another part."""
    story = running(3, spares=1, step=50, commit=20, **fields)
    story.commit(40)
    return prove(story, 50).run_on(60).commit(60).run_on(70)


@pytest.mark.parametrize("cause", ["memory change", "device vote"])
def test_where_nobody_holds_the_same_a_bad_device_leaves_and_the_others_go_back_all_the_same(cause: str) -> None:
    story = sharded()
    assert (story.state.verified_step, story.state.verified_by) == (50, ProvedBy.DEVICES)
    assert not story.state.comparable
    differ(story, 2, step=70, agreed=50, cause=cause)
    assert story.state.avoided_nodes == {"node-2"}
    assert (story.round.restore.tier, story.round.restore.step) == (Tier.CHECKPOINT, 40)
    assert story.incident.rung is Rung.REWIND
    assert "replicas" not in story.incident.actions[0].reason
    story.run(41, restored=40)
    assert story.incident.state is IncidentState.RECOVERED


def test_a_change_in_the_pause_of_the_newest_verified_step_takes_it_back() -> None:
    story = sharded()
    differ(story, 2, step=40, agreed=39, cause="memory change")
    assert story.round.restore.step == 20


def test_devices_verify_nothing_that_replicas_can_compare() -> None:
    story = prove(trained(), 65)
    assert (story.state.verified_step, story.state.verified_by) == (50, ProvedBy.REPLICAS)


def test_what_devices_proved_is_told_to_whoever_keeps_checkpoints() -> None:
    story = sharded()
    story.commit(70)
    assert vouched(story)[-1] == Vouch("node-1", Verified(story.round.number, 50))


def test_an_incident_names_all_whom_the_evidence_names_alike() -> None:
    story = tie(trained(), step=70, agreed=50)
    incident = story.incident
    assert [each.node for each in incident.named] == ["node-1", "node-2"]
    assert " or " in incident.blamed
    assert "node-2" in incident.blamed
    twins = trained().find(
        FindingKind.DATA,
        1,
        cause="the same batch on two ranks",
        also=(Subject(JOB, node="node-2", rank=1),),
        asks=XidAction.WATCH,
    )
    assert " and node node-2 rank 1" in twins.incident.blamed


def test_who_was_lost_with_others_is_not_held_for_the_same_fault() -> None:
    story = trained().find(FindingKind.PROCESS_EXIT, 1, also=(Subject(JOB, node="node-2", rank=1),))
    assert story.incident.also == ()


def test_an_incident_of_many_names_some_of_them() -> None:
    others = tuple(
        Subject(JOB, node=f"node-{each}", member=f"node-{each}", rank=each - 1) for each in range(2, 40)
    )
    found = {"cause": "fingerprint tie", "confidence": Confidence.UNKNOWN, "also": others}
    incident = differ(trained(), 1, 70, 50, **found).incident
    assert len(incident.also) == ALSO_KEPT
    assert incident.blamed.endswith("node node-3 rank 2 or others")
