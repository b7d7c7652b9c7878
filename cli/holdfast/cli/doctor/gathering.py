"""Gathers what the doctor looks at in a cluster. A fact that cannot be had is `Unseen` and hides no other."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, read_cordoned_by
from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.standing import STANDING_HEADER, Standing
from holdfast.cli.cluster import kubeapi
from holdfast.cli.cluster.clustersite import GROUP_PATH, TrainingJobs
from holdfast.cli.cluster.proxiedline import Installation, ProxiedLine
from holdfast.cli.doctor.facts import (
    Document,
    Facts,
    Health,
    InterventionSeen,
    LeaseSeen,
    NodeSeen,
    PodSeen,
    Unseen,
    Workload,
)
from holdfast.cli.watchdogclient import job_statuses

Fact = TypeVar("Fact")
OPERATOR: Final = "holdfast-operator"
DEFINITIONS: Final = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
STANDARD_RIGHT: Final = "the right to read the cluster's objects, which an administrator has"
# What a container waits for that is about to run.
_BEGINNING: Final = (None, "ContainerCreating", "PodInitializing")


class _Unavailable(msgspec.Struct, frozen=True):
    """The watchdog's health while it is not well."""

    reason: str = ""


class Gathering:
    """One look at one installation. `job_namespace` is where the rights are asked for."""

    def __init__(self, api: kubeapi.KubeApi, installation: Installation, job_namespace: str) -> None:
        self._api = api
        self._installation = installation
        self._namespace = installation.namespace
        self._job_namespace = job_namespace
        self._line = ProxiedLine(api, installation, job_namespace)
        self._now = datetime.now(UTC)

    def facts(self) -> Facts:
        """Everything. Raises nothing: what fails is Unseen."""
        server, namespace = self._api.server, self._namespace
        version = _seen(lambda: str(self._get("/version")["gitVersion"]))
        if isinstance(version, Unseen):
            return Facts(server=server, namespace=namespace, version=version)
        operator, operator_standing, operator_pods = self._part("deployments", "operator")
        _, watchdog, watchdog_pods = self._part("deployments", "watchdog")
        _, redis, redis_pods = self._part("statefulsets", "redis")
        _, agents, agent_pods = self._part("daemonsets", "agent")
        kinds = ("trainingjobs", "interventions", "noderemediations")
        return Facts(
            server=server,
            namespace=namespace,
            version=version,
            definitions=_seen(
                lambda: {name: self._find(f"{DEFINITIONS}/{name}.{kubeapi.GROUP}") for name in kinds}
            ),
            expected=expected_definitions(),
            rights=_seen(self._rights),
            operator=operator_standing,
            operator_pods=operator_pods,
            lease=_seen(lambda: self._lease(operator)),
            watchdog=watchdog,
            watchdog_pods=watchdog_pods,
            redis=redis,
            redis_pods=redis_pods,
            health=_seen(self._health),
            jobs_read=_seen(lambda: len(job_statuses(self._line))),
            agents=agents,
            agent_pods=agent_pods,
            nodes=_seen(lambda: tuple(_node(each) for each in self._list("/api/v1/nodes"))),
            jobs=_seen(lambda: TrainingJobs(self._api).list(None)),
            pending=_seen(self._pending),
            groups=_seen(lambda: frozenset(each["name"] for each in self._get("/apis")["groups"])),
        )

    def _get(self, path: str, query: Mapping[str, str] | None = None) -> Any:
        return self._api.get(path, STANDARD_RIGHT, query=query)

    def _find(self, path: str) -> Document | None:
        """An object, None when there is none."""
        reply = self._api.ask("GET", path)
        if reply.status == 404:
            return None
        found: Document = self._api.taken(reply, STANDARD_RIGHT)
        return found

    def _list(self, path: str, query: Mapping[str, str] | None = None) -> Iterator[Document]:
        return kubeapi.listed(lambda page: self._get(path, {**page, **(query or {})}))

    def _rights(self) -> dict[kubeapi.Right, bool]:
        held = {}
        for right in (
            kubeapi.LIST_JOBS,
            kubeapi.GET_JOB,
            kubeapi.GET_POD_LOG,
            kubeapi.CREATE_INTERVENTION,
            kubeapi.get_watchdog(self._installation.service),
            kubeapi.create_token(self._installation.viewer),
        ):
            is_of_job = bool(right.group) or right.resource == "pods"
            attributes = {
                "verb": right.verb,
                "group": right.group,
                "resource": right.resource,
                "subresource": right.subresource,
                "name": right.name,
                "namespace": self._job_namespace if is_of_job else self._namespace,
            }
            review = {
                "apiVersion": "authorization.k8s.io/v1",
                "kind": "SelfSubjectAccessReview",
                "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
            }
            reply = self._api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
            held[right] = bool(self._api.taken(reply, STANDARD_RIGHT)["status"].get("allowed"))
        return held

    def _part(
        self, kind: str, component: str
    ) -> tuple[Document | Unseen | None, Workload | Unseen | None, tuple[PodSeen, ...] | Unseen]:
        """The workload of one part, whatever the release is called, how it stands and its pods."""
        part_of = f"app.kubernetes.io/part-of=holdfast,app.kubernetes.io/component={component}"
        path = f"/apis/apps/v1/namespaces/{self._namespace}/{kind}"
        found = _seen(lambda: next(self._list(path, {"labelSelector": part_of}), None))
        if found is None or isinstance(found, Unseen):
            return found, found, found or ()
        spec, status = found["spec"], found.get("status") or {}
        if kind == "daemonsets":
            workload = Workload(status.get("desiredNumberScheduled", 0), status.get("numberReady", 0))
        else:
            workload = Workload(spec.get("replicas", 1), status.get("readyReplicas", 0))
        labels = ",".join(f"{name}={value}" for name, value in spec["selector"].get("matchLabels", {}).items())
        pods = f"/api/v1/namespaces/{self._namespace}/pods"
        return found, workload, _seen(lambda: tuple(map(_pod, self._list(pods, {"labelSelector": labels}))))

    def _lease(self, operator: Document | Unseen | None) -> LeaseSeen | None:
        """The chart names it as it names the operator's deployment."""
        name = operator["metadata"]["name"] if isinstance(operator, dict) else OPERATOR
        found = self._find(f"/apis/coordination.k8s.io/v1/namespaces/{self._namespace}/leases/{name}")
        if found is None:
            return None
        spec = found["spec"]
        length_s = float(spec.get("leaseDurationSeconds") or 0)
        return LeaseSeen(spec.get("holderIdentity") or "", self._age_s(spec.get("renewTime")), length_s)

    def _health(self) -> Health:
        reply = self._line.reach("GET", "/healthz", None, {})
        if said := reply.said():
            raise Unavailable(f"the watchdog does not answer: {said.message}")
        trouble = None
        if reply.status >= 400:
            trouble = msgspec.json.decode(reply.content, type=_Unavailable).reason or f"it answered {reply.status}"
        return Health(trouble, Standing(reply.headers.get(STANDING_HEADER, Standing.LEADING)))

    def _pending(self) -> tuple[InterventionSeen, ...]:
        return tuple(
            InterventionSeen(
                f"{each['metadata']['namespace']}/{each['metadata']['name']}",
                str(each["spec"].get("action")),
                self._age_s(each["metadata"]["creationTimestamp"]) or 0.0,
            )
            for each in self._list(f"{GROUP_PATH}/interventions")
            if (each.get("status") or {}).get("state", "Pending") == "Pending"
        )

    def _age_s(self, time: str | None) -> float | None:
        return (self._now - datetime.fromisoformat(time)).total_seconds() if time else None


