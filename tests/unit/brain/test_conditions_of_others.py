"""A node left for what others say of it comes back when they say so no more, by way of its tests."""

import pytest
from story import JOB, Story, policy

from holdfast.api.event import FindingMade, JobSubmitted, NodeChanged
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.plan import NodeState
from holdfast.api.policy import CordonOn, XidAction
from holdfast.api.selftest import TestLevel
from holdfast.watchdog.brain.members import is_news

DEADLOCK = "node condition KernelDeadlock"


def raised(story: Story, cause: str = DEADLOCK) -> None:
    finding = Finding(
        kind=FindingKind.CONDITION,
        subject=Subject(JOB, node="node-2"),
        cause=cause,
        evidence=(Evidence("condition of node node-2", cause, story.now),),
        confidence=Confidence.PROBABLE,
        began_at=story.now,
        asks=XidAction.EVICT,
    )
    story.tell(FindingMade(finding))


def left() -> Story:
    """Three nodes and a spare; node-2 was left for what its problem detector said."""
    story = Story(spares=1).join(1, 2, 3, 4).wait(2.0).run()
    raised(story)
    assert [each.node for each in story.plan.cordon] == ["node-2"]
    return story


def changed(*holding: str, state: NodeState = NodeState.READY) -> NodeChanged:
    return NodeChanged("node-2", state, holding=holding)


def test_it_comes_back_once_the_condition_is_over() -> None:
    story = left()
    story.tell(changed(DEADLOCK))
    assert [each.node for each in story.plan.avoid] == ["node-2"]
    assert is_news(story.state, changed())
    story.tell(changed())
    assert story.plan.avoid == ()
    assert story.plan.returned == ("node-2",)
    assert not is_news(story.state, changed())


def test_it_is_tested_first_where_the_policy_tests() -> None:
    story = left()
    story.tell(JobSubmitted(policy(spares=1, preflight=TestLevel.LIGHT)))
    story.tell(changed())
    assert "node-2" in story.state.probation


def test_another_condition_that_is_over_brings_nobody_back() -> None:
    story = left()
    story.tell(changed(DEADLOCK, "node condition ReadonlyFilesystem"))
    story.tell(changed(DEADLOCK))
    assert [each.node for each in story.plan.avoid] == ["node-2"]


def test_what_nobody_can_see_is_not_over() -> None:
    story = left()
    story.tell(NodeChanged("node-2", NodeState.UNKNOWN, "no node can be seen"))
    story.tell(NodeChanged("node-2", NodeState.NOT_READY, "kubelet is silent"))
    assert [each.node for each in story.plan.avoid] == ["node-2"]


def test_a_condition_that_comes_and_goes_does_not_use_up_the_budget_for_real_faults() -> None:
    story = left()
    for _ in range(2):
        story.tell(changed())
        assert story.plan.avoid == ()
        story.wait(60.0).join(2).run()
        raised(story)
        assert [each.node for each in story.plan.avoid] == ["node-2"]
    story.tell(changed())
    assert [each.node for each in story.plan.avoid] == ["node-2"], "left for the third time within a day"
    assert not is_news(story.state, changed())
    story.tell(NodeChanged("node-2", NodeState.READY, remediated=story.plan.cordon[0].incident or ""))
    assert story.plan.avoid == (), "somebody repaired it"


CAUSES = {
    "SysLogsXIDError": False,  # by a kernel of the job's own
    "XIDErrors": False,
    "GpuXid13": False,
    "MemoryPressure": False,
    "KubeletUnhealthy": False,
    "SysLogsSXIDError": True,  # by a switch
    "SysLogsGPUFallenOff": True,
    "KernelDeadlock": True,
}


@pytest.mark.parametrize(("kind", "for_all"), CAUSES.items(), ids=CAUSES)
def test_what_a_job_can_have_others_say_takes_the_node_from_no_other_tenant(kind: str, for_all: bool) -> None:
    story = Story(spares=1, cordon_on=CordonOn.SENSORS).join(1, 2, 3, 4).wait(2.0).run()
    raised(story, f"node condition {kind}")
    assert [each.node for each in story.plan.avoid] == ["node-2"]
    assert [each.node for each in story.plan.cordon] == ["node-2"][: int(for_all)]
