"""Self-tests before ranks are given, on probation, of idle spares; and what all jobs know of a node."""

import msgspec
import pytest
from story import Story, running
from trials import answer, asked, examined

from holdfast.api.event import (
    ClockTicked,
    ConditionOver,
    JobSubmitted,
    MemberTested,
    NodeDeparting,
    NodeReputed,
    WatchdogStarted,
)
from holdfast.api.finding import SENSED, FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.intervention import InterventionAction, InterventionState
from holdfast.api.plan import NodeState
from holdfast.api.policy import CordonOn, CorruptionPolicy, EvictionBudget, NoticeAction, XidAction
from holdfast.api.round import Idle
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.api.status import JobPhase, PendingTest
from holdfast.watchdog.brain import advance, next_wakeup
from holdfast.watchdog.brain.reputation import Fleet, marked
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.selftests import ask
from holdfast.watchdog.brain.state import JobState, ProbationStage
from holdfast.watchdog.brain.status import status_of

LIGHT = TestLevel.LIGHT


def test_a_member_is_tested_before_it_is_given_ranks() -> None:
    story = Story(nodes_max=2, preflight=LIGHT).join(1, 2)
    assert story.state.phase is JobPhase.PREFLIGHT
    assert isinstance(story.state.desired, Idle)
    assert story.state.reason == "0 of 2 members are ready; waiting for the self-tests of node-1, node-2"
    answer(story, 1, Verdict.PASSED)
    assert story.state.phase is JobPhase.PREFLIGHT
    assert story.state.reason == "1 of 2 members are ready; waiting for the self-tests of node-2"
    answer(story, 2, Verdict.PASSED)
    assert story.members == ["node-1", "node-2"]


def test_the_request_names_the_tensor_parallel_size() -> None:
    story = Story(nodes_max=1, preflight=LIGHT, tensor=8).join(1)
    assert (asked(story)["node-1"].tensor, asked(story)["node-1"].level) == (8, LIGHT)


def test_one_that_fails_is_evicted_before_the_first_step() -> None:
    story = Story(nodes_max=3, preflight=LIGHT, form_grace_s=10.0).join(1, 2, 3)
    answer(answer(story, 1, Verdict.PASSED), 2, Verdict.FAILED)
    answer(story, 3, Verdict.PASSED).wait(11)
    assert story.members == ["node-1", "node-3"]
    assert story.state.avoided_nodes == {"node-2"}
    assert story.incident.kind is FindingKind.SELF_TEST
    assert story.incident.culprit.gpu == "GPU-2"
    assert [order.node for order in story.plan.cordon] == ["node-2"]


@pytest.mark.parametrize("kind", list(FindingKind))
def test_where_owners_share_nodes_only_sensors_cordon_one(kind: FindingKind) -> None:
    story = running(3, spares=1, cordon_on=CordonOn.SENSORS)
    story.find(kind, 2, cause="xid 79" if kind is FindingKind.XID else "it", asks=XidAction.EVICT)
    if kind in SENSED:
        assert "node-2" in {order.node for order in story.plan.cordon}
    else:
        assert story.plan.cordon == (), "it is kept away from, and others may have it"


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FindingKind.XID, "xid 13"),
        (FindingKind.XID, "xid 31"),
        (FindingKind.CONDITION, "DiskFull"),
        (FindingKind.CONDITION, "MemoryLow"),
    ],
)
def test_what_a_job_can_bring_about_cordons_no_node_of_others(kind: FindingKind, cause: str) -> None:
    story = running(3, spares=1, cordon_on=CordonOn.SENSORS)
    story.find(kind, 2, cause=cause, asks=XidAction.EVICT)
    assert story.state.avoided_nodes == {"node-2"}
    assert story.plan.cordon == ()


