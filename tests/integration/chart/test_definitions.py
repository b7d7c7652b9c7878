"""TrainingJob and Intervention as a real API server keeps them: defaults, refusals, status, scale, columns."""

import json
import time
from collections.abc import Iterator
from typing import Any

import pytest
from apiserver import ApiServer, Refused
from cluster_asks import explained, kubectl, until_served
from helmchart import HelmChart
from invalid_specs import BASE
from patience import patient
from pydantic import TypeAdapter
from yaml import safe_load

from holdfast.api.jobstatus import TrainingJobStatus
from holdfast.api.trainingjob import JobSpec, read_trainingjob

pytestmark = pytest.mark.kubernetes
API = "/apis/holdfast.dev/v1alpha1"
Document = dict[str, Any]


@pytest.fixture(scope="module")
def served(cluster: ApiServer) -> Iterator[ApiServer]:
    """A server that knows the definitions, from the chart."""
    release = HelmChart(cluster.admin_kubeconfig(), cluster.new_namespace("chart"))
    release.install()
    for plural in ("trainingjobs", "interventions", "noderemediations"):
        until_served(cluster, f"{API}/{plural}")
    yield cluster
    release.uninstall()


@pytest.fixture
def here(served: ApiServer) -> str:
    """A namespace of the test's own."""
    return served.new_namespace()


@pytest.fixture
def jobs(here: str) -> str:
    """The path of its jobs."""
    return f"{API}/namespaces/{here}/trainingjobs"


def _job(**spec: Any) -> Document:
    document: Document = safe_load(BASE)
    document["metadata"] = {"name": "gpt", "labels": {"team": "ml"}}
    document["spec"] |= spec
    return document


def test_what_the_server_fills_in_is_what_the_types_have(jobs: str, cluster: ApiServer) -> None:
    kept = cluster.call("POST", jobs, _job(nodes={"min": 2}))
    written = read_trainingjob(_job(nodes={"min": 2}))
    read = read_trainingjob({key: kept[key] for key in ("apiVersion", "kind", "metadata", "spec")})
    assert read.spec == written.spec
    assert read.spec.nodes.max == 2, "it follows min"
    # Everything that has a default is shown, so that nobody has to look it up.
    shown = set(kept["spec"])
    expected = {
        name
        for name, value in JobSpec.model_construct().model_dump(by_alias=True, warnings=False).items()
        if value
    }
    assert expected - {"suspend"} <= shown


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ({"entrypoint": []}, "spec.entrypoint"),
        ({"entrypoint": "train.py"}, "spec.entrypoint"),
        ({"nodes": {"min": 0}}, "spec.nodes.min"),
        ({"nodes": {"min": 1.5}}, "spec.nodes.min"),
        ({"startup": {"timeout": "10"}}, "spec.startup.timeout"),
        ({"startup": {"timeout": 10}}, "spec.startup.timeout"),
        ({"startup": {"preflight": "heavy"}}, "spec.startup.preflight"),
        ({"faultPolicy": {"xid": {"79": "Kill"}}}, "spec.faultPolicy.xid.79"),
        ({"faultPolicy": {"loss": {"learningRateScale": 2}}}, "spec.faultPolicy.loss.learningRateScale"),
        ({"faultPolicy": {"straggler": {"action": "Restart"}}}, "spec.faultPolicy.straggler.action"),
        ({"cost": {"currency": "USD"}}, "spec.cost.gpuHour"),
        (
            {"utilization": {"gigaflopsPerToken": 42, "peakTeraflopsPerGpu": 0}},
            "spec.utilization.peakTeraflopsPerGpu",
        ),
        ({"template": None}, "spec.template"),
        ({"template": "pod"}, "spec.template"),
    ],
    ids=lambda value: json.dumps(value)[:40] if isinstance(value, dict) else "",
)
def test_a_wrong_field_is_refused_by_name(jobs: str, cluster: ApiServer, spec: Document, said: str) -> None:
    document = _job(**spec)
    document["spec"] = {key: value for key, value in document["spec"].items() if value is not None}
    with pytest.raises(Refused, match=r"^422") as caught:
        cluster.call("POST", jobs, document)
    assert said in str(caught.value)


def test_a_misspelt_field_is_refused_by_kubectl(jobs: str, cluster: ApiServer) -> None:
    explained(cluster, "tj.spec")  # kubectl checks by what the server has published
    document = json.dumps(_job(entrypont=["train.py"]))
    ended = kubectl(cluster, "apply", "--dry-run=server", "--filename", "-", given=document)
    assert ended.returncode != 0
    assert "entrypont" in ended.stderr


def test_a_pod_template_is_kept_word_for_word(jobs: str, cluster: ApiServer) -> None:
    template = {"spec": {"containers": [{"name": "trainer", "image": "t:1", "newField": {"a": [1, None]}}]}}
    kept = cluster.call("POST", jobs, _job(template=template))
    assert kept["spec"]["template"] == template


