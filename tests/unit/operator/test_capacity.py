"""Capacity that is asked for when pods find no place: once, for all of them, and as long as it is needed."""

from typing import Any

import msgspec
import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    UID,
    actions_of,
    document,
    job_object,
    observed,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Apply, CreatePod, Delete
from holdfast.operator.decide.capacity import ASK_ANEW_S, REQUEST, TEMPLATE, UNPLACED_S
from holdfast.operator.decide.observed import Capacity, Observed, Outcome
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    CapacityRequest,
    Metadata,
    Owned,
    OwnerReference,
    Pod,
    RequestStatus,
    text_of,
)

ASKS = msgspec.structs.replace(OPTIONS, capacity=Capacity.PROVISIONING_REQUEST)
FULL = "0/16 nodes are available: 16 Insufficient nvidia.com/gpu."
LATER = NOW + UNPLACED_S


def unplaced(ordinal: int, since: float = NOW) -> Pod:
    """A pod for which the scheduler has found no place since then."""
    return pod(
        ordinal,
        phase="Pending",
        node="",
        conditions=(Condition("PodScheduled", "False", "Unschedulable", FULL, text_of(since)),),
    )


def request(*conditions: Condition, name: str = "gpt") -> CapacityRequest:
    owner = (OwnerReference(UID, controller=True),)
    return CapacityRequest(Metadata(name, "research", owner_references=owner), RequestStatus(conditions))


def said(type_: str, status: str = "True", message: str = "", since: float = NOW) -> Condition:
    return Condition(type_, status, type_, message, text_of(since))


TEMPLATES = (Owned(Metadata("gpt", "research")),)


def short(*there: CapacityRequest, pods: tuple[Pod, ...] | None = None, **fields: Any) -> Observed:
    """Two pods run and two find no place."""
    given = (pod(0), pod(1), unplaced(2), unplaced(3)) if pods is None else pods
    return observed(
        pods=given, plan=plan(4), capacity=there, capacity_templates=TEMPLATES if there else (), **fields
    )


def asked(outcome: Outcome) -> list[dict[str, Any]]:
    """The manifests of what is asked for."""
    kinds = (REQUEST, TEMPLATE)
    return [each.manifest for each in actions_of(outcome, Apply) if each.manifest["kind"] in kinds]


def withdrawn(outcome: Outcome) -> list[str]:
    return [each.kind for each in actions_of(outcome, Delete) if each.kind in (REQUEST, TEMPLATE)]


def available(outcome: Outcome) -> tuple[str, str, str]:
    assert outcome.status is not None
    (found,) = [each for each in outcome.status["conditions"] if each["type"] == "CapacityAvailable"]
    return found["status"], found["reason"], found.get("message", "")


def test_pods_that_find_no_place_are_the_request_by_default() -> None:
    assert asked(reconcile(short(), OPTIONS, LATER)) == []


def test_a_request_is_made_of_the_jobs_own_pods_for_all_that_find_no_place() -> None:
    template, wanted = asked(reconcile(short(), ASKS, LATER))
    assert (template["kind"], template["metadata"]["name"]) == (TEMPLATE, "gpt")
    containers = template["template"]["spec"]["containers"]
    assert [each["name"] for each in containers] == ["trainer"]
    assert (wanted["apiVersion"], wanted["kind"]) == ("autoscaling.x-k8s.io/v1", REQUEST)
    assert wanted["spec"] == {
        "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "podSets": [{"count": 2, "podTemplateRef": {"name": "gpt"}}],
    }
    for manifest in (template, wanted):
        assert [each["uid"] for each in manifest["metadata"]["ownerReferences"]] == [UID]


def test_nothing_is_asked_for_before_the_pods_have_waited_a_moment() -> None:
    outcome = reconcile(short(), ASKS, NOW + 4.0)
    assert asked(outcome) == []
    assert outcome.requeue_after_s is not None
    assert outcome.requeue_after_s <= UNPLACED_S - 4.0


def test_it_is_asked_for_once() -> None:
    assert asked(reconcile(short(request()), ASKS, LATER)) == []
    assert withdrawn(reconcile(short(request()), ASKS, LATER + 1e6)) == []