@pytest.mark.parametrize(
    ("kind", "cause"),
    [
        (FindingKind.CONDITION, "ClockUnsynchronised"),
        (FindingKind.XID, "xid 48"),
        (FindingKind.THERMAL, "GPU hot"),
    ],
)
@pytest.mark.parametrize("own_rule", [True, False])
def test_what_one_jobs_spec_says_to_leave_a_node_for_is_no_reason_for_others(
    kind: FindingKind, cause: str, *, own_rule: bool
) -> None:
    story = running(3, spares=1, cordon_on=CordonOn.SENSORS)
    story.find(kind, 2, cause=cause, asks=XidAction.EVICT, own_rule=own_rule)
    assert story.state.avoided_nodes == {"node-2"}
    assert bool(story.plan.cordon) is not own_rule
    fleet = marked(Fleet(), story.incident, by_word=False)
    assert [mark.word_of for mark in fleet.marks["node-2"]] == (["team"] if own_rule else [""])


def test_what_the_cluster_says_counts_for_the_version_of_the_spec_that_is_known() -> None:
    """A job that was submitted before an upgrade, and resized since, is judged by what stands now."""
    story = running(3, spares=1, uid="u", generation=4)
    known = story.state.policy
    assert known is not None
    resized = msgspec.structs.replace(known, nodes_max=2, cordon_on=CordonOn.SENSORS)
    story.tell(JobSubmitted(resized))
    assert story.state.policy == msgspec.structs.replace(known, cordon_on=CordonOn.SENSORS)
    story.die(2).die(2).die(2)
    assert story.plan.cordon == ()
    older = msgspec.structs.replace(known, generation=3)
    story.tell(JobSubmitted(older))
    assert story.state.policy.cordon_on is CordonOn.SENSORS


def test_a_failed_self_test_evicts_also_where_it_does_not_cordon() -> None:
    story = Story(nodes_max=2, preflight=LIGHT, cordon_on=CordonOn.SENSORS).join(1, 2)
    answer(answer(story, 1, Verdict.PASSED), 2, Verdict.FAILED)
    assert story.state.avoided_nodes == {"node-2"}
    assert story.plan.cordon == ()


def test_the_rest_is_waited_for_only_while_it_is_tested() -> None:
    story = Story(nodes_max=2, preflight=LIGHT, form_grace_s=10.0).join(1, 2)
    answer(story, 1, Verdict.PASSED).wait(60)
    assert isinstance(story.state.desired, Idle)
    story.wait(61)
    assert story.members == ["node-1", "node-2"]


def test_one_that_cannot_be_tested_is_taken_as_it_is() -> None:
    story = Story(nodes_max=1, preflight=LIGHT).join(1)
    answer(story, 1, Verdict.UNKNOWN)
    assert story.members == ["node-1"]


def test_an_answer_to_an_older_request_counts_for_nothing() -> None:
    story = Story(nodes_max=1, preflight=LIGHT).join(1)
    story.tell(MemberTested("node-1", 99, LIGHT, Verdict.PASSED))
    assert isinstance(story.state.desired, Idle)


def test_an_answer_from_before_the_watchdog_forgot_everything_is_not_one_to_another_question() -> None:
    story = Story(nodes_max=1, preflight=TestLevel.FULL).join(1)
    number = asked(story)["node-1"].number
    story.tell(MemberTested("node-1", number, LIGHT, Verdict.PASSED))
    assert isinstance(story.state.desired, Idle)
    story.tell(MemberTested("node-1", number, TestLevel.FULL, Verdict.PASSED))
    assert story.members == ["node-1"]


def test_a_member_that_reconnects_is_still_to_be_tested_and_not_asked_anew() -> None:
    story = Story(nodes_max=1, preflight=LIGHT).join(1)
    number = asked(story)["node-1"].number
    story.restart_watchdog().join(1)
    assert asked(story)["node-1"].number == number
    assert story.state.members.by_name["node-1"].standing is MemberState.TESTING
    answer(story, 1, Verdict.PASSED)
    assert story.members == ["node-1"]


