"""A job that asks for more than its nodes' NVLink domains hold is told so, and no node is blamed for it."""

import msgspec
from story import Story
from trials import answer, asked, examined, misfit

from holdfast.api.event import MemberTested
from holdfast.api.finding import FindingKind
from holdfast.api.incident import IncidentState
from holdfast.api.intervention import InterventionAction
from holdfast.api.round import Idle
from holdfast.api.selftest import CheckResult, TestLevel, Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain import advance
from holdfast.watchdog.brain.reputation import Fleet, marked
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.selftests import REMEDY
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.status import membership_of
from holdfast.watchdog.brain.step import Notify

LIGHT = TestLevel.LIGHT
SAYS = "tensor parallel size 8 asked of a 4-GPU NVLink domain"
WRONG = CheckResult("matmul fp32", "GPU-2", Verdict.FAILED, "3 of 149 runs gave another result", 0.5)


def too_large(*misfits: int, **fields: object) -> Story:
    """Three members of a job that asks for 8 ranks in a domain; these answer that theirs hold 4."""
    story = Story(nodes_max=3, preflight=LIGHT, tensor=8, **fields).join(1, 2, 3)
    for number in misfits:
        misfit(story, number, 4)
    return story


def pages(story: Story) -> list[str]:
    return [each.text for each in story.effects if isinstance(each, Notify)]


def test_a_size_that_no_domain_holds_is_told_once_and_held_against_nobody() -> None:
    story = too_large(1, 2, 3).wait(3600)
    assert story.state.avoided == ()
    assert story.state.evictions == ()
    assert story.plan.cordon == ()
    assert len(story.state.incidents) == 1
    assert (story.incident.kind, story.incident.cause) == (FindingKind.SELF_TEST, SAYS)
    assert (story.incident.state, story.incident.culprit.node) == (IncidentState.PAGED, None)
    fleet = Fleet()
    for incident in story.state.incidents:
        fleet = marked(fleet, incident)
    assert fleet == Fleet()
    assert pages(story) == [f"{SAYS} (node-1 on node node-1); {REMEDY}"]


def test_what_the_job_waits_for_says_size_domain_and_remedy() -> None:
    story = too_large(1, 2, 3).wait(3600)
    assert isinstance(story.state.desired, Idle)
    assert story.state.phase is JobPhase.PENDING
    assert story.state.reason == f"0 of 3 members joined; no ranks for node-1, node-2, node-3: {SAYS}; {REMEDY}"
    assert membership_of(story.state, story.state.phase).ready == 0


def test_a_spec_that_fits_is_tested_anew_and_starts() -> None:
    story = too_large(1, 2, 3).wait(60)
    before = asked(story)["node-3"].number
    story.resubmit(tensor=4)
    assert [asked(story)[f"node-{number}"].tensor for number in (1, 2, 3)] == [4, 4, 4]
    assert asked(story)["node-1"].number > before
    for number in (1, 2, 3):
        answer(story, number, Verdict.PASSED)
    assert story.members == ["node-1", "node-2", "node-3"]
    assert len(pages(story)) == 1


def test_one_that_does_not_answer_about_another_size_is_taken_as_it_is() -> None:
    story = too_large(1, 2, 3).resubmit(tensor=4).wait(121)
    assert story.members == ["node-1", "node-2", "node-3"]


def test_a_spec_without_self_tests_trains_over_slower_links() -> None:
    assert too_large(1, 2, 3).resubmit(preflight=None).wait(11).members == ["node-1", "node-2", "node-3"]


def test_another_size_that_does_not_fit_either_is_told_again() -> None:
    story = too_large(1, 2, 3).resubmit(tensor=6)
    for number in (1, 2, 3):
        misfit(story, number, 4)
    assert [text.partition(" (")[0] for text in pages(story)] == [SAYS, SAYS.replace("8", "6")]


def test_who_passed_for_another_size_and_has_no_ranks_is_asked_about_this_one() -> None:
    story = Story(nodes_max=2, nodes_min=2, preflight=LIGHT, tensor=4).join(1)
    answer(story, 1, Verdict.PASSED).resubmit(tensor=8).join(2)
    answer(story, 2, Verdict.PASSED)
    assert isinstance(story.state.desired, Idle)
    assert story.state.members.by_name["node-1"].standing is MemberState.TESTING
    assert asked(story)["node-1"].tensor == 8


def test_those_that_fit_train_without_the_others() -> None:
    story = too_large(2, form_grace_s=10.0)
    answer(answer(story, 1, Verdict.PASSED), 3, Verdict.PASSED).wait(11)
    assert story.members == ["node-1", "node-3"]
    assert story.state.avoided == ()


def test_one_that_computes_wrong_as_well_is_evicted() -> None:
    story = too_large(1)
    misfit(story, 2, 4, WRONG)
    assert story.state.avoided_nodes == {"node-2"}
    assert [order.node for order in story.plan.cordon] == ["node-2"]
    assert "3 of 149 runs" in story.incident.error
    assert marked(Fleet(), story.incident).marks.keys() == {"node-2"}


