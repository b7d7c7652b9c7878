"""The chart on a real API server: installed, upgraded, uninstalled; and what its accounts may do."""

import time
from pathlib import Path

import pytest
import yaml
from apiserver import ApiServer
from cluster_asks import GONE_S_MAX, Ask, copied_chart, definition, kubectl, may, until_may, until_served
from helmchart import CHART, HelmChart, Manifest, Values, named

pytestmark = pytest.mark.kubernetes

FULL: Values = {
    "priorityClass": {"create": True},
    "operator": {"maintenanceTaints": ["example.com/service"], "extraEnv": [{"name": "A", "value": "b"}]},
    "agent": {"runtimeClassName": "nvidia"},
    "metrics": {"podMonitor": {"enabled": True}},
    "networkPolicy": {"metricsFrom": [{"podSelector": {"matchLabels": {"app": "prometheus"}}}]},
}
JOB = {
    "apiVersion": "holdfast.dev/v1alpha1",
    "kind": "TrainingJob",
    "metadata": {"name": "gpt"},
    "spec": {
        "entrypoint": ["train.py"],
        "template": {"spec": {"containers": [{"name": "trainer", "image": "t:1"}]}},
    },
}


def _secret(cluster: ApiServer, namespace: str, name: str) -> dict[str, str]:
    data = cluster.call("GET", f"/api/v1/namespaces/{namespace}/secrets/{name}")["data"]
    assert isinstance(data, dict)
    return data


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_the_server_takes_every_manifest(chart: HelmChart, values: Values) -> None:
    tried = chart.dry_run(values)
    assert named(chart.install(values)) == named(tried)


@pytest.mark.parametrize("values", [{}, FULL], ids=["defaults", "full"])
def test_the_server_knows_every_field_of_every_manifest(
    chart: HelmChart, cluster: ApiServer, values: Values
) -> None:
    def refused(manifests: list[Manifest]) -> str:
        given = yaml.safe_dump_all(manifests)
        return kubectl(cluster, "apply", "--dry-run=server", "--validate=strict", "-f", "-", given=given).stderr

    kubectl(cluster, "create", "namespace", chart.namespace)
    manifests = [each for each in chart.dry_run(values) if "monitoring.coreos.com" not in each["apiVersion"]]
    assert refused(manifests) == ""
    service = next(each for each in manifests if each["kind"] == "Service")
    service["spec"]["seletcor"] = service["spec"].pop("selector")
    assert 'unknown field "spec.seletcor"' in refused([service])


def test_an_upgrade_keeps_passwords_and_takes_the_newer_definitions(
    chart: HelmChart, cluster: ApiServer, tmp_path: Path
) -> None:
    name = "templates/crds/trainingjobs.yaml"
    older = copied_chart(CHART, tmp_path / "older", {name: ("- name: ETTR", "- name: Older")})
    chart.at(older).install()
    before = [_secret(cluster, chart.namespace, each) for each in ("holdfast-redis", "holdfast-metrics")]
    chart.upgrade()
    assert [_secret(cluster, chart.namespace, each) for each in ("holdfast-redis", "holdfast-metrics")] == before
    upgraded = definition(cluster, "trainingjobs")
    assert upgraded is not None
    columns = [column["name"] for column in upgraded["spec"]["versions"][0]["additionalPrinterColumns"]]
    assert "ETTR" in columns
    assert "Older" not in columns


