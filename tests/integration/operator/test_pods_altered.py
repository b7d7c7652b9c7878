"""What a real API server makes of a job's pods on its own account is told, and the job runs."""

from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServer, ApiServerSettings
from operator_rig import Cluster, OperatorProcess, condition, eventually, job_manifest

from holdfast.operator.crd import definitions

pytestmark = pytest.mark.kubernetes

API = "admissionregistration.k8s.io"
FLAGS = (
    # On by default from 1.36 on; before, the policies are there and off.
    "--feature-gates=MutatingAdmissionPolicy=true,ContainerStopSignals=false",
    f"--runtime-config={API}/v1beta1=true",
)


@pytest.fixture(scope="module")
def defined() -> Iterator[ApiServer]:
    """A server with a gate switched off, in place of the one that the other tests share."""
    server = ApiServer(ApiServerSettings(flags=FLAGS))
    try:
        server.start()
        for definition in definitions().values():
            server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        yield server
    finally:
        server.close()


@pytest.fixture
def namespace(defined: ApiServer) -> str:
    return defined.new_namespace()


def job(namespace: str, **pod: Any) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "train:test", **pod.pop("trainer", {})}
    template = {"spec": {**pod, "containers": [trainer]}}
    return job_manifest(namespace, "gpt", nodes={"min": 1, "max": 1}, template=template)


def said(shown: dict[str, Any] | None) -> tuple[str, str]:
    """Reason and message of the condition."""
    found = (shown or {}).get("status", {}).get("conditions", [])
    return next(((each["reason"], each["message"]) for each in found if each["type"] == "PodsAltered"), ("", ""))


async def told(cluster: Cluster) -> list[tuple[str, str]]:
    events = await cluster.listed("events")
    return [(each["type"], each["message"]) for each in events if each["reason"] == "PodsAltered"]


def policy(server: ApiServer, namespace: str, expression: str) -> None:
    """An admission policy that applies this to every pod of the namespace."""
    served = server.call("GET", f"/apis/{API}")["preferredVersion"]["version"]
    known = {each["name"] for each in server.call("GET", f"/apis/{API}/{served}")["resources"]}
    version = f"{API}/{served if 'mutatingadmissionpolicies' in known else 'v1beta1'}"
    rule = {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
    here = {"matchLabels": {"kubernetes.io/metadata.name": namespace}}
    spec = {
        "matchConstraints": {"resourceRules": [rule], "namespaceSelector": here},
        "failurePolicy": "Fail",
        "reinvocationPolicy": "Never",
        "mutations": [{"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}],
    }
    about = {"apiVersion": version, "metadata": {"name": namespace}}
    path = f"/apis/{version}"
    server.call(
        "POST", f"{path}/mutatingadmissionpolicies", {**about, "kind": "MutatingAdmissionPolicy", "spec": spec}
    )
    bound = {**about, "kind": "MutatingAdmissionPolicyBinding", "spec": {"policyName": namespace}}
    server.call("POST", f"{path}/mutatingadmissionpolicybindings", bound)


async def in_force(cluster: Cluster, applied: str) -> None:
    """A policy is in force a moment after it is made."""
    pod = {
        "metadata": {"name": "probe", "labels": {"probe": "yes"}},
        "spec": job(cluster.namespace)["spec"]["template"]["spec"],
    }
    pod["spec"] |= {"priorityClassName": "", "tolerations": [{"key": "gpu", "operator": "Exists"}]}

    async def so() -> bool:
        made = await cluster.api.call("POST", f"/api/v1/namespaces/{cluster.namespace}/pods?dryRun=All", pod)
        return applied in str(made)

    await eventually("the policy in force", so)


async def test_a_field_that_a_gate_switches_off_is_named_and_the_job_runs(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start()
    trainer = {"lifecycle": {"stopSignal": "SIGUSR1"}}
    await cluster.api.call("POST", cluster.path(), job(cluster.namespace, os={"name": "linux"}, trainer=trainer))
    shown = await cluster.until("told", lambda job: condition(job, "PodsAltered") == "True")
    reason, message = said(shown)
    assert reason == "Dropped"
    assert "dropped: spec.containers[0].lifecycle" in message
    assert condition(shown, "InvalidSpec") == "False"
    await cluster.until_pods("gpt-0")
    assert await told(cluster) == [("Warning", message)]


@pytest.mark.parametrize(
    ("expression", "applied", "reason", "says"),
    [
        (
            '[JSONPatch{op: "replace", path: "/spec/containers/0/image", value: "mirror.example/train:test"}]',
            "mirror.example",
            "Rewritten",
            "rewritten: spec.containers[0].image ('mirror.example/train:test' in place of 'train:test')",
        ),
        (
            '[JSONPatch{op: "remove", path: "/spec/tolerations/0"}]',
            "'tolerations': [{'key': 'node.kubernetes.io",
            "Dropped",
            "dropped: spec.tolerations[0]",
        ),
    ],
    ids=["an image from a mirror", "a toleration that is not allowed"],
)
async def test_what_a_policy_changes_is_told_with_its_field_and_the_job_runs(
    cluster: Cluster, operator: OperatorProcess, expression: str, applied: str, reason: str, says: str
) -> None:
    policy(cluster.server, cluster.namespace, expression)
    await in_force(cluster, applied)
    operator.start()
    tolerations = [{"key": "gpu", "operator": "Exists"}]
    await cluster.api.call("POST", cluster.path(), job(cluster.namespace, tolerations=tolerations))
    shown = await cluster.until("told", lambda job: condition(job, "PodsAltered") == "True")
    assert said(shown)[0] == reason
    assert says in said(shown)[1]
    await cluster.until_pods("gpt-0")
    assert [kind for kind, _ in await told(cluster)] == ["Warning" if reason == "Dropped" else "Normal"]


async def test_a_pod_that_is_only_added_to_is_as_it_was_asked(cluster: Cluster, operator: OperatorProcess) -> None:
    addition = '[JSONPatch{op: "add", path: "/metadata/labels/mesh", value: "on"}]'
    policy(cluster.server, cluster.namespace, addition)
    await in_force(cluster, "'mesh': 'on'")
    operator.start()
    limits = {"resources": {"limits": {"memory": "1024Mi", "cpu": 0.5}}}
    await cluster.api.call("POST", cluster.path(), job(cluster.namespace, trainer=limits))
    shown = await cluster.until("told", lambda job: condition(job, "PodsAltered") == "False")
    assert said(shown) == ("AsAsked", "")
    await cluster.until_pods("gpt-0")