def test_one_that_computes_otherwise_than_most_is_evicted_although_only_the_domain_failed() -> None:
    story = Story(nodes_max=3, preflight=LIGHT, tensor=8).join(1, 2, 3)
    for number in (1, 2):
        answer(story, number, Verdict.PASSED, digest="bb")
    assert misfit(story, 3, 4).state.avoided_nodes == {"node-3"}


def test_a_driver_that_did_not_answer_about_its_links_is_a_fault_as_before() -> None:
    story = Story(nodes_max=3, preflight=LIGHT, tensor=8).join(1, 2, 3)
    wanted = asked(story)["node-2"]
    hung = CheckResult("nvlink-domains", "node", Verdict.FAILED, "did not return within 45 s", 45.0)
    failed = MemberTested("node-2", wanted.number, wanted.level, Verdict.FAILED, (hung,))
    story.tell(failed)
    assert story.state.avoided_nodes == {"node-2"}


def test_a_misfit_that_reconnects_or_is_tested_on_request_without_an_answer_is_one_still() -> None:
    story = too_large(1, 2, 3).restart_watchdog().join(1, 2, 3).wait(200)
    assert isinstance(story.state.desired, Idle)
    story.ask(InterventionAction.TEST, node="node-1")
    assert isinstance(story.wait(1000).state.desired, Idle)
    assert "no ranks for node-1, node-2, node-3" in story.state.reason
    story.ask(InterventionAction.TEST, "i2", node="node-1")
    answer(story, 1, Verdict.PASSED).wait(11)
    assert story.members == ["node-1"]


def test_a_new_process_may_be_on_another_node_and_is_tested_anew() -> None:
    story = too_large(1, 2, 3).join(1, 2, 3, boot="b")
    for number in (1, 2, 3):
        answer(story, number, Verdict.PASSED)
    assert story.members == ["node-1", "node-2", "node-3"]
    assert story.state.fit.misfits == {}


def test_a_new_process_that_does_not_answer_is_taken_as_it_is() -> None:
    assert too_large(1, 2, 3).join(1, 2, 3, boot="b").wait(121).members == ["node-1", "node-2", "node-3"]


def test_one_that_had_ranks_and_fitted_no_more_is_tested_anew_as_a_new_process() -> None:
    story = examined(1, tensor=8)
    story.ask(InterventionAction.TEST, node="node-1")
    story.die(1)
    misfit(story, 1, 4).die(1)
    before = asked(story)["node-1"].number
    story.leave(1)
    story.join(1, boot="b")
    assert asked(story)["node-1"].number > before
    assert answer(story, 1, Verdict.PASSED).wait(60).members == ["node-1"]


def test_one_with_ranks_that_fits_no_more_gets_none_in_the_next_round_and_another_spec_brings_it_back() -> None:
    story = examined(2, nodes_min=2, tensor=8)
    story.ask(InterventionAction.TEST, node="node-2")
    story.lose(1)
    misfit(story, 2, 4)
    assert isinstance(story.state.desired, Idle)
    story.join(1, boot="b").wait(60)
    assert f"no ranks for node-2: {SAYS}" in story.state.reason
    story.resubmit(tensor=4)
    answer(story, 2, Verdict.PASSED)
    assert story.members == ["node-1", "node-2"]


def test_a_misfit_that_is_gone_is_waited_for_no_longer_and_nobody_is_told_twice() -> None:
    story = too_large(1, 2, 3)
    story.leave(1)
    assert story.state.fit.misfits.keys() == {"node-2", "node-3"}
    assert "no ranks for node-2, node-3" in story.state.reason
    misfit(story.join(1, boot="b"), 1, 4)
    assert len(pages(story)) == 1


def test_thousands_of_misfits_are_a_sentence() -> None:
    story = Story(nodes_max=40, preflight=LIGHT, tensor=8).join(*range(1, 41))
    for number in range(1, 41):
        misfit(story, number, 4)
    assert "and 24 more: tensor parallel size 8" in story.state.reason
    assert len(story.state.reason) < 500


def test_a_snapshot_in_between_changes_nothing() -> None:
    story = too_large(1, 2)
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(story.state), type=JobState)
    assert again == story.state
    misfit(story, 3, 4)
    last = story.last
    assert last is not None
    number = asked(story)["node-3"].number
    says = CheckResult("topology", "node", Verdict.FAILED, SAYS, 0.1)
    sound = CheckResult("matmul bf16", "GPU-3", Verdict.PASSED, "as it is", 0.5, "H100", "aa")
    event = MemberTested("node-3", number, LIGHT, Verdict.FAILED, (sound, says), SAYS)
    assert advance(again, event, story.now) == last
