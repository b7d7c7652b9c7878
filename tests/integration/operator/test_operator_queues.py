"""A job in a queue of Kueue, beside the real watchdog: who admits is played, on definitions of Kueue's kinds."""

import asyncio
from collections.abc import Iterator
from pathlib import Path

import pytest
from fake_kubelet import FakeKubelet
from operator_rig import Cluster, OperatorProcess, add_nodes, condition, eventually, job_manifest, phase
from played_kueue import PlayedKueue, told
from played_launchers import PlayedLaunchers
from test_operator_rights import signed_in
from test_operator_with_watchdog import endpoint, launchers, real

from holdfast.operator.act.faultpoint import EXIT_CODE
from holdfast.operator.kube.objects import QUEUE_LABEL, QUEUE_PRIORITY_LABEL

__all__ = ["endpoint", "launchers", "real"]


@pytest.fixture
async def kueue(cluster: Cluster) -> PlayedKueue:
    kueue = PlayedKueue(cluster)
    await kueue.install()
    return kueue


@pytest.fixture
def queueing(cluster: Cluster, kueue: PlayedKueue, endpoint: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    """An operator with the rights of a release that uses Kueue."""
    with signed_in(cluster, endpoint, tmp_path, {"kueue": {"enabled": True}}) as operator:
        yield operator


async def submit(cluster: Cluster, priority: str = "", **spec: object) -> None:
    manifest = job_manifest(cluster.namespace, "gpt", faultPolicy={"heartbeat": {"lost": "1m"}}, **spec)
    labels = {QUEUE_LABEL: "team", **({QUEUE_PRIORITY_LABEL: priority} if priority else {})}
    await cluster.api.call(
        "POST", cluster.path(), {**manifest, "metadata": {**manifest["metadata"], "labels": labels}}
    )


async def start_again(operator: OperatorProcess) -> None:
    """It dies before what it says of the Workload first, and again after what it says then."""

    async def died() -> bool:
        return operator.exit_code == EXIT_CODE

    for fault in ("before-workload:1", "after-workload:1", ""):
        operator.start("--kueue", fault=fault)
        if fault:
            await eventually(f"dead {fault}", died)


async def test_a_queued_job_waits_trains_with_its_share_is_saved_when_preempted_and_goes_on(
    cluster: Cluster,
    kubelet: FakeKubelet,
    queueing: OperatorProcess,
    launchers: PlayedLaunchers,
    kueue: PlayedKueue,
) -> None:
    flavor, urgent = f"{cluster.namespace}-h100", f"{cluster.namespace}-urgent"
    await add_nodes(kubelet, 3, {"holdfast": "h100"})
    await kueue.make("resourceflavors", "ResourceFlavor", flavor, spec={"nodeLabels": {"holdfast": "h100"}})
    await kueue.make("workloadpriorityclasses", "WorkloadPriorityClass", urgent, value=70)
    dying = asyncio.create_task(start_again(queueing))
    await submit(cluster, urgent, nodes={"min": 1, "max": 2, "spares": 1})
    # It waits, and says why in Kueue's words.
    workload = await kueue.until("a Workload")
    (podset,) = workload["spec"]["podSets"]
    assert (workload["spec"]["queueName"], workload["spec"]["priority"]) == ("team", 70)
    assert (podset["count"], podset["minCount"]) == (3, 1)
    await kueue.says(QuotaReserved=("False", "Inadmissible", "LocalQueue team doesn't exist"))
    job = await cluster.until("kept out", lambda job: condition(job, "QueueAdmitted") == "False")
    await cluster.until("in Kueue's words", lambda job: "LocalQueue team doesn't exist" in str(job))
    assert phase(await cluster.until("suspended", lambda job: phase(job) == "Suspended")) == "Suspended"
    assert await cluster.listed("pods") == [], job
    # Admitted with fewer nodes than asked for, it trains on those of the flavor.
    await kueue.admit(1, flavor)
    pods = await cluster.until_pods("gpt-0")
    assert pods["gpt-0"]["spec"]["nodeSelector"] == {"holdfast": "h100"}
    await cluster.until("running", lambda job: phase(job) == "Running")
    await kueue.until("its pods ready", PodsReady="True")
    await dying
    # Preempted, it saves first; when no pod is left, the quota is given back.
    await kueue.evict()
    workload = await kueue.until("given back", QuotaReserved="False", Admitted="False", Requeued="True")
    assert "admission" not in workload["status"]
    assert await cluster.pods() == {}
    assert len(set(launchers.saves)) == 1
    # Admitted again, with all that it asked for, it goes on from there.
    await kueue.admit(3, flavor)
    await cluster.until_pods("gpt-1", "gpt-2", "gpt-3")
    await cluster.until("running again", lambda job: phase(job) == "Running" and job["status"]["worldSize"] == 2)

    assert {seat.restore.step for name, seat in launchers.seats.items() if name != "gpt-0"} == {7}
    # Over, it holds no quota.
    launchers.finishing.set()
    await cluster.until("succeeded", lambda job: condition(job, "Succeeded") == "True")
    for name in ("gpt-1", "gpt-2", "gpt-3"):
        await kubelet.end_pod(name, 0)
    finished = await kueue.until("finished", Finished="True")
    assert told(finished)["Admitted"] == "True", "the record of its admission stays, as with other kinds"
    assert await queueing.metric("holdfast_operator_api_requests_total", code="403") == 0


async def test_a_queue_that_this_operator_does_not_serve_keeps_the_job_out(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess
) -> None:
    await add_nodes(kubelet, 2)
    real.start()
    await submit(cluster)
    job = await cluster.until("suspended", lambda job: phase(job) == "Suspended")
    assert condition(job, "QueueAdmitted") == "False"
    assert "set kueue.enabled in the chart" in str(job)
    assert await cluster.listed("pods") == []