def test_a_round_in_force_does_not_wait_for_a_newcomers_test() -> None:
    story = examined(2)
    story.join(3)
    assert story.state.phase is JobPhase.RUNNING
    assert story.members == ["node-1", "node-2"]


def test_a_device_that_computes_otherwise_than_most_alike_is_found_although_it_passed() -> None:
    story = Story(nodes_max=4, preflight=LIGHT, form_grace_s=10.0).join(1, 2, 3, 4)
    for number in (1, 2, 4):
        answer(story, number, Verdict.PASSED, digest="aa")
    answer(story, 3, Verdict.PASSED, digest="bb").wait(11)
    assert story.state.avoided_nodes == {"node-3"}
    assert "compute otherwise" in story.incident.error


def test_two_that_differ_prove_nothing_and_neither_do_devices_of_another_kind() -> None:
    story = Story(nodes_max=3, preflight=LIGHT).join(1, 2, 3)
    answer(story, 1, Verdict.PASSED, digest="aa")
    answer(story, 2, Verdict.PASSED, digest="bb")
    answer(story, 3, Verdict.PASSED, digest="cc", like="A100")
    assert story.members == ["node-1", "node-2", "node-3"]


def test_spares_are_tested_now_and_then_and_keep_their_place() -> None:
    story = examined(2, spares=1, corruption=CorruptionPolicy(self_test_every_s=600.0))
    before = asked(story)["node-3"].number
    story.wait(601)
    assert asked(story)["node-3"].number > before
    assert asked(story)["node-1"].number < asked(story)["node-3"].number
    assert story.state.members.by_name["node-3"].standing is MemberState.PRESENT
    answer(story, 3, Verdict.FAILED)
    assert story.state.avoided_nodes == {"node-3"}
    assert story.members == ["node-1", "node-2"]


def test_a_returned_node_passes_three_tests_then_is_a_spare_then_gets_ranks() -> None:
    story = examined(2)
    story.ask(InterventionAction.EVICT, node="node-2")
    story.run(51).commit(60)
    outcome = story.ask(InterventionAction.RETURN, "i2", node="node-2")
    assert outcome.state is InterventionState.DONE
    assert "probation" in outcome.outcome
    for _ in range(3):
        assert story.state.members.by_name["node-2"].standing is MemberState.TESTING
        answer(story, 2, Verdict.PASSED)
    assert story.state.members.by_name["node-2"].standing is MemberState.PRESENT
    story.wait(60)
    assert story.members == ["node-1"]
    story.wait(600)
    assert not story.state.probation


def test_one_on_probation_that_fails_again_stays_out() -> None:
    story = examined(2)
    story.ask(InterventionAction.EVICT, node="node-2")
    story.run(51)
    story.ask(InterventionAction.RETURN, "i2", node="node-2")
    answer(answer(story, 2, Verdict.PASSED), 2, Verdict.FAILED)
    assert story.state.avoided_nodes == {"node-2"}
    assert not story.state.probation


def test_a_new_boot_of_a_flagged_node_is_no_way_back() -> None:
    story = examined(3)
    story.xid(2, 48)
    story.run(51).join(2, boot="b")
    assert story.state.avoided_nodes == {"node-2"}
    assert "node-2" not in story.members


def test_a_node_that_was_only_hot_comes_back_by_probation_when_it_is_cool() -> None:
    story = examined(3)
    story.find(FindingKind.THERMAL, 2, cause="GPU hot", round=None, asks=XidAction.EVICT)
    assert story.state.avoided_nodes == {"node-2"}
    story.run(51)
    story.tell(ConditionOver("node-2", "something else", "fine"))
    assert story.state.avoided_nodes == {"node-2"}
    story.tell(ConditionOver("node-2", "GPU hot", "10 C below the limit for five minutes"))
    assert story.state.avoided == ()
    assert story.state.members.by_name["node-2"].standing is MemberState.TESTING


