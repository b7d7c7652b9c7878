"""Gathers what the doctor looks at in a cluster. A fact that cannot be had is `Unseen` and hides no other."""

import importlib
from collections.abc import Callable, Iterator, Mapping
from datetime import UTC, datetime
from typing import Any, Final, TypeVar

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, read_cordoned_by
from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.standing import STANDING_HEADER, Standing
from holdfast.cli.cluster.clustersite import GROUP_PATH, TrainingJobs
from holdfast.cli.cluster.kubeapi import KubeApi, listed
from holdfast.cli.cluster.proxiedline import Installation, ProxiedLine
from holdfast.cli.cluster.rights import (
    CREATE_INTERVENTION,
    GET_JOB,
    GET_POD_LOG,
    LIST_JOBS,
    Right,
    create_token,
    get_watchdog,
)
from holdfast.cli.doctor.facts import (
    Document,
    Facts,
    Health,
    InterventionSeen,
    LeaseSeen,
    NodeSeen,
    PodSeen,
    Workload,
)
from holdfast.cli.doctor.finding import Unseen
from holdfast.cli.watchdogclient import job_statuses

Fact = TypeVar("Fact")
OPERATOR: Final = "holdfast-operator"
STANDARD_RIGHT: Final = "the right to read the cluster's objects, which an administrator has"


class _Unavailable(msgspec.Struct, frozen=True):
    """The watchdog's health while it is not well."""

    reason: str = ""


class Gathering:
    """One look at one installation. `job_namespace` is where the rights are asked for."""

    def __init__(self, api: KubeApi, installation: Installation, job_namespace: str) -> None:
        self._api = api
        self._installation = installation
        self._namespace = installation.namespace
        self._job_namespace = job_namespace
        self._line = ProxiedLine(api, installation, job_namespace)
        self._now = datetime.now(UTC)

    def facts(self) -> Facts:
        """Everything. Raises nothing: what fails is Unseen."""
        version = _seen(lambda: str(self._get("/version")["gitVersion"]))
        if isinstance(version, Unseen):
            return _nothing(self._api.server, self._namespace, version)
        operator = _seen(lambda: self._part("deployments", "operator"))
        watchdog = _seen(lambda: self._part("deployments", "watchdog"))
        redis = _seen(lambda: self._part("statefulsets", "redis"))
        agents = _seen(lambda: self._part("daemonsets", "agent"))
        return Facts(
            server=self._api.server,
            namespace=self._namespace,
            version=version,
            definitions=_seen(self._definitions),
            expected=expected_definitions(),
            rights=_seen(self._rights),
            operator=_workload(operator),
            operator_pods=self._pods(operator),
            lease=_seen(lambda: self._lease(operator)),
            watchdog=_workload(watchdog),
            watchdog_pods=self._pods(watchdog),
            redis=_workload(redis),
            redis_pods=self._pods(redis),
            health=_seen(self._health),
            jobs_read=_seen(lambda: len(job_statuses(self._line))),
            agents=_workload(agents),
            agent_pods=self._pods(agents),
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
        return listed(lambda page: self._get(path, {**page, **(query or {})}))

    def _definitions(self) -> dict[str, Document | None]:
        path = "/apis/apiextensions.k8s.io/v1/customresourcedefinitions"
        return {name: self._find(f"{path}/{name}.holdfast.dev") for name in ("trainingjobs", "interventions")}

    def _rights(self) -> dict[Right, bool]:
        through = (get_watchdog(self._installation.service), create_token(self._installation.viewer))
        return {
            right: self._may(right) for right in (LIST_JOBS, GET_JOB, GET_POD_LOG, CREATE_INTERVENTION, *through)
        }

    def _may(self, right: Right) -> bool:
        is_of_job = bool(right.group) or right.resource == "pods"
        namespace = self._job_namespace if is_of_job else self._namespace
        attributes = {
            "verb": right.verb,
            "group": right.group,
            "resource": right.resource,
            "subresource": right.subresource,
            "name": right.name,
            "namespace": namespace,
        }
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SelfSubjectAccessReview",
            "spec": {"resourceAttributes": {name: value for name, value in attributes.items() if value}},
        }
        reply = self._api.ask("POST", "/apis/authorization.k8s.io/v1/selfsubjectaccessreviews", review)
        return bool(self._api.taken(reply, STANDARD_RIGHT)["status"].get("allowed"))

    def _pods(self, owner: Document | Unseen | None) -> tuple[PodSeen, ...] | Unseen:
        """Those that a workload selects."""
        if owner is None or isinstance(owner, Unseen):
            return owner or ()
        labels = owner["spec"]["selector"].get("matchLabels", {})
        query = {"labelSelector": ",".join(f"{name}={value}" for name, value in labels.items())}
        path = f"/api/v1/namespaces/{self._namespace}/pods"
        return _seen(lambda: tuple(_pod(each) for each in self._list(path, query)))

    def _part(self, kind: str, component: str) -> Document | None:
        """The workload of one part, whatever the release is called; None when there is none."""
        labels = f"app.kubernetes.io/part-of=holdfast,app.kubernetes.io/component={component}"
        path = f"/apis/apps/v1/namespaces/{self._namespace}/{kind}"
        return next(self._list(path, {"labelSelector": labels}), None)

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


