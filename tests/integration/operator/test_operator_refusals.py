"""The API server says no, for good or for long: people are told once, and nobody is hammered or robbed."""

import asyncio
from typing import Any

import msgspec
import pytest
from apiserver import Refused
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, Manifest, OperatorProcess, add_nodes, eventually, job_manifest


async def test_a_quota_that_refuses_pods_is_asked_seldom_and_told_of_once(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    await _limit(cluster, "pods", 1)
    operator.start()
    await cluster.apply(nodes={"min": 1, "max": 40})
    await eventually("the refusal told", lambda: _told(cluster, "CreatePodFailed"))
    before = await operator.writes()
    await asyncio.sleep(3.0)  # the time in which the writes are counted
    # A few more tries, each of at most 64 creations, a status and an event; in a loop they are thousands.
    assert await operator.writes() - before < 300
    failures = [each for each in await cluster.listed("events") if each["reason"] == "CreatePodFailed"]
    assert len(failures) == 1, [each["message"] for each in failures]
    assert failures[0].get("count", 1) == 1


async def test_a_service_of_somebody_else_is_left_as_it_is_and_the_job_says_so(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    await add_nodes(kubelet, 2)
    path = f"/api/v1/namespaces/{cluster.namespace}/services"
    ports = [{"name": "web", "port": 80}]
    selected = {"selector": {"app": "web"}, "ports": ports, "clusterIP": "None"}
    before = await cluster.api.call("POST", path, {"metadata": {"name": "gpt"}, "spec": selected})
    labelled = {"metadata": {"name": "board", "labels": {"holdfast.dev/job": "gpt"}}, "spec": {"ports": ports}}
    await cluster.api.call("POST", path, labelled)
    operator.start()
    await cluster.apply()
    await kubelet.wait_running(2)
    await eventually("the refusal told", lambda: _told(cluster, "ApplyFailed"))
    assert await cluster.get(f"{path}/gpt") == before
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert await cluster.get(f"{path}/gpt") == before
    # A user's own service may well select a job's pods by the label, and carry it.
    assert await cluster.get(f"{path}/board") is not None


async def test_a_namespace_has_as_many_jobs_as_its_quota_says(cluster: Cluster) -> None:
    await _limit(cluster, "count/trainingjobs.holdfast.dev", 1)
    await cluster.apply("first")
    says = r"exceeded quota: few, requested: count/trainingjobs\.holdfast\.dev=1"
    with pytest.raises(Refused, match=says):
        await cluster.apply("second")


async def test_jobs_nested_without_end_are_refused_and_cost_no_other_job_anything(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    await _apply_nested(cluster, "early", 9_000)
    operator.start()
    await cluster.until("refused", lambda job: "no field spec.nested" in _refusal(job), name="early")
    for depth in (500, 1_500, 9_000):
        await _apply_nested(cluster, f"deep-{depth}", depth)
    await cluster.apply()
    await kubelet.wait_running(2)
    await cluster.until("refused", lambda job: "less deeply nested" in _refusal(job), name="deep-500")
    for depth in (1_500, 9_000):
        await cluster.until("refused", lambda job: "no field spec.nested" in _refusal(job), name=f"deep-{depth}")
    assert set(cluster.pods_created.values()) == {"gpt-0", "gpt-1"}


async def _apply_nested(cluster: Cluster, name: str, depth: int) -> None:
    """As bytes: hardly anything writes JSON of such a depth."""
    containers = [{"name": "trainer", "image": "train:test"}]
    nested = msgspec.Raw(b'{"a":' * depth + b"0" + b"}" * depth)
    template = {"spec": {"containers": containers, "nested": nested}}
    await cluster.api.call("POST", cluster.path(), job_manifest(cluster.namespace, name, template=template))


def _refusal(job: Manifest | None) -> str:
    conditions = (job or {}).get("status", {}).get("conditions", [])
    return next((each["message"] for each in conditions if each["type"] == "InvalidSpec"), "")


async def _limit(cluster: Cluster, resource: str, count: int) -> None:
    """Without a controller manager nobody reckons what is used: it is written as it would be."""
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    quota: dict[str, Any] = {"metadata": {"name": "few"}, "spec": {"hard": {resource: str(count)}}}
    made = await cluster.api.call("POST", path, quota)
    made["status"] = {"hard": {resource: str(count)}, "used": {resource: "0"}}
    await cluster.api.call("PUT", f"{path}/few/status", made)


async def _told(cluster: Cluster, reason: str) -> bool:
    return any(each["reason"] == reason for each in await cluster.listed("events"))
