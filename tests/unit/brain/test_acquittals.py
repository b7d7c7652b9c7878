"""Whose pod was ended by somebody, or by its own limit, was on a node that had no part in it."""

import pytest
from story import Story, running

from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.plan import NodeState, PodEnd, PodState
from holdfast.watchdog.brain.ladder import LOSSES_THAT_CONDEMN
from holdfast.watchdog.brain.reputation import Fleet, marked
from holdfast.watchdog.brain.step import IncidentClosed, IncidentOpened, IncidentUpdated

CAUSES = {
    PodEnd.OWN_LIMIT: "the pod was ended for its own limit of memory or storage",
    PodEnd.DELETED: "the pod was deleted by somebody",
    PodEnd.DISPLACED: "the pod was preempted or evicted by somebody",
}

DELETED = (1, PodState.GONE, "the pod was deleted", PodEnd.DELETED)


def marks_of(story: Story) -> Fleet:
    """What all jobs together hold against nodes, after all that this job told."""
    fleet = Fleet()
    for effect in story.effects:
        if isinstance(effect, IncidentOpened | IncidentUpdated | IncidentClosed):
            fleet = marked(fleet, effect.incident)
    return fleet


def holds_nothing(story: Story) -> bool:
    return not marks_of(story).marks and not story.state.suspicions and not story.state.avoided


@pytest.mark.parametrize("end", list(PodEnd))
def test_a_pod_that_is_known_to_be_ended_before_its_connection_breaks_is_held_against_nobody(end: PodEnd) -> None:
    story = running(2, spares=1).pod(1, PodState.GONE, "it", end).lose(1)
    assert (story.incident.cause, story.incident.innocent) == (CAUSES[end], True)
    assert story.incident.blamed == "pod node-1"
    assert set(story.members) == {"node-2", "node-3"}
    assert "node-1" not in {each.node for each in story.state.avoided}
    assert holds_nothing(story)


@pytest.mark.parametrize("end", list(PodEnd))
def test_what_a_loss_was_held_for_is_taken_back_when_the_pods_end_is_told_later(end: PodEnd) -> None:
    story = running(2, spares=1).lose(1)
    assert not holds_nothing(story)
    story.now += 5
    story.pod(1, PodState.GONE, "gone", end)
    assert len(story.state.incidents) == 1
    assert (story.incident.cause, story.incident.note) == (CAUSES[end], "first judged connection closed")
    assert story.incident.timeline[-1].what == f"{CAUSES[end]}: node node-1 had no part in it"
    assert holds_nothing(story)


def test_so_it_is_when_its_incident_is_over() -> None:
    story = running(2, spares=1).lose(1).run(60, restored=40)
    assert story.incident.state is IncidentState.RECOVERED
    story.pod(1, PodState.GONE, "OOMKilled (exit code 137)", PodEnd.OWN_LIMIT)
    assert (story.incident.state, story.incident.innocent) == (IncidentState.RECOVERED, True)
    assert holds_nothing(story)


def test_how_the_pod_ended_stays_as_evidence() -> None:
    story = running(2, spares=1).lose(1).pod(1, PodState.GONE, "OOMKilled (exit code 137)", PodEnd.OWN_LIMIT)
    assert any("OOMKilled (exit code 137)" in each.says for each in story.incident.evidence)


def lost_again_and_again(times: int, end: PodEnd | None) -> Story:
    """The same node loses its member so often, and gets the next each time; another node is there beside it."""
    story = running(2, nodes_min=2)
    for number in range(times):
        story.lose(1).pod(1, PodState.GONE, "gone", end)
        story.join(1, boot=f"b{number}").run(story.state.high_step + 10, restored=40)
    return story.join(3)


def test_pods_that_people_delete_evict_no_node() -> None:
    assert holds_nothing(lost_again_and_again(LOSSES_THAT_CONDEMN, PodEnd.DELETED).lose(1).pod(*DELETED))
    assert "node-1" in lost_again_and_again(LOSSES_THAT_CONDEMN - 1, None).lose(1).state.avoided_nodes


