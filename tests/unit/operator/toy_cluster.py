"""A cluster small enough to reason about: it does what the operator asks, schedules, runs and loses pods.

It keeps the promises of a real one that matter here: names are unique, a deleted pod stays while its node cannot
let it go, one member per node, no pod on a node that is tainted or that its affinity keeps away from.
"""

import json
from dataclasses import dataclass, field
from typing import Any

import msgspec
from operator_builders import JOB_ID, OPTIONS, UID, document, node, owned, report, spec_of

from holdfast.api.cordon import CORDON_TAINT, CORDONED_BY, CordonedBy
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.status import JobPhase, Membership
from holdfast.operator.decide.action import (
    Action,
    Apply,
    Cordon,
    CreatePod,
    Delete,
    DeleteJob,
    DeletePod,
    Forget,
    RecordLast,
    SetFinalizer,
    Submit,
    Tell,
    Uncordon,
)
from holdfast.operator.decide.observed import Observed, Outcome
from holdfast.operator.decide.reconcile import reconcile
from holdfast.operator.kube.objects import (
    ContainerState,
    ContainerStatus,
    Job,
    JobMetadata,
    Metadata,
    Node,
    Owned,
    OwnerReference,
    Pod,
    PodSpec,
    PodStatus,
    Taint,
    Terminated,
    text_of,
)

HOSTNAME = "kubernetes.io/hostname"


