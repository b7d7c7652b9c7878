"""How a job stands in a queue of Kueue, read from the Workload that stands for it. Pure.

A job with the label `kueue.x-k8s.io/queue-name` has no pods before its Workload is admitted, and no more than
were admitted; spares count. What Kueue takes back is given back in good order: the watchdog is told that the queue
keeps the job out, saves, and stops, as for a suspension.
"""

import hashlib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import msgspec

from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.observed import Options, Queueing
from holdfast.operator.decide.podbuilder import UNCHANGED, Placement, blueprint, labels_of, owner_reference
from holdfast.operator.decide.template import LAUNCHER, check_template
from holdfast.operator.kube.kueue import JOB_UID_LABEL, POD_SET, Workload
from holdfast.operator.kube.objects import (
    MADE_FROM,
    QUEUE_LABEL,
    QUEUE_PRIORITY_LABEL,
    Metadata,
    seconds_of,
)

Manifest = dict[str, Any]
WORKLOAD: Final = "Workload"
UNHEARD_S: Final = 60.0
"""Kueue answers within a second; after this it is asked whether it runs at all."""
DEMANDS: Final = (
    "nodeSelector",
    "tolerations",
    "priorityClassName",
    "runtimeClassName",
    "overhead",
    "resources",
    "resourceClaims",
)
OF_CONTAINERS: Final = ("name", "resources", "restartPolicy")


@dataclass(frozen=True, slots=True)
class InQueue:
    """`admitted` is how many nodes it may have, spares among them: 0 none; None: it is in no queue.

    `reason` and `says` are those of the condition QueueAdmitted. `workload` is what stands for it, None where
    there is none. `is_outdated`: what was admitted is not what the job is now. `since` is when it was
    evicted, in wall seconds. `placement` is what its pods get of the flavors and checks by which it was admitted,
    None while that cannot be told.
    """

    admitted: int | None
    reason: str
    says: str = ""
    workload: Workload | None = None
    is_outdated: bool = False
    since: float | None = None
    placement: Placement | None = UNCHANGED

    @property
    def is_closed(self) -> bool:
        """Whether no pod may be made."""
        return self.admitted == 0 or self.placement is None

    @property
    def holds_quota(self) -> bool:
        """Whether quota is counted for it."""
        return self.workload is not None and self.workload.status.admission is not None


IN_NO_QUEUE: Final = InQueue(None, "NoQueue")


def in_queue(
    metadata: Metadata, job: TrainingJob | None, queueing: Queueing | None, options: Options, now: float
) -> InQueue:
    """How the job stands. `queueing` is None where the operator does not use Kueue."""
    queue = metadata.labels.get(QUEUE_LABEL, "")
    if not queue:
        return IN_NO_QUEUE
    if queueing is None:
        return InQueue(0, "KueueNotUsed", _why_not_used(options))
    name = workload_name(metadata.name)
    there = next((each for each in queueing.workloads if each.metadata.name == name), None)
    if there is None or there.metadata.deletion_timestamp is not None:
        return InQueue(0, *_why_not_queued(metadata, job, queueing, options), there)
    if there.is_true("Finished"):
        # Whoever restarts a job that had failed waits in its queue anew: Kueue counts nothing for this one now.
        return InQueue(0, "Finished", "its Workload is finished and holds no quota", there, is_outdated=True)
    evicted = there.condition("Evicted")
    if evicted is not None and evicted.status == "True":
        says = f"evicted: {evicted.message or evicted.reason}; {_again(there)}"
        return InQueue(0, evicted.reason or "Evicted", says, there, since=seconds_of(evicted.last_transition_time))
    admission = there.status.admission
    if admission is None or not there.is_true("Admitted"):
        return InQueue(0, *_why_pending(there, now), there)
    assigned = next((each for each in admission.pod_set_assignments if each.name == POD_SET), None)
    asked = next((each.count for each in there.spec.pod_sets if each.name == POD_SET), 0)
    given_back = sum(each.count for each in there.status.reclaimable_pods if each.name == POD_SET)
    count = asked if assigned is None or assigned.count is None else assigned.count
    count = max(0, min(count, asked - given_back))
    where = f"by ClusterQueue {admission.cluster_queue}"
    if job is not None and (why := _outdated(metadata, job, there, count, options)):
        says = f"{why}: it is saved, stopped and queued anew"
        return InQueue(0, "Outdated", says, there, is_outdated=True)
    placement = _placement(there, assigned.flavors.values() if assigned is not None else (), queueing)
    if isinstance(placement, str):
        return InQueue(count, "FlavorMissing", placement, there, placement=None)
    wanted = job.spec.nodes.max + job.spec.nodes.spares if job is not None else count
    says = f"{count} of {max(count, wanted)} nodes are admitted {where}"
    if count < wanted:
        says += "; to ask for the others, suspend the job and resume it"
    return InQueue(count, "Admitted", says, there, placement=placement)