def test_a_node_that_was_evicted_for_a_loss_it_had_no_part_in_is_returned_and_the_others_count() -> None:
    story = lost_again_and_again(LOSSES_THAT_CONDEMN - 1, None).lose(1)
    assert "node-1" in story.state.avoided_nodes
    story.pod(1, PodState.GONE, "OOMKilled", PodEnd.OWN_LIMIT)
    assert "node-1" not in story.state.avoided_nodes
    assert "node-1" in story.plan.returned
    assert len(story.state.suspicions) == len(marks_of(story).marks["node-1"]) == LOSSES_THAT_CONDEMN - 1


@pytest.mark.parametrize("seen", [NodeState.NOT_READY, NodeState.GONE])
@pytest.mark.parametrize("end", [PodEnd.DELETED, PodEnd.DISPLACED])
def test_a_node_that_died_is_not_excused_by_whoever_deletes_its_pods(seen: NodeState, end: PodEnd) -> None:
    story = (
        running(2, spares=1).lose(1).node(1, seen, "the kubelet is silent").pod(1, PodState.GONE, "deleted", end)
    )
    assert not story.incident.innocent
    assert marks_of(story).marks["node-1"]


def test_a_member_that_fell_silent_is_not_excused_by_whoever_deletes_its_pod() -> None:
    story = running(2, spares=1).find(
        FindingKind.MEMBER_LOST, 1, cause="silent for 3.0 s", confidence=Confidence.PROBABLE
    )
    story.pod(*DELETED)
    assert not story.incident.innocent
    assert len(story.state.suspicions) == 1


def test_a_pod_that_holdfast_itself_lets_go_excuses_nobody() -> None:
    story = running(2, spares=1).lose(1).run(60, restored=40)
    assert "node-1" in story.plan.release
    story.pod(*DELETED)
    assert not story.incident.innocent


def test_a_loss_from_which_the_member_came_back_stands_when_its_pod_is_deleted_much_later() -> None:
    story = running(2, spares=1).lose(1).join(1).run(60, restored=40)
    story.wait(3000).pod(*DELETED)
    assert [each.innocent for each in losses(story)] == [False]


def losses(story: Story) -> list[Incident]:
    return [each for each in story.state.incidents if each.kind is FindingKind.MEMBER_LOST]


def test_a_gpu_that_fell_off_the_bus_is_not_excused_by_the_end_of_the_pod() -> None:
    story = running(2, spares=1).find(FindingKind.GPU_LOST, 1, cause="xid 79").lose(1)
    story.pod(*DELETED)
    assert story.incident.kind is FindingKind.GPU_LOST
    assert not story.incident.innocent


def test_proof_that_comes_after_the_excuse_counts() -> None:
    story = running(2, spares=1).pod(*DELETED)
    story.find(FindingKind.GPU_LOST, 1, cause="GPU lost")
    assert [each.weight for each in marks_of(story).marks["node-1"]] == [2.0]


def of_its_own_limit(story: Story, node: int) -> Story:
    """The agent's word of why the worker died, in the round that is over by now."""
    cause = "out of memory: the pod's own limit"
    return story.die(node, cause=cause, innocent=True, round=story.incident.round)


@pytest.mark.parametrize("is_over", [False, True], ids=["in its round", "when the round is over"])
def test_what_a_death_was_held_for_is_taken_back_when_the_kernel_names_the_pods_own_limit(is_over: bool) -> None:
    story = running(2, spares=1).die(1, cause="signal 9 (SIGKILL)")
    assert not holds_nothing(story)
    if not is_over:
        story.now += 0.1
    of_its_own_limit(story, 1)
    assert (story.incident.cause, story.incident.innocent) == ("out of memory: the pod's own limit", True)
    assert len(story.state.incidents) == 1
    assert holds_nothing(story)


def test_a_pod_that_reaches_its_own_limit_a_second_time_keeps_its_node() -> None:
    story = running(2, spares=1)
    for step in (10, 20):
        of_its_own_limit(story.run(step).die(1, cause="signal 9 (SIGKILL)", began_at=story.now), 1)
        story.now += 60
    assert len(story.state.incidents) == 2
    assert holds_nothing(story)