def test_what_the_operator_writes_is_kept_and_a_spec_change_does_not_touch_it(
    jobs: str, cluster: ApiServer
) -> None:
    cluster.call("POST", jobs, _job())
    condition = {"status": "True", "reason": "FullRound", "lastTransitionTime": "2026-01-01T00:00:00Z"}
    status = {
        "phase": "Running",
        "conditions": [{"type": "Ready", **condition, "observedGeneration": 1, "message": ""}],
        "members": {"wanted": 4, "ready": 3, "spares": 1, "pods": 5},
        "goodput": {"ettr": 0.987},
        "step": 1200,
        "lastCheckpoint": {"step": 1100, "uri": "file:///ckpt/1100", "verified": False},
        "recentIncidents": [{"id": "inc-0001", "timeToRecoverSeconds": 3.2, "culprit": {"rank": 3}}],
        "incidents": 1,
        "podsCreated": 6,
        "selector": "holdfast.dev/job=gpt",
    }
    TypeAdapter(TrainingJobStatus).validate_json(json.dumps(status))
    content = "application/merge-patch+json"
    kept = cluster.call("PATCH", f"{jobs}/gpt/status", {"status": status}, content=content)["status"]
    assert kept == status
    again = cluster.call("PATCH", f"{jobs}/gpt", {"spec": {"suspend": True}, "status": {}}, content=content)
    assert (again["status"]["step"], again["metadata"]["generation"]) == (1200, 2)


def test_a_status_may_hold_null_where_nothing_is_known(jobs: str, cluster: ApiServer) -> None:
    cluster.call("POST", jobs, _job())
    unknown = {**_job(), "spec": {}, "status": {"step": None, "goodput": {"ettr": None}, "lastCheckpoint": None}}
    del unknown["spec"]
    kept = cluster.apply(f"{jobs}/gpt/status", unknown)
    assert kept["status"] == unknown["status"]


def test_a_job_is_scaled_by_its_upper_end(jobs: str, here: str, cluster: ApiServer) -> None:
    cluster.call("POST", jobs, _job(nodes={"min": 1, "max": 2}))
    ended = kubectl(cluster, "scale", "tj/gpt", "--replicas=3", "--namespace", here)
    assert ended.returncode == 0, ended.stderr
    assert cluster.call("GET", f"{jobs}/gpt")["spec"]["nodes"] == {"min": 1, "max": 3, "spares": 0}
    # A job that is stalled, or that nobody sees, has its pods all the same.
    status = {"status": {"members": {"ready": 0, "pods": 2}, "selector": "holdfast.dev/job=gpt"}}
    cluster.call("PATCH", f"{jobs}/gpt/status", status, content="application/merge-patch+json")
    scale = cluster.call("GET", f"{jobs}/gpt/scale")
    assert (scale["spec"], scale["status"]) == (
        {"replicas": 3},
        {"replicas": 2, "selector": "holdfast.dev/job=gpt"},
    )


def test_a_job_is_listed_with_what_people_look_for(jobs: str, here: str, cluster: ApiServer) -> None:
    cluster.call("POST", jobs, _job())
    status = {
        "phase": "Running",
        "step": 7,
        "members": {"wanted": 2, "ready": 2},
        "goodput": {"ettr": 0.99},
        "incidents": 3,
    }
    cluster.call("PATCH", f"{jobs}/gpt/status", {"status": status}, content="application/merge-patch+json")
    listed = kubectl(cluster, "get", "tj", "--namespace", here).stdout.splitlines()
    assert listed[0].split() == ["NAME", "PHASE", "STEP", "READY", "WANTED", "ETTR", "INCIDENTS", "AGE", "PROBLEM"]
    assert listed[1].split()[:-1] == ["gpt", "Running", "7", "2", "2", "0.99", "3"]
    refused = {
        "type": "InvalidSpec",
        "status": "True",
        "reason": "Refused",
        "message": "spec.entrypoint: mend it",
        "lastTransitionTime": "2026-01-01T00:00:00Z",
    }
    status = {"phase": "Invalid", "conditions": [refused]}
    cluster.call("PATCH", f"{jobs}/gpt/status", {"status": status}, content="application/merge-patch+json")
    listed = kubectl(cluster, "get", "tj", "--namespace", here).stdout.splitlines()
    assert listed[1].endswith("spec.entrypoint: mend it")
    wide = kubectl(cluster, "get", "holdfast", "--output", "wide", "--namespace", here).stdout
    assert wide.splitlines()[0].split()[-5:] == ["ROUND", "WORLD", "RESTARTS", "CHECKPOINT", "POLICY"]


