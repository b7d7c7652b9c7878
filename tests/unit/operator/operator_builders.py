"""Builders of what the operator observes. Every argument has a value that makes a healthy, running job."""

import json
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy
from holdfast.api.errors import InvalidSpec
from holdfast.api.finding import Confidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung
from holdfast.api.jobstatus import Condition
from holdfast.api.plan import JobReport, NodeOrder, Plan
from holdfast.api.status import Checkpoint, JobPhase, JobStatus, Membership
from holdfast.api.trainingjob import TrainingJob, read_trainingjob
from holdfast.operator.decide.observed import Observed, Options, Outcome
from holdfast.operator.decide.podbuilder import edition_of
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    EDITION,
    FINALIZER,
    JOB_LABEL,
    QUICK_ENDS,
    ROLL_TO,
    Container,
    ContainerState,
    ContainerStatus,
    Job,
    JobMetadata,
    Metadata,
    Node,
    NodeMetadata,
    NodeSpec,
    NodeStatus,
    Owned,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Resources,
    RunningSince,
    Taint,
    Terminated,
    Waiting,
    text_of,
)

NOW = 1_800_000_000.0
UID = "uid-of-gpt"
JOB_ID = "research/gpt"
OPTIONS = Options(watchdog="holdfast-watchdog.holdfast.svc:7077", launcher_image="registry.example/launcher:1")
TEMPLATE: dict[str, Any] = {"spec": {"containers": [{"name": "trainer", "image": "registry.example/train:1"}]}}


def document(*, generation: int = 1, metadata: Mapping[str, Any] | None = None, **spec: Any) -> dict[str, Any]:
    """A TrainingJob as the API server shows it; `spec` adds to or replaces the fields of a small one."""
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {
            "name": "gpt",
            "namespace": "research",
            "uid": UID,
            "generation": generation,
            **(metadata or {}),
        },
        "spec": {"entrypoint": ["train.py"], "nodes": {"min": 1, "max": 2}, "template": TEMPLATE, **spec},
    }


def spec_of(given: Mapping[str, Any]) -> TrainingJob | InvalidSpec:
    try:
        return read_trainingjob(given)
    except InvalidSpec as error:
        return error


def job_object(
    *,
    generation: int = 1,
    status: Mapping[str, Any] | None = None,
    finalizers: Iterable[str] = (FINALIZER,),
    deleted_at: float | None = None,
    name: str = "gpt",
    rolled_to: Mapping[str, Any] | None = None,
    spec: Mapping[str, Any] | None = None,
) -> Job:
    """`rolled_to` is the job as it was when a Restart was asked for."""
    asked = spec_of(rolled_to) if rolled_to is not None else None
    return Job(
        JobMetadata(
            name=name,
            namespace="research",
            uid=UID,
            generation=generation,
            annotations={ROLL_TO: edition_of(asked)} if isinstance(asked, TrainingJob) else {},
            finalizers=tuple(finalizers),
            deletion_timestamp=None if deleted_at is None else text_of(deleted_at),
        ),
        spec=msgspec.Raw(json.dumps(dict(spec or {})).encode()),
        status=msgspec.Raw(json.dumps(dict(status or {})).encode()),
    )


def pod(
    ordinal: int,
    *,
    phase: str = "Running",
    node: str | None = None,
    owner: str = UID,
    job: str = "gpt",
    created_at: float = NOW - 3600,
    deleted: bool = False,
    deletion_grace_s: int | None = None,
    ended: Terminated | None = None,
    waiting: Waiting | None = None,
    conditions: Iterable[Condition] = (),
    reason: str = "",
    message: str = "",
    quick_ends: int = 0,
    memory: str | None = None,
    made_of: Mapping[str, Any] | None = None,
    runs_for_s: float | None = None,
) -> Pod:
    """A pod of the job on a node of its own number, unless it says otherwise; `node` "" is nowhere.

    `memory` is the limit of its trainer, `made_of` the job as it was then (None: nobody wrote it down).
    """
    running = None if runs_for_s is None else RunningSince(text_of(NOW - runs_for_s))
    state = ContainerState(waiting=waiting, running=running, terminated=ended)
    limits = {} if memory is None else {"memory": memory}
    made_by = spec_of(made_of) if made_of is not None else None
    edition = {EDITION: edition_of(made_by)} if isinstance(made_by, TrainingJob) else {}
    image = made_of["spec"]["template"]["spec"]["containers"][0]["image"] if made_of is not None else ""
    return Pod(
        Metadata(
            name=f"{job}-{ordinal}",
            namespace="research",
            uid=f"uid-of-{job}-{ordinal}",
            labels={JOB_LABEL: job},
            annotations={**({QUICK_ENDS: str(quick_ends)} if quick_ends else {}), **edition},
            creation_timestamp=text_of(created_at),
            deletion_timestamp=text_of(NOW) if deleted else None,
            deletion_grace_period_seconds=deletion_grace_s,
            owner_references=(OwnerReference(owner, controller=True),),
        ),
        PodSpec(f"n{ordinal}" if node is None else node, (Container("trainer", image, Resources(limits)),)),
        PodStatus(
            phase,
            reason,
            message,
            tuple(conditions),
            (ContainerStatus("trainer", state=state),),
        ),
    )


