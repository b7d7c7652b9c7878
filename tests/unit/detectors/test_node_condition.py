"""Conditions that others set on a node, from the operator's word to what is found."""

from signals import JOB, policy

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition
from holdfast.api.policy import XidAction
from holdfast.watchdog.detectors.condition import REPETITION_S
from holdfast.watchdog.detectors.detector import Heard, NodeNoted
from holdfast.watchdog.detectors.node_condition import NodeConditionDetector


def said(
    means: Meaning, *, since: str = "10:00", type_: str = "KernelDeadlock", part: FaultPart = FaultPart.KERNEL
) -> NodeCondition:
    return NodeCondition(type_, means, part, "DockerHung", "task docker:7 blocked", since)


class Told:
    """What the operator says of node n0, and what is found."""

    def __init__(self) -> None:
        self.detector = NodeConditionDetector(policy())

    def at(self, now: float, *conditions: NodeCondition, node: str = "n0") -> list[Finding]:
        return list(self.detector.observe(NodeNoted(node, conditions), now))


def test_a_condition_that_evicts_is_found_once_with_its_authors_words() -> None:
    told = Told()
    (finding,) = told.at(5.0, said(Meaning.EVICT))
    assert finding.kind is FindingKind.CONDITION
    assert finding.subject == Subject(JOB, node="n0")
    assert (finding.cause, finding.asks) == ("node condition KernelDeadlock", XidAction.EVICT)
    assert (finding.confidence, finding.own_rule) == (Confidence.PROBABLE, False)
    (evidence,) = finding.evidence
    assert evidence.source == "condition of node n0"
    assert evidence.says == "KernelDeadlock (DockerHung), about its kernel: task docker:7 blocked"
    assert told.at(6.0, said(Meaning.EVICT)) == []
    assert len(told.at(6.0, said(Meaning.EVICT), node="n1")) == 1


def test_one_that_was_raised_anew_is_found_again() -> None:
    told = Told()
    assert len(told.at(5.0, said(Meaning.EVICT))) == 1
    assert len(told.at(6.0, said(Meaning.EVICT, since="10:07"))) == 1
    assert told.at(7.0) == []
    assert len(told.at(8.0, said(Meaning.EVICT, since="10:07"))) == 1, "it was away, whatever its time says"


def test_one_without_a_time_is_found_once() -> None:
    told = Told()
    assert len(told.at(5.0, said(Meaning.EVICT, since=""))) == 1
    assert told.at(6.0, said(Meaning.EVICT, since="")) == []


def test_a_suspicion_is_reported_and_the_third_within_a_day_condemns() -> None:
    told = Told()
    asked = []
    for number in range(3):
        (finding,) = told.at(5.0 + number, said(Meaning.SUSPECT, since=f"10:0{number}"))
        asked.append(finding.asks)
    assert asked == [XidAction.WATCH, XidAction.WATCH, XidAction.EVICT]
    assert [each.at for each in finding.evidence] == [5.0, 6.0, 7.0]


def test_suspicions_of_several_days_condemn_nobody() -> None:
    told = Told()
    times = (0.0, REPETITION_S, 2 * REPETITION_S)
    found = [told.at(at, said(Meaning.SUSPECT, since=str(at)))[0].asks for at in times]
    assert found == [XidAction.WATCH] * 3


def test_what_is_evidence_only_or_maintenance_is_found_by_nobody_here() -> None:
    told = Told()
    assert told.at(5.0, said(Meaning.EVIDENCE)) == []
    assert told.at(5.0, said(Meaning.EVICT, part=FaultPart.MAINTENANCE)) == []
    assert told.detector.observe(Heard("m0"), 6.0) == ()