@pytest.mark.parametrize(
    ("path", "said"),
    [
        ("tj.spec", "The training script and its arguments"),
        ("tj.spec.nodes.max", "By default it is min"),
        ("tj.spec.faultPolicy.budget", "human is asked"),
        ("tj.status.conditions", "one condition per type"),
        ("itv.spec", "for whoever reads the record"),
    ],
)
def test_kubectl_explains_every_field(served: ApiServer, path: str, said: str) -> None:
    assert said in explained(served, path)


def test_an_intervention_is_kept_with_its_outcome(here: str, cluster: ApiServer) -> None:
    path = f"{API}/namespaces/{here}/interventions"
    body = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "Intervention",
        "metadata": {"generateName": "evict-"},
        "spec": {"job": "gpt", "action": "Evict", "node": "node-3", "reason": "it hums"},
    }
    name = cluster.call("POST", path, body)["metadata"]["name"]
    outcome = {"status": {"state": "Done", "outcome": "node-3 left the job"}}
    cluster.call("PATCH", f"{path}/{name}/status", outcome, content="application/merge-patch+json")
    listed = kubectl(cluster, "get", "itv", "--namespace", here).stdout.splitlines()
    assert listed[0].split() == ["NAME", "JOB", "ACTION", "STATE", "AGE", "OUTCOME"]
    assert listed[1].split()[1:4] == ["gpt", "Evict", "Done"]
    assert listed[1].endswith("node-3 left the job")
    with pytest.raises(Refused, match=r"spec\.action"):
        cluster.call("POST", path, {**body, "spec": {**body["spec"], "action": "Explode"}})


def test_the_rules_of_the_definitions_are_there(jobs: str, cluster: ApiServer) -> None:
    with pytest.raises(Refused, match="write at most the value of max") as caught:
        cluster.call("POST", jobs, _job(nodes={"min": 2, "max": 1}))
    assert "spec.nodes.min" in str(caught.value)


def test_a_job_that_is_older_than_a_rule_can_be_changed_and_wound_up(jobs: str, cluster: ApiServer) -> None:
    """What was wrong before stays as it was; a change of it has to be right."""
    path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions/trainingjobs.holdfast.dev"
    whole = cluster.call("GET", path)
    older = json.loads(json.dumps(whole["spec"]))
    spec = older["versions"][0]["schema"]["openAPIV3Schema"]["properties"]["spec"]
    del spec["properties"]["nodes"]["x-kubernetes-validations"], spec["x-kubernetes-validations"]
    limits = {"resources": {"limits": {"nvidia.com/gpu": 1}}}
    template = {"spec": {"containers": [{"name": "trainer", "image": "x", **limits}]}}
    crowded = {
        **_job(nodes={"min": 1, "max": 1}, processesPerNode=2, template=template),
        "metadata": {"name": "crowded"},
    }
    merge = "application/merge-patch+json"
    try:
        cluster.call("PATCH", path, {"spec": older}, content=merge)
        until_taken = patient(30.0)
        ends = time.monotonic() + until_taken
        while True:
            try:
                cluster.call("POST", jobs, _job(nodes={"min": 2, "max": 1}))
                break
            except Refused:
                assert time.monotonic() < ends, "the older definition is not served"
                time.sleep(0.2)
        cluster.call("POST", jobs, crowded)
    finally:
        cluster.call("PATCH", path, {"spec": whole["spec"]}, content=merge)
    other = {**_job(nodes={"min": 2, "max": 1})}
    other["metadata"] = {"name": "other"}
    ends = time.monotonic() + patient(30.0)
    while True:
        try:
            cluster.call("POST", f"{jobs}?dryRun=All", other)
        except Refused:
            break
        assert time.monotonic() < ends, "the rules are not served again"
        time.sleep(0.2)
    held = cluster.call("PATCH", f"{jobs}/gpt", {"metadata": {"finalizers": ["example.com/x"]}}, content=merge)
    cluster.call("PATCH", f"{jobs}/gpt", {"spec": {"suspend": True}}, content=merge)
    cluster.call("PATCH", f"{jobs}/gpt/status", {"status": {"phase": "Invalid"}}, content=merge)
    assert held["metadata"]["finalizers"] == ["example.com/x"]
    cluster.call("PATCH", f"{jobs}/crowded", {"spec": {"suspend": True}}, content=merge)
    fewer = [{"name": "trainer", "image": "x", "resources": {"limits": {"amd.com/gpu": 1}}}]
    for change in ({"processesPerNode": 4}, {"template": {"spec": {"containers": fewer}}}):
        with pytest.raises(Refused, match="write at most the GPUs that the trainer asks for"):
            cluster.call("PATCH", f"{jobs}/crowded", {"spec": change}, content=merge)
    with pytest.raises(Refused, match="write at most the value of max"):
        cluster.call("PATCH", f"{jobs}/gpt", {"spec": {"nodes": {"min": 3}}}, content=merge)
    cluster.call("PATCH", f"{jobs}/gpt", {"metadata": {"finalizers": None}}, content=merge)
