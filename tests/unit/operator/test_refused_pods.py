"""Pods that a kubelet refused, or could not begin: the next one goes elsewhere for a while."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    actions_of,
    document,
    node,
    nodes,
    observed,
    pending_pod,
    plan,
    pod,
    spec_of,
)

from holdfast.api.jobstatus import Condition
from holdfast.operator.decide.action import CreatePod, DeletePod
from holdfast.operator.decide.observed import Observed
from holdfast.operator.decide.pods import FIRST_WAIT_S, REFUSED_S, crash_loop, ran_from_to, refused_by
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import AVOIDS, REFUSED_BY, Node, Pod, PodStatus, Taint, Terminated, text_of

REASONS = [
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "OutOfnvidia.com/gpu",
    "UnexpectedAdmissionError",
    "NodeAffinity",
    "TopologyAffinityError",
    "SMTAlignmentError",
    "NodeShutdown",
    "PodLevelResourcesNotSupported",
    "Evicted",
]


def refused(
    ordinal: int, reason: str = "OutOfcpu", *, at: float = NOW - 20, pended_s: float = 1.0, **fields: Any
) -> Pod:
    """As a kubelet leaves it: without a word of its containers."""
    conditions = (
        Condition("PodScheduled", "True", last_transition_time=text_of(at)),
        Condition("Ready", "False", "PodFailed", last_transition_time=text_of(at)),
    )
    made = pod(ordinal, created_at=at - pended_s, **fields)
    return msgspec.structs.replace(made, status=PodStatus("Failed", reason, "Pod was rejected: no", conditions))


def made(seen: Observed, now: float = NOW) -> list[dict[str, Any]]:
    return [dict(each.manifest) for each in actions_of(reconcile(seen, OPTIONS, now), CreatePod)]


def kept_from(manifest: dict[str, Any]) -> list[str]:
    """The host names that it is not to run on."""
    affinity = manifest["spec"]["affinity"].get("nodeAffinity")
    if affinity is None:
        return []
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    (away,) = [each for each in term["matchExpressions"] if each["key"] == "kubernetes.io/hostname"]
    assert away["operator"] == "NotIn"
    return list(away["values"])


@pytest.mark.parametrize("reason", REASONS)
def test_the_next_pod_keeps_away_from_the_node_that_refused_one(reason: str) -> None:
    (manifest,) = made(observed(pods=(refused(0, reason), pod(1))))
    assert kept_from(manifest) == ["n0"]
    annotations = manifest["metadata"]["annotations"]
    assert (annotations[REFUSED_BY], annotations.get(AVOIDS)) == ("n0", None)


def test_a_node_is_kept_away_from_by_the_label_of_its_host() -> None:
    there = {**nodes(), "n0": node("n0", labels={"kubernetes.io/hostname": "host-7"})}
    (manifest,) = made(observed(pods=(refused(0), pod(1)), nodes=there))
    assert kept_from(manifest) == ["host-7"]


def test_several_nodes_that_refused_are_all_kept_away_from() -> None:
    (first, second) = made(observed(pods=(refused(0), refused(1, "TopologyAffinityError"), pod(2)), plan=plan(3)))
    assert kept_from(first) == kept_from(second) == ["n0", "n1"]


@pytest.mark.parametrize(
    "given",
    [
        pod(0),
        pending_pod(0, "0/3 nodes"),
        pod(0, phase="Failed", ended=Terminated(1, "Error")),
        pod(0, phase="Failed", reason="Evicted", ended=Terminated(137, "Error")),
        refused(0, "DeadlineExceeded"),
        refused(0, node=""),
    ],
)
def test_what_ended_otherwise_was_refused_by_nobody(given: Pod) -> None:
    assert refused_by(given) == ""


def test_after_a_while_the_node_may_be_tried_again() -> None:
    seen = observed(pods=(refused(0), pod(1)))
    (manifest,) = made(seen, NOW - 20 + REFUSED_S)
    assert kept_from(manifest) == []
    outcome = reconcile(observed(pods=(refused(0), pod(1), pod(2)), plan=plan(2)), OPTIONS, NOW)
    assert outcome.requeue_after_s is not None
    assert outcome.requeue_after_s <= REFUSED_S


def waiting(ordinal: int, kept_away_from: str) -> Pod:
    given = pending_pod(ordinal, "0/16 nodes")
    annotations = {**given.metadata.annotations, REFUSED_BY: kept_away_from}
    return msgspec.structs.replace(
        given, metadata=msgspec.structs.replace(given.metadata, annotations=annotations)
    )


def deleted(seen: Observed, now: float) -> list[str]:
    return [each.name for each in actions_of(reconcile(seen, OPTIONS, now), DeletePod)]


def test_one_that_found_no_other_place_is_made_anew_when_the_node_may_be_tried_again() -> None:
    seen = observed(pods=(refused(0), pod(1), waiting(2, "n0")))
    assert deleted(seen, NOW) == []
    again_at = NOW - 20 + REFUSED_S
    assert deleted(seen, again_at) == ["gpt-2"]
    assert [kept_from(each) for each in made(seen, again_at)] == [[]]


def test_one_that_waits_already_is_left_alone_when_a_node_refuses_another() -> None:
    seen = observed(pods=(pending_pod(1, "0/16 nodes"), refused(0)), plan=plan(2))
    assert deleted(seen, NOW) == []


def test_the_pod_that_tells_of_a_refusal_is_kept_until_the_node_may_be_tried_again() -> None:
    later = tuple(pod(each, phase="Failed", ended=Terminated(1, "Error"), created_at=NOW) for each in range(2, 6))
    seen = observed(pods=(refused(0), pod(1), *later), plan=plan(1))
    assert "gpt-0" not in deleted(seen, NOW + 60)
    assert "gpt-0" in deleted(seen, NOW + REFUSED_S)


def test_a_pod_that_waited_for_hours_and_was_then_refused_is_a_quick_end_all_the_same() -> None:
    given = refused(0, at=NOW - 2, pended_s=7200.0)
    assert ran_from_to(given) == (NOW - 2, NOW - 2)
    newest = crash_loop((given,), NOW).newest
    assert newest is not None
    assert (newest.due, newest.says()) == (
        NOW - 2 + FIRST_WAIT_S,
        "gpt-0 ended 0 s after its start: OutOfcpu: Pod was rejected: no",
    )
    assert made(observed(pods=(given, pod(1)))) == [], "it is not made again without a pause"


NOT_READY = Taint("node.kubernetes.io/not-ready", "NoSchedule")


def stopped(*taints: Taint) -> dict[str, Node]:
    return {**nodes(), "n0": node("n0", ready="Unknown", taints=taints)}


def test_a_node_that_just_stopped_gets_no_pod_before_it_is_tainted() -> None:
    (manifest,) = made(observed(pods=(pod(1),), nodes=stopped()))
    assert kept_from(manifest) == ["n0"]
    (manifest,) = made(observed(pods=(pod(1),), nodes=stopped(NOT_READY)))
    assert kept_from(manifest) == [], "the scheduler knows"


def test_pods_that_tolerate_whatever_a_node_is_marked_with_keep_away_from_one_that_stopped() -> None:
    template = {
        "spec": {"containers": [{"name": "trainer", "image": "x"}], "tolerations": [{"operator": "Exists"}]}
    }
    spec = spec_of(document(template=template))
    (manifest,) = made(observed(spec=spec, pods=(pod(1),), nodes=stopped(NOT_READY)))
    assert kept_from(manifest) == ["n0"]


def test_one_that_waits_for_a_place_goes_on_waiting_when_the_stopped_node_is_tainted() -> None:
    pods = (pod(1), waiting(2, "n0"))
    assert deleted(observed(pods=pods, nodes=stopped()), NOW) == []
    assert deleted(observed(pods=pods, nodes=stopped(NOT_READY)), NOW) == []
    assert deleted(observed(pods=pods), NOW) == ["gpt-2"], "the node is back, and may have it"


@pytest.mark.parametrize("taints", [(), (NOT_READY,)])
def test_a_pod_whose_node_stopped_before_it_began_is_made_elsewhere(taints: tuple[Taint, ...]) -> None:
    seen = observed(pods=(pending_pod(0, node="n0"), pod(1)), nodes=stopped(*taints))
    assert deleted(seen, NOW) == ["gpt-0"]
    assert [each["metadata"]["name"] for each in made(seen)] == ["gpt-2"]


def test_one_whose_first_container_ran_stays_until_it_is_released() -> None:
    begun = pod(0, phase="Pending", runs_for_s=1.0)
    assert deleted(observed(pods=(begun, pod(1)), nodes=stopped()), NOW) == []
