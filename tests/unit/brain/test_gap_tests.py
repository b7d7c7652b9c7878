"""Self-tests between rounds: in the gap that a fault leaves, and of a node whose own fault asked for a restart."""

import msgspec
import pytest
from story import Story, running
from trials import answer, asked, examined

from holdfast.api.finding import FindingKind
from holdfast.api.intervention import InterventionAction
from holdfast.api.plan import NodeState
from holdfast.api.policy import EvictionBudget
from holdfast.api.round import Idle
from holdfast.api.selftest import TestLevel, Verdict
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.settling import ASKED_MAX

LIGHT = TestLevel.LIGHT
LONG_AGO = 1801.0
SEGV = "signal 11 (SIGSEGV)"
EVICTING = EvictionBudget(fraction=1.0)


def trained(nodes: int = 3, **fields: object) -> Story:
    """A job without room for losses whose members passed their tests long ago."""
    story = examined(nodes, nodes_min=nodes, evictions=EVICTING, **fields)
    story.now += LONG_AGO
    return story


def trials_of(story: Story) -> dict[str, bool]:
    """Who has a test to answer, and whether it is waited for."""
    return {name: trial.bars for name, trial in story.state.trials.items()}


def test_a_job_that_waits_for_a_member_has_the_others_tested_meanwhile() -> None:
    story = trained().lose(2)
    assert isinstance(story.state.desired, Idle)
    assert trials_of(story) == {"node-1": False, "node-3": False}
    assert asked(story)["node-1"].level is LIGHT
    story.join(2, boot="b")
    assert story.members == ["node-1", "node-2", "node-3"]


def test_who_fails_in_the_gap_gets_no_ranks_in_the_next_round() -> None:
    story = answer(trained().lose(2), 3, Verdict.FAILED).join(2, boot="b").join(4)
    answer(story, 4, Verdict.PASSED)
    assert story.members == ["node-1", "node-2", "node-4"]


def test_a_round_that_can_follow_at_once_has_no_gap() -> None:
    story = examined(2, spares=1)
    story.now += LONG_AGO
    story.lose(2)
    assert "node-1" not in trials_of(story)
    assert story.members == ["node-1", "node-3"]


def test_who_was_tested_lately_or_is_never_tested_is_not_asked() -> None:
    lately = examined(3, nodes_min=3).lose(2)
    assert isinstance(lately.state.desired, Idle)
    assert trials_of(lately) == {}
    never = running(3, nodes_min=3)
    never.now += LONG_AGO
    assert trials_of(never.lose(2)) == {}


def test_who_is_evicted_or_asked_already_is_not_asked_and_a_planned_gap_asks_nobody() -> None:
    story = trained().xid(2, 79)
    assert isinstance(story.state.desired, Idle)
    assert trials_of(story) == {"node-1": False, "node-3": False}
    asked_before = trained()
    asked_before.ask(InterventionAction.TEST, node="node-1")
    number = asked(asked_before)["node-1"].number
    assert trials_of(asked_before.lose(2)) == {"node-1": False, "node-3": False}
    assert asked(asked_before)["node-1"].number == number
    planned = trained().leave(2)
    assert isinstance(planned.state.desired, Idle)
    assert trials_of(planned) == {}


def test_only_the_turn_in_which_the_gap_begins_asks_and_not_for_a_short_pause() -> None:
    story = examined(3, nodes_min=3).lose(2)
    story.now += LONG_AGO
    story.node(1, NodeState.READY)
    assert trials_of(story) == {}
    short = trained()
    short.die(1, cause="exit code 1").run(50)
    short.now += LONG_AGO
    short.die(1, cause="exit code 1")
    assert isinstance(short.state.desired, Idle)
    assert trials_of(short) == {}


def test_however_many_there_are_a_few_are_asked_those_first_that_were_tested_longest_ago() -> None:
    story = trained(ASKED_MAX + 6)
    tested_at = dict(story.state.tested_at)
    late = [f"node-{number}" for number in range(1, 6)]
    tested_at |= dict.fromkeys(late, story.now - 1800.5)
    story.state = msgspec.structs.replace(story.state, tested_at=tested_at)
    story.lose(6)
    assert len(trials_of(story)) == ASKED_MAX
    assert not set(late) & trials_of(story).keys()


def test_the_first_restart_for_an_xid_waits_for_no_test_and_the_second_does() -> None:
    story = examined(2).xid(2, 43)
    assert story.members == ["node-1", "node-2"]
    assert trials_of(story) == {"node-2": False}
    story.run(60).xid(2, 43)
    assert isinstance(story.state.desired, Idle)
    assert story.state.reason == "waiting for the self-tests of node-2"
    assert trials_of(story) == {"node-2": True}
    answer(story, 2, Verdict.PASSED)
    assert story.members == ["node-1", "node-2"]


def test_one_that_fails_after_its_second_restart_gets_its_ranks_not_back() -> None:
    story = examined(2, evictions=EVICTING).xid(2, 43).run(60).xid(2, 43)
    answer(story, 2, Verdict.FAILED)
    assert story.state.avoided_nodes == {"node-2"}
    assert story.members == ["node-1"]


@pytest.mark.parametrize(("cause", "waits"), [(SEGV, True), ("signal 9 (SIGKILL)", False)])
def test_a_second_death_is_looked_into_before_ranks_are_given_unless_somebody_sent_the_signal(
    cause: str, waits: bool
) -> None:
    story = examined(2).die(2, cause=cause).run(60)
    assert trials_of(story) == {}
    story.die(2, cause=cause)
    assert trials_of(story) == {"node-2": waits}
    assert story.state.members.by_name["node-2"].standing is (
        MemberState.TESTING if waits else MemberState.PRESENT
    )


def test_what_dies_on_two_nodes_or_ends_by_itself_makes_no_device_suspect() -> None:
    story = examined(2).die(1, cause=SEGV).run(60).die(2, cause=SEGV).run(70).die(2, cause=SEGV)
    assert trials_of(story) == {}
    ended = examined(2).die(2, cause="exit code 1").run(60).die(2, cause="exit code 1")
    assert trials_of(ended) == {}


def test_a_job_without_self_tests_is_not_tested_on_suspicion_either() -> None:
    story = running(2).xid(2, 43).run(60).xid(2, 43)
    assert trials_of(story) == {}
    assert story.incident.kind is FindingKind.XID
