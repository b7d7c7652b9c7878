"""Kueue as the operator sees it: its definitions, cut to the fields that are used, and who admits by hand.

A real server drops what a definition does not name, so a field that is written by a wrong name is missed here.
Source: https://kueue.sigs.k8s.io/docs/reference/kueue.v1beta2/
"""

from typing import Any

from apiserver import ApiServer, Refused
from operator_rig import Cluster, Manifest, eventually

GROUP = "kueue.x-k8s.io"
API = f"/apis/{GROUP}/v1beta2"
CRDS = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
MERGE = "application/merge-patch+json"

TEXT: Manifest = {"type": "string"}
NUMBER: Manifest = {"type": "integer", "format": "int32"}
OPEN: Manifest = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
TEXTS: Manifest = {"type": "object", "additionalProperties": TEXT}


def shape(**fields: Manifest) -> Manifest:
    return {"type": "object", "properties": fields}


def by_name(item: Manifest, key: str = "name") -> Manifest:
    keyed = {**item, "required": [key]}
    return {"type": "array", "items": keyed, "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": [key]}


TOLERATIONS: Manifest = {"type": "array", "items": OPEN}
CONDITION: Manifest = {
    **shape(
        type=TEXT,
        status={**TEXT, "enum": ["True", "False", "Unknown"]},
        reason={**TEXT, "minLength": 1},
        message=TEXT,
        lastTransitionTime={**TEXT, "format": "date-time"},
        observedGeneration={"type": "integer", "format": "int64"},
    ),
    "required": ["lastTransitionTime", "message", "reason", "status", "type"],
}
UPDATE = shape(name=TEXT, labels=TEXTS, annotations=TEXTS, nodeSelector=TEXTS, tolerations=TOLERATIONS)
WORKLOAD = {
    "spec": shape(
        queueName=TEXT,
        priority=NUMBER,
        active={"type": "boolean", "default": True},
        podSets=by_name(shape(name=TEXT, count=NUMBER, minCount=NUMBER, template=OPEN)),
    ),
    "status": shape(
        conditions={**by_name(CONDITION, "type"), "items": CONDITION},
        admission={
            **shape(clusterQueue=TEXT, podSetAssignments=by_name(shape(name=TEXT, flavors=TEXTS, count=NUMBER))),
            "required": ["clusterQueue", "podSetAssignments"],
        },
        reclaimablePods=by_name(shape(name=TEXT, count=NUMBER)),
        admissionChecks=by_name(shape(name=TEXT, state=TEXT, message=TEXT, podSetUpdates=by_name(UPDATE))),
    ),
}
FLAVOR = {"spec": shape(nodeLabels=TEXTS, tolerations=TOLERATIONS)}
PRIORITY: Manifest = {"value": NUMBER, "description": TEXT}


def definition(kind: str, plural: str, scope: str, fields: Manifest) -> Manifest:
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {
            "name": f"{plural}.{GROUP}",
            "annotations": {"api-approved.kubernetes.io": "https://github.com/kubernetes-sigs/kueue"},
        },
        "spec": {
            "group": GROUP,
            "scope": scope,
            "names": {"kind": kind, "listKind": f"{kind}List", "plural": plural, "singular": kind.lower()},
            "versions": [
                {
                    "name": "v1beta2",
                    "served": True,
                    "storage": True,
                    **({"subresources": {"status": {}}} if "status" in fields else {}),
                    "schema": {"openAPIV3Schema": {"type": "object", "properties": fields}},
                }
            ],
        },
    }


DEFINITIONS = (
    definition("Workload", "workloads", "Namespaced", WORKLOAD),
    definition("ResourceFlavor", "resourceflavors", "Cluster", FLAVOR),
    definition("WorkloadPriorityClass", "workloadpriorityclasses", "Cluster", PRIORITY),
)


def define_kueue(server: ApiServer) -> None:
    for each in DEFINITIONS:
        try:
            server.call("POST", CRDS, each)
        except Refused as refused:
            if refused.code != 409:
                raise


class PlayedKueue:
    """Admits and evicts the Workload of one job, in the words of Kueue."""

    def __init__(self, cluster: Cluster, job: str = "gpt") -> None:
        self._cluster = cluster
        self._path = f"{API}/namespaces/{cluster.namespace}/workloads/trainingjob-{job}"

    async def install(self) -> None:
        """Until all its kinds are served."""
        define_kueue(self._cluster.server)

        async def served() -> bool:
            try:
                for each in DEFINITIONS:
                    await self._cluster.api.call("GET", f"{API}/{each['spec']['names']['plural']}")
            except Refused:
                return False
            return True

        await eventually("Kueue's kinds served", served)

    async def make(self, plural: str, kind: str, name: str, **fields: Any) -> None:
        manifest = {"apiVersion": f"{GROUP}/v1beta2", "kind": kind, "metadata": {"name": name}, **fields}
        await self._cluster.api.call("POST", f"{API}/{plural}", manifest)

    async def workload(self) -> Manifest | None:
        return await self._cluster.get(self._path)

    async def until(self, what: str, **conditions: str) -> Manifest:
        """Until the Workload is there with these conditions."""
        found: Manifest | None = None

        async def so() -> bool:
            nonlocal found
            found = await self.workload()
            return found is not None and conditions.items() <= told(found).items()

        await eventually(what, so, lambda: found)
        assert found is not None
        return found

    async def says(self, admission: Manifest | None = None, /, **conditions: tuple[str, str, str]) -> None:
        """Status, reason and message of each; what it said before stays."""
        found = await self.until("a Workload")
        said = {each["type"]: each for each in (found.get("status") or {}).get("conditions") or ()}
        for type_, (status, reason, message) in conditions.items():
            said[type_] = {
                "type": type_,
                "status": status,
                "reason": reason,
                "message": message,
                "lastTransitionTime": "2026-05-01T10:00:00Z",
            }
        status = {"conditions": list(said.values()), **({"admission": admission} if admission else {})}
        await self._cluster.api.call("PATCH", f"{self._path}/status", {"status": status}, content=MERGE)

    async def admit(self, count: int, flavor: str) -> None:
        assignment = {"name": "main", "flavors": {"cpu": flavor}, "count": count}
        await self.says(
            {"clusterQueue": "cluster", "podSetAssignments": [assignment]},
            QuotaReserved=("True", "QuotaReserved", "Quota reserved in ClusterQueue cluster"),
            Admitted=("True", "Admitted", "The workload is admitted"),
            Evicted=("False", "QuotaReserved", "Previously: nothing"),
        )

    async def evict(self) -> None:
        await self.says(Evicted=("True", "Preempted", "Preempted to accommodate a higher priority Workload"))


def told(workload: Manifest) -> dict[str, str]:
    """The statuses of its conditions."""
    conditions = (workload.get("status") or {}).get("conditions") or ()
    return {each["type"]: each["status"] for each in conditions}
