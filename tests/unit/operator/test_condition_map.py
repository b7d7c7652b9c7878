"""Conditions that others set on nodes: what the map makes of them, and what becomes of the job's own node."""

import json
from typing import Any

import pytest
from operator_builders import NOW, OPTIONS, actions_of, node, nodes, observed, pod

from holdfast.api.errors import InvalidInput
from holdfast.api.jobstatus import Condition
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition
from holdfast.api.plan import NodeObserved, NodeState
from holdfast.operator.decide.action import CreatePod, Tell
from holdfast.operator.decide.conditionmap import DEFAULTS, OURS, TOLD_MAX, ConditionMap, read_rules
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import AVOIDS, Node, NodeStatus

SINCE = "2026-05-01T10:00:00Z"


def condition(type_: str, status: str = "True", reason: str = "Because", message: str = "it says so") -> Condition:
    return Condition(type_, status, reason, message, SINCE)


KNOWN = {
    "NPD's deadlock": (condition("KernelDeadlock", reason="DockerHung"), Meaning.EVICT, FaultPart.KERNEL),
    "NPD's read-only disk": (condition("ReadonlyFilesystem"), Meaning.SUSPECT, FaultPart.DISK),
    "NPD's restarts": (condition("FrequentKubeletRestart"), Meaning.EVIDENCE, FaultPart.RUNTIME),
    "NVSentinel's memory": (condition("GpuMemWatch"), Meaning.EVICT, FaultPart.MEMORY),
    "NVSentinel's XID": (condition("SysLogsXIDError"), Meaning.SUSPECT, FaultPart.GPU),
    "an XID by another name": (condition("GpuXidError"), Meaning.SUSPECT, FaultPart.GPU),
    "NVSentinel's links": (condition("GpuNvlinkWatch"), Meaning.EVICT, FaultPart.LINK),
    "AKS: a GPU is missing": (condition("GPUMissing"), Meaning.EVICT, FaultPart.GPU),
    "AKS: spot eviction": (condition("PreemptScheduled"), Meaning.EVICT, FaultPart.MAINTENANCE),
    "AKS: a freeze": (
        condition("VMEventScheduled", reason="FreezeScheduled"),
        Meaning.EVIDENCE,
        FaultPart.MAINTENANCE,
    ),
    "AKS: a reboot": (
        condition("VMEventScheduled", reason="RebootScheduled"),
        Meaning.EVICT,
        FaultPart.MAINTENANCE,
    ),
    "EKS: accelerators": (condition("AcceleratedHardwareReady", "False"), Meaning.EVICT, FaultPart.GPU),
    "the kubelet's": (condition("MemoryPressure"), Meaning.EVIDENCE, FaultPart.KERNEL),
}


@pytest.mark.parametrize(("said", "means", "part"), KNOWN.values(), ids=KNOWN)
def test_well_known_conditions_have_a_meaning(said: Condition, means: Meaning, part: FaultPart) -> None:
    told = ConditionMap().told([said])
    assert told == (NodeCondition(said.type, means, part, said.reason, "it says so", SINCE),)


WELL = {
    "no deadlock": condition("KernelDeadlock", "False", "KernelHasNoDeadlock"),
    "nobody knows": condition("GpuMemWatch", "Unknown"),
    "EKS: accelerators work": condition("AcceleratedHardwareReady", "True"),
    "not ready, which is seen otherwise": condition("Ready", "False"),
    "of nobody we know": condition("MyOwnCheck"),
    "our own": condition(OURS, "False"),
}


@pytest.mark.parametrize("said", WELL.values(), ids=WELL)
def test_what_is_well_or_of_no_rule_is_not_told(said: Condition) -> None:
    assert ConditionMap().told([said]) == ()


def test_an_installations_own_rules_come_first() -> None:
    own = read_rules(
        json.dumps(
            [
                {"type": "KernelDeadlock", "means": "ignore"},
                {"type": "My.*", "reason": "Fan.+", "status": "Unknown", "means": "evict", "part": "gpu"},
                {"type": ".*Healthy", "status": "False", "means": "evict"},
            ]
        )
    )
    fan = condition("MyCheck", "Unknown", "FanBroken")
    said = [condition("KernelDeadlock"), fan, condition("MyCheck", "Unknown", "Quiet"), condition(OURS, "False")]
    assert [(each.type, each.means, each.part) for each in own.told(said)] == [
        ("MyCheck", Meaning.EVICT, FaultPart.GPU)
    ]


