"""The operator beside the real watchdog; launchers are played in the pods of a real API server."""

import asyncio
import shutil
import socket
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import TOKEN
from operator_rig import Cluster, OperatorProcess, add_nodes, condition, eventually, phase
from played_launchers import PlayedLaunchers
from server_process import ServerProcess, free_port

MAINTENANCE = "maintenance.example/planned"


@contextmanager
def started_watchdog(folder: Path) -> Iterator[tuple[ServerProcess, str]]:
    """The real one, and where it listens; started again, it is there again."""
    port, token_file = free_port(), folder / "tokens"
    token_file.write_text(TOKEN + "\n")
    token_file.chmod(0o600)
    command = [sys.executable, "-m", "holdfast.watchdog", "--listen", f"127.0.0.1:{port}"]
    command += ["--store", str(folder / "watchdog.db"), "--token-file", str(token_file)]
    process = ServerProcess("watchdog", command, folder / "watchdog.log")
    process.start()

    def listens() -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", port)) == 0

    try:
        process.wait_until(listens, 20.0)
        yield process, f"127.0.0.1:{port}"
    finally:
        process.stop()
        print(process.log.read_text())


@pytest.fixture
def endpoint(tmp_path: Path) -> Iterator[str]:
    """The real watchdog's."""
    with started_watchdog(tmp_path) as (_, endpoint):
        yield endpoint


@pytest.fixture
def real(cluster: Cluster, endpoint: str, tmp_path: Path) -> Iterator[OperatorProcess]:
    operator = OperatorProcess(cluster.server, cluster.namespace, endpoint, tmp_path, name="real")
    try:
        yield operator
    finally:
        operator.stop()
        print(operator.log.read_text() if operator.log.exists() else "the operator was never started")


@pytest.fixture
async def launchers(cluster: Cluster, kubelet: FakeKubelet, endpoint: str) -> AsyncIterator[PlayedLaunchers]:
    async with PlayedLaunchers(kubelet, endpoint, cluster.id()) as launchers:
        yield launchers


async def test_a_job_runs_survives_a_lost_pod_and_succeeds(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess, launchers: PlayedLaunchers
) -> None:
    await add_nodes(kubelet, 3, {"nvidia.com/gpu.product": "H100", "karpenter.sh/capacity-type": "spot"})
    real.start()
    # At the price of just these nodes the budget is spent at once; at any other it would last for years.
    dear = {"gpu": "H100", "capacity": "Spot", "gpuHour": 1e6}
    cost = {"gpuHour": 0.0001, "prices": [{"gpu": "H100", "gpuHour": 0.0001}, dear], "budget": {"amount": 10}}
    await cluster.apply(nodes={"min": 2, "max": 2}, ttlAfterFinished="2s", cost=cost)
    await cluster.until("running", lambda job: phase(job) == "Running")
    well = {"Ready": "True", "Progressing": "False", "Degraded": "False", "CapacityAvailable": "True"}
    await cluster.until("as wanted", lambda job: {kind: condition(job, kind) for kind in well} == well)
    await cluster.until("over its budget", lambda job: condition(job, "WithinBudget") == "False")
    degraded = asyncio.create_task(cluster.until("degraded", lambda job: condition(job, "Degraded") == "True"))
    await kubelet.end_pod("gpt-0", 137, "OOMKilled")
    await degraded
    await cluster.until_pods("gpt-1", "gpt-2")

    async def healed() -> bool:
        return launchers.rounds.get("gpt-2", 0) > 1

    await eventually("a round with the new member", healed)
    await cluster.until("running again", lambda job: phase(job) == "Running")
    launchers.finishing.set()
    await cluster.until("succeeded", lambda job: condition(job, "Succeeded") == "True")
    for name in ("gpt-1", "gpt-2"):
        await kubelet.end_pod(name, 0)
    await cluster.until("deleted after its time", lambda job: job is None)
    assert len(cluster.pods_created) == 3


