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
    order,
    owned,
    plan,
    pod,
    report,
    spec_of,
)

from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Cordon, CreatePod, Delete, DeleteJob, DeletePod, Submit, Tell, Uncordon
from holdfast.operator.decide.belongings import budget_of
from holdfast.operator.decide.observed import Cordoning, Mode, Observed, Options, Outcome
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import text_of

DAY_S = 86_400.0


def ended(phase: JobPhase = JobPhase.SUCCEEDED, *, since_s: float | None = None, **fields: Any) -> Observed:
    """A job that ended; `since_s` ago where that was written down."""
    status = (
        {} if since_s is None else {"phase": phase.value, "finishedAt": text_of(NOW - since_s), "podsCreated": 2}
    )
    given = {"job": job_object(status=status), "report": report(phase, reason="every rank finished")}
    return observed(**{**given, **fields})


def decide(seen: Observed, options: Options = OPTIONS) -> Outcome:
    return reconcile(seen, options, NOW)


def acted(outcome: Outcome) -> set[type]:
    return {type(action) for action in outcome.actions} - {Tell}


@pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])
def test_pods_of_an_ended_job_end_by_themselves_and_are_not_replaced(phase: JobPhase) -> None:
    pods = (pod(0), ended_pod(1, exit_code=phase is JobPhase.FAILED))
    outcome = decide(ended(phase, pods=pods, plan=plan(4)))
    assert acted(outcome) == set()
    assert outcome.requeue_after_s == pytest.approx(60.0)
    assert outcome.status is not None
    assert (outcome.status["phase"], outcome.status["finishedAt"]) == (phase.value, text_of(NOW))
    assert [each.reason for each in outcome.events if each.reason in ("Succeeded", "Failed")] == [phase.value]


def test_logs_of_an_ended_job_stay_whatever_their_number() -> None:
    outcome = decide(ended(since_s=1000.0, pods=tuple(ended_pod(number, exit_code=0) for number in range(9))))
    assert acted(outcome) == set()


def test_what_still_runs_a_minute_after_the_end_is_removed() -> None:
    pods = (pod(0), pod(1, deleted=True), ended_pod(2), pod(3, deleted=True, deletion_grace_s=30, node="n99"))
    assert acted(decide(ended(since_s=59.0, pods=pods[:3]))) == set()
    outcome = decide(ended(since_s=60.0, pods=pods))
    assert {each.name: each.grace_s for each in actions_of(outcome, DeletePod)} == {"gpt-0": None, "gpt-3": 0}


def test_nobody_has_to_wait_for_the_budget_of_an_ended_job() -> None:
    budget = owned(budget_of(job_object().metadata, TEMPLATE))
    assert actions_of(decide(ended(budgets=(budget,))), Delete) == [Delete("PodDisruptionBudget", "gpt")]


def with_nodes_to_change(phase: JobPhase, **fields: Any) -> Observed:
    """An ended job whose plan takes n5 out of service and puts n6 back."""
    there = {**nodes(), "n6": node("n6", cordoned_by="research/gpt")}
    wanted = plan(2, avoid=(order("n5"),), cordon=(order("n5"),), returned=("n6",), release=("gpt-0",))
    return ended(phase, **{"since_s": 9.0, "plan": wanted, "nodes": there, **fields})


ENDS = pytest.mark.parametrize("phase", [JobPhase.SUCCEEDED, JobPhase.FAILED])


@ENDS
def test_the_plan_of_an_ended_job_is_carried_out_for_nodes_and_not_for_pods(phase: JobPhase) -> None:
    outcome = decide(with_nodes_to_change(phase))
    assert outcome.actions[-2:] == (Cordon("n5", "XID 79", "incident-1"), Uncordon("n6"))
    assert acted(outcome) == {Cordon, Uncordon}
    assert {"NodeCordoned", "NodeReturned"} <= {each.reason for each in outcome.events}
    done = {**nodes(), "n5": node("n5", cordoned_by="research/gpt")}
    assert acted(decide(with_nodes_to_change(phase, nodes=done))) == set()


@ENDS
def test_an_ended_job_is_removed_only_after_its_nodes_were_seen_to(phase: JobPhase) -> None:
    outcome = decide(with_nodes_to_change(phase, since_s=DAY_S))
    assert [type(each) for each in outcome.actions if not isinstance(each, Tell)] == [Cordon, Uncordon, DeleteJob]


@ENDS
def test_an_operator_that_observes_changes_no_node_of_an_ended_job(phase: JobPhase) -> None:
    outcome = decide(with_nodes_to_change(phase), Options("w:1", "image", mode=Mode.OBSERVE))
    assert outcome.actions == ()
    assert outcome.status is not None
    (says,) = [each["message"] for each in outcome.status["conditions"] if each["type"] == "Observing"]
    assert says == "nothing is changed; would do: Cordon x1; Uncordon x1"


@ENDS
def test_nodes_of_an_ended_job_are_left_to_another_remediator(phase: JobPhase) -> None:
    consume = Options("w:1", "image", cordoning=Cordoning.CONSUME)
    assert acted(decide(with_nodes_to_change(phase), consume)) == set()


def test_an_ended_job_is_removed_when_its_time_is_over() -> None:
    early = decide(ended(since_s=DAY_S - 100, pods=()))
    assert (acted(early), early.requeue_after_s) == (set(), pytest.approx(100.0))
    assert acted(decide(ended(since_s=DAY_S, pods=()))) == {DeleteJob}
    short = spec_of(document(ttlAfterFinished="10s"))
    assert acted(decide(ended(since_s=10.0, spec=short))) == {DeleteJob}


def test_the_end_is_written_down_once() -> None:
    outcome = decide(ended(since_s=500.0))
    assert outcome.status is not None
    assert outcome.status["finishedAt"] == text_of(NOW - 500)
    assert "Succeeded" not in [each.reason for each in outcome.events]


def test_an_ended_job_stays_ended_though_the_watchdog_forgot_it() -> None:
    for told in (None, report(generation=None, uid="")):
        outcome = decide(ended(since_s=500.0, report=told, pods=()))
        assert acted(outcome) == set()
        assert outcome.status is not None
        assert outcome.status["phase"] == "Succeeded"
        condition = next(each for each in outcome.status["conditions"] if each["type"] == "Succeeded")
        assert condition["status"] == "True"


def test_a_failed_job_that_is_run_again_is_not_ended() -> None:
    again = ended(JobPhase.FAILED, since_s=500.0, report=report(JobPhase.PENDING), pods=())
    outcome = decide(again)
    assert CreatePod in acted(outcome)
    assert outcome.status is not None
    assert "finishedAt" not in outcome.status


def test_a_changed_spec_does_not_wake_an_ended_job() -> None:
    changed = ended(since_s=500.0, job=job_object(generation=2), spec=spec_of(document(generation=2)))
    outcome = decide(changed)
    assert actions_of(outcome, Submit) == []
    assert outcome.status is not None
    assert outcome.status["observedGeneration"] == 2


def test_an_ended_job_with_a_refused_spec_stays_until_somebody_deletes_it() -> None:
    outcome = decide(ended(since_s=10 * DAY_S, spec=spec_of(document(nodes=4)), pods=()))
    assert (acted(outcome), outcome.requeue_after_s) == (set(), None)
