"""A quota of a job's namespace counts every container of its pods, Holdfast's own as well."""

from typing import Any

import pytest
from operator_rig import Cluster, OperatorProcess, condition, eventually, job_manifest

pytestmark = pytest.mark.kubernetes

LIMITS = {"cpu": "2", "memory": "1Gi", "ephemeral-storage": "1Gi"}
COUNTED = [f"{part}.{name}" for part in ("limits", "requests") for name in LIMITS]


async def quota(cluster: Cluster, *counted: str) -> None:
    """In force at once: its use is written here, as a controller would."""
    path = f"/api/v1/namespaces/{cluster.namespace}/resourcequotas"
    hard = dict.fromkeys(counted, "100Gi")
    await cluster.api.call("POST", path, {"metadata": {"name": "q"}, "spec": {"hard": hard}})
    status = {"hard": hard, "used": dict.fromkeys(counted, "0")}
    await cluster.api.call("PATCH", f"{path}/q/status", {"status": status}, content="application/merge-patch+json")


def job(cluster: Cluster, limits: dict[str, Any]) -> dict[str, Any]:
    trainer = {"name": "trainer", "image": "train:test", "resources": {"limits": limits}}
    template = {"spec": {"containers": [trainer]}}
    return job_manifest(cluster.namespace, "gpt", nodes={"min": 1, "max": 1}, template=template)


@pytest.mark.parametrize("counted", COUNTED)
async def test_a_quota_stops_no_job_whose_own_containers_have_what_it_counts(
    cluster: Cluster, operator: OperatorProcess, counted: str
) -> None:
    await quota(cluster, counted)
    operator.start()
    await cluster.api.call("POST", cluster.path(), job(cluster, LIMITS))
    await cluster.until_pods("gpt-0")


async def test_an_installation_says_what_the_init_container_may_use(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    operator.start('--launcher-resources={"limits": {"cpu": "250m", "memory": "128Mi"}}')
    await cluster.api.call("POST", cluster.path(), job(cluster, LIMITS))
    pod = (await cluster.until_pods("gpt-0"))["gpt-0"]
    assert pod["spec"]["initContainers"][0]["resources"]["limits"] == {"cpu": "250m", "memory": "128Mi"}
    assert pod["status"]["qosClass"] == "Guaranteed"


# Of each container the server wants only these; of ephemeral storage it counts what is said.
# Source: https://github.com/kubernetes/kubernetes/blob/master/pkg/quota/v1/evaluator/core/pods.go (validationSet)
@pytest.mark.parametrize("left_out", ["cpu", "memory"])
async def test_a_job_that_has_not_what_a_quota_counts_is_told_so_by_the_container(
    cluster: Cluster, operator: OperatorProcess, left_out: str
) -> None:
    await quota(cluster, f"limits.{left_out}")
    operator.start()
    limits = {name: amount for name, amount in LIMITS.items() if name != left_out}
    await cluster.api.call("POST", cluster.path(), job(cluster, limits))
    shown = await cluster.until("told", lambda job: condition(job, "InvalidSpec") == "True")
    assert shown is not None
    says = next(each["message"] for each in shown["status"]["conditions"] if each["type"] == "InvalidSpec")
    assert "failed quota: q: must specify" in says
    assert f"limits.{left_out}" in says
    assert "trainer" in says


async def test_resources_that_are_none_are_refused_when_the_operator_starts(operator: OperatorProcess) -> None:
    operator.start('--policy-check-resources={"limits": {"cpu": "much"}}')

    async def ended() -> bool:
        return operator.exit_code is not None

    await eventually("its end", ended)
    assert operator.exit_code == 3
    assert "--policy-check-resources limits.cpu: 'much' is not accepted" in operator.log.read_text()