def test_what_is_only_to_be_reported_is_an_incident_that_changes_nothing() -> None:
    story = examined(2)
    number = story.round.number
    story.find(FindingKind.THERMAL, 2, cause="temperature rising", round=None, asks=XidAction.WATCH)
    assert story.round.number == number
    assert story.incident.state is IncidentState.RECOVERED


def test_a_node_that_other_jobs_do_not_trust_is_left_in_good_order() -> None:
    story = running(2, spares=1)
    story.tell(NodeReputed("node-2", quarantined=True, score=0.9, reason="XID 48 in research/other"))
    story.save(55)
    assert story.members == ["node-1", "node-3"]
    story.run(56)
    story.tell(NodeReputed("node-2", quarantined=True, score=0.9, reason="XID 48 in research/other"))
    assert story.state.avoided_nodes == {"node-2"}
    assert story.state.evictions == ()
    story.tell(NodeReputed("node-2", quarantined=False, score=0.1, reason="passed its tests"))
    assert story.state.avoided == ()
    assert story.state.departures == ()


def test_a_node_that_is_trusted_again_before_it_was_left_is_not_left() -> None:
    story = running(2)
    story.tell(NodeReputed("node-2", quarantined=True, score=1.0, reason="XID 48 in research/other"))
    story.tell(NodeReputed("node-2", quarantined=False, score=0.1, reason="pardoned"))
    assert story.wait(400).members == ["node-1", "node-2"]
    assert story.state.departures == ()


def test_a_spot_notice_moves_the_ranks_before_the_machine_goes() -> None:
    story = running(2, spares=1)
    story.tell(NodeDeparting("node-2", "spot instance", 120.0))
    story.save(55)
    assert story.members == ["node-1", "node-3"]
    assert story.state.incidents == ()


def test_a_policy_may_ask_for_no_more_than_a_checkpoint() -> None:
    story = running(2, spares=1, notices=NoticeAction.CHECKPOINT)
    story.tell(NodeDeparting("node-2", "spot instance", 120.0))
    story.save(55)
    assert story.members == ["node-1", "node-2"]
    report = running(2, spares=1, notices=NoticeAction.REPORT)
    report.tell(NodeDeparting("node-2", "spot instance", 120.0))
    assert report.wanted == []


def test_a_node_is_tested_on_request_thoroughly_and_at_once_where_it_has_no_ranks() -> None:
    story = examined(2, spares=1)
    outcome = story.ask(InterventionAction.TEST, node="node-3")
    assert (outcome.state, asked(story)["node-3"].level) == (InterventionState.DONE, TestLevel.FULL)
    assert story.state.members.by_name["node-3"].standing is MemberState.TESTING
    outcome = story.ask(InterventionAction.TEST, "i2", node="node-1")
    assert "left the round" in outcome.outcome
    assert asked(story)["node-1"].level is LIGHT
    assert story.state.phase is JobPhase.RUNNING
    assert story.ask(InterventionAction.TEST, "i3", node="node-9").state is InterventionState.REFUSED


def ask_in_full(story: Story, number: int) -> str:
    outcome = story.ask(InterventionAction.TEST, node=f"node-{number}", level=TestLevel.FULL)
    assert (outcome.state, asked(story)[f"node-{number}"].level) == (InterventionState.DONE, TestLevel.FULL)
    return outcome.outcome


def test_a_full_test_of_a_node_that_trains_says_what_it_costs_and_a_spare_takes_its_ranks() -> None:
    story = examined(2, spares=1)
    assert ask_in_full(story, 1) == (
        "full self-test of node node-1, at most 600 s on GPUs: once a checkpoint is committed; its ranks move "
        "to a spare; a failure will be an incident"
    )
    assert (story.state.phase, len(story.wanted)) == (JobPhase.RUNNING, 1)
    story.save(55)
    assert story.members == ["node-3", "node-2"]
    assert "full self-test of node-1" in story.round.reason
    story.run(56)
    answer(story, 1, Verdict.PASSED).wait(60)
    assert story.members == ["node-3", "node-2"]
    assert story.state.trials == {}
    assert not story.state.incidents