def test_jobs_outlive_the_chart(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install()
    jobs = f"/apis/holdfast.dev/v1alpha1/namespaces/{chart.namespace}/trainingjobs"
    until_served(cluster, jobs)
    cluster.call("POST", jobs, JOB)
    chart.uninstall()
    assert cluster.call("GET", f"{jobs}/gpt")["spec"]["entrypoint"] == ["train.py"]
    chart.install()  # takes over what is left
    assert cluster.call("GET", f"{jobs}/gpt")["metadata"]["name"] == "gpt"


def test_definitions_that_are_not_to_be_kept_go_with_the_chart(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install({"crds": {"keep": False}})
    chart.uninstall()
    left = [definition(cluster, each) for each in ("trainingjobs", "interventions", "noderemediations")]
    assert [each for each in left if each is not None and "deletionTimestamp" not in each["metadata"]] == []


def test_nothing_else_is_left_after_the_chart(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install()
    chart.uninstall()
    kinds = "deployments,daemonsets,statefulsets,services,configmaps,secrets,roles,rolebindings,networkpolicies"
    left = kubectl(cluster, "get", kinds, "--namespace", chart.namespace, "--output", "name").stdout.split()
    assert [each for each in left if "kube-root-ca" not in each] == []
    roles = kubectl(cluster, "get", "clusterroles,clusterrolebindings", "--output", "name").stdout
    assert chart.namespace not in roles


OWN, ELSEWHERE = "OWN", "somewhere-else"
READING = ("get", "list", "watch")
JOB_STATUS = "trainingjobs.holdfast.dev/status"
RUNS_JOBS = (
    *(Ask(verb, "pods", ELSEWHERE) for verb in ("get", "list", "watch", "create", "delete")),
    *(Ask(verb, "services", ELSEWHERE) for verb in ("get", "list", "watch", "create", "patch", "delete")),
    *(Ask(verb, "poddisruptionbudgets.policy", ELSEWHERE) for verb in ("get", "create", "patch", "delete")),
    *(Ask(verb, "events", ELSEWHERE) for verb in ("create", "patch")),
    *(Ask(verb, "trainingjobs.holdfast.dev", ELSEWHERE) for verb in ("get", "list", "watch", "patch", "delete")),
    Ask("patch", JOB_STATUS, ELSEWHERE),
    Ask("update", "trainingjobs.holdfast.dev/finalizers", ELSEWHERE),
    *(Ask(verb, "interventions.holdfast.dev", ELSEWHERE) for verb in ("get", "list", "watch")),
    Ask("patch", "interventions.holdfast.dev/status", ELSEWHERE),
)
ON_NODES = (*(Ask(verb, "nodes") for verb in ("get", "list", "watch", "patch")), Ask("patch", "nodes/status"))
OBSERVES_JOBS = (*(ask for ask in RUNS_JOBS if ask.verb in READING), Ask("patch", JOB_STATUS, ELSEWHERE))
ITS_LEASE = (
    Ask("create", "leases.coordination.k8s.io", OWN),
    *(Ask(verb, "leases.coordination.k8s.io", OWN, "holdfast-operator") for verb in ("get", "update")),
)
NOBODYS = (
    *(Ask(verb, "secrets", OWN) for verb in ("get", "list", "create")),
    *(Ask(verb, "nodes") for verb in ("create", "delete", "update")),
    Ask("update", "nodes/status"),
    *(Ask(verb, "noderemediations.holdfast.dev") for verb in ("list", "create", "patch")),
    Ask("patch", "noderemediations.holdfast.dev/status"),
    Ask("patch", "pods", ELSEWHERE),
    *(Ask(verb, "events.events.k8s.io", ELSEWHERE) for verb in ("create", "patch")),
    *(Ask("get", f"{plural}.holdfast.dev/status", ELSEWHERE) for plural in ("trainingjobs", "interventions")),
    Ask("create", "pods/exec", ELSEWHERE),
    Ask("create", "pods/eviction", ELSEWHERE),
    Ask("get", "pods/log", ELSEWHERE),
    Ask("create", "trainingjobs.holdfast.dev", ELSEWHERE),
    Ask("create", "interventions.holdfast.dev", ELSEWHERE),
    Ask("delete", "interventions.holdfast.dev", ELSEWHERE),
    Ask("create", "clusterrolebindings.rbac.authorization.k8s.io"),
    Ask("escalate", "clusterroles.rbac.authorization.k8s.io"),
    Ask("impersonate", "users"),
    Ask("update", "leases.coordination.k8s.io", OWN, "somebody-elses"),
    Ask("patch", "leases.coordination.k8s.io", OWN, "holdfast-operator"),
    Ask("patch", "customresourcedefinitions.apiextensions.k8s.io"),
)
REVIEWS = (
    Ask("create", "tokenreviews.authentication.k8s.io"),
    Ask("create", "subjectaccessreviews.authorization.k8s.io"),
)
ALL = {*RUNS_JOBS, *ON_NODES, *ITS_LEASE, *NOBODYS, *REVIEWS}


def _allowed(cluster: ApiServer, namespace: str, account: str, *granted: Ask) -> set[Ask]:
    """What of ALL the account may do, once what was granted counts."""
    token = cluster.service_account_token(namespace, account)

    def here(ask: Ask) -> Ask:
        return Ask(ask.verb, ask.resource, namespace if ask.namespace == OWN else ask.namespace, ask.name)

    deadline = time.monotonic() + GONE_S_MAX
    while True:
        allowed = {ask for ask in ALL if may(cluster, token, here(ask))}
        if allowed.issuperset(granted) or time.monotonic() > deadline:
            return allowed


def test_each_account_may_do_its_work_and_nothing_else(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install()
    granted = (*RUNS_JOBS, *ON_NODES, *ITS_LEASE)
    assert _allowed(cluster, chart.namespace, "holdfast-operator", *granted) == {*granted}
    assert _allowed(cluster, chart.namespace, "holdfast-watchdog", *REVIEWS) == {*REVIEWS}
    assert _allowed(cluster, chart.namespace, "holdfast-agent") == set()
    assert _allowed(cluster, chart.namespace, "holdfast-viewer") == set()


def test_an_operator_that_observes_may_read_and_say_what_it_sees(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install({"operator": {"mode": "observe"}})
    granted = (*OBSERVES_JOBS, *(ask for ask in ON_NODES if ask.verb in READING), *ITS_LEASE)
    assert _allowed(cluster, chart.namespace, "holdfast-operator", *granted) == {*granted}


def test_an_operator_of_some_namespaces_may_do_nothing_in_others(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install({"watchNamespaces": [chart.namespace]})
    granted = (*ON_NODES, *ITS_LEASE)
    assert _allowed(cluster, chart.namespace, "holdfast-operator", *granted) == {*granted}
    token = cluster.service_account_token(chart.namespace, "holdfast-operator")
    until_may(cluster, token, *(Ask(ask.verb, ask.resource, chart.namespace, ask.name) for ask in RUNS_JOBS))


def _person(cluster: ApiServer, namespace: str, role: str, account: str, *, kind: str = "ClusterRole") -> str:
    """The token of somebody bound to a role in the namespace."""
    cluster.new_service_account(namespace, account)
    body = {
        "metadata": {"name": account},
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": role},
        "subjects": [{"kind": "ServiceAccount", "name": account, "namespace": namespace}],
    }
    cluster.call("POST", f"/apis/rbac.authorization.k8s.io/v1/namespaces/{namespace}/rolebindings", body)
    return cluster.service_account_token(namespace, account)


def test_people_get_the_roles_of_their_work(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install({"operator": {"handOn": "remediation"}})
    here, jobs, requests = chart.namespace, "trainingjobs.holdfast.dev", "interventions.holdfast.dev"
    view = _person(cluster, here, f"{here}-holdfast-view", "viewing")
    edit = _person(cluster, here, f"{here}-holdfast-edit", "editing")
    oncall = _person(cluster, here, f"{here}-holdfast-oncall", "oncall")
    for each, granted in (
        (view, Ask("list", jobs, here)),
        (edit, Ask("create", jobs, here)),
        (oncall, Ask("create", requests, here)),
        (oncall, Ask("list", jobs, here)),
    ):
        until_may(cluster, each, granted)
    for job_read in (Ask("list", jobs, here), Ask("get", jobs, here), Ask("get", f"{jobs}/log", here)):
        assert [may(cluster, each, job_read) for each in (view, edit, oncall)] == [True, False, True]
    assert [may(cluster, each, Ask("create", jobs, here)) for each in (view, edit, oncall)] == [False, True, False]
    assert [may(cluster, each, Ask("create", requests, here)) for each in (view, edit, oncall)] == [
        False,
        False,
        True,
    ]
    assert not may(cluster, oncall, Ask("delete", requests, here)), "an Intervention is a record"
    of_nodes = "noderemediations.holdfast.dev"
    asks = [Ask("create", of_nodes), Ask("patch", of_nodes), Ask("patch", f"{of_nodes}/status")]
    allowed = [may(cluster, each, ask) for each in (view, edit, oncall) for ask in asks]
    assert allowed == [False] * 9, "no tenant says that somebody's node was repaired"
    reader = _person(cluster, here, "holdfast-reader", "reading", kind="Role")
    ways = ("holdfast-watchdog", "holdfast-watchdog:http", "https:holdfast-watchdog:http", "holdfast-redis:redis")
    until_may(cluster, reader, Ask("get", "services/proxy", here, ways[0]))
    assert [may(cluster, reader, Ask("get", "services/proxy", here, way)) for way in ways] == [*[True] * 3, False]


def test_an_object_of_somebody_else_is_not_taken_over(chart: HelmChart, cluster: ApiServer) -> None:
    path = f"/api/v1/namespaces/{chart.namespace}/serviceaccounts"
    cluster.call("POST", path, {"metadata": {"name": "holdfast-operator"}})
    with pytest.raises(Exception, match="holdfast-operator"):
        chart.install()
    assert "labels" not in cluster.call("GET", f"{path}/holdfast-operator")["metadata"]


def test_the_watchdogs_service_is_found_by_the_name_that_clients_use(chart: HelmChart, cluster: ApiServer) -> None:
    chart.install()
    service = cluster.call("GET", f"/api/v1/namespaces/{chart.namespace}/services/holdfast-watchdog")
    ports = [(port["name"], port["port"]) for port in service["spec"]["ports"]]
    assert ports == [("http", 7077)]