@dataclass
class ToyCluster:
    """The cluster, and a watchdog reduced to a plan and a report."""

    now: float = 1_800_000_000.0
    nodes: dict[str, Node] = field(
        default_factory=lambda: {f"n{number}": node(f"n{number}") for number in range(8)}
    )
    pods: dict[str, Pod] = field(default_factory=dict)
    away_from: dict[str, frozenset[str]] = field(default_factory=dict)
    job: Job | None = None
    members: int = 2
    spares: int = 1
    suspended: bool = False
    generation: int = 1
    plan: Plan | None = None
    taken: int | None = None
    phase: JobPhase = JobPhase.PENDING
    heard_age_s: float = 0.0
    services: dict[str, Owned] = field(default_factory=dict)
    budgets: dict[str, Owned] = field(default_factory=dict)
    ever: set[str] = field(default_factory=set)
    forgotten: bool = False

    def __post_init__(self) -> None:
        self.job = Job(JobMetadata("gpt", "research", UID, generation=1))

    def observed(self) -> Observed:
        assert self.job is not None
        nodes = {"min": 1, "max": self.members, "spares": self.spares}
        known = report(
            self.phase,
            generation=self.taken,
            uid=UID if self.taken is not None else "",
            members=Membership(self.members, self.members, self.spares),
        )
        return Observed(
            job=self.job,
            spec=spec_of(document(generation=self.generation, nodes=nodes, suspend=self.suspended)),
            pods=tuple(self.pods.values()),
            nodes=dict(self.nodes),
            services=tuple(self.services.values()),
            budgets=tuple(self.budgets.values()),
            plan=self.plan,
            report=known,
            heard_age_s=self.heard_age_s,
        )

    def reconcile(self) -> Outcome:
        """One reconcile and all it asks for."""
        outcome = reconcile(self.observed(), OPTIONS, self.now)
        for action in outcome.actions:
            self.apply(action)
        if outcome.status is not None and self.job is not None:
            text = json.dumps(dict(outcome.status)).encode()
            self.job = msgspec.structs.replace(self.job, status=msgspec.Raw(text))
        return outcome

    def apply(self, action: Action) -> None:
        match action:
            case CreatePod(manifest=manifest):
                self._create(manifest)
            case DeletePod(name=name, uid=uid, grace_s=grace_s):
                self._delete(name, uid, grace_s)
            case Apply(manifest=manifest):
                kept = self.services if manifest["kind"] == "Service" else self.budgets
                kept[manifest["metadata"]["name"]] = owned(manifest)
            case Delete(kind=kind, name=name):
                (self.services if kind == "Service" else self.budgets).pop(name, None)
            case Cordon(node=name, reason=reason, incident=incident):
                self._cordon(name, reason, incident)
            case Uncordon(node=name):
                self._uncordon(name)
            case SetFinalizer(held=held):
                self._hold(held)
            case DeleteJob():
                self.delete_job()
            case Submit(policy=policy):
                self.taken = policy.generation
                self.think(suspend=policy.suspend, settled=False)
            case Forget():
                self.forgotten = True
            case Tell() | RecordLast():
                pass

    def think(self, *, suspend: bool | None = None, settled: bool = True) -> None:
        """The watchdog's plan for the pods as they are: whoever is on a node to be left is released.

        Whoever is too many is released only when the round is `settled` without them.
        """
        suspend = self.suspended if suspend is None else suspend
        before = self.plan or Plan(JOB_ID, 0, 0, 0)
        left = {order.node for order in before.avoid}
        lost = {name for name, each in self.nodes.items() if each.status.conditions[0].status != "True"}
        release = tuple(
            name
            for name, pod in sorted(self.pods.items())
            if pod.spec.node_name and (pod.spec.node_name in left | lost or pod.spec.node_name not in self.nodes)
        )
        self.phase = JobPhase.SUSPENDED if suspend else JobPhase.RUNNING
        members, spares = (0, 0) if suspend else (self.members, self.spares)
        surplus = self._surplus(members + spares, frozenset(release)) if settled else ()
        self.plan = msgspec.structs.replace(
            before, number=before.number + 1, members=members, spares=spares, release=(*release, *surplus)
        )

    def _surplus(self, wanted: int, released: frozenset[str]) -> tuple[str, ...]:
        running = [
            name
            for name, pod in self.pods.items()
            if pod.status.phase == "Running" and pod.metadata.deletion_timestamp is None and name not in released
        ]
        return tuple(sorted(running)[wanted:]) if wanted else ()

    def avoid(self, name: str) -> None:
        """The watchdog finds a node faulty."""
        if self.plan is not None:
            order = NodeOrder(name, "XID 79", "incident-1")
            kept = tuple(each for each in self.plan.returned if each != name)
            self.plan = msgspec.structs.replace(
                self.plan, avoid=(*self.plan.avoid, order), cordon=(*self.plan.cordon, order), returned=kept
            )

    def return_node(self, name: str) -> None:
        if self.plan is not None:
            avoid = tuple(each for each in self.plan.avoid if each.node != name)
            cordon = tuple(each for each in self.plan.cordon if each.node != name)
            self.plan = msgspec.structs.replace(
                self.plan, avoid=avoid, cordon=cordon, returned=(*self.plan.returned, name)
            )

    def change_spec(self) -> None:
        assert self.job is not None
        self.generation += 1
        metadata = msgspec.structs.replace(self.job.metadata, generation=self.generation)
        self.job = msgspec.structs.replace(self.job, metadata=metadata)

    def delete_job(self) -> None:
        if self.job is None or self.job.metadata.deletion_timestamp is not None:
            return
        if not self.job.metadata.finalizers:
            self.job = None
            return
        self.generation += 1
        metadata = msgspec.structs.replace(
            self.job.metadata, deletion_timestamp=text_of(self.now), generation=self.generation
        )
        self.job = msgspec.structs.replace(self.job, metadata=metadata)

    def end_pod(self, name: str) -> None:
        """The trainer of a pod fails now."""
        pod = self.pods[name]
        if pod.status.phase != "Running":
            return
        end = Terminated(1, "Error", "boom", pod.metadata.creation_timestamp, text_of(self.now))
        ended = PodStatus(
            "Failed", container_statuses=(ContainerStatus("trainer", state=ContainerState(None, end)),)
        )
        self.pods[name] = msgspec.structs.replace(pod, status=ended)

    def live_for(self, seconds: float) -> None:
        """Time passes; the scheduler and the kubelets do their part."""
        self.now += seconds
        for name, pod in list(self.pods.items()):
            deleted = pod.metadata.deletion_timestamp is not None
            if deleted and (not pod.spec.node_name or self._reachable(pod.spec.node_name)):
                del self.pods[name]
        for name, pod in list(self.pods.items()):
            if pod.status.phase == "Pending" and pod.metadata.deletion_timestamp is None:
                self._advance(name, pod)

    def _advance(self, name: str, pod: Pod) -> None:
        if pod.spec.node_name:
            if self._reachable(pod.spec.node_name):
                self.pods[name] = msgspec.structs.replace(pod, status=PodStatus("Running"))
            return
        taken = {each.spec.node_name for each in self.pods.values() if each.status.phase in ("Pending", "Running")}
        for place in sorted(self.nodes):
            there = self.nodes[place]
            if place in taken or place in self.away_from[name] or there.spec.taints or not self._reachable(place):
                continue
            self.pods[name] = msgspec.structs.replace(pod, spec=PodSpec(place))
            return

    def _reachable(self, name: str) -> bool:
        there = self.nodes.get(name)
        return there is not None and there.status.conditions[0].status == "True"

    def _create(self, manifest: dict[str, Any]) -> None:
        metadata = manifest["metadata"]
        name = metadata["name"]
        assert name not in self.ever, f"{name} was used before"
        self.ever.add(name)
        affinity = manifest["spec"]["affinity"].get("nodeAffinity")
        terms = affinity["requiredDuringSchedulingIgnoredDuringExecution"]["nodeSelectorTerms"] if affinity else []
        self.away_from[name] = frozenset(
            value for term in terms for each in term["matchExpressions"] for value in each["values"]
        )
        owners = tuple(OwnerReference(each["uid"], controller=True) for each in metadata["ownerReferences"])
        self.pods[name] = Pod(
            Metadata(
                name,
                "research",
                f"uid-{name}",
                labels=metadata["labels"],
                annotations=metadata["annotations"],
                creation_timestamp=text_of(self.now),
                owner_references=owners,
            )
        )

    def _delete(self, name: str, uid: str, grace_s: int | None) -> None:
        pod = self.pods.get(name)
        if pod is None or pod.metadata.uid != uid:
            return
        if grace_s == 0 or not pod.spec.node_name:
            del self.pods[name]
            return
        metadata = msgspec.structs.replace(
            pod.metadata, deletion_timestamp=text_of(self.now), deletion_grace_period_seconds=30
        )
        self.pods[name] = msgspec.structs.replace(pod, metadata=metadata)

    def _cordon(self, name: str, reason: str, incident: str) -> None:
        there = self.nodes[name]
        by = msgspec.json.encode(CordonedBy(JOB_ID, reason, incident)).decode()
        metadata = msgspec.structs.replace(there.metadata, annotations={CORDONED_BY: by})
        spec = msgspec.structs.replace(there.spec, taints=(*there.spec.taints, Taint(CORDON_TAINT, "NoSchedule")))
        self.nodes[name] = msgspec.structs.replace(there, metadata=metadata, spec=spec)

    def _uncordon(self, name: str) -> None:
        there = self.nodes[name]
        kept = tuple(taint for taint in there.spec.taints if taint.key != CORDON_TAINT)
        metadata = msgspec.structs.replace(there.metadata, annotations={})
        spec = msgspec.structs.replace(there.spec, taints=kept)
        self.nodes[name] = msgspec.structs.replace(there, metadata=metadata, spec=spec)

    def _hold(self, held: bool) -> None:
        assert self.job is not None
        if not held:
            self.job = None
            return
        metadata = msgspec.structs.replace(self.job.metadata, finalizers=("holdfast.dev/wind-up",))
        self.job = msgspec.structs.replace(self.job, metadata=metadata)
