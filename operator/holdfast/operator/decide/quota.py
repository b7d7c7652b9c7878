"""What the operator writes of a job's Workload, so that Kueue counts what the job holds and nothing else. Pure.

A Workload is made for a job that wants to run, and kept as the job is until its quota is reserved: then only what
shrinks is told. Quota that Kueue takes back is given back when no pod is left; a suspended job gives it back by
itself, and a finished one by the condition Finished.

Source: https://kueue.sigs.k8s.io/docs/tasks/dev/integrate_a_custom_job/ and, for conditions and reasons, what
Kueue does for its own kinds, pkg/controller/jobframework/reconciler.go in
https://github.com/kubernetes-sigs/kueue
"""

from collections.abc import Iterable
from typing import Any, Final

from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import Action, Apply, ChangeWorkload
from holdfast.operator.decide.belongings import removed
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.inqueue import UNHEARD_S, WORKLOAD, priority_of, workload_of
from holdfast.operator.decide.pods import is_running
from holdfast.operator.decide.staffing import delete
from holdfast.operator.kube.kueue import POD_SET, Workload
from holdfast.operator.kube.objects import MADE_FROM, seconds_of, text_of

Manifest = dict[str, Any]

AWAY_S: Final = 120.0
"""Without a watchdog nobody can save: then pods go, for others wait for their nodes."""
OVERDUE_S: Final = 600.0
"""The watchdog gives up on a checkpoint long before."""
REQUEUED_AT_ONCE: Final = ("Preempted", "NodeFailures")
"""Evicted for these reasons, a Workload waits for nothing but its turn. Of others Kueue says when."""


def quota(ctx: Context, job: TrainingJob) -> Decision:
    """What makes the Workload match the job."""
    queueing, there = ctx.observed.queueing, ctx.queue.workload
    if queueing is None:
        return Decision((), "no queue is used")
    if ctx.queue.admitted is None:  # its label was removed
        return Decision(removed(WORKLOAD, queueing.workloads), "the job is in no queue")
    if there is not None and there.metadata.deletion_timestamp is not None:
        return Decision((), "its Workload is going")
    is_empty = not ctx.pods.there
    if job.spec.suspend or ctx.queue.is_outdated:
        return Decision(removed(WORKLOAD, queueing.workloads) if is_empty else (), "its quota is given back")
    wanted = workload_of(ctx.metadata, job, queueing, ctx.options)
    if there is None or not ctx.queue.holds_quota:
        is_unplaced = isinstance(priority_of(ctx.metadata, job, ctx.options, queueing), str)
        if is_unplaced or (there is not None and _is_made(there, wanted)):
            return Decision((), "it waits in its queue", _unheard_in_s(ctx, there))
        return Decision((Apply(wanted),), "it is put into its queue")
    if not ctx.queue.admitted:
        return evicted(ctx)
    return Decision(_told(ctx, job, there), "its Workload is as its pods are")


def evicted(ctx: Context) -> Decision:
    """What gives back the quota that Kueue takes back: when no pod is left, and in bounded time."""
    there, since = ctx.queue.workload, ctx.queue.since
    if there is None or since is None or not ctx.queue.holds_quota:
        return Decision((), "nothing is to be given back")
    if not ctx.pods.there:
        return Decision(_given_back(there, ctx.now), "no pod is left: its quota is given back")
    due = since + OVERDUE_S
    if not ctx.connected:
        due = min(due, max(since, ctx.now - ctx.observed.heard_age_s) + AWAY_S)
    if ctx.now < due:
        return Decision((), "it is saved and stopped first", due - ctx.now)
    why = "its queue takes its nodes back, and the watchdog could not save it in time"
    pods = (*ctx.pods.live, *ctx.pods.stranded, *ctx.pods.released)
    return Decision(tuple(delete(ctx, pod, why) for pod in pods), why)


def finished(ctx: Context) -> tuple[Action, ...]:
    """What tells Kueue that the job is over, once no pod is left."""
    there = ctx.queue.workload
    if there is None or ctx.pods.there or there.is_true("Finished"):
        return ()
    succeeded = ctx.ended is JobPhase.SUCCEEDED
    known = ctx.report.status.reason if ctx.report is not None else ""
    over = Condition("Finished", "True", "Succeeded" if succeeded else "Failed", known or "the job is over")
    return (_change(there, (over,), ctx.now),)


def forgotten(ctx: Context) -> tuple[Action, ...]:
    """What takes the Workload of a deleted job away."""
    return removed(WORKLOAD, ctx.observed.queueing.workloads) if ctx.observed.queueing is not None else ()


