"""What a job does when it is told that faults gather behind a place: it says so, and prefers other nodes."""

from story import JOB, Story, running

from holdfast.api.event import FaultsGathered, FindingMade, NodeChanged
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.place import FaultFamily, Gathering, Place
from holdfast.api.plan import NodeState

LEAF = Place("switch", "leaf-1")
GATHERING = Gathering(LEAF, FaultFamily.NETWORK, 6, 12, 0.05, 1e-4, ("node-1", "node-2"))


def behind(job: Story, *nodes: str) -> None:
    for node in nodes:
        job.tell(NodeChanged(node, NodeState.READY, places=(LEAF,)))


def find(job: Story, kind: FindingKind, node: str) -> None:
    evidence = (Evidence("test", "it was seen", job.now),)
    subject = Subject(JOB, node=node, member=node)
    job.tell(FindingMade(Finding(kind, subject, "it", evidence, Confidence.PROBABLE, job.now)))


def test_incidents_of_nodes_behind_it_say_so_whether_they_were_open_or_come_later() -> None:
    job = running(4)
    behind(job, "node-1", "node-2")
    find(job, FindingKind.HANG, "node-1")
    job.tell(FaultsGathered((GATHERING,)))
    (first,) = job.state.incidents
    assert first.evidence[-1].says == GATHERING.says
    assert first.timeline[-1].what == GATHERING.says
    find(job, FindingKind.HANG, "node-2")
    assert job.state.incidents[-1].evidence[-1].says == GATHERING.says
    job.tell(FaultsGathered((GATHERING,)))  # told again, it is not written again
    assert [each.says for each in job.state.incidents[0].evidence].count(GATHERING.says) == 1
    assert job.state.avoided == ()


def test_other_nodes_and_other_faults_are_not_told_of() -> None:
    job = running(4)
    behind(job, "node-1")
    job.tell(FaultsGathered((GATHERING,)))
    find(job, FindingKind.HANG, "node-3")
    find(job, FindingKind.THERMAL, "node-1")
    assert all(each.source != "the fleet" for incident in job.state.incidents for each in incident.evidence)


def test_a_node_that_is_gone_is_behind_nothing() -> None:
    job = running(4)
    behind(job, "node-1")
    job.tell(NodeChanged("node-1", NodeState.GONE))
    assert job.state.places == {}


def test_of_two_spares_the_one_behind_another_switch_is_given_ranks() -> None:
    job = running(2, spares=2)
    first, second = (
        each.node for each in sorted(job.state.spares(), key=lambda each: (each.joined_at, each.name))
    )
    behind(job, first)
    job.tell(FaultsGathered((GATHERING,)))
    find(job, FindingKind.GPU_LOST, "node-1")
    assert second in {share.node for share in job.round.ranks}
    assert first not in {share.node for share in job.round.ranks}
