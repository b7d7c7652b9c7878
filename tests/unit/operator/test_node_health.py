"""What is proved of a node, as a condition of it: who says it, when it is taken back, and by whom."""

from collections.abc import Mapping

import msgspec
import pytest
from operator_builders import JOB_ID, NOW, OPTIONS, actions_of, node, nodes, observed, order, plan

from holdfast.api.jobstatus import Condition
from holdfast.api.plan import Plan
from holdfast.api.xid import Recovery
from holdfast.operator.decide.action import Cordon, SetNodeHealth
from holdfast.operator.decide.conditionmap import OURS
from holdfast.operator.decide.nodehealth import returned_health, told_health
from holdfast.operator.decide.observed import Cordoning, HandOn, Mode, Options
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import Node, NodeStatus, text_of

SICK = plan(cordon=(msgspec.structs.replace(order("n1"), remedy=Recovery.RESET_GPU),))
TELLS = msgspec.structs.replace(OPTIONS, hand_on=HandOn.CONDITION)
LATER = NOW + 3600.0


def said(health: SetNodeHealth, name: str = "n1") -> Node:
    """The node as it is once that is written."""
    healthy = node(name)
    written = Condition(OURS, health.status, health.reason, health.message, health.since)
    return Node(healthy.metadata, healthy.spec, NodeStatus((*healthy.status.conditions, written)))


def told(
    wanted: Plan, there: Mapping[str, Node], *, job: str = JOB_ID, now: float = NOW
) -> tuple[SetNodeHealth, ...]:
    return told_health(job, wanted, there, {}, now)


def faulty(job: str = JOB_ID) -> SetNodeHealth:
    (health,) = told(SICK, nodes(), job=job)
    return health


def test_a_node_that_is_taken_out_for_an_incident_is_unhealthy_and_says_why() -> None:
    health = faulty()
    assert (health.node, health.status, health.reason) == ("n1", "False", "NeedsGpuReset")
    assert health.message == f"XID 79 (TrainingJob {JOB_ID}, incident-1)"
    assert health.since == text_of(NOW)
    assert told(SICK, {"n1": said(health)}, now=LATER) == ()


NEEDS = {
    Recovery.REBOOT_NODE: "NeedsReboot",
    Recovery.REPLACE: "NeedsReplacement",
    Recovery.NOTHING: "Faulty",
    Recovery.RESTART_PROCESS: "Faulty",
}


@pytest.mark.parametrize(("remedy", "reason"), NEEDS.items(), ids=NEEDS)
def test_the_reason_says_what_the_node_needs(remedy: Recovery, reason: str) -> None:
    (health,) = told(plan(cordon=(msgspec.structs.replace(order("n1"), remedy=remedy),)), nodes())
    assert health.reason == reason


def test_a_node_that_is_back_is_unknown_on_probation_and_well_once_it_is_trusted() -> None:
    out = {"n1": said(faulty())}
    (probation,) = told(plan(returned=("n1",), trying=("n1",)), out, now=LATER)
    assert (probation.status, probation.reason, probation.since) == ("Unknown", "OnProbation", text_of(LATER))
    assert told(plan(returned=("n1",), trying=("n1",)), {"n1": said(probation)}, now=LATER + 1) == ()
    (trusted,) = told(plan(returned=("n1",)), {"n1": said(probation)}, now=LATER + 1)
    assert (trusted.status, trusted.reason) == ("True", "Trusted")
    assert told(plan(returned=("n1",)), {"n1": said(trusted)}, now=LATER + 2) == ()


def test_another_text_of_the_same_status_keeps_its_time() -> None:
    (other,) = told(plan(cordon=(order("n1", "XID 95"),)), {"n1": said(faulty())}, now=LATER)
    assert (other.status, other.since) == ("False", text_of(NOW))


def test_a_remediation_that_failed_is_told_with_it() -> None:
    (health,) = told_health(JOB_ID, SICK, nodes(), {"n1": "the GPU does not answer"}, NOW)
    assert health.message.startswith("XID 79; its remediation failed: the GPU does not answer (")


def test_what_another_job_says_is_neither_overwritten_nor_taken_back() -> None:
    others = {"n1": said(faulty("research/other"))}
    assert told(SICK, others) == ()
    assert told(plan(returned=("n1",)), others) == ()
    assert returned_health(JOB_ID, others["n1"], NOW) is None
    health = returned_health("research/other", others["n1"], NOW)
    assert health is not None
    assert health.status == "True"


def test_a_node_that_was_only_returned_or_is_gone_says_nothing() -> None:
    assert told(plan(returned=("n1",)), nodes()) == ()
    assert told(SICK, {}) == ()


def test_what_somebody_wrote_by_hand_is_nobodys_word() -> None:
    healthy = node("n1")
    by_hand = Condition(OURS, "False", "Mine", "hands off (TrainingJob", text_of(NOW))
    there = {"n1": Node(healthy.metadata, healthy.spec, NodeStatus((by_hand,)))}
    assert told(plan(returned=("n1",)), there) == ()


HANDED = {
    "as it is by default": (OPTIONS, 0),
    "as a condition": (TELLS, 1),
    "where others cordon": (msgspec.structs.replace(TELLS, cordoning=Cordoning.CONSUME), 1),
    "where it only observes": (msgspec.structs.replace(TELLS, mode=Mode.OBSERVE), 0),
}


@pytest.mark.parametrize(("options", "count"), HANDED.values(), ids=HANDED)
def test_it_is_told_where_an_installation_wants_that(options: Options, count: int) -> None:
    outcome = reconcile(observed(plan=SICK), options, NOW)
    assert len(actions_of(outcome, SetNodeHealth)) == count
    cordons = len(actions_of(outcome, Cordon))
    assert cordons == (options.cordoning is Cordoning.OWN and options.mode is Mode.ACT)
