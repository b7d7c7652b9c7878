from typing import Any

import msgspec
import pytest
from operator_builders import NOW, OPTIONS, TEMPLATE, actions_of, job_object, observed, owned, plan, report

from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import Apply, Delete
from holdfast.operator.decide.belongings import budget_of, service_of
from holdfast.operator.decide.observed import Observed
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import Owned

JOB = job_object().metadata
SERVICE, BUDGET = service_of(JOB), budget_of(JOB, TEMPLATE)


def test_the_service_gives_every_pod_a_name_before_it_is_ready() -> None:
    assert (SERVICE["metadata"]["name"], SERVICE["metadata"]["namespace"]) == ("gpt", "research")
    assert SERVICE["spec"] == {
        "type": "ClusterIP",
        "clusterIP": "None",
        "publishNotReadyAddresses": True,
        "selector": {"holdfast.dev/job": "gpt"},
    }


def test_the_budget_lets_nobody_else_evict_a_member() -> None:
    assert BUDGET["apiVersion"] == "policy/v1"
    assert BUDGET["spec"] == {
        "minAvailable": 1_000_000,
        "maxUnavailable": None,
        "selector": {"matchLabels": {"holdfast.dev/job": "gpt"}},
        "unhealthyPodEvictionPolicy": "AlwaysAllow",
    }
    assert BUDGET["metadata"]["ownerReferences"][0]["uid"] == JOB.uid


@pytest.mark.parametrize(
    "pod",
    [
        {"containers": [{"name": "trainer"}], "readinessGates": [{"conditionType": "example.com/ready"}]},
        {"containers": [{"name": "trainer", "readinessProbe": {"exec": {"command": ["true"]}}}]},
        {"containers": [{"name": "trainer", "startupProbe": {"exec": {"command": ["true"]}}}]},
        {"containers": [{"name": "trainer"}, {"name": "proxy", "readinessProbe": {"tcpSocket": {"port": 80}}}]},
        {
            "containers": [{"name": "trainer"}],
            "initContainers": [{"name": "proxy", "restartPolicy": "Always", "readinessProbe": {}}],
        },
    ],
)
def test_where_pods_say_when_they_are_ready_one_that_is_not_is_kept_too(pod: dict[str, Any]) -> None:
    says_so = any({"readinessProbe", "startupProbe"} & {*each} for each in pod["containers"])
    says_so = says_so or any(each.get("readinessProbe") for each in pod.get("initContainers", ()))
    expected = "IfHealthyBudget" if says_so or "readinessGates" in pod else "AlwaysAllow"
    assert budget_of(JOB, {"spec": pod})["spec"]["unhealthyPodEvictionPolicy"] == expected


def test_the_same_is_made_from_the_same_and_nothing_else() -> None:
    made_from = "holdfast.dev/made-from"
    assert service_of(JOB) == SERVICE
    renamed = service_of(msgspec.structs.replace(JOB, uid="another"))
    assert renamed["metadata"]["annotations"][made_from] != SERVICE["metadata"]["annotations"][made_from]


def settled(**fields: object) -> Observed:
    given = {"services": (owned(SERVICE),), "budgets": (owned(BUDGET),)}
    return observed(**{**given, **fields})


def edited(there: Owned, edit: dict[str, object]) -> Owned:
    """None removes a field, as in a merge patch."""
    spec = {field: value for field, value in {**there.spec, **edit}.items() if value is not None}
    return msgspec.structs.replace(there, spec=spec)


def kinds(seen: Observed) -> list[str]:
    return [each.manifest["kind"] for each in actions_of(reconcile(seen, OPTIONS, NOW), Apply)]


def test_what_is_there_as_it_should_be_is_left_alone() -> None:
    assert kinds(settled()) == []


def test_what_is_missing_or_was_changed_is_applied() -> None:
    as_made = owned(SERVICE)
    old = msgspec.structs.replace(as_made.metadata, annotations={"holdfast.dev/made-from": "x"})
    changed = msgspec.structs.replace(as_made, metadata=old)
    other = msgspec.structs.replace(as_made, metadata=msgspec.structs.replace(as_made.metadata, name="other"))
    assert kinds(settled(services=(changed,))) == ["Service"]
    assert kinds(settled(services=(other,))) == ["Service"]
    assert kinds(settled(budgets=())) == ["PodDisruptionBudget"]


@pytest.mark.parametrize(
    ("kind", "edit"),
    [
        ("PodDisruptionBudget", {"minAvailable": 1}),
        ("PodDisruptionBudget", {"unhealthyPodEvictionPolicy": "IfHealthyBudget"}),
        ("PodDisruptionBudget", {"minAvailable": None, "maxUnavailable": 1}),
        ("PodDisruptionBudget", {"minAvailable": "50%"}),
        ("PodDisruptionBudget", {"selector": {"matchLabels": {"holdfast.dev/job": "other"}}}),
        ("PodDisruptionBudget", {"selector": None}),
        ("Service", {"selector": {"holdfast.dev/job": "gpt", "holdfast.dev/role": "spare"}}),
        ("Service", {"publishNotReadyAddresses": None}),
        ("Service", {"type": "ExternalName", "clusterIP": None, "externalName": "example.com"}),
    ],
    ids=str,
)
def test_what_somebody_edited_is_taken_back(kind: str, edit: dict[str, object]) -> None:
    service, budget = settled().services[0], settled().budgets[0]
    if kind == "Service":
        assert kinds(settled(services=(edited(service, edit),))) == [kind]
    else:
        assert kinds(settled(budgets=(edited(budget, edit),))) == [kind]


def test_what_others_add_to_it_is_left_alone() -> None:
    service = settled().services[0]
    filled = {"clusterIPs": ["None"], "ipFamilies": ["IPv4"], "sessionAffinity": "None", "ports": [{"port": 80}]}
    assert kinds(settled(services=(edited(service, filled),))) == []


@pytest.mark.parametrize("manifest", [SERVICE, BUDGET], ids=["service", "budget"])
def test_of_what_the_api_server_shows_the_spec_is_read(manifest: dict[str, Any]) -> None:
    shown = {**manifest, "status": {"disruptionsAllowed": 0}}
    assert msgspec.convert(shown, Owned).spec == manifest["spec"]


def test_a_suspended_job_keeps_its_service_and_loses_its_budget() -> None:
    suspended = settled(plan=plan(0), report=report(JobPhase.SUSPENDED), pods=())
    assert actions_of(reconcile(suspended, OPTIONS, NOW), Delete) == [Delete("PodDisruptionBudget", "gpt")]
    assert kinds(suspended) == []


def test_what_is_on_its_way_out_is_not_deleted_again() -> None:
    going = Owned(msgspec.structs.replace(owned(BUDGET).metadata, deletion_timestamp="2027-01-15T08:00:00Z"))
    suspended = settled(plan=plan(0), report=report(JobPhase.SUSPENDED), pods=(), budgets=(going,))
    assert actions_of(reconcile(suspended, OPTIONS, NOW), Delete) == []
