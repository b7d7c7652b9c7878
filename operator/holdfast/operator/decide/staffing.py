"""Pods to create and to delete so that the job has what the plan wants.

No running pod is deleted that the plan did not release, unless the plan wants none at all, the template changed
and somebody asked for a restart since, or the job has less than its minimum and gives way to another one.
"""

from collections.abc import Iterable

from holdfast.api.plan import NodeState, Plan
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.decide.action import CreatePod, DeletePod
from holdfast.operator.decide.admission import HELD
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.podbuilder import blueprint, edition_of, is_earlier
from holdfast.operator.decide.pods import UNREACHABLE, goes_on, has_begun, is_running, ran_from_to
from holdfast.operator.kube.objects import AVOIDS, REFUSED_BY, ROLL_TO, Pod

CREATED_AT_ONCE = 500
"""Pods of one job that are made before other jobs have their turn.
Source: the Job controller of Kubernetes makes as many at most in one sync, MaxPodCreateDeletePerSync in
https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/job/job_controller.go"""
NEXT_PAGE_S = 0.01
LOGS_KEPT = 3
"""Ended pods kept for their logs."""
YIELDS = "the job gives way to others that wait for the same nodes"


def staff(ctx: Context, job: TrainingJob, plan: Plan) -> Decision:
    """What makes the pods match `plan`. New ones are made of `job`'s template.

    Fewer may be made than are missing for now, for the reason that is given.
    """
    wanted = plan.members + plan.spares
    if ctx.queue.admitted:
        wanted = min(wanted, ctx.queue.admitted)
    deletes = _departures(ctx)
    # No pods are wanted, or the job gives way: all go.
    there = [*ctx.pods.live, *ctx.pods.stranded]
    if wanted == 0:
        reason = "the plan wants no pods"
        deletes += [delete(ctx, pod, reason) for pod in there]
        return Decision(tuple(deletes), reason)
    if ctx.standing in HELD:
        deletes += [_delete_gracefully(pod, YIELDS) for pod in there]
        return Decision(tuple(deletes), YIELDS)
    # Of too many, those go that do not run yet: the unscheduled first, the newest first.
    live, outdated = _sort_out_outdated(ctx, job)
    deletes += outdated
    missing = wanted - len(live)
    if missing < 0:
        idle = [pod for pod in live if not is_running(pod)]
        idle.sort(key=lambda pod: (bool(pod.spec.node_name), -_ordinal(pod)))
        deletes += [_delete_gracefully(pod, f"the plan wants {wanted} pods") for pod in idle[:-missing]]
    if missing <= 0:
        return Decision(tuple(deletes), "the pods are as the plan wants them")
    if ctx.queue.is_closed or ctx.queue.placement is None:
        return Decision(tuple(deletes), f"no pod is made: {ctx.queue.says}")
    # Missing ones are made, though not while the watchdog is away: nobody would take them in, and the job may be
    # over, its last pods end while the watchdog is away.
    says = f"{missing} pods are missing"
    if not ctx.connected:
        return Decision(tuple(deletes), f"{says}; the watchdog is away")
    # A crash loop holds some of them back, and many are made page by page.
    count = max(0, missing - len(ctx.crash_loop.keep))
    if count < missing:
        says += f"; {missing - count} of them are held back"
    next_page_s = None
    if count > CREATED_AT_ONCE:
        count, next_page_s = CREATED_AT_ONCE, NEXT_PAGE_S
        says += f"; {CREATED_AT_ONCE} of them are made now"
    creates: tuple[CreatePod, ...] = ()
    if count:
        first = next_ordinal(ctx)
        print_ = blueprint(job, ctx.options, ctx.avoided, ctx.queue.placement, ctx.refused)
        quick_ends = ctx.crash_loop.count
        creates = tuple(CreatePod(print_.pod(ordinal, quick_ends)) for ordinal in range(first, first + count))
    return Decision((*deletes, *creates), says, next_page_s)


def delete(ctx: Context, pod: Pod, reason: str) -> DeletePod:
    """Delete it; where no kubelet can confirm that, at once."""
    grace_s = 0 if _is_unreachable(ctx, pod) else None
    return DeletePod(pod.metadata.name, pod.metadata.uid, reason, grace_s)


def force(ctx: Context, pods: Iterable[Pod], reason: str) -> list[DeletePod]:
    """Remove those of `pods`, being deleted already, that no kubelet will let go."""
    return [
        delete(ctx, pod, reason)
        for pod in pods
        if pod.metadata.deletion_timestamp is not None
        and pod.metadata.deletion_grace_period_seconds != 0
        and _is_unreachable(ctx, pod)
    ]


