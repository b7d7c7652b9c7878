"""Pods to create and to delete so that the job has what the plan wants.

No running pod is deleted that the plan did not release, unless the plan wants none at all, the template changed
and somebody asked for a restart since, or the job has less than its minimum and gives way to another one.
"""

from collections.abc import Iterable
from dataclasses import dataclass

from holdfast.api.plan import NodeState, Plan
from holdfast.api.trainingjob import TrainingJob
from holdfast.operator.action import CreatePod, DeletePod
from holdfast.operator.case import Case
from holdfast.operator.edition import is_earlier, is_rolled
from holdfast.operator.marks import AVOIDS, HOSTNAME_LABEL
from holdfast.operator.objects import Pod
from holdfast.operator.podbuilder import avoids_text, blueprint, edition_of
from holdfast.operator.podstate import is_running, ran_from_to
from holdfast.operator.roll import UNREACHABLE
from holdfast.operator.turns import HELD

CREATED_AT_ONCE = 500
"""Pods of one job that are made before other jobs have their turn.
Source: the Job controller of Kubernetes makes as many at most in one sync, MaxPodCreateDeletePerSync in
https://github.com/kubernetes/kubernetes/blob/master/pkg/controller/job/job_controller.go"""
NEXT_PAGE_S = 0.01
LOGS_KEPT = 3
"""Ended pods kept for their logs."""
YIELDS = "the job gives way to others that wait for the same nodes"


@dataclass(frozen=True, slots=True)
class Staffing:
    """`creates` may be fewer than are missing for now, for the `reason`; `requeue_after_s` when more come."""

    creates: tuple[CreatePod, ...] = ()
    deletes: tuple[DeletePod, ...] = ()
    reason: str = ""
    requeue_after_s: float | None = None


def wish(case: Case, job: TrainingJob) -> Plan:
    """What the spec alone asks for, as long as nothing is known of members and nodes."""
    if job.spec.suspend:
        return Plan(case.id, 0, members=0, spares=0)
    return Plan(case.id, 0, members=job.spec.nodes.max, spares=job.spec.nodes.spares)


def staff(case: Case, job: TrainingJob, plan: Plan) -> Staffing:
    """What makes the pods match `plan`. New ones are made of `job`'s template."""
    wanted = plan.members + plan.spares
    deletes = [*_departures(case), *_superseded(case)]
    if wanted == 0:
        going = [*case.roll.live, *case.roll.stranded]
        deletes += [delete(case, pod, "the plan wants no pods") for pod in going]
        return Staffing(deletes=tuple(deletes), reason="the plan wants no pods")
    if case.standing in HELD:
        going = [*case.roll.live, *case.roll.stranded]
        deletes += [_delete_idle(pod, YIELDS) for pod in going]
        return Staffing(deletes=tuple(deletes), reason=YIELDS)
    live, outdated = _sorted_out(case, job)
    deletes += outdated
    missing = wanted - len(live)
    if missing < 0:
        deletes += [_delete_idle(pod, f"the plan wants {wanted} pods") for pod in _surplus(live, -missing)]
    return _creation(case, job, tuple(deletes), max(0, missing))


def delete(case: Case, pod: Pod, reason: str) -> DeletePod:
    """Delete it; where no kubelet can confirm that, at once."""
    grace_s = 0 if unreachable(case, pod) else None
    return DeletePod(pod.metadata.name, pod.metadata.uid, reason, grace_s)


def unreachable(case: Case, pod: Pod) -> bool:
    """Whether the pod's node cannot end it."""
    node = case.nodes.get(pod.spec.node_name)
    return node is not None and node.state in UNREACHABLE


def force(case: Case, pods: Iterable[Pod], reason: str) -> list[DeletePod]:
    """Remove those of `pods`, being deleted already, that no kubelet will let go."""
    return [
        delete(case, pod, reason)
        for pod in pods
        if pod.metadata.deletion_timestamp is not None
        and pod.metadata.deletion_grace_period_seconds != 0
        and unreachable(case, pod)
    ]


def _departures(case: Case) -> list[DeletePod]:
    """Those the plan released, and those that went with their node."""
    deletes = [delete(case, pod, "the plan released it") for pod in case.roll.released]
    released = frozenset(case.plan.release) if case.plan else frozenset()
    # The watchdog has fenced a member that it released: its processes, should they live, can harm nothing.
    fenced = (pod for pod in case.roll.leaving if pod.metadata.name in released)
    deletes += force(case, fenced, "the plan released it and its node cannot let it go")
    for pod in case.roll.stranded:
        node = case.nodes.get(pod.spec.node_name)
        if node is not None and node.state is NodeState.GONE:
            # Its own grace period: an end by force waits until the watchdog has released the member.
            deletes.append(DeletePod(pod.metadata.name, pod.metadata.uid, "its node is gone"))
    return deletes


