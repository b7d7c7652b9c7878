from operator_builders import (
    NOW,
    OPTIONS,
    UID,
    actions_of,
    document,
    job_object,
    observed,
    plan,
    report,
    spec_of,
)

from holdfast.api.errors import InvalidSpec
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Apply, CreatePod, SetFinalizer, Submit, Tell
from holdfast.operator.decide.observed import Outcome
from holdfast.operator.decide.reconcile import reconcile


def names_created(outcome: Outcome) -> list[str]:
    return [action.manifest["metadata"]["name"] for action in actions_of(outcome, CreatePod)]


def test_the_finalizer_comes_before_anything_else_is_made() -> None:
    outcome = reconcile(observed(job=job_object(finalizers=()), pods=(), plan=None, report=None), OPTIONS, NOW)
    assert outcome.actions == (SetFinalizer(held=True),)
    assert outcome.status is not None
    assert outcome.status["phase"] == "Pending"


def test_a_job_the_watchdog_has_not_taken_is_submitted_and_nothing_is_created() -> None:
    for told in (None, report(generation=None, uid=""), report(generation=1, uid="another")):
        outcome = reconcile(observed(pods=(), plan=plan(), report=told), OPTIONS, NOW)
        assert [type(action) for action in outcome.actions] == [Submit]
        assert outcome.actions[0].policy.uid == UID  # type: ignore[union-attr]


def test_a_job_is_submitted_again_when_its_spec_changed() -> None:
    changed = observed(job=job_object(generation=2), spec=spec_of(document(generation=2, suspend=True)))
    (submit,) = actions_of(reconcile(changed, OPTIONS, NOW), Submit)
    assert (submit.policy.generation, submit.policy.suspend) == (2, True)
    assert actions_of(reconcile(observed(), OPTIONS, NOW), Submit) == []


def test_an_older_spec_than_the_watchdog_has_is_not_submitted() -> None:
    stale = observed(report=report(generation=2))
    assert actions_of(reconcile(stale, OPTIONS, NOW), Submit) == []


def test_nothing_is_submitted_while_the_watchdog_is_away() -> None:
    away = observed(pods=(), plan=None, report=None, heard_age_s=3.0)
    outcome = reconcile(away, OPTIONS, NOW)
    assert outcome.actions == ()
    assert "away" in outcome.reason


def test_pods_service_and_budget_are_made_once_the_plan_is_known() -> None:
    start = observed(pods=(), plan=plan(2, 1), report=report(JobPhase.PENDING, round=None, world_size=0))
    outcome = reconcile(start, OPTIONS, NOW)
    assert names_created(outcome) == ["gpt-0", "gpt-1", "gpt-2"]
    assert [each.manifest["kind"] for each in actions_of(outcome, Apply)] == ["Service", "PodDisruptionBudget"]
    assert outcome.status is not None
    assert outcome.status["podsCreated"] == 3
    assert [event.reason for event in outcome.events] == ["JobAccepted"]


def test_a_running_job_is_only_told_of() -> None:
    outcome = reconcile(observed(), OPTIONS, NOW)
    assert {type(action) for action in outcome.actions} == {Tell, Apply}
    assert outcome.status is not None
    assert outcome.status["members"] == {"wanted": 2, "ready": 2, "spares": 0, "pods": 2}


def test_a_job_that_was_never_accepted_is_invalid_until_it_is() -> None:
    refused = reconcile(observed(spec=spec_of(document(nodes=0)), report=None, plan=None), OPTIONS, NOW)
    assert refused.status is not None
    assert refused.status["phase"] == "Invalid"
    mended = reconcile(observed(job=job_object(status=refused.status), report=None, plan=None), OPTIONS, NOW)
    assert mended.status is not None
    assert mended.status["phase"] == "Pending"


def test_a_refused_spec_makes_nothing_and_leaves_what_runs_alone() -> None:
    bad = spec_of(document(nodes={"min": 3, "max": 2}))
    assert isinstance(bad, InvalidSpec)
    outcome = reconcile(observed(spec=bad, plan=plan(4)), OPTIONS, NOW)
    assert {type(action) for action in outcome.actions} == {Tell}
    assert outcome.status is not None
    assert outcome.status["phase"] == "Running"
    (invalid,) = [each for each in outcome.status["conditions"] if each["type"] == "InvalidSpec"]
    assert invalid["status"] == "True"
    assert "spec.nodes.min: 3 is not accepted" in invalid["message"]
    assert "InvalidSpec" in [event.reason for event in outcome.events]


def test_a_job_that_had_rounds_and_that_the_watchdog_does_not_know_is_not_started_anew() -> None:
    lost = observed(job=job_object(status={"phase": "Running", "round": 7}), plan=None, report=None)
    outcome = reconcile(lost, OPTIONS, NOW)
    assert [each for each in outcome.actions if not isinstance(each, Tell)] == []
    assert "no journal of this job, which had reached round 7" in outcome.reason
    assert outcome.status is not None
    assert outcome.status["round"] == 7
    (degraded,) = [each for each in outcome.status["conditions"] if each["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "Forgotten")
    assert "delete the TrainingJob and create it again" in degraded["message"]


def test_a_job_that_went_on_since_the_watchdogs_copy_of_its_store_is_left_alone_and_says_why() -> None:
    told = report(generation=None, uid="", trouble="the store is an older copy of itself: restore a newer copy")
    lost = observed(job=job_object(status={"phase": "Running", "round": 7}), plan=None, report=told)
    outcome = reconcile(lost, OPTIONS, NOW)
    assert [each for each in outcome.actions if not isinstance(each, Tell)] == []
    assert outcome.status is not None
    assert outcome.status["round"] == 7, "what the watchdog is told when it comes back"
    (degraded,) = [each for each in outcome.status["conditions"] if each["type"] == "Degraded"]
    assert (degraded["status"], degraded["reason"]) == ("True", "Forgotten")
    assert degraded["message"].endswith("the store is an older copy of itself: restore a newer copy")


def test_a_watchdog_that_is_away_has_forgotten_nothing() -> None:
    away = observed(job=job_object(status={"round": 7}), plan=None, report=None, heard_age_s=60.0)
    outcome = reconcile(away, OPTIONS, NOW)
    assert outcome.status is not None
    assert "Forgotten" not in {each["reason"] for each in outcome.status["conditions"]}
