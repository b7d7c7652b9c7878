import msgspec
from operator_builders import NOW, TERMS, actions_of, job_object, observed, owned, plan, report

from holdfast.api.status import JobPhase
from holdfast.operator.action import Apply, Delete
from holdfast.operator.belongings import budget_of, service_of
from holdfast.operator.objects import Owned
from holdfast.operator.observed import Observed
from holdfast.operator.reconcile import reconcile

JOB = job_object().metadata
SERVICE, BUDGET = service_of(JOB), budget_of(JOB, "policy/v1")


def test_the_service_gives_every_pod_a_name_before_it_is_ready() -> None:
    assert (SERVICE["metadata"]["name"], SERVICE["metadata"]["namespace"]) == ("gpt", "research")
    assert SERVICE["spec"] == {
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"holdfast.dev/job": "gpt"},
    }


def test_the_budget_lets_nobody_else_evict_a_member() -> None:
    assert BUDGET["apiVersion"] == "policy/v1"
    assert budget_of(JOB, "policy/v1beta1")["apiVersion"] == "policy/v1beta1"
    assert BUDGET["spec"] == {"minAvailable": 1_000_000, "selector": {"matchLabels": {"holdfast.dev/job": "gpt"}}}
    assert BUDGET["metadata"]["ownerReferences"][0]["uid"] == JOB.uid


def test_the_same_is_made_from_the_same_and_nothing_else() -> None:
    made_from = "holdfast.dev/made-from"
    assert service_of(JOB) == SERVICE
    renamed = service_of(msgspec.structs.replace(JOB, uid="another"))
    assert renamed["metadata"]["annotations"][made_from] != SERVICE["metadata"]["annotations"][made_from]


def settled(**fields: object) -> Observed:
    given = {"services": (owned(SERVICE),), "budgets": (owned(BUDGET),)}
    return observed(**{**given, **fields})


def kinds(seen: Observed) -> list[str]:
    return [each.manifest["kind"] for each in actions_of(reconcile(seen, TERMS, NOW), Apply)]


def test_what_is_there_as_it_should_be_is_left_alone() -> None:
    assert kinds(settled()) == []


def test_what_is_missing_or_was_changed_is_applied() -> None:
    changed = Owned(msgspec.structs.replace(owned(SERVICE).metadata, annotations={"holdfast.dev/made-from": "x"}))
    other = Owned(msgspec.structs.replace(owned(SERVICE).metadata, name="other"))
    assert kinds(settled(services=(changed,))) == ["Service"]
    assert kinds(settled(services=(other,))) == ["Service"]
    assert kinds(settled(budgets=())) == ["PodDisruptionBudget"]


def test_a_suspended_job_keeps_its_service_and_loses_its_budget() -> None:
    suspended = settled(plan=plan(0), report=report(JobPhase.SUSPENDED), pods=())
    assert actions_of(reconcile(suspended, TERMS, NOW), Delete) == [Delete("PodDisruptionBudget", "gpt")]
    assert kinds(suspended) == []


def test_what_is_on_its_way_out_is_not_deleted_again() -> None:
    going = Owned(msgspec.structs.replace(owned(BUDGET).metadata, deletion_timestamp="2027-01-15T08:00:00Z"))
    suspended = settled(plan=plan(0), report=report(JobPhase.SUSPENDED), pods=(), budgets=(going,))
    assert actions_of(reconcile(suspended, TERMS, NOW), Delete) == []
