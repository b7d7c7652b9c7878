"""Templates on an API server that mounts tokens and adds tolerations, as every cluster's does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from apiserver import ApiServer, ApiServerSettings
from operator_rig import Cluster, OperatorProcess, condition, eventually, job_manifest

from holdfast.operator.crd import definitions

pytestmark = pytest.mark.kubernetes

VALID = {
    "plain": "",
    "mounted-twice": """
        volumes: [{name: data, emptyDir: {}}]
        trainer:
          volumeMounts:
          - {name: data, mountPath: /in, readOnly: true}
          - {name: data, mountPath: /out, subPath: o}
        """,
    "tolerations": """
        tolerations:
        - {key: gpu, operator: Exists, effect: NoSchedule}
        - {key: gpu, operator: Exists, effect: NoExecute, tolerationSeconds: 5}
        - {operator: Exists, effect: PreferNoSchedule}
        - {key: team, operator: "", value: ml, effect: NoSchedule}
        """,
    "small-pod": """
        resources: {requests: {cpu: 20m, memory: 32Mi}, limits: {cpu: 500m, memory: 200Mi}}
        """,
    "environment": """
        trainer:
          env: [{name: A, value: "1"}, {name: A, value: "2"}, {name: EMPTY, value: ""}]
          envFrom: [{configMapRef: {name: one}}, {prefix: P_, secretRef: {name: two, optional: true}}]
        """,
    "init-containers": """
        initContainers:
        - name: fetch
          image: x
          volumeMounts: [{name: data, mountPath: /d}, {name: data, mountPath: /e, readOnly: true}]
        - {name: unpack, image: x, command: [unpack, /d]}
        volumes: [{name: data, emptyDir: {medium: Memory, sizeLimit: 1024Mi}}]
        """,
    "ports": """
        hostNetwork: true
        trainer:
          ports: [{containerPort: 80}, {containerPort: 81, name: web, protocol: UDP}]
          resources: {limits: {memory: 1024Mi}}
        """,
}


@pytest.fixture(scope="module")
def defined() -> Iterator[ApiServer]:
    """In the place of the server that the other tests of the operator share, which adds nothing to a pod."""
    server = ApiServer(ApiServerSettings(mounts_service_accounts=True))
    try:
        server.start()
        server.controller_manager("--controllers=serviceaccount,root-ca-cert-publisher")
        for definition in definitions().values():
            server.call("POST", "/apis/apiextensions.k8s.io/v1/customresourcedefinitions", definition)
        yield server
    finally:
        server.close()


@pytest.fixture
def namespace(defined: ApiServer) -> str:
    return defined.new_namespace()


def job(namespace: str, name: str, pod: str) -> dict[str, Any]:
    """`pod` is the template's pod spec; the fields under `trainer` are of its trainer."""
    spec: dict[str, Any] = yaml.safe_load(pod) or {}
    trainer = {"name": "trainer", "image": "train:test", **spec.pop("trainer", {})}
    template = {"spec": {**spec, "containers": [trainer]}}
    return job_manifest(namespace, name, nodes={"min": 1, "max": 1}, template=template)


async def test_every_kind_of_template_that_is_valid_gets_its_pod(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    await _default_account(cluster)
    operator.start()
    jobs = [job(cluster.namespace, f"good-{name}", pod) for name, pod in VALID.items()]
    await asyncio.gather(*(cluster.api.call("POST", cluster.path(), each) for each in jobs))
    wrong: dict[str, str] = {}

    async def all_judged() -> bool:
        shown = (await cluster.get(cluster.path()) or {})["items"]
        wrong.clear()
        wrong.update({each["metadata"]["name"]: _refusal(each) for each in shown if _refusal(each)})
        return not wrong and all(condition(each, "PodsAltered") == "False" for each in shown)

    await eventually("every template judged", all_judged, lambda: wrong)
    await cluster.until_pods(*(f"good-{name}-0" for name in VALID))


async def _default_account(cluster: Cluster) -> None:
    """Made by the controller manager: a pod of this server cannot be without."""

    async def there() -> bool:
        account = await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default")
        return account is not None

    await eventually("the default account", there)


def _refusal(shown: dict[str, Any]) -> str:
    found = shown.get("status", {}).get("conditions", [])
    return next((c["message"] for c in found if c["type"] == "InvalidSpec" and c["status"] == "True"), "")
