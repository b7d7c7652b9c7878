"""Launchers that ended while no watchdog was there: nobody is blamed, unless somebody came through."""

import pytest
from story import JOB, Story, running

from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import IncidentState
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.reputation import Fleet, marked
from holdfast.watchdog.brain.unwatched import CAUSE


def blamed(story: Story) -> set[str]:
    """The nodes that anything is held against, by this job or by all together."""
    fleet = Fleet()
    for incident in story.state.incidents:
        fleet = marked(fleet, incident)
    return {*fleet.marks, *(each.node for each in (*story.state.suspicions, *story.state.avoided))}


def test_a_job_whose_launchers_all_come_back_as_others_goes_on_and_blames_nobody() -> None:
    story = running(3, nodes_min=3).restart_watchdog()
    before = story.round.number
    story.join(1, 2, boot="b")
    story.now += 5
    story.join(3, boot="b").wait(1)
    assert (story.members, story.round.number > before) == (["node-1", "node-2", "node-3"], True)
    (incident,) = story.state.incidents
    assert (incident.culprit, incident.cause, incident.confidence) == (Subject(JOB), CAUSE, Confidence.UNKNOWN)
    assert [each.says for each in incident.evidence] == [
        f"node-{each} joined again as another process" for each in (1, 2, 3)
    ]
    assert blamed(story) == set()
    story.run(60, restored=40)
    assert story.incident.state is IncidentState.RECOVERED
    assert story.state.failures == ()


def test_who_does_not_come_back_with_the_others_is_not_blamed_either_and_a_spare_takes_its_ranks() -> None:
    story = running(3, spares=1).restart_watchdog()
    numbers = sorted(int(each.removeprefix("node-")) for each in story.state.members.by_name)
    spare = next(each for each in numbers if f"node-{each}" not in story.members)
    lost = next(each for each in numbers if each != spare)
    story.join(*(each for each in numbers if each != lost), boot="b").lose(lost).wait(1)
    assert sorted(story.members) == [f"node-{each}" for each in numbers if each != lost]
    assert len(story.state.incidents) == 1
    assert blamed(story) == set()


@pytest.mark.parametrize("again", [False, True])
def test_where_one_came_through_each_loss_is_of_its_own_node(again: bool) -> None:
    story = running(3).restart_watchdog()
    story.join(1, held=story.round.number)
    story = story.join(2, boot="b") if again else story.lose(2)
    assert story.incident.culprit.node == "node-2"
    assert story.incident.cause == ("launcher restarted" if again else "connection closed")
    assert blamed(story) == {"node-2"}


def test_who_goes_under_a_watchdogs_eyes_is_blamed_as_ever() -> None:
    story = running(3).restart_watchdog()
    story.join(1, 2, 3, held=story.round.number).wait(60).lose(2)
    assert blamed(story) == {"node-2"}


def test_it_does_not_use_up_what_the_job_may_do_for_faults_of_its_own() -> None:
    story = running(2, nodes_min=2)
    for night in range(12):
        story.restart_watchdog().join(1, 2, boot=f"boot-{night}").wait(60).run(100 * night + 60, restored=40).wait(
            60
        )
        assert story.state.phase is JobPhase.RUNNING, (night, story.state.reason)
    assert {each.kind for each in story.state.incidents} == {FindingKind.MEMBER_LOST}
    assert blamed(story) == set()