@pytest.mark.parametrize("verdict", [Verdict.PASSED, Verdict.FAILED, None])
def test_without_a_spare_the_training_waits_for_a_full_test_that_was_asked_for(verdict: Verdict | None) -> None:
    story = examined(2)
    assert "its ranks wait meanwhile, and so does training" in ask_in_full(story, 1)
    story.save(55)
    assert isinstance(story.state.desired, Idle)
    assert story.state.reason == "waiting for the self-tests of node-1"
    story.wait(600)
    assert isinstance(story.state.desired, Idle)
    if verdict is None:
        story.wait(301)
    else:
        answer(story, 1, verdict)
    assert story.members == (["node-2"] if verdict is Verdict.FAILED else ["node-1", "node-2"])
    assert (story.round.restore.step, story.state.restart_count) == (55, verdict is Verdict.FAILED)


def test_a_checkpoint_that_never_comes_does_not_hold_a_full_test_up_for_ever() -> None:
    story = examined(2)
    ask_in_full(story, 1)
    story.wait(600)
    assert story.state.reason == "waiting for the self-tests of node-1"


def test_the_time_for_a_full_test_counts_from_when_the_workers_have_left() -> None:
    story = examined(2)
    story.die(2)  # all load their state anew, which takes long
    number = story.round.number
    ask_in_full(story, 1)
    (waiting,) = status_of(story.state, None, story.now).tests
    assert waiting.waits_for == f"round {number} to train"
    story.wait(2400)
    story.run(51)
    (waiting,) = status_of(story.state, None, story.now).tests
    assert waiting.waits_for == f"the checkpoint that round {number} was asked for"
    story.save(55)
    assert [each.waits_for for each in status_of(story.state, None, story.now).tests] == [""]
    story.wait(890)
    assert story.state.reason == "waiting for the self-tests of node-1"
    story.wait(20)
    assert story.members == ["node-1", "node-2"]
    assert story.state.trials == {}


def test_a_full_test_waits_an_hour_for_its_turn_and_then_says_on_what() -> None:
    story = examined(2)
    story.die(2)
    number = story.round.number
    ask_in_full(story, 1)
    story.wait(3590)
    assert list(story.state.trials) == ["node-1"]
    story.now = next_wakeup(story.state) or story.now
    reason = story.tell(ClockTicked()).reason
    assert reason.says == (
        f"node-1 waited for round {number} to train for 3600 s (full self-test); 1 taken untested"
    )
    assert story.state.trials == {}
    assert story.state.members.by_name["node-1"].standing is MemberState.PRESENT


def test_who_takes_a_watchdog_over_from_one_that_noted_no_beginning_counts_from_then() -> None:
    story = Story(nodes_max=2, preflight=LIGHT).join(1, 2)
    before = {name: msgspec.structs.replace(each, began=None) for name, each in story.state.trials.items()}
    story.state = msgspec.structs.replace(story.state, trials=before)
    story.now += 50
    story.tell(WatchdogStarted())
    assert {each.began for each in story.state.trials.values()} == {story.now}


def test_a_script_without_checkpoints_leaves_at_once_for_a_full_test() -> None:
    story = Story(nodes_max=2).join(1, 2).run(reentrant=False)
    assert "now, without a checkpoint; its ranks wait" in ask_in_full(story, 2)
    assert isinstance(story.state.desired, Idle)


def test_who_waits_already_is_tested_in_full_without_a_further_checkpoint() -> None:
    story = examined(2)
    story.ask(InterventionAction.PAUSE, "i0")
    story.save(55)
    assert "as soon as its workers have left the round; its ranks wait" in ask_in_full(story, 1)
    story.ask(InterventionAction.RESUME, "i2")
    assert story.state.reason == "waiting for the self-tests of node-1"
    answer(story, 1, Verdict.PASSED)
    assert story.members == ["node-1", "node-2"]


