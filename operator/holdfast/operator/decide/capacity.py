"""Capacity asked for when no node is left for a job's pods: spares are gone, and the scheduler finds no place.

A pod that finds no place is itself a request to a cluster autoscaler: that is the way by default, and nothing is
made here. The other way is a ProvisioningRequest, one for all such pods of the job: a cloud gives them all or
none, and says why not. It is asked for once, withdrawn when every pod has its place, and asked for anew some time
after a refusal.

Source: https://github.com/kubernetes/autoscaler/blob/master/cluster-autoscaler/FAQ.md (How can I use
ProvisioningRequest), and cluster-autoscaler/apis/provisioningrequest beside it for names, conditions and
annotations
"""

from collections.abc import Iterable
from typing import Any, Final

from holdfast.api.jobstatus import Condition
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import Action, Apply
from holdfast.operator.decide.belongings import removed
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.observed import Capacity
from holdfast.operator.decide.podbuilder import UNCHANGED, blueprint, labels_of, owner_reference
from holdfast.operator.decide.pods import unschedulable_since
from holdfast.operator.kube.objects import CapacityRequest, Metadata, seconds_of

Manifest = dict[str, Any]
REQUEST, TEMPLATE = "ProvisioningRequest", "PodTemplate"
UNPLACED_S: Final = 10.0
"""A pod may wait a moment for a node that is about to be free, as when another one leaves it."""
ASK_ANEW_S: Final = 600.0
"""After a refusal, or a booking that was over before the pods came. A cloud that had none seldom has some sooner.
"""
OVER: Final = ("Failed", "BookingExpired", "CapacityRevoked")


def capacity(ctx: Context, job: TrainingJob) -> Decision:
    """What makes the request match the pods that find no place."""
    if ctx.options.capacity is not Capacity.PROVISIONING_REQUEST:
        return Decision((), "pods that find no place are the request")
    there = [each for each in ctx.observed.capacity if each.metadata.name == ctx.metadata.name]
    since = [
        at for pod in ctx.pods.live if not pod.spec.node_name and (at := unschedulable_since(pod)) is not None
    ]
    if not since:
        return Decision(withdrawn(ctx), "every pod has its place")
    if not there:
        due = min(since) + UNPLACED_S
        if ctx.now < due:
            return Decision((), "pods may yet find a place", due - ctx.now)
        return Decision(_asked(ctx, job, len(since)), f"{len(since)} pods find no place")
    (asked,) = there
    over = ended(asked)
    if over is None or asked.metadata.deletion_timestamp is not None:
        return Decision((), "capacity is asked for")
    again = (seconds_of(over.last_transition_time) or ctx.now) + ASK_ANEW_S
    if ctx.now < again:
        return Decision((), "capacity was refused", again - ctx.now)
    return Decision(withdrawn(ctx), "asked for anew")


def withdrawn(ctx: Context) -> tuple[Action, ...]:
    """What takes the request away, and what it was made of."""
    requests = removed(REQUEST, ctx.observed.capacity)
    return (*requests, *removed(TEMPLATE, ctx.observed.capacity_templates))


def ended(asked: CapacityRequest) -> Condition | None:
    """Why nothing more comes of it, None while something may."""
    told = {each.type: each for each in asked.status.conditions if each.status == "True"}
    return next((told[type_] for type_ in OVER if type_ in told), None)


def says(there: Iterable[CapacityRequest]) -> tuple[str, str] | None:
    """A reason and a sentence about what was asked for, None when nothing is."""
    for asked in there:
        if (over := ended(asked)) is not None:
            return f"Capacity{over.type}" if over.type == "Failed" else over.type, _told("refused", over)
        told = {each.type: each for each in asked.status.conditions}
        provisioned = told.get("Provisioned")
        if provisioned is not None and provisioned.status == "True":
            return "CapacityProvisioned", "the nodes that were asked for are there; their pods are on the way"
        if provisioned is not None:
            return "CapacityRequested", _told("asked for, and not found yet", provisioned)
        return "CapacityRequested", f"asked for with {REQUEST} {asked.metadata.name}"
    return None


def _told(what: str, condition: Condition) -> str:
    why = condition.message or condition.reason
    return f"{what}: {why}" if why else what


def _asked(ctx: Context, job: TrainingJob, count: int) -> tuple[Action, ...]:
    """The template of the job's own pods, then the request that names it."""
    pod = blueprint(job, ctx.options, ctx.avoided, ctx.queue.placement or UNCHANGED).manifest
    metadata = {key: value for key, value in pod["metadata"].items() if key in ("labels", "annotations")}
    template = _manifest("v1", TEMPLATE, ctx.metadata, {"template": {"metadata": metadata, "spec": pod["spec"]}})
    podset = {"count": count, "podTemplateRef": {"name": ctx.metadata.name}}
    spec = {"provisioningClassName": ctx.options.provisioning_class, "podSets": [podset]}
    request = _manifest(ctx.options.capacity_api, REQUEST, ctx.metadata, {"spec": spec})
    return Apply(template), Apply(request)


def _manifest(api: str, kind: str, job: Metadata, content: Manifest) -> Manifest:
    metadata = {
        "name": job.name,
        "namespace": job.namespace,
        "labels": labels_of(job.name),
        "ownerReferences": [owner_reference(job.name, job.uid)],
    }
    return {"apiVersion": api, "kind": kind, "metadata": metadata, **content}