def _unheard_in_s(ctx: Context, there: Workload | None) -> float | None:
    """When it is told that Kueue has said nothing, though nothing comes before."""
    if there is None or there.condition("QuotaReserved") is not None:
        return None
    created = seconds_of(there.metadata.creation_timestamp)
    left_s = None if created is None else created + UNHEARD_S - ctx.now
    return left_s if left_s is not None and left_s > 0 else None


def _is_made(there: Workload, wanted: Manifest) -> bool:
    """Whether it says what is wanted."""
    podset = wanted["spec"]["podSets"][0]
    sets = [(each.name, each.count, each.min_count) for each in there.spec.pod_sets]
    return (
        sets == [(podset["name"], podset["count"], podset["minCount"])]
        and there.spec.queue_name == wanted["spec"]["queueName"]
        and there.metadata.annotations.get(MADE_FROM) == wanted["metadata"]["annotations"][MADE_FROM]
        and there.spec.priority == wanted["spec"].get("priority", there.spec.priority)
    )


def _told(ctx: Context, job: TrainingJob, there: Workload) -> tuple[Action, ...]:
    """Whether its pods run, and how many are needed no more."""
    running = sum(1 for pod in ctx.pods.live if is_running(pod))
    ready = _pods_ready(there, running >= job.spec.nodes.min)
    plan, admitted = ctx.plan, ctx.queue.admitted or 0
    needed = plan.members + plan.spares if plan is not None and ctx.taken else admitted
    spare = None
    if 0 < needed < admitted and len(ctx.pods.there) <= needed:
        asked = sum(each.count for each in there.spec.pod_sets if each.name == POD_SET)
        spare = asked - needed
    before = there.condition(ready.type)
    if spare is None and before is not None and (before.status, before.reason) == (ready.status, ready.reason):
        return ()
    return (_change(there, (ready,), ctx.now, reclaimable=spare),)


def _pods_ready(there: Workload, ready: bool) -> Condition:
    """As Kueue says it of its own kinds. With `nodes.min` of its pods a job can train."""
    before = there.condition("PodsReady")
    if ready:
        again = before is not None and before.reason in ("WaitForRecovery", "Recovered")
        reason = "Recovered" if again else "Started"
        return Condition("PodsReady", "True", reason, "as many pods run as the job needs to train")
    began = before is not None and (before.status == "True" or before.reason == "WaitForRecovery")
    reason = "WaitForRecovery" if began else "WaitForStart"
    return Condition("PodsReady", "False", reason, "fewer pods run than the job needs to train")


def _given_back(there: Workload, now: float) -> tuple[Action, ...]:
    """Without its admission; Kueue admits it anew when its turn comes."""
    why = there.condition("Evicted") or Condition("Evicted", "True", "Evicted")
    says = why.message or "the job was saved and stopped"
    conditions = (
        Condition("QuotaReserved", "False", "Pending", says),
        Condition("Admitted", "False", "NoReservation", "The workload has no reservation"),
        Condition("Requeued", "True" if why.reason in REQUEUED_AT_ONCE else "False", why.reason, says),
        Condition("PodsReady", "False", "WaitForStart", "no pod is left"),
    )
    return (_change(there, conditions, now, clears=True),)


def _change(
    there: Workload,
    conditions: Iterable[Condition],
    now: float,
    *,
    clears: bool = False,
    reclaimable: int | None = None,
) -> ChangeWorkload:
    """Its conditions with `conditions` among them; the transition time moves only with the truth."""
    said = {each.type: _written(each, each.last_transition_time) for each in there.status.conditions}
    for each in conditions:
        before = said.get(each.type)
        at = before["lastTransitionTime"] if before and before["status"] == each.status else text_of(now)
        said[each.type] = _written(each, at, there.metadata.generation)
    status: Manifest = {"conditions": list(said.values())}
    if clears:
        status["admission"] = None
    if reclaimable is not None:
        status["reclaimablePods"] = [{"name": POD_SET, "count": reclaimable}]
    about = there.metadata
    return ChangeWorkload(about.name, about.uid, about.resource_version, status)


def _written(condition: Condition, at: str | None, generation: int | None = None) -> Manifest:
    """In Kubernetes' form, which wants every one of these."""
    written: Manifest = {
        "type": condition.type,
        "status": condition.status,
        "reason": condition.reason,
        "message": condition.message,
        "lastTransitionTime": at,
    }
    seen = generation if generation is not None else condition.observed_generation
    return {**written, "observedGeneration": seen} if seen is not None else written