def test_a_light_test_that_is_asked_for_by_name_is_one_also_without_ranks() -> None:
    story = examined(2, spares=1)
    story.ask(InterventionAction.TEST, node="node-3", level=LIGHT)
    assert asked(story)["node-3"].level is LIGHT
    story.ask(InterventionAction.TEST, "i2", node="node-1", level=LIGHT)
    assert (asked(story)["node-1"].level, story.wanted) == (LIGHT, [])


def test_the_status_names_the_tests_that_are_waited_for() -> None:
    story = examined(2, spares=1)
    ask_in_full(story, 1)
    story.ask(InterventionAction.TEST, "i2", node="node-2")
    told = status_of(story.state, None, story.now)
    assert told.tests == (
        PendingTest(
            "node-1",
            "node-1",
            TestLevel.FULL,
            "requested: asked",
            story.now,
            bars=True,
            waits_for="the checkpoint that round 2 was asked for",
        ),
        PendingTest("node-2", "node-2", LIGHT, "requested: asked", story.now, bars=False),
    )
    answer(story, 1, Verdict.PASSED)
    assert [each.node for each in status_of(story.state, None, story.now).tests] == ["node-2"]
    story.fail()
    assert status_of(story.state, None, story.now).tests_total == 0


def test_of_many_tests_the_status_names_some_and_counts_all() -> None:
    story = Story(nodes_max=40, preflight=LIGHT).join(*range(1, 21))
    told = status_of(story.state, None, story.now)
    assert (len(told.tests), told.tests_total) == (16, 20)


def test_a_test_beside_the_ranks_of_one_that_is_gone_keeps_nobody_from_forming_anew() -> None:
    story = running(3)
    story.ask(InterventionAction.TEST, node="node-3")
    for number in (1, 2, 3):
        story.lose(number)
    story.now += 1
    story.join(1, 2, boot="b").wait(120)
    assert sorted(story.members) == ["node-1", "node-2"]


def test_another_question_to_one_that_is_waited_for_is_waited_for_no_longer() -> None:
    story = examined(2)
    ask_barring(story, 2)
    story.die(1).wait(1)
    assert isinstance(story.state.desired, Idle)
    story.ask(InterventionAction.TEST, node="node-2")
    story.wait(121)
    assert sorted(story.members) == ["node-1", "node-2"]


def test_one_that_is_suspect_is_no_less_so_as_a_new_process() -> None:
    story = examined(2)
    story.ask(InterventionAction.TEST, node="node-2", id="t1")
    ask_barring(story, 2)
    story.join(2, boot="b")
    member = story.state.member("node-2")
    assert member is not None
    assert member.standing is MemberState.TESTING


def ask_barring(story: Story, number: int) -> None:
    """The brain asks a member with ranks for a test that is waited for."""
    story.state = ask(story.state, (f"node-{number}",), LIGHT, "suspect", story.now, bars=True).state


def test_tests_are_given_up_in_the_order_in_which_their_time_is_up() -> None:
    story = running(1, spares=2)
    for name, level in (("node-2", TestLevel.FULL), ("node-3", LIGHT)):
        story.state = ask(story.state, (name,), level, "asked", story.now, bars=True).state
    assert next(iter(story.state.trials)) == "node-3"
    story.wait(121)
    assert list(story.state.trials) == ["node-2"]


def test_numbers_of_tests_go_on_in_the_next_job_of_the_name() -> None:
    # The launcher of a pod that outlives its job takes an equal number for the request it has answered.
    story = Story(nodes_max=1, preflight=LIGHT, uid="a").join(1)
    story.resubmit(uid="b", generation=1).join(1, boot="b")
    assert asked(story)["node-1"].number == 2


def test_a_back_off_that_is_over_wakes_nobody_while_a_test_is_waited_for() -> None:
    story = examined(2)
    story.die(1).wait(1)
    story.die(1)
    ask_barring(story, 2)
    story.now += 30
    story.tell(ClockTicked())
    at = next_wakeup(story.state)
    assert isinstance(story.state.desired, Idle)
    assert at is not None
    assert at > story.now