async def test_suspending_saves_once_more_and_resuming_goes_on(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess, launchers: PlayedLaunchers
) -> None:
    await add_nodes(kubelet, 2)
    real.start()
    # All launchers are played by this process: on a busy machine they may be silent for seconds at once.
    await cluster.apply(faultPolicy={"heartbeat": {"lost": "1m"}, "loss": {}})
    await cluster.until("running", lambda job: phase(job) == "Running")
    await cluster.patch("gpt", {"spec": {"suspend": True}})
    await cluster.until_pods()
    job = await cluster.until("suspended", lambda job: phase(job) == "Suspended")
    assert condition(job, "CheckpointHealthy") == "True"
    assert condition(job, "DivergenceHealable") == "False", "nobody has said that anything was restored"
    assert len(set(launchers.saves)) == 1
    await cluster.patch("gpt", {"spec": {"suspend": False}})
    await cluster.until_pods("gpt-2", "gpt-3")
    await cluster.until("running again", lambda job: phase(job) == "Running")
    template = {
        "spec": {"serviceAccountName": "default", "containers": [{"name": "trainer", "image": "train:next"}]}
    }
    await cluster.patch("gpt", {"spec": {"template": template}})
    await cluster.until("told", lambda job: condition(job, "UpToDate") == "False")
    asked = {"job": "gpt", "action": "Restart", "reason": "roll"}
    manifest = {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Intervention", "metadata": {"name": "roll"}}
    await cluster.api.call("POST", cluster.path(plural="interventions"), {**manifest, "spec": asked})
    await cluster.until_pods("gpt-4", "gpt-5")
    rolled = await cluster.until("rolled", lambda job: phase(job) == "Running" and _is_rolled(job))
    blamed = {each["culprit"] for each in rolled["status"]["recentIncidents"]}
    assert not [each for each in blamed if each.startswith("node")], "a pod that is replaced blames no node"


def _is_rolled(job: dict[str, Any] | None) -> bool:
    return condition(job, "UpToDate") == "True" and condition(job, "Ready") == "True"


async def test_a_job_that_a_queue_applied_suspended_has_no_pod_before_it_may_begin(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess, launchers: PlayedLaunchers
) -> None:
    await add_nodes(kubelet, 2)
    real.start()
    await cluster.apply(suspend=True)
    await cluster.until("suspended", lambda job: condition(job, "Suspended") == "True")
    assert await cluster.listed("pods") == []
    await cluster.patch("gpt", {"spec": {"suspend": False}})
    await cluster.until_pods("gpt-0", "gpt-1")
    await cluster.until("running", lambda job: phase(job) == "Running")
    # No number is given twice: there was no pod before these.
    assert sorted(cluster.pods_created.values()) == ["gpt-0", "gpt-1"]
    assert launchers.saves == [], "there was nothing to be saved"


async def test_a_deleted_job_saves_once_more_and_is_forgotten(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess, launchers: PlayedLaunchers
) -> None:
    await add_nodes(kubelet, 2)
    real.start()
    await cluster.apply()
    await cluster.until("running", lambda job: phase(job) == "Running")
    await cluster.delete()
    await cluster.until("gone", lambda job: job is None)
    assert launchers.saves
    assert await cluster.listed("pods") == []


@pytest.mark.parametrize(
    "mark",
    [
        pytest.param({"unschedulable": True}, id="cordoned"),
        pytest.param(
            {"taints": [{"key": MAINTENANCE, "value": "soon", "effect": "NoSchedule"}]},
            id="tainted for maintenance",
        ),
    ],
)
async def test_a_node_that_is_drained_is_left_in_good_order(
    cluster: Cluster,
    kubelet: FakeKubelet,
    real: OperatorProcess,
    launchers: PlayedLaunchers,
    mark: dict[str, Any],
) -> None:
    await add_nodes(kubelet, 3)
    real.start("--maintenance-taint", MAINTENANCE)
    await cluster.apply(nodes={"min": 1, "max": 2, "spares": 1})
    await cluster.until_pods("gpt-0", "gpt-1", "gpt-2")
    await cluster.until("running", lambda job: phase(job) == "Running")
    member = next(iter(launchers.seats))  # the third one is a spare, which leaves without any ado
    drained = kubelet.pods[member].node
    content = "application/strategic-merge-patch+json"
    await cluster.api.call("PATCH", f"/api/v1/nodes/{drained}", {"spec": mark}, content=content)

    async def left() -> bool:
        return member not in await cluster.pods()

    await eventually("the drained node left", left, lambda: launchers.rounds)
    assert launchers.saves


@pytest.mark.parametrize("lost", ["all", "the newest"])
async def test_a_store_that_has_lost_what_it_knew_starts_no_job_anew_until_somebody_says_so(
    cluster: Cluster, kubelet: FakeKubelet, tmp_path: Path, lost: str
) -> None:
    await add_nodes(kubelet, 3)
    older = tmp_path / "older"
    with started_watchdog(tmp_path) as (watchdog, endpoint):
        operator = OperatorProcess(cluster.server, cluster.namespace, endpoint, tmp_path, name="real")
        async with PlayedLaunchers(kubelet, endpoint, cluster.id()) as launchers:
            try:
                operator.start()
                await cluster.apply()
                await cluster.until("running", lambda job: phase(job) == "Running")
                if lost == "the newest":
                    watchdog.stop()
                    shutil.copy(tmp_path / "watchdog.db", older)
                    watchdog.start()
                    before = await cluster.until("read", lambda job: job is not None)
                    await kubelet.end_pod("gpt-0", 137, "OOMKilled")
                    await cluster.until("healed", lambda job: job["status"]["round"] > before["status"]["round"])
                    await cluster.until("running", lambda job: phase(job) == "Running")
                watchdog.stop()
                for path in tmp_path.glob("watchdog.db*"):
                    path.unlink()
                if lost == "the newest":
                    shutil.copy(older, tmp_path / "watchdog.db")  # without the file beside it, that knows of more
                reached, pods = dict(launchers.rounds), await cluster.pods()
                watchdog.start()
                # These launchers say nothing of what they were shown: the operator alone knows better.
                job = await cluster.until("told", lambda job: "Forgotten" in str(job["status"]["conditions"]))
                says = {"all": "no journal of this job", "the newest": "the store is an older copy of itself"}
                assert says[lost] in str(job["status"]["conditions"])
                # No round that is new. Unlike real ones, these obey a smaller number too.
                assert all(launchers.rounds[member] <= number for member, number in reached.items())
                await cluster.until_pods(*pods)
                await cluster.api.call("DELETE", cluster.path("gpt"))
                await cluster.until("deleted", lambda job: job is None)
                await cluster.apply()
                await cluster.until("running again", lambda job: phase(job) == "Running")
            finally:
                operator.stop()
                print(operator.log.read_text())


async def test_a_changed_policy_is_tried_on_the_run_by_what_its_pod_runs(
    cluster: Cluster, kubelet: FakeKubelet, real: OperatorProcess, launchers: PlayedLaunchers, tmp_path: Path
) -> None:
    """No image is here: what the pod would run is run beside it, with its file and against the same watchdog."""
    await add_nodes(kubelet, 3)
    real.start("--policy-check-image", "operator:test", "--policy-check-timeout", "300")
    await cluster.apply(nodes={"min": 2, "max": 2}, policyCheck="warn", faultPolicy={"heartbeat": {"lost": "1m"}})
    await cluster.until("trains", lambda job: phase(job) == "Running" and bool((job or {})["status"].get("step")))
    await kubelet.end_pod("gpt-0", 137, "OOMKilled")
    await cluster.until_pods("gpt-1", "gpt-2")

    async def healed() -> bool:
        return launchers.rounds.get("gpt-2", 0) > 1

    await eventually("a round with the new member", healed)
    await cluster.until("running again", lambda job: phase(job) == "Running")
    await cluster.apply(faultPolicy={"heartbeat": {"lost": "50s"}})
    await cluster.until("being checked", lambda job: condition(job, "PolicyChecked") == "False")
    await kubelet.wait("checked", lambda pods: any(each.endswith("-check") for each in pods))
    name = next(each for each in kubelet.pods if each.endswith("-check"))
    pod = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/pods/{name}")
    assert pod is not None
    assert pod["spec"]["activeDeadlineSeconds"] == 300
    words, code = await _run_of(pod, tmp_path)
    assert code == 0, words
    await kubelet.end_pod(name, 0, message=words)
    job = await cluster.until("in force", lambda job: condition(job, "PolicyChecked") == "True")
    assert job is not None
    (told,) = (each for each in job["status"]["conditions"] if each["type"] == "PolicyChecked")
    assert told["reason"] in ("Better", "Noise"), told
    assert "under the changed policy 1 faults" in told["message"]


async def _run_of(pod: dict[str, Any], folder: Path) -> tuple[str, int]:
    """The last words of what the pod runs, or what it complains of; and its exit code."""
    changed, brief = folder / "changed.yaml", folder / "brief"
    changed.write_text(pod["metadata"]["annotations"]["holdfast.dev/policy"])
    here = {
        "python3": sys.executable,
        "/etc/holdfast/check/changed.yaml": str(changed),
        "/var/run/secrets/holdfast/token": str(folder / "tokens"),
        "/dev/termination-log": str(brief),
    }
    command = [here.get(word, word) for word in pod["spec"]["containers"][0]["command"]]
    running = await asyncio.create_subprocess_exec(
        *command, "--seeds", "2", stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.PIPE
    )
    _, complaint = await running.communicate()
    return brief.read_text() if brief.exists() else complaint.decode(), running.returncode or 0
