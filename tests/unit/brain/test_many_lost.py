"""Many members are lost at once: one fault of nobody's, one round, and nobody is blamed."""

from story import JOB, Story, running

from holdfast.api.event import FindingMade
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import IncidentState, Rung
from holdfast.api.plan import PodState
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.plan import LOST_FOR_GOOD_S
from holdfast.watchdog.brain.reputation import Fleet, marked
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.rounds import GATHER_S
from holdfast.watchdog.brain.step import IncidentOpened


def gone(story: Story, *numbers: int) -> None:
    """As the detector tells of many."""
    subjects = tuple(Subject(JOB, node=f"node-{each}", member=f"node-{each}") for each in numbers)
    cause = "many members lost at once"
    evidence = (Evidence("connections", "closed", story.now),)
    story.tell(
        FindingMade(
            Finding(
                FindingKind.MEMBER_LOST,
                Subject(JOB),
                cause,
                evidence,
                Confidence.UNKNOWN,
                story.now,
                also=subjects,
            )
        )
    )


def test_spares_take_the_ranks_of_all_in_one_round() -> None:
    story = running(6, spares=4)
    before = story.round
    gone(story, 2, 3, 4)
    assert story.round.number == before.number + 1
    assert set(story.members).isdisjoint({"node-2", "node-3", "node-4"})
    assert len(story.members) == len(before.ranks)
    (action,) = story.incident.actions
    assert (action.rung, action.round) == (Rung.SWAP, story.round.number)
    story.run(2)
    assert story.incident.state is IncidentState.RECOVERED


def test_it_is_one_incident_without_a_culprit_that_leaves_no_mark() -> None:
    story = running(6)
    gone(story, 2, 3, 4)
    (incident,) = story.state.incidents
    assert (incident.culprit, incident.cause) == (Subject(JOB), "many members lost at once")
    assert story.state.suspicions == ()
    assert marked(Fleet(), incident) == Fleet()


def test_more_that_follow_join_the_incident() -> None:
    story = running(9, spares=6)
    gone(story, 1, 2, 3)
    story.now += GATHER_S
    gone(story, 4, 5, 6)
    story.wait(GATHER_S)
    assert len([each for each in story.effects if isinstance(each, IncidentOpened)]) == 1
    assert len(story.incident.evidence) == 2
    assert set(story.members) == {f"node-{each}" for each in range(7, 16)}


def test_the_pods_of_all_are_let_go_in_time() -> None:
    story = running(6, nodes_min=6)
    gone(story, 2, 3, 4)
    assert story.state.phase is JobPhase.RECOVERING
    assert set(story.state.missing) == {"node-2", "node-3", "node-4"}
    assert story.plan.release == ()
    story.wait(LOST_FOR_GOOD_S)
    assert story.plan.release == ("node-2", "node-3", "node-4")


def test_with_everybody_gone_no_pod_is_let_go_and_all_come_back_to_one_round() -> None:
    story = running(6, nodes_min=6)
    before = story.round.number
    gone(story, *range(1, 7))
    story.wait(LOST_FOR_GOOD_S)
    assert story.plan.release == ()
    story.join(*range(1, 7))
    assert len(story.members) == 6
    assert story.round.number > before
    story.run(2)
    assert story.incident.state is IncidentState.RECOVERED


def test_spares_among_them_are_only_replaced() -> None:
    story = running(3, spares=3)
    spares = sorted(set(story.state.members.by_name) - set(story.members))
    ranked = [each for each in story.members if each != "node-1"]
    numbers = [int(each.removeprefix("node-")) for each in (*spares[:2], *ranked[:1])]
    gone(story, *numbers)
    assert {*spares[:2]}.isdisjoint(story.state.members.by_name)
    assert set(story.state.missing) >= set(spares[:2])
    assert spares[2] in story.members, "the spare that is left takes the ranks"


def test_only_spares_open_no_incident() -> None:
    story = running(3, spares=3)
    before = story.round
    spares = sorted(set(story.state.members.by_name) - set(story.members))
    gone(story, *(int(each.removeprefix("node-")) for each in spares))
    assert story.round == before
    assert story.state.incidents == ()


def test_those_that_are_lost_already_are_not_lost_again() -> None:
    story = running(6, nodes_min=6)
    gone(story, 2, 3, 4)
    effects = len(story.effects)
    story.now += 1.0
    gone(story, 2, 3, 4)
    assert {each.name for each in story.state.members if each.standing is MemberState.LOST} == {
        "node-2",
        "node-3",
        "node-4",
    }
    assert len(story.state.incidents) == 1
    assert not any(isinstance(each, IncidentOpened) for each in story.effects[effects:])


def test_what_the_cluster_says_of_one_of_them_is_evidence() -> None:
    story = running(6, nodes_min=6)
    gone(story, 2, 3, 4)
    story.now += 1.0
    story.pod(3, PodState.GONE, "Evicted: the node was out of memory")
    assert "out of memory" in story.incident.evidence[-1].says
    assert len(story.state.incidents) == 1


def test_what_the_cluster_says_of_one_that_was_lost_before_is_no_evidence() -> None:
    story = running(6, nodes_min=6)
    story.lose(2)
    story.now += 1.0
    gone(story, 3, 4, 5)
    before = story.incident
    story.pod(2, PodState.GONE, "Evicted: the node was out of memory")
    assert story.incident.evidence == before.evidence


def test_the_only_one_with_ranks_is_named() -> None:
    story = running(3, spares=3)
    spares = [int(each.removeprefix("node-")) for each in set(story.state.members.by_name) - set(story.members)]
    gone(story, 2, *spares[:2])
    assert (story.incident.culprit.node, story.incident.confidence) == ("node-2", Confidence.PROBABLE)


def test_late_evidence_without_a_culprit_does_not_join_them() -> None:
    story = running(6, spares=3)
    old = story.round.number
    gone(story, 2, 3, 4)
    finding = Finding(FindingKind.HANG, Subject(JOB), "hang", (), Confidence.UNKNOWN, story.now, round=old)
    story.tell(FindingMade(finding))
    assert story.incident.kind is FindingKind.MEMBER_LOST
    assert len(story.incident.evidence) == 1
