from typing import Any

import pytest
from operator_builders import (
    NOW,
    OPTIONS,
    TEMPLATE,
    actions_of,
    document,
    ended_pod,
    job_object,
    node,
    nodes,
    observed,
    owned,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import (
    Delete,
    DeletePod,
    Forget,
    KubeEvent,
    RecordLast,
    SetFinalizer,
    Submit,
    Tell,
)
from holdfast.operator.decide.belongings import budget_of, service_of
from holdfast.operator.decide.observed import Observed, Outcome
from holdfast.operator.decide.reconcile import reconcile

JOB = job_object().metadata
STILL = report(JobPhase.SUSPENDED, generation=2)


def deleted(*, since_s: float = 1.0, status: dict[str, Any] | None = None, **fields: Any) -> Observed:
    """A running job that somebody deleted."""
    job = job_object(generation=2, deleted_at=NOW - since_s, status=status)
    return observed(**{"job": job, "spec": spec_of(document(generation=2)), **fields})


def decide(seen: Observed) -> Outcome:
    return reconcile(seen, OPTIONS, NOW)


def acted(outcome: Outcome) -> set[type]:
    return {type(action) for action in outcome.actions} - {Tell}


def test_a_deleted_job_is_suspended_first() -> None:
    outcome = decide(deleted())
    (submit,) = actions_of(outcome, Submit)
    assert (submit.policy.suspend, submit.policy.generation) == (True, 2)
    assert acted(outcome) == {Submit}
    assert outcome.requeue_after_s == 5.0
    assert actions_of(outcome, Tell) != []


def test_it_waits_for_the_last_checkpoint() -> None:
    outcome = decide(deleted(report=report(generation=2)))
    assert acted(outcome) == set()
    assert outcome.reason == "waiting for the last checkpoint"
    assert outcome.status is not None
    progressing = next(each for each in outcome.status["conditions"] if each["type"] == "Progressing")
    assert progressing["reason"] == "WindingUp"


@pytest.mark.parametrize("phase", [JobPhase.SUSPENDED, JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_a_still_job_loses_everything_that_belongs_to_it(phase: JobPhase) -> None:
    pods = (pod(0), pod(1, deleted=True), ended_pod(2))
    belongings = {"services": (owned(service_of(JOB)),), "budgets": (owned(budget_of(JOB, TEMPLATE)),)}
    outcome = decide(deleted(report=report(phase, generation=2), pods=pods, **belongings))
    assert [each.name for each in actions_of(outcome, DeletePod)] == ["gpt-0", "gpt-2"]
    assert [each.kind for each in actions_of(outcome, Delete)] == ["Service", "PodDisruptionBudget"]
    assert acted(outcome) == {DeletePod, Delete}


def test_a_job_without_pods_is_forgotten_and_then_let_go() -> None:
    outcome = decide(deleted(report=STILL, pods=()))
    told = RecordLast(KubeEvent("WoundUp", "the job is still; nothing is left"))
    assert outcome.actions == (told, Forget(), SetFinalizer(held=False)), "once it is let go nobody can tell"
    assert outcome.status is None
    service = owned(service_of(JOB))
    last = decide(deleted(report=STILL, pods=(), services=(service,)))
    assert last.actions == (Delete("Service", "gpt"), told, Forget(), SetFinalizer(held=False))


def test_a_job_that_the_watchdog_never_took_waits_for_nobody() -> None:
    for told in (report(generation=None, uid=""), report(uid="the-job-before")):
        outcome = decide(deleted(report=told, plan=plan(2)))
        assert acted(outcome) == {DeletePod}
        assert "does not know the job" in outcome.reason


def test_a_watchdog_that_says_nothing_of_the_job_yet_is_asked() -> None:
    outcome = decide(deleted(report=None, plan=None))
    assert acted(outcome) == {Submit}


@pytest.mark.parametrize(
    ("since_s", "away_s", "waits"), [(119, 500, True), (500, 119, True), (121, 121, False), (500, 120, False)]
)
def test_a_watchdog_that_is_away_is_waited_for_two_minutes(since_s: float, away_s: float, waits: bool) -> None:
    outcome = decide(deleted(since_s=since_s, heard_age_s=away_s))
    assert acted(outcome) == (set() if waits else {DeletePod})
    gone = decide(deleted(since_s=since_s, heard_age_s=away_s, pods=()))
    assert acted(gone) == (set() if waits else {RecordLast, SetFinalizer})
    said = [each.event for each in actions_of(gone, RecordLast)]
    assert all("no checkpoint was asked for" in each.message and each.warning for each in said)


def test_a_watchdog_that_decides_nothing_is_waited_for_no_longer_than_one_that_is_away() -> None:
    troubled = report(generation=2, trouble="the store is away")
    assert acted(decide(deleted(since_s=119, report=troubled))) == set()
    assert acted(decide(deleted(since_s=121, report=troubled))) == {DeletePod}


def test_no_wait_is_for_ever() -> None:
    endless = report(generation=2)
    assert acted(decide(deleted(since_s=599, report=endless))) == set()
    assert acted(decide(deleted(since_s=601, report=endless))) == {DeletePod}
    stuck = (pod(0, deleted=True, deletion_grace_s=30),)
    assert acted(decide(deleted(since_s=700, report=STILL, pods=stuck))) == set()
    let_go = decide(deleted(since_s=721, report=STILL, pods=stuck))
    assert acted(let_go) == {RecordLast, Forget, SetFinalizer}
    (said,) = actions_of(let_go, RecordLast)
    assert said.event.message == "the job is still; 1 pods that nobody can end are left to Kubernetes"


def test_a_refused_spec_cannot_be_suspended_and_does_not_hold_the_job() -> None:
    outcome = decide(deleted(spec=spec_of(document(nodes=4, generation=2))))
    assert acted(outcome) == {DeletePod}
    assert "the spec is refused" in outcome.reason


def test_a_template_that_is_refused_does_not_keep_a_job_from_its_last_checkpoint() -> None:
    outcome = decide(deleted(spec=spec_of(document(template={}, generation=2))))
    assert acted(outcome) == {Submit}


def test_pods_that_no_kubelet_can_end_are_removed_by_force() -> None:
    there = {**nodes(), "n0": node("n0", ready="Unknown")}
    pods = (pod(0), pod(1, deleted=True, deletion_grace_s=30, node="n99"), pod(2))
    outcome = decide(deleted(report=STILL, pods=pods, nodes=there))
    assert {each.name: each.grace_s for each in actions_of(outcome, DeletePod)} == {
        "gpt-0": 0,
        "gpt-2": None,
        "gpt-1": 0,
    }


def test_a_job_that_is_held_by_others_is_none_of_our_business() -> None:
    job = job_object(generation=2, deleted_at=NOW, finalizers=("other/finalizer",))
    outcome = decide(observed(job=job, pods=()))
    assert outcome.actions == ()


def test_an_ended_job_that_the_watchdog_forgot_is_let_go_at_once() -> None:
    status = {"phase": "Succeeded", "finishedAt": "2027-01-15T08:00:00Z"}
    outcome = decide(deleted(status=status, report=None, plan=None))
    assert acted(outcome) == {DeletePod}


def test_a_deletion_time_that_cannot_be_read_counts_from_now() -> None:
    seen = deleted()
    odd = type(seen.job.metadata)(
        "gpt", "research", JOB.uid, generation=2, deletion_timestamp="soon", finalizers=JOB.finalizers
    )
    outcome = decide(observed(job=type(seen.job)(odd), spec=seen.spec))
    assert acted(outcome) == {Submit}