def test_it_is_withdrawn_when_every_pod_has_its_place() -> None:
    outcome = reconcile(short(request(), pods=(pod(0), pod(1), pod(2), pod(3))), ASKS, LATER)
    assert withdrawn(outcome) == [REQUEST, TEMPLATE]


@pytest.mark.parametrize("over", ["Failed", "BookingExpired", "CapacityRevoked"])
def test_what_came_to_nothing_is_asked_for_anew_after_some_time(over: str) -> None:
    refused = request(said(over, message="out of resources"))
    waits = reconcile(short(refused), ASKS, NOW + ASK_ANEW_S - 1.0)
    assert withdrawn(waits) == []
    assert waits.requeue_after_s is not None
    assert waits.requeue_after_s <= 1.0
    assert withdrawn(reconcile(short(refused), ASKS, NOW + ASK_ANEW_S)) == [REQUEST, TEMPLATE]


def test_a_job_that_ends_is_deleted_or_suspended_needs_no_capacity() -> None:
    over = short(request(), report=report(JobPhase.SUCCEEDED))
    assert withdrawn(reconcile(over, ASKS, LATER)) == [REQUEST, TEMPLATE]
    gone = short(request(), job=job_object(deleted_at=NOW), report=report(JobPhase.SUSPENDED), pods=())
    assert withdrawn(reconcile(gone, ASKS, LATER)) == [REQUEST, TEMPLATE]
    still = observed(pods=(), plan=plan(0), capacity=(request(),), capacity_templates=TEMPLATES)
    assert withdrawn(reconcile(still, ASKS, LATER)) == [REQUEST, TEMPLATE]


WORDS = {
    "asked for": ((), "CapacityRequested", "asked for with ProvisioningRequest gpt"),
    "not found yet": (
        (said("Provisioned", "False", "no zone has 2 of them"),),
        "CapacityRequested",
        "asked for, and not found yet: no zone has 2 of them",
    ),
    "there": ((said("Provisioned"),), "CapacityProvisioned", "are there"),
    "refused": ((said("Failed", message="out of resources"),), "CapacityFailed", "refused: out of resources"),
    "over before the pods came": (
        (said("Provisioned"), said("BookingExpired", message="after 10 minutes")),
        "BookingExpired",
        "refused: after 10 minutes",
    ),
}


@pytest.mark.parametrize(("conditions", "reason", "words"), WORDS.values(), ids=WORDS)
def test_the_job_says_what_became_of_it(conditions: tuple[Condition, ...], reason: str, words: str) -> None:
    status, given, message = available(reconcile(short(request(*conditions)), ASKS, LATER))
    assert (status, given) == ("False", reason)
    assert message.startswith(f"2 of 4 pods find no place: Unschedulable: {FULL}")
    assert words in message


def test_without_a_request_it_says_that_pods_find_no_place() -> None:
    assert available(reconcile(short(), OPTIONS, LATER))[1] == "Unschedulable"


def test_pods_take_what_was_provisioned_and_ask_for_nothing_themselves() -> None:
    seen = observed(pods=(), plan=plan(1))
    (made,) = actions_of(reconcile(seen, ASKS, NOW), CreatePod)
    annotations = made.manifest["metadata"]["annotations"]
    assert annotations["autoscaling.x-k8s.io/consume-provisioning-request"] == "gpt"
    assert annotations["autoscaling.x-k8s.io/provisioning-class-name"] == ASKS.provisioning_class
    (plain,) = actions_of(reconcile(seen, OPTIONS, NOW), CreatePod)
    assert [each for each in plain.manifest["metadata"]["annotations"] if "autoscaling" in each] == []


def test_a_users_own_annotation_stays() -> None:
    template = document()["spec"]["template"]
    own = {"autoscaling.x-k8s.io/consume-provisioning-request": "mine"}
    given = document(template={**template, "metadata": {"annotations": own}})
    (made,) = actions_of(reconcile(observed(pods=(), plan=plan(1), spec=spec_of(given)), ASKS, NOW), CreatePod)
    assert made.manifest["metadata"]["annotations"]["autoscaling.x-k8s.io/consume-provisioning-request"] == "mine"
