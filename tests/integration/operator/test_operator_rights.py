"""The operator lives a job's life with the rights the chart gives it, and no more."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, OperatorProcess, add_nodes, eventually

from holdfast.api.plan import NodeOrder

ROLES = Path(__file__).parents[3] / "helm/holdfast/templates/operator-rbac.yaml"
RBAC = "/apis/rbac.authorization.k8s.io/v1"


def rules_of_the_chart() -> list[dict[str, Any]]:
    """Those for the namespaces it acts in. They carry no template of their own."""
    head, _, rest = ROLES.read_text().partition('{{- define "holdfast.operatorRules" -}}')
    assert head == ""
    rules: list[dict[str, Any]] = yaml.safe_load(rest.partition("{{- end -}}")[0])
    return rules


@pytest.fixture
def limited(cluster: Cluster, watchdog: FakeOperatorWatchdog, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator that signs in as a service account."""
    server, name = cluster.server, f"operator-{cluster.namespace}"
    server.new_service_account(cluster.namespace, "operator")
    nodes = {"apiGroups": [""], "resources": ["nodes"], "verbs": ["get", "list", "watch", "patch"]}
    lease = {"apiGroups": ["coordination.k8s.io"], "resources": ["leases"], "verbs": ["create", "get", "update"]}
    role = {"metadata": {"name": name}, "rules": [*rules_of_the_chart(), nodes, lease]}
    subject = {"kind": "ServiceAccount", "name": "operator", "namespace": cluster.namespace}
    reference = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": name}
    binding = {"metadata": {"name": name}, "roleRef": reference, "subjects": [subject]}
    server.call("POST", f"{RBAC}/clusterroles", role)
    server.call("POST", f"{RBAC}/clusterrolebindings", binding)
    operator = OperatorProcess(server, cluster.namespace, watchdog.endpoint, tmp_path)
    operator.sign_in(server.service_account_kubeconfig(cluster.namespace, "operator"))
    try:
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text() if operator.log.exists() else "the operator was never started")
        server.call("DELETE", f"{RBAC}/clusterrolebindings/{name}")
        server.call("DELETE", f"{RBAC}/clusterroles/{name}")


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