def ended_pod(
    ordinal: int, *, ran_s: float = 3600.0, ended_at: float = NOW - 5, exit_code: int = 1, quick_ends: int = 0
) -> Pod:
    """A pod whose trainer ended."""
    end = Terminated(exit_code, "Error", "no module named x", text_of(ended_at - ran_s), text_of(ended_at))
    return pod(
        ordinal,
        phase="Failed" if exit_code else "Succeeded",
        created_at=ended_at - ran_s,
        ended=end,
        quick_ends=quick_ends,
    )


def pending_pod(ordinal: int, says: str = "", *, node: str = "") -> Pod:
    """A pod that is not running; with `says`, because the scheduler finds no place for it."""
    condition = Condition("PodScheduled", "False", "Unschedulable", says)
    return pod(ordinal, phase="Pending", node=node, conditions=(condition,) if says else ())


def node(
    name: str,
    *,
    ready: str | None = "True",
    unschedulable: bool = False,
    taints: Iterable[Taint] = (),
    cordoned_by: str | None = None,
    labels: Mapping[str, str] | None = None,
) -> Node:
    """A node. `cordoned_by` is the job that took it out of service."""
    by = {} if cordoned_by is None else {CORDONED_BY: msgspec.json.encode(CordonedBy(cordoned_by)).decode()}
    own = () if cordoned_by is None else (Taint(CORDON_TAINT, "NoSchedule"),)
    conditions = () if ready is None else (Condition("Ready", ready, "KubeletReady", f"kubelet says {ready}"),)
    return Node(
        NodeMetadata(name, annotations=by, labels={"kubernetes.io/hostname": name, **(labels or {})}),
        NodeSpec(unschedulable, (*taints, *own)),
        NodeStatus(conditions),
    )


def nodes(*names: str) -> dict[str, Node]:
    return {name: node(name) for name in names or [f"n{number}" for number in range(16)]}


def plan(members: int = 2, spares: int = 0, **fields: Any) -> Plan:
    return Plan(JOB_ID, 1, members, spares, **fields)


def order(name: str, reason: str = "XID 79", incident: str | None = "incident-1") -> NodeOrder:
    return NodeOrder(name, reason, incident)


def report(
    phase: JobPhase = JobPhase.RUNNING,
    *,
    generation: int | None = 1,
    uid: str = UID,
    incidents: Iterable[Incident] = (),
    trouble: str | None = None,
    admitted: int | None = None,
    **status: Any,
) -> JobReport:
    """A running job's report; `status` replaces fields of its JobStatus."""
    fields: dict[str, Any] = {
        "job": JOB_ID,
        "phase": phase,
        "reason": "training in round 1",
        "round": 1,
        "members": Membership(wanted=2, ready=2, spares=0),
        "world_size": 2,
        "step": 100,
        "loss": 2.5,
        "step_time_s": 0.5,
        "restarts": 0,
        "evictions": 0,
        "incidents_open": 0,
        "incidents_total": 0,
        "last_checkpoint": Checkpoint(90, "file:///runs/gpt/90", 1, 995.0),
        "avoided_nodes": (),
        "now": 1000.0,
        "ettr": 0.98765,
    }
    return JobReport(JobStatus(**{**fields, **status}), generation, uid, tuple(incidents), trouble, admitted)


def observed(**fields: Any) -> Observed:
    """Two running pods on their nodes, planned and reported, with nothing to do but the belongings."""
    given: dict[str, Any] = {
        "job": job_object(),
        "spec": spec_of(document()),
        "pods": (pod(0), pod(1)),
        "nodes": nodes(),
        "plan": plan(),
        "report": report(),
    }
    return Observed(**{**given, **fields})


def owned(manifest: Mapping[str, Any]) -> Owned:
    """What the API server has after `manifest` was applied."""
    metadata = manifest["metadata"]
    spec = {field: value for field, value in manifest["spec"].items() if value is not None}
    return Owned(Metadata(metadata["name"], annotations=dict(metadata["annotations"])), spec)


def actions_of(outcome: Outcome, kind: type) -> list[Any]:
    return [action for action in outcome.actions if isinstance(action, kind)]


def incident(
    number: int = 1, state: IncidentState = IncidentState.OPEN, *, actions: int = 1, **fields: Any
) -> Incident:
    given: dict[str, Any] = {
        "id": f"incident-{number}",
        "job": "research/gpt",
        "kind": FindingKind.XID,
        "culprit": Subject("research/gpt", node="n1", rank=3),
        "confidence": Confidence.CERTAIN,
        "cause": "XID 79",
        "state": state,
        "began_at": 100.0,
        "detected_at": 101.0,
        "evidence": (),
        "actions": tuple(Action(Rung.SWAP, 101.0, f"round {each + 2}", "") for each in range(actions)),
        "round": 1,
        "recovered_at": 104.5678 if state is IncidentState.RECOVERED else None,
    }
    return Incident(**{**given, **fields})


def after(seen: Observed, now: float = NOW, **fields: Any) -> Observed:
    """The same once the status was written; `fields` are what changed since."""
    status = reconcile(seen, OPTIONS, now).status
    return msgspec.structs.replace(seen, **{"job": job_object(status=status), **fields})
