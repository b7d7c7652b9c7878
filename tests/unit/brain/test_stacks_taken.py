"""Where the ranks of a hang stood is asked for before the round is ended, and joins it whenever it comes."""

import pytest
from story import running

from holdfast.api.event import StacksTaken
from holdfast.api.finding import Evidence, FindingKind
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.incidents import KEPT_EVIDENCE
from holdfast.watchdog.brain.step import Show, TakeStacks

SAYS = (Evidence("stacks", "rank 1 of 3: train.py:9 in spin", 5.0),)


@pytest.mark.parametrize("kind", [FindingKind.HANG, FindingKind.COLLECTIVE_FAILED])
def test_they_are_asked_for_before_the_next_round_is_shown(kind: FindingKind) -> None:
    story = running(3)
    before = story.round
    story.find(kind, 1, round=before.number)
    kinds = [type(each) for each in story.effects]
    (wanted,) = (each for each in story.effects if isinstance(each, TakeStacks))
    assert (wanted.incident, wanted.round.number) == (story.incident.id, before.number)
    assert kinds.index(TakeStacks) < len(kinds) - 1 - kinds[::-1].index(Show)


def test_a_worker_that_died_is_asked_nothing() -> None:
    story = running(3).die(1)
    assert not any(isinstance(each, TakeStacks) for each in story.effects)


def test_a_second_finding_of_the_same_hang_asks_no_more() -> None:
    story = running(3)
    number = story.round.number
    story.find(FindingKind.HANG, 1, round=number).find(FindingKind.HANG, 1, round=number)
    assert len([each for each in story.effects if isinstance(each, TakeStacks)]) == 1


def test_they_join_the_incident_also_when_it_is_over() -> None:
    story = running(3)
    story.find(FindingKind.HANG, 1, round=story.round.number).run(60)
    assert story.incident.state == "Recovered"
    story.tell(StacksTaken(story.incident.id, SAYS))
    assert story.incident.evidence[-1:] == SAYS
    assert story.state.phase is JobPhase.RUNNING


def test_they_have_room_however_much_is_known_already() -> None:
    story = running(3)
    many = tuple(Evidence("rank records", str(at), 1.0) for at in range(KEPT_EVIDENCE))
    story.find(FindingKind.HANG, 1, round=story.round.number, evidence=many)
    story.tell(StacksTaken(story.incident.id, SAYS))
    assert len(story.incident.evidence) == KEPT_EVIDENCE
    assert story.incident.evidence[-1:] == SAYS


def test_of_an_incident_that_nobody_knows_nothing_changes() -> None:
    story = running(3)
    before = story.state
    story.tell(StacksTaken("inc-9999", SAYS))
    assert story.state == before
