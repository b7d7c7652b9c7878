"""What would bring a node back, and how one comes back that somebody repaired."""

import pytest
from story import JOB, Story, policy

from holdfast.api.condition import ConditionKind
from holdfast.api.event import FindingMade, JobSubmitted, NodeChanged
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.plan import NodeState
from holdfast.api.policy import XidAction
from holdfast.api.selftest import TestLevel
from holdfast.api.xid import CATALOGUE, Recovery, RecoveryAction
from holdfast.watchdog.brain.members import is_news
from holdfast.watchdog.brain.remedies import remedy_of
from holdfast.watchdog.brain.step import Pardon


def finding(kind: FindingKind, cause: str = "it", **fields: object) -> Finding:
    given = {"confidence": Confidence.CERTAIN, "began_at": 1000.0, "asks": XidAction.EVICT} | fields
    evidence = (Evidence("a sensor", cause, 1000.0),)
    return Finding(kind, Subject(JOB, node="node-2", gpu="GPU-7"), cause, evidence, **given)  # type: ignore[arg-type]


REMEDIES = {
    "XID 79": (finding(FindingKind.XID, "xid 79", xid=79), CATALOGUE[79].recovery),
    "an XID that nobody knows": (finding(FindingKind.XID, "xid 9999", xid=9999), Recovery.REBOOT_NODE),
    "what the driver asks for": (
        finding(FindingKind.XID, "xid 79", xid=79, recovery_action=RecoveryAction.GPU_RESET),
        Recovery.RESET_GPU,
    ),
    "a row that cannot be remapped": (
        finding(FindingKind.CONDITION, ConditionKind.ROW_REMAP_FAILED.value),
        Recovery.REPLACE,
    ),
    "a link": (finding(FindingKind.CONDITION, ConditionKind.NVLINK_DOWN.value), Recovery.RESET_GPU),
    "what a detector says itself": (
        finding(FindingKind.CONDITION, "node condition KernelDeadlock", remedy=Recovery.REBOOT_NODE),
        Recovery.REBOOT_NODE,
    ),
    "a condition of nobody": (finding(FindingKind.CONDITION, "node condition X"), Recovery.NOTHING),
    "a lost GPU": (finding(FindingKind.GPU_LOST), Recovery.REBOOT_NODE),
    "wrong arithmetic": (finding(FindingKind.SELF_TEST), Recovery.REPLACE),
    "heat": (finding(FindingKind.THERMAL), Recovery.NOTHING),
    "the job's own": (finding(FindingKind.NON_FINITE), Recovery.NOTHING),
}


@pytest.mark.parametrize(("found", "remedy"), REMEDIES.values(), ids=REMEDIES)
def test_what_was_found_says_what_would_help(found: Finding, remedy: Recovery) -> None:
    assert remedy_of(found) is remedy


def left() -> Story:
    """Three nodes and a spare; node-2 was left for a lost GPU."""
    story = Story(spares=1).join(1, 2, 3, 4).wait(2.0).run()
    story.tell(FindingMade(finding(FindingKind.GPU_LOST, "GPU lost")))
    return story


def repaired(story: Story, incident: str | None = None, state: NodeState = NodeState.READY) -> NodeChanged:
    (order,) = story.plan.cordon or (None,)
    assert order is not None
    return NodeChanged("node-2", state, remediated=order.incident or "" if incident is None else incident)


def test_the_plan_says_what_the_node_needs_and_which_gpu_is_at_fault() -> None:
    (order,) = left().plan.cordon
    assert (order.node, order.remedy, order.gpu) == ("node-2", Recovery.REBOOT_NODE, "GPU-7")


def test_a_node_that_was_repaired_comes_back_and_its_record_is_wiped() -> None:
    story = left()
    event = repaired(story)
    assert is_news(story.state, event)
    story.tell(event)
    assert story.plan.avoid == ()
    assert story.plan.returned == ("node-2",)
    assert [each.node for each in story.effects if isinstance(each, Pardon)] == ["node-2"]
    assert not is_news(story.state, event)


def test_a_repair_for_something_else_or_of_a_node_that_is_not_up_brings_nobody_back() -> None:
    story = left()
    for event in (repaired(story, "incident-99"), repaired(story, state=NodeState.NOT_READY)):
        story.tell(event)
        assert [each.node for each in story.plan.avoid] == ["node-2"]


def test_one_on_probation_is_told_so_until_it_is_over() -> None:
    story = left()
    story.tell(JobSubmitted(policy(spares=1, preflight=TestLevel.LIGHT)))
    story.tell(repaired(story))
    assert story.plan.trying == ("node-2",)