def _superseded(case: Case) -> list[DeletePod]:
    """Ended pods beyond the newest, except those the crash loop is read from."""
    ended = case.roll.ended
    if len(ended) <= LOGS_KEPT:
        return []
    newest_first = sorted(ended, key=lambda pod: (ran_from_to(pod)[1], _ordinal(pod)), reverse=True)
    keep = case.crash_loop.keep
    return [
        DeletePod(pod.metadata.name, pod.metadata.uid, "it ended, and newer ones are kept for their logs")
        for pod in newest_first[LOGS_KEPT:]
        if pod.metadata.name not in keep
    ]


def _sorted_out(case: Case, job: TrainingJob) -> tuple[list[Pod], list[DeletePod]]:
    """The live pods, and apart from them those that others are to take the place of.

    While the watchdog is away nothing would take their place, so they stay.
    """
    if not case.connected:
        return case.roll.live, []
    edition, avoids = edition_of(job), avoids_text(_avoided(case))
    rolled = is_rolled(case.metadata, edition)
    live: list[Pod] = []
    outdated: list[DeletePod] = []
    for pod in case.roll.live:
        if is_earlier(pod, edition) and (rolled or pod.status.phase == "Pending"):
            when = "before it began" if pod.status.phase == "Pending" else "and a restart was asked for"
            outdated.append(_delete_idle(pod, f"the template changed {when}"))
        elif not pod.spec.node_name and pod.metadata.annotations.get(AVOIDS, "") != avoids:
            # A node was returned meanwhile, or another one is avoided now.
            outdated.append(_delete_idle(pod, "the nodes to avoid changed before it found a place"))
        else:
            live.append(pod)
    return live, outdated


def _delete_idle(pod: Pod, reason: str) -> DeletePod:
    """Nobody has fenced it, so it has its own grace period wherever it is."""
    return DeletePod(pod.metadata.name, pod.metadata.uid, reason)


def _surplus(live: Iterable[Pod], count: int) -> list[Pod]:
    """Of those that do not run yet: the unscheduled first, the newest first."""
    idle = [pod for pod in live if not is_running(pod)]
    idle.sort(key=lambda pod: (bool(pod.spec.node_name), -_ordinal(pod)))
    return idle[:count]


def _creation(case: Case, job: TrainingJob, deletes: tuple[DeletePod, ...], missing: int) -> Staffing:
    if missing == 0:
        return Staffing(deletes=deletes, reason="the pods are as the plan wants them")
    loop, says = case.crash_loop, f"{missing} pods are missing"
    if not case.connected:
        # Nobody would take them in, and the job may be over: its last pods end while the watchdog is away.
        return Staffing(deletes=deletes, reason=f"{says}; the watchdog is away")
    count = max(0, missing - len(loop.keep))
    held = f"; {missing - count} of them are held back" if count < missing else ""
    if count > CREATED_AT_ONCE:
        creates = _creates(case, job, CREATED_AT_ONCE)
        return Staffing(creates, deletes, f"{says}{held}; {CREATED_AT_ONCE} of them are made now", NEXT_PAGE_S)
    return Staffing(_creates(case, job, count), deletes, f"{says}{held}")


def _creates(case: Case, job: TrainingJob, count: int) -> tuple[CreatePod, ...]:
    if count == 0:
        return ()
    first = next_ordinal(case)
    print_ = blueprint(job, case.terms, _avoided(case))
    quick_ends = case.crash_loop.count
    return tuple(CreatePod(print_.pod(ordinal, quick_ends)) for ordinal in range(first, first + count))


def next_ordinal(case: Case) -> int:
    """The lowest number that no pod ever had, as far as status and pods know."""
    return max(case.recorded.pods_created or 0, case.roll.next_ordinal)


def _avoided(case: Case) -> list[str]:
    """Host name labels of the nodes to keep away from; a node that is not there has, as a rule, its own name."""
    plan = case.plan
    names = {order.node for order in (*plan.avoid, *plan.cordon)} if plan else set()
    names |= case.drained_in_vain
    nodes = {name: case.node_of(name) for name in names}
    return sorted(node.metadata.labels.get(HOSTNAME_LABEL, name) if node else name for name, node in nodes.items())


def _ordinal(pod: Pod) -> int:
    return int(pod.metadata.name.rpartition("-")[2])