def expected_definitions() -> dict[str, Document]:
    """Those of this version, as the operator's code has them; none where that is not installed."""
    try:
        found: dict[str, Document] = importlib.import_module("holdfast.operator.crd").definitions()
    except ImportError:
        return {}
    return found


def _seen(look: Callable[[], Fact]) -> Fact | Unseen:
    """What `look` finds, or why it does not."""
    try:
        return look()
    except HoldfastError as error:
        return Unseen(str(error))
    except (KeyError, TypeError, ValueError, msgspec.MsgspecError) as error:
        return Unseen(f"the answer is not understood: {type(error).__name__} {error}")


def _pod(document: Document) -> PodSeen:
    """`trouble` is what a container waits for, else the scheduler's words, else the pod's phase."""
    status = document.get("status") or {}
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    waiting = [state.get("state", {}).get("waiting") or {} for state in states]
    stuck = next((each for each in waiting if each.get("reason") not in _BEGINNING), None)
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    scheduled, phase = conditions.get("PodScheduled", {}), status.get("phase", "Pending")
    if stuck is not None:
        trouble = f"{stuck['reason']} {stuck.get('message', '')}".strip()
    elif scheduled.get("status") == "False":
        trouble = str(scheduled.get("message") or scheduled.get("reason"))
    else:
        trouble = "" if phase == "Running" else f"{phase} {status.get('reason', '')}".strip()
    return PodSeen(document["metadata"]["name"], document["spec"].get("nodeName", ""), trouble)


def _node(document: Document) -> NodeSeen:
    """Who took it out of service and why, from what was written on it."""
    metadata, spec = document["metadata"], document.get("spec") or {}
    tainted = any(taint.get("key") == CORDON_TAINT for taint in spec.get("taints", []))
    written = (metadata.get("annotations") or {}).get(CORDONED_BY)
    by = read_cordoned_by(written)
    if by is not None:
        incident = f", {by.incident}" if by.incident else ""
        return NodeSeen(metadata["name"], f"{by.reason or 'no reason'} (job {by.job}{incident})", by.job)
    return NodeSeen(metadata["name"], (written or "nothing is written on it") if tainted or written else None)
