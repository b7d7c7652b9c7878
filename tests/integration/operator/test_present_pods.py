"""Pods as GPU users write them now: claims, gates, limits of the whole pod, sidecars, kubelets that refuse."""

from collections.abc import Iterator
from typing import Any

import pytest
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import Cluster, Manifest, OperatorProcess, add_nodes

from holdfast.api.plan import PodEnd, PodState

pytestmark = pytest.mark.kubernetes

DEVICES = "/apis/resource.k8s.io/v1"


def template(*more: Manifest, trainer: Manifest | None = None, **spec: Any) -> Manifest:
    """A pod template; named, because the test server runs without the admission that fills in the account."""
    given = {"name": "trainer", "image": "train:test", **(trainer or {})}
    return {"spec": {"serviceAccountName": "default", "containers": [given, *more], **spec}}


def said(job: Manifest | None, type_: str) -> tuple[str, str, str]:
    conditions = ((job or {}).get("status") or {}).get("conditions") or []
    found = next((each for each in conditions if each["type"] == type_), {})
    return found.get("status", ""), found.get("reason", ""), found.get("message", "")


def processes(pod: Manifest) -> str:
    (trainer,) = [each for each in pod["spec"]["containers"] if each["name"] == "trainer"]
    command: list[str] = trainer["command"]
    return command[command.index("--nproc-per-node") + 1]


@pytest.fixture
def h100(cluster: Cluster) -> Iterator[str]:
    """A class of the site's own, of which only the driver tells that its devices are GPUs."""
    name = f"h100-{cluster.namespace}"
    selector = {"cel": {"expression": "device.driver == 'gpu.nvidia.com'"}}
    spec = {"selectors": [selector]}
    metadata = {"name": name}
    cluster.server.call("POST", f"{DEVICES}/deviceclasses", {"metadata": metadata, "spec": spec})
    yield name
    cluster.server.call("DELETE", f"{DEVICES}/deviceclasses/{name}")


def claims(request: Manifest) -> Manifest:
    return {"metadata": {"name": "devices"}, "spec": {"spec": {"devices": {"requests": [request]}}}}


CLAIMING = template(
    {"name": "monitor", "image": "dcgm:test", "resources": {"limits": {"nvidia.com/gpu": 1}}},
    trainer={"resources": {"claims": [{"name": "gpus"}]}},
    resourceClaims=[{"name": "gpus", "resourceClaimTemplateName": "devices"}],
)


