"""Beside other controllers: what they say of nodes, what they are told, and what they are asked for."""

import json
from typing import Any

import pytest
from apiserver import ApiServer, Refused
from fake_kubelet import FakeKubelet
from fake_watchdog_for_operator import FakeOperatorWatchdog
from operator_rig import GROUP, Cluster, OperatorProcess, add_nodes, condition, eventually
from test_operator_crashes import HANDED_ON

from holdfast.api.nodecondition import FaultPart, Meaning
from holdfast.api.plan import NodeOrder
from holdfast.api.xid import Recovery
from holdfast.operator.act.faultpoint import EXIT_CODE

MERGE = "application/merge-patch+json"
STRATEGIC = "application/strategic-merge-patch+json"
SINCE = "2026-05-01T10:00:00Z"
RULES = [{"type": "FanProblem", "reason": "Fan.+", "means": "suspect", "part": "gpu"}]
HANDS_ON = ("--hand-on", "remediation", "--remediation-ttl", "0", "--node-conditions", json.dumps(RULES))
REQUESTS = "/apis/autoscaling.x-k8s.io/v1"
REQUEST_DEFINITION: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {
        "name": "provisioningrequests.autoscaling.x-k8s.io",
        "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes/autoscaler/pull/5848"},
    },
    "spec": {
        "group": "autoscaling.x-k8s.io",
        "scope": "Namespaced",
        "names": {
            "kind": "ProvisioningRequest",
            "listKind": "ProvisioningRequestList",
            "plural": "provisioningrequests",
            "singular": "provisioningrequest",
        },
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "subresources": {"status": {}},
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                            "status": {"type": "object", "x-kubernetes-preserve-unknown-fields": True},
                        },
                    }
                },
            }
        ],
    },
}


async def says(cluster: Cluster, node: str, kind: str, status: str) -> None:
    """Another controller writes a condition of a node."""
    given = {
        "type": kind,
        "status": status,
        "reason": "FanBroken",
        "message": "0 rpm",
        "lastTransitionTime": SINCE,
    }
    patch = {"status": {"conditions": [given]}}
    await cluster.api.call("PATCH", f"/api/v1/nodes/{node}/status", patch, content=STRATEGIC)


async def health(cluster: Cluster, node: str) -> str:
    """What Holdfast says of the node: status and reason."""
    found = await cluster.api.call("GET", f"/api/v1/nodes/{node}")
    ours = [each for each in found["status"]["conditions"] if each["type"] == "HoldfastHealthy"]
    return " ".join(f"{each['status']} {each['reason']}" for each in ours)


async def until_healthy(cluster: Cluster, node: str, wanted: str) -> None:
    async def so() -> bool:
        return await health(cluster, node) == wanted

    await eventually(f"{node} {wanted}", so)


