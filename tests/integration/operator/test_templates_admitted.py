"""Templates on an API server that mounts tokens and adds tolerations, as every cluster's does."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from apiserver import ApiServer, ApiServerSettings
from invalid_specs import INVALID_SPECS, Stop, stopped_by
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
MISSPELT = {
    "mounts": (
        """
        volumes: [{name: data, emptyDir: {}}]
        trainer: {volumeMounts: [{name: data, mountPath: /in}, {name: data, mountPath: /out, readonly: true}]}
        """,
        "spec.containers[0].volumeMounts[1].readonly",
    ),
    "effect": ("tolerations: [{key: gpu, operator: Exists, efect: NoSchedule}]", "spec.tolerations[0].efect"),
    "seconds": (
        "tolerations: [{key: gpu, operator: Exists, effect: NoExecute, tolerationSecond: 5}]",
        "spec.tolerations[0].tolerationSecond",
    ),
    "resources": ("trainer: {resourcess: {limits: {memory: 1Gi}}}", "spec.containers[0].resourcess"),
    "ports": ("trainer: {ports: [{containerPort: 80, hostport: 80}]}", "spec.containers[0].ports[0].hostport"),
}


@pytest.fixture(scope="module")
def defined() -> Iterator[ApiServer]:
    """In the place of the server that the other tests of the operator share, which adds nothing to a pod."""
    server = ApiServer(ApiServerSettings(mounts_service_accounts=True))
    try:
        server.start()
        server.controller_manager("--controllers=serviceaccount,serviceaccount-token,root-ca-cert-publisher")
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


async def test_valid_templates_get_pods_and_every_misspelt_field_is_named(
    cluster: Cluster, operator: OperatorProcess
) -> None:
    says = {f"bad-{name}": f"there is no field {field};" for name, (_, field) in MISSPELT.items()}
    jobs = [job(cluster.namespace, f"good-{name}", pod) for name, pod in VALID.items()]
    jobs += [job(cluster.namespace, f"bad-{name}", pod) for name, (pod, _) in MISSPELT.items()]
    for place, given in enumerate(each for each in INVALID_SPECS if stopped_by(each) is Stop.OPERATOR):
        whole = given.document()
        named = {} if given.metadata != "{}" else {"name": f"row-{place}"}
        whole["metadata"] |= {"namespace": cluster.namespace, **named}
        says[whole["metadata"]["name"]] = given.says
        jobs.append(whole)
    await _default_account(cluster)
    operator.start()
    await asyncio.gather(*(cluster.api.call("POST", cluster.path(), each) for each in jobs))
    wrong: dict[str, str] = {}

    async def all_judged() -> bool:
        shown = {each["metadata"]["name"]: each for each in (await cluster.get(cluster.path()) or {})["items"]}
        told = {name: _refusal(each) for name, each in shown.items()}
        wrong.clear()
        wrong.update({name: told[name] for name, expected in says.items() if expected not in told[name]})
        wrong.update({name: told[name] for name in shown if name not in says and told[name]})
        known = all(condition(each, "InvalidSpec") for each in shown.values())
        return known and not wrong

    await eventually("every template judged", all_judged, lambda: wrong)
    await cluster.until_pods(*(f"good-{name}-0" for name in VALID))


async def _default_account(cluster: Cluster) -> None:
    """Made by the controller manager. Pods of this server cannot be without."""

    async def there() -> bool:
        return await cluster.get(f"/api/v1/namespaces/{cluster.namespace}/serviceaccounts/default") is not None

    await eventually("the default account", there)


def _refusal(shown: dict[str, Any]) -> str:
    found = shown.get("status", {}).get("conditions", [])
    return next((c["message"] for c in found if c["type"] == "InvalidSpec" and c["status"] == "True"), "")