def test_what_other_jobs_know_of_nodes_uses_up_nothing_of_what_this_job_may_do() -> None:
    story = running(4, spares=1)
    for node in ("elsewhere-1", "elsewhere-2"):
        story.tell(NodeReputed(node, quarantined=True, score=2.0, reason="GPU lost in team/other"))
    story.xid(2, 79)
    assert story.state.phase is not JobPhase.FAILED
    assert "node-2" not in story.members


def test_a_node_that_is_avoided_for_its_repute_and_fails_its_test_is_evicted_once() -> None:
    story = examined(2).join(3)
    story.tell(NodeReputed("node-3", quarantined=True, score=1.0, reason="lost in team/other"))
    answer(story, 3, Verdict.FAILED)
    assert [order.node for order in story.state.avoided] == ["node-3"]
    assert story.incident.kind is FindingKind.SELF_TEST
    story.tell(NodeReputed("node-3", quarantined=False, score=0.0, reason="forgotten"))
    assert story.state.avoided_nodes == {"node-3"}


def test_devices_of_a_node_that_differ_are_told_apart_by_those_of_other_nodes() -> None:
    story = Story(nodes_max=3, preflight=LIGHT).join(1, 2, 3)
    for number in (1, 2):
        answer(story, number, Verdict.PASSED, digest="right")
    answer(story, 3, Verdict.UNKNOWN, digest="wrong")
    assert story.state.avoided_nodes == {"node-3"}


def test_idle_members_are_asked_in_an_order_that_a_restart_does_not_change() -> None:
    # Joined anew a member is the last of its roster; what is remembered of who has no ranks keeps its place.
    story = examined(1, spares=2)
    story.join(2)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    story.now += 1801
    live, replayed = (advance(each, ClockTicked(), story.now).state for each in (story.state, again))
    assert live.trials == replayed.trials
    assert len(live.trials) == 2


def test_a_condition_that_a_restart_did_not_mend_restarts_nothing_again() -> None:
    story = examined(2)
    fields = {"cause": "DiskFull", "round": None, "asks": XidAction.RESTART}
    story.find(FindingKind.CONDITION, 2, **fields)
    number = story.round.number
    story.run(51)
    story.now += 100.0
    story.find(FindingKind.CONDITION, 2, began_at=story.now - 150.0, **fields)
    assert story.round.number == number


@pytest.mark.parametrize(
    ("kind", "cause"), [(FindingKind.CONDITION, "DiskFull"), (FindingKind.THERMAL, "GPU hot")]
)
def test_a_round_of_another_reason_is_no_restart_for_what_lasts(kind: FindingKind, cause: str) -> None:
    # Heat must last before it is found; a job that grows meanwhile has not answered it.
    story = examined(2)
    began_at = story.now - 0.5
    story.find(FindingKind.PROCESS_EXIT, 1)
    story.run(51)
    story.now += 1.0
    number = story.round.number
    story.find(kind, 2, cause=cause, round=None, asks=XidAction.RESTART, began_at=began_at)
    assert story.incident.kind is kind
    assert story.round.number == number + 1


def test_what_was_only_reported_was_not_restarted_for() -> None:
    story = examined(2)
    began_at = story.now - 0.5
    fields = {"cause": "DiskFull", "round": None, "began_at": began_at}
    story.find(FindingKind.CONDITION, 2, asks=XidAction.WATCH, **fields)
    story.find(FindingKind.PROCESS_EXIT, 1)
    story.run(51)
    number = story.round.number
    story.find(FindingKind.CONDITION, 2, asks=XidAction.RESTART, **fields)
    assert story.round.number == number + 1


