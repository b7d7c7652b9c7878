"""Pods for which no scheduler looks for a place: their gates hold them, or the scheduler failed at them."""

import msgspec
import pytest
from gang_cluster import GangCluster, Wanted
from operator_builders import NOW, OPTIONS, actions_of, after, observed, pending_pod, plan, pod

from holdfast.api.jobstatus import Condition
from holdfast.api.plan import PodState
from holdfast.operator.decide.action import Apply
from holdfast.operator.decide.admission import TURN_S
from holdfast.operator.decide.capacity import ASK_ANEW_S, REQUEST
from holdfast.operator.decide.observed import Capacity, Observed
from holdfast.operator.decide.pods import state_of, unschedulable, unschedulable_since
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import Gate, Pod, text_of

SAYS = "Scheduling is blocked due to non-empty scheduling gates"
LONG_AGO = NOW - 4 * TURN_S
UNDECIDED = ["SchedulingGated", "SchedulerError"]


def undecided(ordinal: int, *gates: str, reason: str = "SchedulingGated", says: str = SAYS) -> Pod:
    condition = Condition("PodScheduled", "False", reason, says, text_of(LONG_AGO))
    made = pod(ordinal, phase="Pending", node="", conditions=(condition,))
    spec = msgspec.structs.replace(made.spec, scheduling_gates=tuple(map(Gate, gates)))
    return msgspec.structs.replace(made, spec=spec)


def capacity_of(seen: Observed) -> tuple[str, str, str]:
    status = reconcile(seen, OPTIONS, NOW).status
    assert status is not None
    (found,) = [each for each in status["conditions"] if each["type"] == "CapacityAvailable"]
    return found["status"], found["reason"], found.get("message", "")


def test_the_status_says_which_gates_hold_how_many_pods() -> None:
    seen = observed(
        pods=(pod(0), undecided(1, "example.com/quota", "example.com/data"), undecided(2)), plan=plan(3)
    )
    says = "2 of 3 pods have no node yet, held by scheduling gates: example.com/quota, example.com/data"
    assert capacity_of(seen) == ("Unknown", "SchedulingGated", says)


def test_a_pod_that_finds_no_place_is_told_of_before_one_that_is_held() -> None:
    seen = observed(pods=(undecided(0, "example.com/quota"), pending_pod(1, "0/5 nodes")), plan=plan(2))
    assert capacity_of(seen) == ("False", "Unschedulable", "1 of 2 pods find no place: Unschedulable: 0/5 nodes")


def test_the_condition_is_over_with_the_gates() -> None:
    held = observed(pods=(pod(0), undecided(1, "example.com/quota")))
    assert capacity_of(after(held, pods=(pod(0), pod(1))))[:2] == ("True", "Scheduled")


def test_what_the_scheduler_failed_at_is_told_in_its_words() -> None:
    seen = observed(pods=(pod(0), undecided(1, reason="SchedulerError", says="running Bind plugin: timeout")))
    says = "1 of 2 pods have no node yet, the scheduler failed at it: running Bind plugin: timeout"
    assert capacity_of(seen) == ("Unknown", "SchedulerError", says)


@pytest.mark.parametrize(
    ("given", "says"),
    [
        (undecided(0, "a.example/x"), "SchedulingGated: held by scheduling gates: a.example/x"),
        (
            undecided(0, "kueue.x-k8s.io/admission", "b"),
            "SchedulingGated: held by scheduling gates: kueue.x-k8s.io/admission, b",
        ),
        (undecided(0, reason="SchedulerError", says="oh"), "SchedulerError: the scheduler failed at it: oh"),
    ],
)
def test_a_pod_that_is_held_is_told_of_as_such_and_not_as_one_without_a_place(given: Pod, says: str) -> None:
    assert state_of(given) == (PodState.PENDING, says)
    assert (unschedulable(given), unschedulable_since(given)) == (None, None)


@pytest.mark.parametrize("reason", UNDECIDED)
def test_no_node_is_asked_for_though_it_waits_for_ever(reason: str) -> None:
    asks = msgspec.structs.replace(OPTIONS, capacity=Capacity.PROVISIONING_REQUEST)
    seen = observed(pods=(pod(0), undecided(1, "example.com/quota", reason=reason)))
    outcome = reconcile(seen, asks, NOW + ASK_ANEW_S)
    assert [each for each in actions_of(outcome, Apply) if each.manifest["kind"] == REQUEST] == []


@pytest.mark.parametrize("reason", UNDECIDED)
def test_no_job_yields_to_one_that_is_held_and_it_yields_to_none(reason: str) -> None:
    jobs = {
        "held": Wanted(4, priority=1000, undecided=reason),
        "big": Wanted(9),
        "small": Wanted(3, created_at=1.0),
    }
    cluster = GangCluster(jobs, capacity=4)
    cluster.live_for(TURN_S)
    assert cluster.condition("held")["reason"] == "Admitted"
    assert len([name for name in cluster.pods if name.startswith("held-")]) == 4, "its pods stay"
    cluster.live_for(2 * TURN_S)
    assert cluster.running == {"small"}, "the two that want nodes take turns as if it were not there"
    assert cluster.condition("held")["reason"] == "Admitted", "nor does its turn end"
    assert not any(name.startswith("held-") for name in cluster.deleted)


def test_a_job_whose_gates_go_is_placed_like_any_other() -> None:
    cluster = GangCluster({"held": Wanted(2, undecided="SchedulingGated")}, capacity=4)
    cluster.live_for(TURN_S)
    assert cluster.running == set()
    cluster.wanted["held"].undecided = ""
    cluster.live_for(10.0)
    assert cluster.running == {"held"}