def workload_name(job: str) -> str:
    """As Kueue names those that it makes: the kind comes first."""
    return f"trainingjob-{job}"


def workload_of(metadata: Metadata, job: TrainingJob, queueing: Queueing, options: Options) -> Manifest:
    """What stands for the job: as many pods as it may have, spares among them, and as few as it can train with."""
    nodes = job.spec.nodes
    demands = demands_of(job, options)
    podset = {
        "name": POD_SET,
        "count": nodes.max + nodes.spares,
        "minCount": nodes.min,
        "template": {"spec": demands},
    }
    spec: Manifest = {"queueName": metadata.labels[QUEUE_LABEL], "podSets": [podset]}
    priority = priority_of(metadata, job, options, queueing)
    if isinstance(priority, int):
        spec["priority"] = priority
    about = {
        "name": workload_name(metadata.name),
        "namespace": metadata.namespace,
        "labels": {**labels_of(metadata.name), JOB_UID_LABEL: metadata.uid},
        "annotations": {MADE_FROM: digest_of(demands)},
        "ownerReferences": [owner_reference(metadata.name, metadata.uid)],
    }
    return {"apiVersion": options.kueue_api, "kind": WORKLOAD, "metadata": about, "spec": spec}


def demands_of(job: TrainingJob, options: Options) -> Manifest:
    """What one pod of the job asks of a cluster, as a pod spec of only that; the template is a checked one.

    Without what copies the launcher: it is over before the trainer begins, and takes none of what that asks for.
    Counted, it would ask for memory in a queue whose quota is of GPUs alone.
    """
    whole = blueprint(job, options).manifest["spec"]
    demands: Manifest = {field: whole[field] for field in DEMANDS if whole.get(field)}
    if of_nodes := whole["affinity"].get("nodeAffinity"):
        demands["affinity"] = {"nodeAffinity": of_nodes}
    for kind in ("initContainers", "containers"):
        theirs = [each for each in whole[kind] if each["name"] != LAUNCHER]
        if theirs:
            demands[kind] = [{field: each[field] for field in OF_CONTAINERS if each.get(field)} for each in theirs]
    return demands


def digest_of(demands: Manifest) -> str:
    """Written on the Workload: by it a later template that asks for other things is told from it."""
    return hashlib.sha256(msgspec.json.encode(demands, order="deterministic")).hexdigest()[:16]


def priority_of(metadata: Metadata, job: TrainingJob, options: Options, queueing: Queueing) -> int | str | None:
    """Its place in the queue, None where nobody says, or in words why it cannot be told.

    Source: https://kueue.sigs.k8s.io/docs/concepts/workload_priority_class/
    """
    if name := metadata.labels.get(QUEUE_PRIORITY_LABEL):
        value = queueing.workload_priorities.get(name)
        missing = f"the label {QUEUE_PRIORITY_LABEL} names {name}, and there is no such WorkloadPriorityClass"
        return value if value is not None else missing
    return queueing.priorities.get(demands_of(job, options).get("priorityClassName", ""))


