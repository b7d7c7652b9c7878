"""Others edit what the operator works on, and the operator leaves alone what needs nothing."""

import asyncio

from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, Manifest, OperatorProcess, add_nodes, eventually, phase

from holdfast.api.plan import PodEnd, PodState
from holdfast.operator.kube.objects import JOB_LABEL


async def test_labels_and_spec_edited_all_the_while_are_kept(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply()
    for number in range(30):
        await cluster.patch("gpt", {"metadata": {"labels": {"edit": str(number)}}})
        await asyncio.sleep(0)  # lets the operator's pods be seen between two edits
    await cluster.patch("gpt", {"spec": {"nodes": {"max": 3}}})
    await cluster.until_pods("gpt-0", "gpt-1", "gpt-2")
    job = await cluster.until("told of its new size", lambda job: _generation(job) == 2)
    assert job is not None
    assert job["metadata"]["labels"]["edit"] == "29"
    assert job["metadata"]["finalizers"] == ["holdfast.dev/wind-up"]
    assert len(cluster.pods_created) == 3


async def test_a_pod_somebody_deletes_is_replaced_and_told_to_the_watchdog(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    trainer = {"name": "trainer", "image": "train:test", "resources": {"limits": {"memory": "1Gi"}}}
    await cluster.apply(template={"spec": {"serviceAccountName": "default", "containers": [trainer]}})
    await kubelet.wait_running(2)
    job = watchdog.job(cluster.id())
    await watchdog.until("told as running", lambda: job.pods["gpt-0"].state is PodState.RUNNING)
    await cluster.api.call("DELETE", f"/api/v1/namespaces/{cluster.namespace}/pods/gpt-0")
    await cluster.until_pods("gpt-1", "gpt-2")
    await watchdog.until("told as gone", lambda: job.pods["gpt-0"].state is PodState.GONE)
    assert job.pods["gpt-0"].end is PodEnd.DELETED
    assert len(cluster.pods_created) == 3
    await kubelet.end_pod("gpt-1", 137, "OOMKilled")
    await watchdog.until("told as killed", lambda: job.pods["gpt-1"].state is PodState.GONE)
    assert job.pods["gpt-1"].end is PodEnd.OWN_LIMIT


async def test_a_status_somebody_removes_is_written_again(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await cluster.until("Running", lambda job: phase(job) == "Running")
    await cluster.patch("gpt", {"status": None}, "status")
    await cluster.until("Running again", lambda job: phase(job) == "Running")
    assert len(cluster.pods_created) == 2


async def test_looking_again_writes_nothing_when_nothing_changed(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    await cluster.until("all pods seen", lambda job: _pods(job) == 2)
    await _looked_again(operator, 2)
    before = await operator.writes()
    await _looked_again(operator, 4)
    assert await operator.writes() == before
    operator.stop()
    operator.start()
    await eventually("leading again", operator.leads)
    await watchdog.until("heard again", lambda: len(watchdog.job(cluster.id()).lines) == 1)
    await _looked_again(operator, 4)
    patched = await operator.metric("holdfast_operator_api_requests_total", verb="PATCH")
    assert patched == 0, "started again it finds all as it should be"
    assert await operator.writes() == 1, "the pod template is tried once more"


async def test_a_service_somebody_deletes_is_made_again(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    path = f"/api/v1/namespaces/{cluster.namespace}/services/gpt"
    held = await cluster.get(path)
    assert held is not None
    await cluster.api.call("DELETE", path)

    async def made_again() -> bool:
        made = await cluster.get(path)
        return made is not None and made["metadata"]["uid"] != held["metadata"]["uid"]

    await eventually("the service made again", made_again)


async def test_what_somebody_edits_of_service_and_budget_is_taken_back(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    service = f"/api/v1/namespaces/{cluster.namespace}/services/gpt"
    budget = f"/apis/{await _budgets_api(cluster)}/namespaces/{cluster.namespace}/poddisruptionbudgets/gpt"
    held = {path: await _spec(cluster, path) for path in (service, budget)}
    assert held[budget]["minAvailable"] == 1_000_000
    for path, edit in (
        (budget, {"minAvailable": 1}),
        (budget, {"minAvailable": None, "maxUnavailable": 1}),
        (budget, {"selector": {"matchLabels": {JOB_LABEL: "other"}}}),
        (service, {"selector": {JOB_LABEL: "other"}, "publishNotReadyAddresses": None}),
        (service, {"type": "ExternalName", "externalName": "example.com", "clusterIP": ""}),
    ):
        content = "application/merge-patch+json"
        edited = await cluster.api.call("PATCH", path, {"spec": edit}, content=content)
        assert edited["spec"] != held[path]
        await _until_spec(cluster, path, held[path])
    await _looked_again(operator, 2)
    before = await operator.writes()
    await _looked_again(operator, 4)
    assert await operator.writes() == before, "what was taken back is as it should be"


async def _budgets_api(cluster: Cluster) -> str:
    """The version of disruption budgets that this server serves."""
    group = await cluster.get("/apis/policy")
    assert group is not None
    return str(group["preferredVersion"]["groupVersion"])


async def _spec(cluster: Cluster, path: str) -> Manifest:
    found = await cluster.get(path)
    assert found is not None, path
    spec: Manifest = found["spec"]
    return spec


async def _until_spec(cluster: Cluster, path: str, held: Manifest) -> None:
    """Until every field is as it was; a name that an edit left where nothing reads it counts for nothing."""
    shown: Manifest = {}

    async def so() -> bool:
        nonlocal shown
        shown = await _spec(cluster, path)
        return {**shown, **held} == shown and "maxUnavailable" not in shown

    await eventually(f"{path} as it was", so, lambda: shown)


async def _looked_again(operator: OperatorProcess, times: int) -> None:
    """Wait until the operator has looked at its job that often without being asked to."""
    before = await operator.metric("holdfast_operator_reconcile_total", result="done")

    async def looked() -> bool:
        return await operator.metric("holdfast_operator_reconcile_total", result="done") >= before + times

    await eventually("looked at again", looked)


def _generation(job: object) -> int:
    return int((job or {}).get("status", {}).get("observedGeneration") or 0)  # type: ignore[attr-defined]


def _pods(job: object) -> int:
    return int(((job or {}).get("status", {}).get("members") or {}).get("pods") or 0)  # type: ignore[attr-defined]