def _nothing(server: str, namespace: str, why: Unseen) -> Facts:
    """Nothing was seen but that the API server does not answer."""
    return Facts(
        server=server,
        namespace=namespace,
        version=why,
        definitions=why,
        expected={},
        rights=why,
        operator=why,
        lease=why,
        watchdog=why,
        health=why,
        jobs_read=why,
        agents=why,
    )


def _workload(document: Document | Unseen | None) -> Workload | Unseen | None:
    if document is None or isinstance(document, Unseen):
        return document
    status = document.get("status") or {}
    if document.get("kind") == "DaemonSet" or "desiredNumberScheduled" in status:
        return Workload(status.get("desiredNumberScheduled", 0), status.get("numberReady", 0))
    return Workload(document["spec"].get("replicas", 1), status.get("readyReplicas", 0))


def _pod(document: Document) -> PodSeen:
    status = document.get("status") or {}
    states = [*status.get("initContainerStatuses", []), *status.get("containerStatuses", [])]
    conditions = {each["type"]: each for each in status.get("conditions", [])}
    name, node = document["metadata"]["name"], document["spec"].get("nodeName", "")
    return PodSeen(name, node, _pod_trouble(status, states, conditions))


def _pod_trouble(status: Document, states: list[Document], conditions: Mapping[str, Document]) -> str:
    """Why a pod does not run: what a container waits for, else the scheduler's words, else its phase."""
    for state in states:
        waiting = state.get("state", {}).get("waiting")
        if waiting and waiting.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
            return f"{waiting['reason']} {waiting.get('message', '')}".strip()
    scheduled = conditions.get("PodScheduled", {})
    if scheduled.get("status") == "False":
        return str(scheduled.get("message") or scheduled.get("reason"))
    phase = status.get("phase", "Pending")
    return "" if phase == "Running" else f"{phase} {status.get('reason', '')}".strip()


def _node(document: Document) -> NodeSeen:
    metadata, spec = document["metadata"], document.get("spec") or {}
    tainted = any(taint.get("key") == CORDON_TAINT for taint in spec.get("taints", []))
    written = (metadata.get("annotations") or {}).get(CORDONED_BY)
    cordon = _cordon(written) if tainted or written else None
    by = read_cordoned_by(written)
    return NodeSeen(metadata["name"], cordon, by.job if by is not None else "")


def _cordon(written: str | None) -> str:
    """Who took a node out of service and why, from what was written on it."""
    by = read_cordoned_by(written)
    if by is None:
        return written or "nothing is written on it"
    incident = f", {by.incident}" if by.incident else ""
    return f"{by.reason or 'no reason'} (job {by.job}{incident})"