def _outdated(metadata: Metadata, job: TrainingJob, there: Workload, count: int, options: Options) -> str:
    """Why what was admitted is not what the job is now, empty where it is."""
    queue = metadata.labels[QUEUE_LABEL]
    if there.spec.queue_name != queue:
        return f"admitted from the queue {there.spec.queue_name}, and its label names {queue} now"
    if count < job.spec.nodes.min:
        return f"{count} nodes are admitted, and spec.nodes.min is {job.spec.nodes.min} now"
    if check_template(job):
        return ""  # said elsewhere, and no pod is made of it
    made_from = there.metadata.annotations.get(MADE_FROM)
    return "" if made_from == digest_of(demands_of(job, options)) else "its pods ask for other resources now"


def _placement(there: Workload, flavors: Iterable[str], queueing: Queueing) -> Placement | str:
    """What the pods get, or in words what is missing for it."""
    selector: dict[str, str] = {}
    labels: dict[str, str] = {}
    annotations: dict[str, str] = {}
    tolerations: list[Mapping[str, Any]] = []
    for name in sorted(set(flavors)):
        flavor = queueing.flavors.get(name)
        if flavor is None:
            return f"it was admitted with the ResourceFlavor {name}, and there is none: new pods wait for it"
        selector.update(flavor.spec.node_labels)
        tolerations += flavor.spec.tolerations
    for check in there.status.admission_checks:
        for update in check.pod_set_updates:
            if update.name == POD_SET:
                selector.update(update.node_selector)
                labels.update(update.labels)
                annotations.update(update.annotations)
                tolerations += update.tolerations
    return Placement(selector, tuple(tolerations), labels, annotations)


def _why_not_queued(
    metadata: Metadata, job: TrainingJob | None, queueing: Queueing, options: Options
) -> tuple[str, str]:
    """Reason and sentence of one that has no Workload."""
    if job is not None and job.spec.suspend:
        return "Suspended", "a suspended job waits in no queue"
    if job is not None and not check_template(job):
        priority = priority_of(metadata, job, options, queueing)
        if isinstance(priority, str):
            return "PriorityClassMissing", priority
    return "NotQueued", f"to be put into the queue {metadata.labels[QUEUE_LABEL]}"


def _why_pending(there: Workload, now: float) -> tuple[str, str]:
    """Reason and sentence of one that is not admitted."""
    if not there.spec.active:
        return "Deactivated", f"its Workload is inactive; {_again(there)}"
    reserved = there.condition("QuotaReserved")
    if reserved is None:
        created = seconds_of(there.metadata.creation_timestamp)
        if created is not None and now >= created + UNHEARD_S:
            return "Unheard", "Kueue has said nothing of its Workload: does kueue-controller-manager run?"
        return "Queued", "Kueue has not looked at its Workload yet"
    if reserved.status == "True":
        checks = [f"{each.name} is {each.state}: {each.message}" for each in there.status.admission_checks]
        return "AdmissionChecks", f"its quota is reserved; {'; '.join(checks) or 'it is about to be admitted'}"
    return reserved.reason or "Pending", reserved.message


def _again(there: Workload) -> str:
    if there.spec.active:
        return "it goes on from its newest checkpoint when Kueue admits it again"
    name, namespace = there.metadata.name, there.metadata.namespace
    activate = """--type merge -p '{"spec":{"active":true}}'"""
    return f"to queue it again: kubectl patch workload {name} -n {namespace} {activate}"


def _why_not_used(options: Options) -> str:
    if not options.kueue:
        return (
            f"the label {QUEUE_LABEL} is there, and this operator does not use Kueue: no pod is made; "
            "set kueue.enabled in the chart (--kueue), or remove the label"
        )
    return (
        f"the label {QUEUE_LABEL} is there, and the API server knows no Workload of Kueue: no pod is made; "
        "install Kueue and restart the operator, or remove the label"
    )