async def test_a_node_runs_a_worker_for_each_gpu_of_the_trainers_claim_once_its_template_is_there(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, h100: str
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    await cluster.apply(template=CLAIMING)
    job = await cluster.until("refused", lambda job: said(job, "InvalidSpec")[0] == "True")
    says = said(job, "InvalidSpec")[2]
    assert "spec.processesPerNode" in says
    assert "there is no ResourceClaimTemplate devices" in says
    request = {"name": "gpus", "exactly": {"deviceClassName": h100, "count": 8}}
    path = f"{DEVICES}/namespaces/{cluster.namespace}/resourceclaimtemplates"
    await cluster.api.call("POST", path, claims(request))
    pods = await cluster.until_pods("gpt-0", "gpt-1")
    assert {processes(each) for each in pods.values()} == {"8"}
    # What it held is known while the job lives, whatever becomes of the template.
    await cluster.api.call("DELETE", f"{path}/devices")
    operator.stop()
    operator.start()
    await kubelet.wait_running(2)
    await kubelet.end_pod("gpt-0", 1)
    pods = await cluster.until_pods("gpt-1", "gpt-2")
    assert processes(pods["gpt-2"]) == "8"


@pytest.mark.parametrize(
    ("limits", "count"),
    [({"amd.com/gpu": "4"}, "4"), ({"nvidia.com/mig-1g.10gb": "2"}, "2"), ({"gpu.intel.com/xe": "3"}, "3")],
    ids=["amd", "mig", "intel"],
)
async def test_gpus_of_every_vendor_run_a_worker_each_and_a_monitors_none(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, limits: dict[str, str], count: str
) -> None:
    await add_nodes(kubelet, 2)
    operator.start()
    monitor = {"name": "monitor", "image": "dcgm:test", "resources": {"limits": {"nvidia.com/gpu": 1}}}
    await cluster.apply(template=template(monitor, trainer={"resources": {"limits": limits}}))
    pods = await cluster.until_pods("gpt-0", "gpt-1")
    assert {processes(each) for each in pods.values()} == {count}


async def test_all_devices_of_a_node_are_no_number_that_could_be_known(
    cluster: Cluster, operator: OperatorProcess, h100: str
) -> None:
    operator.start()
    request = {"name": "gpus", "exactly": {"deviceClassName": h100, "allocationMode": "All"}}
    path = f"{DEVICES}/namespaces/{cluster.namespace}/resourceclaimtemplates"
    await cluster.api.call("POST", path, claims(request))
    await cluster.apply(template=CLAIMING)
    job = await cluster.until("refused", lambda job: said(job, "InvalidSpec")[0] == "True")
    assert "allocationMode All" in said(job, "InvalidSpec")[2]
    assert await cluster.pods() == {}
    await cluster.patch("gpt", {"spec": {"processesPerNode": 4}})
    pods = await cluster.until_pods("gpt-0", "gpt-1")
    assert {processes(each) for each in pods.values()} == {"4"}


async def test_pods_that_gates_hold_are_said_to_be_held_and_not_to_find_no_place(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    await cluster.apply(template=template(schedulingGates=[{"name": "example.com/data"}]))
    job = await cluster.until("held", lambda job: said(job, "CapacityAvailable")[1] == "SchedulingGated")
    status, _, says = said(job, "CapacityAvailable")
    assert status == "Unknown"
    assert says == "2 of 2 pods have no node yet, held by scheduling gates: example.com/data"


LIMITED: dict[str, Manifest] = {
    "of-the-pod": template(resources={"limits": {"memory": "1Gi", "cpu": "2"}}),
    "beside-a-sidecar": template(
        trainer={"resources": {"limits": {"memory": "1Gi"}}},
        initContainers=[{"name": "mesh", "image": "mesh:test", "restartPolicy": "Always"}],
    ),
    "beside-a-monitor": template(
        {"name": "monitor", "image": "dcgm:test"}, trainer={"resources": {"limits": {"memory": "1Gi"}}}
    ),
}


@pytest.mark.parametrize("limited", LIMITED)
async def test_a_pods_own_limit_of_memory_is_told_as_such_and_its_place_is_free(
    cluster: Cluster,
    kubelet: FakeKubelet,
    operator: OperatorProcess,
    watchdog: FakeOperatorWatchdog,
    limited: str,
) -> None:
    await add_nodes(kubelet, 3)
    operator.start()
    await cluster.apply(template=LIMITED[limited])
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    killed = {"exitCode": 137, "reason": "OOMKilled", "startedAt": "2026-01-01T00:00:00Z"}
    ended = {"name": "trainer", "state": {"terminated": killed | {"finishedAt": "2026-01-01T01:00:00Z"}}}
    runs = {"state": {"running": {"startedAt": "2026-01-01T00:00:00Z"}}}
    status: Manifest = {"containerStatuses": [_status(ended)]}
    if limited == "of-the-pod":
        status["phase"] = "Failed"
    elif limited == "beside-a-sidecar":
        status["initContainerStatuses"] = [_status({"name": "mesh", **runs})]
    else:
        status["containerStatuses"].append(_status({"name": "monitor", **runs}))
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/gpt-0/status"
    content = "application/merge-patch+json"
    await cluster.api.call("PATCH", path, {"status": status}, content=content)
    job = watchdog.job(cluster.id())
    await watchdog.until("told as killed", lambda: job.pods["gpt-0"].state is PodState.GONE)
    assert (job.pods["gpt-0"].end, job.pods["gpt-0"].reason) == (PodEnd.OWN_LIMIT, "OOMKilled (exit code 137)")
    await kubelet.wait("the next one", lambda pods: "gpt-2" in pods)


def _status(given: Manifest) -> Manifest:
    return {"image": "x", "imageID": "", "ready": False, "restartCount": 0, **given}


async def test_the_next_pod_keeps_away_from_a_node_whose_kubelet_refused_one(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess
) -> None:
    await add_nodes(kubelet, 3)
    kubelet.start_delay_s = 3600.0
    operator.start()
    await cluster.apply()
    await kubelet.wait("bound", lambda pods: "gpt-0" in pods and pods["gpt-0"].node != "")
    refusing = kubelet.pods["gpt-0"].node
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Pod was rejected: no GPU"}
    path = f"/api/v1/namespaces/{cluster.namespace}/pods/gpt-0/status"
    await cluster.api.call("PATCH", path, {"status": refused}, content="application/merge-patch+json")
    pods = await cluster.until_pods("gpt-1", "gpt-2")
    affinity = pods["gpt-2"]["spec"]["affinity"]["nodeAffinity"]
    (term,) = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"]
    assert term["matchExpressions"] == [
        {"key": "kubernetes.io/hostname", "operator": "NotIn", "values": [refusing]}
    ]
    assert pods["gpt-2"]["metadata"]["annotations"]["holdfast.dev/refused-by"] == refusing