@pytest.mark.parametrize("order", [(3, 1, 2, 4), (1, 3, 2, 4), (1, 2, 3, 4), (1, 2, 4, 3)])
def test_who_computes_otherwise_than_most_is_found_whenever_it_answers(order: tuple[int, ...]) -> None:
    story = Story(nodes_max=4, preflight=LIGHT, form_grace_s=10.0).join(1, 2, 3, 4)
    for number in order:
        answer(story, number, Verdict.PASSED, digest="bb" if number == 3 else "aa")
    if "node-3" not in story.state.avoided_nodes:  # it was right for all that was known; it is asked again
        answer(story, 3, Verdict.PASSED, digest="bb")
    assert story.state.avoided_nodes == {"node-3"}


def test_a_node_on_probation_that_does_not_or_cannot_answer_is_not_trusted_for_that() -> None:
    story = examined(2)
    story.ask(InterventionAction.EVICT, node="node-2")
    story.run(51)
    story.ask(InterventionAction.RETURN, "i2", node="node-2")
    answer(story, 2, Verdict.UNKNOWN)
    assert story.state.members.by_name["node-2"].standing is MemberState.TESTING
    first = asked(story)["node-2"].number
    story.wait(1000)
    assert asked(story)["node-2"].number > first
    assert story.state.members.by_name["node-2"].standing is MemberState.TESTING
    story.resubmit(preflight=None)
    story.wait(130)
    assert not story.state.probation


@pytest.mark.parametrize("bars", [False, True])
def test_one_on_probation_that_has_ranks_keeps_nobody_waiting_for_ever(bars: bool) -> None:
    story = examined(2, nodes_min=2).xid(2, 79).wait(1)
    story.ask(InterventionAction.RETURN, node="node-2")
    story.run(60)
    assert story.state.probation["node-2"].stage is ProbationStage.CANARY
    story.state = ask(story.state, ("node-2",), LIGHT, "why", story.now, bars=bars).state
    story.wait(86500)
    assert story.state.trials == {}
    at = next_wakeup(story.state)
    assert at is None or at > story.now


def test_a_spot_notice_counts_beside_a_drain_and_is_not_called_off_with_it() -> None:
    story = running(2, spares=0).drain(2)
    story.tell(NodeDeparting("node-2", "spot instance", 100.0))
    story.node(2, NodeState.READY)
    assert [each.until for each in story.state.departures] == [story.now + 100.0]
    story.wait(101)
    assert story.wanted, "it was saved before the machine went"


def test_a_node_that_is_gone_is_known_for_nothing_when_it_is_back() -> None:
    story = running(2, spares=1)
    word = NodeReputed("node-9", quarantined=True, score=2.0, reason="XID 48 elsewhere")
    story.tell(word)
    story.gone(9)
    assert (story.state.avoided, story.state.reputed) == ((), ())
    story.tell(word)
    assert story.state.avoided_nodes == {"node-9"}


@pytest.mark.parametrize(
    ("died", "says"),
    [
        ((), "node node-2 is not trusted, on other jobs' evidence: it broke"),
        ((2,), "node node-2 is not trusted, on its record: it broke"),
    ],
)
def test_whose_evidence_it_is_that_takes_a_node_away_is_told(died: tuple[int, ...], says: str) -> None:
    story = running(2, spares=1)
    for number in died:
        story.die(number)
        story.wait(60)
    story.tell(NodeReputed("node-2", quarantined=True, score=2.0, reason="it broke"))
    assert [each.reason for each in story.state.departures] == [says]


def test_a_page_about_an_untrusted_node_outlasts_what_other_jobs_know_of_it() -> None:
    story = running(2, spares=1, evictions=EvictionBudget(count=0))
    story.tell(NodeReputed("node-9", quarantined=True, score=2.0, reason="XID 48 elsewhere"))
    story.xid(9, 79)
    assert story.incident.state is IncidentState.PAGED
    story.tell(NodeReputed("node-9", quarantined=False, score=0.1, reason="long ago"))
    assert story.state.avoided_nodes == {"node-9"}