@pytest.mark.parametrize("fault", HANDED_ON)
async def test_what_others_say_of_a_node_moves_the_job_and_is_handed_on(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog, fault: str
) -> None:
    await add_nodes(kubelet, 3)
    operator.start(*HANDS_ON, fault=f"{fault}:1")
    await cluster.apply()
    await kubelet.wait_running(2)
    await watchdog.until_seen_running(cluster.id(), "gpt-0", "gpt-1")
    job, sick = watchdog.job(cluster.id()), kubelet.pods["gpt-0"].node
    remediation = f"{GROUP}/noderemediations/{sick}"
    # What others say is told.
    await says(cluster, sick, "FanProblem", "True")
    await watchdog.until("told", lambda: bool(job.nodes[sick].conditions))
    (told,) = job.nodes[sick].conditions
    assert (told.type, told.means, told.part, told.since) == ("FanProblem", Meaning.SUSPECT, FaultPart.GPU, SINCE)
    # What comes of it is handed on once, wherever the operator dies on the way.
    order = NodeOrder(sick, "the fan is broken", "inc-1", Recovery.REBOOT_NODE)
    await watchdog.script(cluster.id(), avoid=(order,), cordon=(order,), release=("gpt-0",))

    async def died() -> bool:
        return operator.exit_code == EXIT_CODE

    await eventually("the operator dead", died)
    operator.start(*HANDS_ON)
    await cluster.until_pods("gpt-1", "gpt-2")
    await until_healthy(cluster, sick, "False NeedsReboot")

    async def requested() -> bool:
        return await cluster.get(remediation) is not None

    await eventually("the remediation asked for", requested)
    asked = await cluster.api.call("GET", remediation)
    assert (asked["spec"]["action"], asked["spec"]["incident"]) == ("Reboot", "inc-1")
    assert asked["metadata"]["generation"] == 1
    assert asked["metadata"]["ownerReferences"][0]["kind"] == "Node"
    # Its outcome is heard, and the node comes back.
    done = {"status": {"outcome": "Succeeded", "observedGeneration": 1}}
    await cluster.api.call("PATCH", f"{remediation}/status", done, content=MERGE)
    await watchdog.until("heard", lambda: job.nodes[sick].remediated == "inc-1")
    await watchdog.script(cluster.id(), avoid=(), cordon=(), release=(), returned=(sick,), trying=(sick,))
    await until_healthy(cluster, sick, "Unknown OnProbation")
    await watchdog.script(cluster.id(), trying=())
    await until_healthy(cluster, sick, "True Trusted")

    async def gone() -> bool:
        return await cluster.get(remediation) is None

    await eventually("the remediation gone after its time", gone)


async def test_capacity_is_asked_for_once_and_withdrawn(
    cluster: Cluster, kubelet: FakeKubelet, operator: OperatorProcess, watchdog: FakeOperatorWatchdog
) -> None:
    define_requests(cluster.server)
    where = f"{REQUESTS}/namespaces/{cluster.namespace}/provisioningrequests"

    async def served() -> bool:
        try:
            return await cluster.api.call("GET", where) is not None
        except Refused:
            return False

    await eventually("provisioning requests served", served)
    await add_nodes(kubelet, 1)
    operator.start("--capacity", "provisioning-request", "--provisioning-class", "check.example")
    await cluster.apply()
    await kubelet.wait_running(1)

    async def asked() -> bool:
        return await cluster.get(f"{where}/gpt") is not None

    await eventually("asked for", asked)
    request = await cluster.api.call("GET", f"{where}/gpt")
    assert request["spec"]["podSets"] == [{"count": 1, "podTemplateRef": {"name": "gpt"}}]
    assert request["spec"]["provisioningClassName"] == "check.example"
    template = await cluster.api.call("GET", f"/api/v1/namespaces/{cluster.namespace}/podtemplates/gpt")
    assert template["template"]["spec"]["containers"][0]["image"] == "train:test"
    failed = {"type": "Failed", "status": "True", "reason": "OutOfResources", "message": "the zone has none"}
    failed["lastTransitionTime"] = "2126-05-01T10:00:00Z"
    await cluster.api.call("PATCH", f"{where}/gpt/status", {"status": {"conditions": [failed]}}, content=MERGE)

    def refused(job: dict[str, Any] | None) -> bool:
        conditions = ((job or {}).get("status") or {}).get("conditions") or []
        return any(
            each["reason"] == "CapacityFailed" and "the zone has none" in each["message"] for each in conditions
        )

    assert condition(await cluster.until("told", refused), "CapacityAvailable") == "False"
    await kubelet.add_nodes([f"{kubelet.namespace}-late"])
    await kubelet.wait_running(2)

    async def withdrawn() -> bool:
        left = await cluster.get(f"{where}/gpt"), await cluster.get(template_path)
        return left == (None, None)

    template_path = f"/api/v1/namespaces/{cluster.namespace}/podtemplates/gpt"
    await eventually("withdrawn", withdrawn)


def define_requests(server: ApiServer) -> None:
    try:
        server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", REQUEST_DEFINITION)
    except Refused as refused:
        if refused.code != 409:
            raise