WRONG = {
    "no JSON": ("[{", "--node-conditions", "JSON list"),
    "no list": ('{"type": "A"}', "--node-conditions", "JSON list"),
    "no meaning": ('[{"type": "A"}]', "--node-conditions[0]", "means"),
    "another meaning": ('[{"type": "A", "means": "reboot"}]', "--node-conditions[0]", "reboot"),
    "another field": ('[{"type": "A", "means": "evict", "node": "x"}]', "--node-conditions[0]", "node"),
    "no pattern": ('[{"type": "A[", "means": "evict"}]', "--node-conditions[0].type", "regular expression"),
    "no pattern of reasons": (
        '[{"type": "A", "reason": "(", "means": "evict"}]',
        "[0].reason",
        "regular expression",
    ),
    "another status": (
        '[{"type": "A", "status": "true", "means": "evict"}]',
        "[0].status",
        "True, False, Unknown",
    ),
    "Ready": ('[{"type": ".*", "means": "evict"}]', "[0].type", "leave out Ready"),
    "no type": ('[{"type": "", "means": "evict"}]', "[0].type", "empty fits nothing"),
    "our own": (
        '[{"type": "HoldfastHealthy", "status": "False", "means": "evict"}]',
        "[0].type",
        "sets it itself",
    ),
    "maintenance that is suspect": (
        '[{"type": "A", "means": "suspect", "part": "maintenance"}]',
        "[0].means",
        "nobody is to blame",
    ),
}


@pytest.mark.parametrize(("text", "field", "says"), WRONG.values(), ids=WRONG)
def test_a_wrong_rule_is_refused_by_name(text: str, field: str, says: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_rules(text)
    assert field in refused.value.problems[0].field
    assert says in str(refused.value)


def test_every_wrong_rule_is_told_at_once() -> None:
    with pytest.raises(InvalidInput) as refused:
        read_rules('[{"type": "A["}, {"type": "B", "means": "evict", "status": "No"}]')
    assert len(refused.value.problems) == 2


def test_every_default_says_where_it_is_from() -> None:
    assert [each.type for each in DEFAULTS if not each.source.startswith("https://")] == []


def test_a_node_with_very_many_conditions_tells_of_some() -> None:
    own = read_rules('[{"type": "X.*", "means": "evidence"}]')
    assert len(own.told([condition(f"X{number}") for number in range(5000)])) == TOLD_MAX


def seen(said: Condition) -> NodeObserved:
    """What the watchdog is told of a node of the job that says so."""
    sick = node("n1")
    there = {**nodes(), "n1": Node(sick.metadata, sick.spec, NodeStatus((*sick.status.conditions, said)))}
    outcome = reconcile(observed(nodes=there), OPTIONS, NOW)
    (told,) = [
        each.observed
        for each in actions_of(outcome, Tell)
        if getattr(each.observed, "node", "") == "n1" and isinstance(each.observed, NodeObserved)
    ]
    assert isinstance(told, NodeObserved)
    return told


def test_the_watchdog_is_told_of_the_conditions_of_the_jobs_nodes() -> None:
    told = seen(condition("KernelDeadlock"))
    assert told.state is NodeState.READY
    assert [each.cause for each in told.conditions] == ["node condition KernelDeadlock"]
    assert seen(condition("KernelDeadlock", "False")).conditions == ()


def test_a_node_that_is_about_to_be_taken_away_is_left_in_good_order() -> None:
    told = seen(condition("TerminateScheduled", message="in five minutes"))
    assert (told.state, told.reason) == (NodeState.DRAINING, "condition TerminateScheduled: in five minutes")


def avoided_by_new_pods(*said: Condition, **marked: Any) -> list[str]:
    """The nodes that a pod is kept away from which takes the place of another."""
    going = node("n1", **marked)
    there = {**nodes(), "n1": Node(going.metadata, going.spec, NodeStatus((*going.status.conditions, *said)))}
    outcome = reconcile(observed(nodes=there, pods=(pod(0),)), OPTIONS, NOW)
    (made,) = actions_of(outcome, CreatePod)
    return [each for each in made.manifest["metadata"]["annotations"].get(AVOIDS, "").split(",") if each]


def test_no_pod_goes_back_to_a_node_that_is_about_to_be_taken_away() -> None:
    """A condition is no taint: the scheduler would choose the node that was just left again and again."""
    assert avoided_by_new_pods() == []
    assert avoided_by_new_pods(condition("TerminateScheduled")) == ["n1"]
    assert avoided_by_new_pods(condition("TerminateScheduled"), unschedulable=True) == [], "that holds it off"
    assert avoided_by_new_pods(condition("TerminateScheduled", "False")) == []
    assert avoided_by_new_pods(condition("KernelDeadlock")) == [], "the watchdog decides about that"
