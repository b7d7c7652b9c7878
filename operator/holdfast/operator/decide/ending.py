"""How a job ends: after the end of its training, and when somebody deleted it.

A deleted job is wound up: one more checkpoint, its pods go, the watchdog forgets it, then the job is let go. The
finalizer that holds the job until then must never hold it for ever: each wait has an end. Nodes that the job took
out of service stay so: they are faulty, whoever ran there, until somebody repaired them.
"""

from enum import Enum

import msgspec

from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import (
    Action,
    DeleteJob,
    EndCheck,
    Forget,
    KubeEvent,
    RecordLast,
    SetFinalizer,
    Submit,
)
from holdfast.operator.decide.belongings import BUDGET, SERVICE, removed
from holdfast.operator.decide.capacity import withdrawn
from holdfast.operator.decide.context import ENDED, Context, Decision
from holdfast.operator.decide.handover import handed_on
from holdfast.operator.decide.nodes import cordons
from holdfast.operator.decide.pods import goes_on
from holdfast.operator.decide.quota import finished, forgotten
from holdfast.operator.decide.staffing import delete, force
from holdfast.operator.kube.objects import FINALIZER

LINGERING_S = 60.0
"""A launcher exits within seconds of the end; a pod that still runs then does not know of it."""
AWAY_S = 120.0
"""How long a job waits for a watchdog that is away, or decides nothing, before it goes without a checkpoint."""
WIND_UP_S = 600.0
"""The watchdog gives up on a checkpoint long before; and pods that nobody can end are left to Kubernetes."""
LOOK_AGAIN_S = 5.0
STILL = ENDED | {JobPhase.SUSPENDED}


def finish(ctx: Context) -> Decision:
    """After the end the pods end by themselves, what is left is removed, and after its time the job itself.

    Nothing is created any more; logs are kept until the job goes. Of nodes the plan is carried out as before: a
    faulty one is faulty still, and somebody may return it.
    """
    actions = [*cordons(ctx.id, ctx.plan, ctx.observed.nodes, ctx.options.cordoning), *handed_on(ctx)]
    waits: list[float] = []
    if ctx.job is not None:
        life_s = ctx.job.spec.ttl_after_finished.total_seconds()
        if ctx.now >= ctx.ended_at + life_s:
            return Decision((*actions, DeleteJob()), f"its {life_s:g} s after the end are over")
        waits.append(ctx.ended_at + life_s)
    actions += [*removed(BUDGET, ctx.observed.budgets), *withdrawn(ctx), *finished(ctx), *ended_checks(ctx)]
    held = [pod for pod in ctx.pods.ended if goes_on(pod)]
    lingering = [*ctx.pods.live, *ctx.pods.stranded, *ctx.pods.released, *held]
    if lingering and ctx.now >= ctx.ended_at + LINGERING_S:
        actions += [delete(ctx, pod, "the job is over") for pod in lingering]
    elif lingering:
        waits.append(ctx.ended_at + LINGERING_S)
    actions += force(ctx, ctx.pods.leaving, "the job is over and its node cannot let it go")
    return Decision(tuple(actions), f"the job is over: {ctx.ended}", min(waits) - ctx.now if waits else None)


def ended_checks(ctx: Context) -> tuple[EndCheck, ...]:
    """No changed policy of it is tried any more."""
    there = (each.metadata for each in ctx.observed.checks if each.metadata.deletion_timestamp is None)
    return tuple(EndCheck(each.name, each.uid) for each in there)


class Waiting(Enum):
    """Why the pods of a deleted job may go, or not yet."""

    SETTLED = "the job is still"
    UNKNOWN_JOB = "the watchdog does not know the job"
    INVALID = "the spec is refused, so no checkpoint can be asked for"
    AWAY = "the watchdog has been away for too long; no checkpoint was asked for"
    OVERDUE = "winding up took too long"
    SUSPENDING = "waiting for the last checkpoint"


WITHOUT_CHECKPOINT = frozenset((Waiting.INVALID, Waiting.AWAY, Waiting.OVERDUE))


def waiting(ctx: Context, deleted_at: float) -> Waiting:
    """What winding up waits for."""
    since_s = ctx.now - deleted_at
    if (ctx.report is not None and ctx.report.status.phase in STILL) or ctx.ended is not None:
        return Waiting.SETTLED
    if ctx.connected and ctx.observed.report is not None and ctx.report is None:
        return Waiting.UNKNOWN_JOB
    if ctx.job is None:
        return Waiting.INVALID
    undecided = ctx.observed.report is None or ctx.observed.report.trouble is not None
    if (undecided or ctx.observed.heard_age_s >= AWAY_S) and since_s >= AWAY_S:
        return Waiting.AWAY
    return Waiting.OVERDUE if since_s >= WIND_UP_S else Waiting.SUSPENDING


def wind_up(ctx: Context, deleted_at: float) -> Decision:
    """The next step towards letting the job go."""
    if FINALIZER not in ctx.metadata.finalizers:
        return Decision((), "the job is let go")
    # The job as it is, but suspended: the watchdog then asks for one more checkpoint.
    why = waiting(ctx, deleted_at)
    if why is Waiting.SUSPENDING:
        if not ctx.connected or ctx.job is None or ctx.taken:
            return Decision(ended_checks(ctx), why.value, LOOK_AGAIN_S)
        assert ctx.changed is not None, "a spec that can be read has a policy"
        suspended = msgspec.structs.replace(ctx.changed.policy, suspend=True)
        return Decision((Submit(suspended), *ended_checks(ctx)), why.value, LOOK_AGAIN_S)
    # Its pods go, and what belongs to it.
    owned = (*removed(SERVICE, ctx.observed.services), *removed(BUDGET, ctx.observed.budgets))
    belongings = (*owned, *withdrawn(ctx), *ended_checks(ctx))
    pods = [*ctx.pods.there, *ctx.pods.ended]
    if pods and ctx.now - deleted_at < WIND_UP_S + AWAY_S:
        going = [*ctx.pods.live, *ctx.pods.stranded, *ctx.pods.released, *ctx.pods.ended]
        actions: list[Action] = [delete(ctx, pod, "the job is deleted") for pod in going]
        actions += force(ctx, ctx.pods.leaving, "the job is deleted and its node cannot let it go")
        return Decision((*actions, *belongings), f"{why.value}; {len(pods)} pods are to go", LOOK_AGAIN_S)
    # The watchdog forgets it, people are told, and nothing holds it any more.
    forget = (Forget(),) if ctx.connected else ()
    left = f"{len(pods)} pods that nobody can end are left to Kubernetes" if pods else "nothing is left"
    reason = f"{why.value}; {left}"
    last = RecordLast(KubeEvent("WoundUp", reason, warning=why in WITHOUT_CHECKPOINT))
    return Decision((*belongings, *forgotten(ctx), last, *forget, SetFinalizer(held=False)), reason)
