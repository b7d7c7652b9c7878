"""The operator lives a job's life with the rights the chart gives it, and no more."""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from helmchart import Manifest, Values, rendered
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually

from holdfast.api.plan import NodeOrder

RBAC = "/apis/rbac.authorization.k8s.io/v1"
OBSERVING: Values = {"operator": {"mode": "observe"}}


@contextmanager
def signed_in(cluster: Cluster, endpoint: str, folder: Path, values: Values) -> Iterator[OperatorProcess]:
    """An operator that signs in as the account of a release with these values, whose roles are there."""
    server, where = cluster.server, cluster.namespace
    paths = {
        "ClusterRole": f"{RBAC}/clusterroles",
        "ClusterRoleBinding": f"{RBAC}/clusterrolebindings",
        "Role": f"{RBAC}/namespaces/{where}/roles",
        "RoleBinding": f"{RBAC}/namespaces/{where}/rolebindings",
    }
    roles = [each for each in rendered(values, namespace=where) if each["kind"] in paths and _is_operators(each)]
    server.new_service_account(where, "holdfast-operator")
    for role in roles:
        server.call("POST", paths[role["kind"]], role)
    operator = OperatorProcess(server, where, endpoint, folder)
    operator.sign_in(server.service_account_kubeconfig(where, "holdfast-operator"))
    try:
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text() if operator.log.exists() else "the operator was never started")
        for role in roles:
            server.call("DELETE", f"{paths[role['kind']]}/{role['metadata']['name']}")


def _is_operators(role: Manifest) -> bool:
    return bool(role["metadata"]["labels"].get("app.kubernetes.io/component") == "operator")


@pytest.fixture
def limited(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator with the rights of one that acts."""
    with signed_in(cluster, watchdog.endpoint, tmp_path, {}) as operator:
        yield operator


@pytest.fixture
def observing(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator with the rights of one that observes."""
    with signed_in(cluster, watchdog.endpoint, tmp_path, OBSERVING) as operator:
        yield operator


async def test_the_rights_of_the_chart_are_enough_for_a_whole_life(
    cluster: Cluster, kubelet: FakeKubelet, limited: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 3)
    limited.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    sick = kubelet.pods["gpt-0"].node
    order = NodeOrder(sick, "XID 79", "inc-1")
    await watchdog.script(cluster.id(), avoid=(order,), cordon=(order,), release=("gpt-0",))
    await cluster.until_pods("gpt-1", "gpt-2")
    await watchdog.script(cluster.id(), avoid=(), cordon=(), release=(), returned=(sick,))
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert await limited.metric("holdfast_operator_api_requests_total", code="403") == 0
    events = {each["reason"] for each in await cluster.listed("events")}
    assert "JobAccepted" in events


async def test_an_event_that_happens_again_is_counted(
    cluster: Cluster, kubelet: FakeKubelet, limited: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    limited.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    for _ in range(2):
        # Without a status the operator takes the job for one it sees for the first time.
        await cluster.until("written", lambda job: bool((job or {}).get("status")))
        await cluster.patch("gpt", {"status": None}, "status")
    await cluster.until("written", lambda job: bool((job or {}).get("status")))

    async def counted() -> bool:
        return any(each.get("count", 1) > 1 for each in await cluster.listed("events"))

    await eventually("an event counted twice", counted)
    assert await limited.metric("holdfast_operator_api_requests_total", code="403") == 0


async def test_the_rights_of_one_that_observes_are_enough_for_saying_what_it_would_do(
    cluster: Cluster, kubelet: FakeKubelet, observing: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    observing.start("--mode", "observe")
    await cluster.apply()
    await cluster.until("saying it", lambda job: "Submit x1" in _would(job))
    assert await observing.metric("holdfast_operator_api_requests_total", code="403") == 0
    assert await observing.metric("holdfast_operator_api_requests_total", verb="POST") == 1, "its lease"
    assert cluster.pods_created == {}


def _would(job: Manifest | None) -> str:
    """What it says it would do, empty as long as it says nothing."""
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    return next((str(each["message"]) for each in conditions if each["type"] == "Observing"), "")