def next_ordinal(ctx: Context) -> int:
    """The lowest number that no pod ever had, as far as status and pods know."""
    return max(ctx.recorded.pods_created or 0, ctx.pods.next_ordinal)


def _is_unreachable(ctx: Context, pod: Pod) -> bool:
    """Whether the pod's node cannot end it."""
    node = ctx.nodes.get(pod.spec.node_name)
    return node is not None and node.state in UNREACHABLE


def _delete_gracefully(pod: Pod, reason: str) -> DeletePod:
    """Nobody has fenced it, so it has its own grace period wherever it is."""
    return DeletePod(pod.metadata.name, pod.metadata.uid, reason)


def _departures(ctx: Context) -> list[DeletePod]:
    """Those that the plan released, those that went with their node, and ended ones that nobody needs."""
    deletes = [delete(ctx, pod, "the plan released it") for pod in ctx.pods.released]
    released = frozenset(ctx.plan.release) if ctx.plan else frozenset()
    # The watchdog has fenced a member that it released: its processes, should they live, can harm nothing.
    fenced = (pod for pod in ctx.pods.leaving if pod.metadata.name in released)
    deletes += force(ctx, fenced, "the plan released it and its node cannot let it go")
    for pod in ctx.pods.stranded:
        node = ctx.nodes.get(pod.spec.node_name)
        if node is not None and node.state is NodeState.GONE:
            # An end by force waits until the watchdog has released the member.
            deletes.append(_delete_gracefully(pod, "its node is gone"))
    # One whose trainer ended and of which another container goes on would hold its place for ever.
    keep = ctx.crash_loop.keep
    held = [pod for pod in ctx.pods.ended if goes_on(pod) and pod.metadata.name not in keep]
    deletes += [
        _delete_gracefully(pod, "its trainer ended, and another of its containers goes on") for pod in held
    ]
    # Of ended pods the newest are kept, and those the crash loop is read from.
    newest_first = sorted(ctx.pods.ended, key=lambda pod: (ran_from_to(pod)[1], _ordinal(pod)), reverse=True)
    for pod in newest_first[LOGS_KEPT:]:
        if pod not in held and pod.metadata.name not in keep | ctx.refusals.keep:
            deletes.append(_delete_gracefully(pod, "it ended, and newer ones are kept for their logs"))
    return deletes


def _sort_out_outdated(ctx: Context, job: TrainingJob) -> tuple[list[Pod], list[DeletePod]]:
    """The live pods, and apart from them those that others are to take the place of.

    While the watchdog is away nothing would take their place, so they stay.
    """
    if not ctx.connected:
        return ctx.pods.live, []
    edition, avoids = edition_of(job), ",".join(ctx.avoided)
    rolled = ctx.metadata.annotations.get(ROLL_TO) == edition  # somebody asked for all pods to be of it
    live: list[Pod] = []
    outdated: list[DeletePod] = []
    for pod in ctx.pods.live:
        if is_earlier(pod, edition) and (rolled or pod.status.phase == "Pending"):
            when = "before it began" if pod.status.phase == "Pending" else "and a restart was asked for"
            outdated.append(_delete_gracefully(pod, f"the template changed {when}"))
        elif not pod.spec.node_name and (
            pod.metadata.annotations.get(AVOIDS, "") != avoids or not _is_refused_still(ctx, pod)
        ):
            # A node was returned meanwhile, or another one is avoided now, or one may be tried again.
            outdated.append(_delete_gracefully(pod, "the nodes to avoid changed before it found a place"))
        elif pod.spec.node_name and _is_unreachable(ctx, pod) and not has_begun(pod):
            # Kubernetes would leave it there for five minutes.
            # Source: https://kubernetes.io/docs/concepts/scheduling-eviction/taint-and-toleration/
            outdated.append(_delete_gracefully(pod, "its node stopped before it began"))
        else:
            live.append(pod)
    return live, outdated


def _is_refused_still(ctx: Context, pod: Pod) -> bool:
    """Whether the nodes that it was made to keep away from for a while are to be left out still."""
    known = pod.metadata.annotations.get(REFUSED_BY, "")
    return not known or ctx.kept_off.issuperset(known.split(","))


def _ordinal(pod: Pod) -> int:
    return int(pod.metadata.name.rpartition("-")[2])
