"""From what nodes report to what the job does, through the real detectors and the brain."""

import pytest
from story import JOB, Story, running

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import FindingMade
from holdfast.api.finding import Finding, FindingKind
from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.policy import XidAction
from holdfast.api.telemetry import GpuHealth, GpuSample, NodeReport, ParametersFingerprinted, XidRaised
from holdfast.watchdog.brain.step import Show
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Placed, Reported, RoundStarted, Sample

PCIE = ConditionKind.PCIE_DEGRADED


class Watched:
    """A story whose faults are found, not told."""

    def __init__(self, story: Story) -> None:
        self.story = story
        assert story.state.policy is not None
        self.detectors = detectors_for(story.state.policy)
        self.show(RoundStarted(story.round))

    def show(self, sample: Sample) -> None:
        for detector in self.detectors:
            subscribed = type(sample) in detector.subscribes_to
            for proof in detector.observe(sample, self.story.now) if subscribed else ():
                step = self.story.tell(FindingMade(proof) if isinstance(proof, Finding) else proof)
                if any(isinstance(effect, Show) for effect in step.effects) and self.story.state.round is not None:
                    self.show(RoundStarted(self.story.state.round))

    def report(self, node: int, **fields: object) -> None:
        self.show(Reported(NodeReport(f"node-{node}", "boot", 1, **fields)))  # type: ignore[arg-type]

    def condition(self, node: int, state: ConditionState) -> None:
        self.report(node, conditions=(Condition(PCIE, state, 0.0, "8 lanes", "GPU-0"),))

    def heat(self, seconds: int, *margins: float) -> None:
        """Every node reports one GPU with its margin once a second."""
        for _ in range(seconds):
            for number, margin in enumerate(margins, start=1):
                gpu = GpuSample(f"GPU-{number}", 0, GpuHealth.HEALTHY, margin_c=margin)
                self.report(number, gpus=(gpu,))
            self.story.wait(1.0)

    def fingerprint(self, step: int, *, wrong: int | None = None) -> None:
        for share in self.story.round.ranks:
            rank, value = share.first_rank, 7
            if rank == wrong:
                value = 8
            event = ParametersFingerprinted(self.story.round.number, rank, 0, step, value, 0.0)
            self.show(Reported(NodeReport(share.node, "boot", 1, events=(event,))))

    @property
    def incident(self) -> Incident:
        return self.story.state.incidents[-1]


def watched(nodes: int = 3, spares: int = 1) -> Watched:
    return Watched(running(nodes, spares=spares, step=50, commit=20))


def test_a_node_whose_link_is_degraded_is_swapped_and_comes_back_when_it_is_over() -> None:
    job = watched()
    job.condition(2, ConditionState.RAISED)
    assert job.story.state.avoided_nodes == {"node-2"}
    assert (job.incident.kind, job.incident.cause, job.incident.rung) == (
        FindingKind.CONDITION,
        "PcieDegraded",
        Rung.SWAP,
    )
    assert job.incident.culprit.gpu == "GPU-0"
    job.condition(2, ConditionState.CLEARED)
    assert job.story.state.avoided_nodes == set()


def test_a_hot_gpu_in_a_cool_rack_has_its_node_swapped() -> None:
    job = watched()
    for number in range(1, 5):
        job.show(Placed(f"node-{number}", "r1"))
    job.heat(75, 20.0, 1.0, 20.0, 20.0)
    assert job.story.state.avoided_nodes == {"node-2"}
    assert (job.incident.kind, job.incident.cause) == (FindingKind.THERMAL, "GPU hot")


def test_a_hot_rack_is_reported_and_nothing_is_changed() -> None:
    job = watched()
    shown = job.story.round.number
    for number in range(1, 5):
        job.show(Placed(f"node-{number}", "r1"))
    job.heat(90, 1.0, 1.0, 1.0, 2.0)
    assert job.story.state.avoided_nodes == set()
    assert job.story.round.number == shown
    assert (job.incident.cause, job.incident.state) == ("rack hot", IncidentState.RECOVERED)


def test_a_replica_that_differs_leaves_and_what_was_agreed_on_is_restored() -> None:
    job = watched()
    job.fingerprint(30)
    assert job.story.state.verified_step == 30
    job.fingerprint(40, wrong=1)
    assert (job.incident.kind, job.incident.rung) == (FindingKind.CORRUPTION, Rung.REWIND)
    assert job.story.state.avoided_nodes == {job.incident.culprit.node}
    assert job.story.round.restore.step == 20
    assert job.incident.job == JOB


def test_an_xid_acts_as_the_detector_decided() -> None:
    """A fatal NVLink 5 error: its status words ask for more than the catalogue's row, which only watches."""
    watched = Watched(running(3, spares=1))
    fatal = XidRaised("GPU-0", 149, 0.0, link_fault=LinkFault("NETIR_LINK_EVT", "Fatal", 8, 0x004505C6, 0))
    watched.report(2, events=(fatal,))
    assert watched.story.members == ["node-1", "node-4", "node-3"]
    watched = Watched(running(3, spares=1, xid_actions={149: XidAction.RESTART}))
    watched.report(2, events=(fatal,))
    assert (watched.incident.rung, watched.story.round.fresh_ranks) == (Rung.RESPAWN, (1,))


@pytest.mark.parametrize(
    ("asks", "rung"),
    [(XidAction.RESTART, Rung.RESPAWN), (XidAction.EVICT, Rung.SWAP), (None, Rung.SWAP)],
    ids=["restart", "evict", "of an older journal"],
)
def test_the_ladder_looks_an_xid_up_nowhere_else(asks: XidAction | None, rung: Rung) -> None:
    """79 evicts by the catalogue, and is overridden to be ignored: neither is looked at again."""
    story = running(3, spares=1, xid_actions={79: XidAction.IGNORE})
    story.find(FindingKind.XID, 2, cause="xid 79", xid=79, round=None, asks=asks)
    assert story.incident.rung is rung
