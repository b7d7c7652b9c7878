"""A TrainingJob's conditions: what is true of it, in Kubernetes' form.

Conventions: https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
All known types are there from the first visit on; what cannot be told is Unknown. Messages hold nothing that moves
by itself, such as a step or an age: they would be written anew every second.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import NamedTuple

import msgspec

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.jobstatus import Condition
from holdfast.api.status import JobPhase
from holdfast.operator.decide.admission import IN_QUEUE, TRAINS, TURN_S, Standing
from holdfast.operator.decide.alterations import WHO
from holdfast.operator.decide.capacity import says as capacity_says
from holdfast.operator.decide.context import Context
from holdfast.operator.decide.observed import Mode
from holdfast.operator.decide.podbuilder import difference, edition_of, is_earlier
from holdfast.operator.decide.pods import (
    QuickEnd,
    is_running,
    joins_late_in_s,
    late_in_s,
    undecided,
    undecided_says,
    unschedulable,
    why_pending,
)
from holdfast.operator.kube.objects import ROLL_TO, Pod, seconds_of, text_of

SILENT_S = 10.0
"""A watchdog that fails over is back before; nothing is said of such a gap."""
UNSEEN = "Unseen"
DROPPED = "Dropped"
MARGIN_S = 0.1
MESSAGE_LENGTH_MAX = 2000
STALE_INTERVALS = 3
STALE_S_MIN = 60.0
STALE_S_UNTIMED = 7200.0
"""Where the interval is no time: the same as of the alert HoldfastCheckpointStale. Nobody wants to train two hours
anew."""


class Truth(StrEnum):
    TRUE = "True"
    FALSE = "False"
    UNKNOWN = "Unknown"


TRUTHS = frozenset(Truth)


class Said(NamedTuple):
    """What a condition says now."""

    status: str
    reason: str
    message: str = ""


NOT_TAKEN = Said(Truth.UNKNOWN, "NotTaken", "the watchdog has not taken the job yet")
NOT_HEARD = Said(Truth.UNKNOWN, "NotHeard", "nothing was heard from the watchdog yet")
# That all is well holds only of what somebody sees. What was amiss when last seen still stands.
DOUBTED_UNSEEN = {
    "Ready": TRUTHS,
    "Progressing": (Truth.FALSE,),
    "Degraded": (Truth.FALSE,),
    "CheckpointHealthy": (Truth.TRUE,),
}
SEEN_HERE = frozenset(("BackingOff", "CrashLoop", "MemberCannotStart"))
"""Reasons that come of pods and not of the watchdog: without it the newest look at them counts."""
ITS_TURN = "its pods are made again by themselves when its turn comes"
ADMITTED = {
    Standing.ADMITTED: Said(Truth.TRUE, "Admitted"),
    Standing.RETRIED: Said(
        Truth.TRUE,
        "Retried",
        "tried again; a job that had no turn yet goes before it while it holds less than nodes.min",
    ),
    Standing.YIELDED: Said(
        Truth.FALSE,
        "Yielded",
        f"a job that is ahead of it waits for the same nodes, and both hold less than they need; {ITS_TURN}",
    ),
    Standing.TURN_OVER: Said(
        Truth.FALSE,
        "TurnOver",
        f"it did not get nodes.min within {TURN_S:g} s and others wait for the same nodes; {ITS_TURN}",
    ),
}


def renew(
    recorded: Iterable[Condition], conditions: Iterable[Condition], generation: int | None, now: float
) -> tuple[Condition, ...]:
    """The conditions to write. The transition time changes only when the truth does, not with the text."""
    before = {(each.type, each.status): each.last_transition_time for each in recorded}
    return tuple(
        msgspec.structs.replace(
            each,
            message=each.message[:MESSAGE_LENGTH_MAX],
            last_transition_time=before.get((each.type, each.status)) or text_of(now),
            observed_generation=generation,
        )
        for each in conditions
    )


def conditions_of(ctx: Context, would: Iterable[str]) -> list[Condition]:
    """All of them. `would` is what an operator that only observes would have done."""
    tells: dict[str, Said | None] = {  # None: the watchdog says nothing of it now
        "Ready": _ready(ctx),
        "Progressing": _progressing(ctx),
        "Degraded": _degraded(ctx),
        "CheckpointHealthy": _checkpoint_healthy(ctx),
        "DivergenceHealable": _divergence_healable(ctx),
        "WithinBudget": _within_budget(ctx),
        "CapacityAvailable": _capacity_available(ctx),
        "Admitted": ADMITTED[ctx.standing],
        IN_QUEUE: _queue_admitted(ctx),
        "WatchdogReachable": _watchdog_reachable(ctx),
        "Suspended": _suspended(ctx),
        "InvalidSpec": Said(Truth.FALSE, "SpecAccepted"),
        "PodsAltered": _pods_altered(ctx),
        "UpToDate": _up_to_date(ctx),
        "PolicyChecked": _policy_checked(ctx),
        "Succeeded": _succeeded(ctx),
    }
    if ctx.invalid is not None:
        reason = "SpecRefused" if ctx.problems else "TemplateRefused"
        tells["InvalidSpec"] = Said(Truth.TRUE, reason, ctx.invalid)
    if ctx.options.mode is Mode.OBSERVE:
        says = f"nothing is changed; would do: {'; '.join(would) or 'nothing'}"
        tells["Observing"] = Said(Truth.TRUE, "ObserveOnly", says)
    unseen, before = is_unseen(ctx), {each.type: each for each in ctx.recorded.conditions}
    conditions = []
    for type_, said in tells.items():
        known, last = before.get(type_), None  # as it was written down, perhaps by an operator before this one
        if known is not None and known.status in TRUTHS and known.reason:
            last = Said(known.status, known.reason, known.message)
        if said is None:
            if last is not None and last.reason in SEEN_HERE:
                last = NOT_HEARD  # it was seen of pods, which say something else now
            said = last or (NOT_HEARD if type_ == "WatchdogReachable" else NOT_TAKEN)
        if unseen and said.status in DOUBTED_UNSEEN.get(type_, ()):
            # The time in it is told once: it would be later with every restart of the operator.
            said = last if last is not None and last.reason == UNSEEN else _unseen(ctx)
        conditions.append(Condition(type_, *said))
    return conditions


def _within_budget(ctx: Context) -> Said | None:
    """What the job has cost so far, beside what its spec says that it may."""
    if ctx.report is None:
        return None
    bill = ctx.report.status.bill
    if bill is None or bill.budget is None:
        return Said(Truth.TRUE, "NoBudget")
    says = f"{bill.amount:.0f} of {bill.budget:.0f} {bill.currency} are spent"
    if bill.amount >= bill.budget:
        return Said(Truth.FALSE, "BudgetSpent", f"{says}; the job goes on: suspend it, or raise spec.cost.budget")
    if bill.amount >= bill.budget * (bill.alert_ratio or 1.0):
        return Said(Truth.TRUE, "BudgetNearlySpent", says)
    return Said(Truth.TRUE, "WithinBudget", says)


def is_unseen(ctx: Context) -> bool:
    """Whether the job trained when the watchdog was last heard, too long ago to say that it still does."""
    last = ctx.report.status.phase if ctx.report is not None else ctx.recorded.phase
    return ctx.ended is None and last in TRAINS and ctx.observed.heard_age_s > SILENT_S


def _unseen(ctx: Context) -> Said:
    since = ctx.now - ctx.observed.heard_age_s
    if ctx.report is not None:
        since -= ctx.report.status.step_age_s or 0.0
    elif (progressed_at := seconds_of(ctx.recorded.progressed_at)) is not None:
        since = min(since, progressed_at)
    return Said(Truth.UNKNOWN, UNSEEN, f"nobody has seen a step since {text_of(since)}: the watchdog is away")


def changes_in_s(ctx: Context) -> float | None:
    """When a condition changes though nothing comes before: nobody else asks for that look.

    A watchdog that is away will be missed, the start or the joining of a pod will be late, a crash loop is over.
    """
    waits = [left_s for pod in ctx.pods.live if (left_s := late_in_s(pod, ctx.now))]
    waits += [left_s for _, left_s in _joining(ctx) if left_s]
    # How pods crash is seen without the watchdog, and also of a job that no pod is made for now.
    if ctx.crash_loop.changes_at is not None and ctx.ended is None:
        waits.append(max(0.0, ctx.crash_loop.changes_at - ctx.now))
    if not ctx.connected and ctx.observed.heard_age_s <= SILENT_S:
        waits.append(SILENT_S - ctx.observed.heard_age_s)
    return min(waits) + MARGIN_S if waits else None


def _ready(ctx: Context) -> Said | None:
    if ctx.report is None:
        return None
    status = ctx.report.status
    if status.phase is not JobPhase.RUNNING:
        return Said(Truth.FALSE, status.phase.value, status.reason)
    members = f"{status.members.ready} of {status.members.wanted} members train in round {status.round}"
    if status.members.ready < status.members.wanted:
        return Said(Truth.FALSE, "MembersMissing", members)
    return Said(Truth.TRUE, "Running", members)


def _progressing(ctx: Context) -> Said | None:
    if ctx.deleted_at is not None:
        return Said(Truth.TRUE, "WindingUp", "the job is deleted and being wound up")
    loop = _loop(ctx)
    if loop is not None:
        return Said(Truth.TRUE, "BackingOff", loop.says())
    if ctx.report is None:
        return None
    status = ctx.report.status
    if late := list(_late_starts(ctx, joined=status.members.there + status.members.spares)):
        return Said(Truth.TRUE, "MemberCannotStart", "; ".join(late))
    moves = status.phase in (JobPhase.PENDING, JobPhase.PREFLIGHT, JobPhase.FORMING, JobPhase.RECOVERING)
    return Said(Truth.TRUE if moves else Truth.FALSE, status.phase.value, status.reason)


def _late_starts(ctx: Context, joined: int) -> Iterator[str]:
    """What keeps a pod that has a node from taking part. One without a node is the condition CapacityAvailable."""
    for pod in ctx.pods.live:
        name, node = pod.metadata.name, pod.spec.node_name
        if not node or pod.status.phase != "Pending":
            continue
        if why := why_pending(pod):
            yield f"{name} on {node}: {why}"
        elif late_in_s(pod, ctx.now) == 0:
            yield f"{name} on {node}: waits for an image or a volume; look at: kubectl describe pod {name}"
    # Pods that run, and the watchdog counts fewer members. It tells how many there are, not which.
    late = [pod for pod, left_s in _joining(ctx) if left_s == 0]
    missing = len(late) - joined
    says = "not joined, or is being tested; look at: kubectl logs"
    if missing > 0 and missing == len(late):
        for pod in late:
            yield f"{pod.metadata.name} on {pod.spec.node_name}: runs and has {says} {pod.metadata.name}"
    elif missing > 0:
        names = ", ".join(pod.metadata.name for pod in late)
        yield f"{missing} of the pods that run has {says} POD, where POD is one of {names}"


def _joining(ctx: Context) -> list[tuple[Pod, float]]:
    """The pods that run, and for how long each may yet take to join; none while as many have joined."""
    waits = (JobPhase.PREFLIGHT, JobPhase.SUSPENDED)
    if ctx.report is None or not ctx.connected or ctx.ended is not None or ctx.report.status.phase in waits:
        return []
    members = ctx.report.status.members
    joined = members.there + members.spares
    if ctx.report.status.phase in TRAINS and not joined:
        return []  # a watchdog that has just taken over, and that nobody has joined anew yet
    running = [pod for pod in ctx.pods.live if is_running(pod)]
    if len(running) <= joined:
        return []
    left = [(pod, joins_late_in_s(pod, ctx.now)) for pod in running]
    return [(pod, left_s) for pod, left_s in left if left_s is not None]


def _loop(ctx: Context) -> QuickEnd | None:
    """The newest of the pods that crash; None when there is none, or when the job trains whole since."""
    loop = ctx.crash_loop.newest
    if loop is None or ctx.ended is not None:
        return None
    if ctx.report is None or ctx.now < loop.due:
        return loop
    status = ctx.report.status
    is_whole = status.phase is JobPhase.RUNNING and status.members.ready >= status.members.wanted
    return None if is_whole and ctx.connected else loop


def _degraded(ctx: Context) -> Said | None:
    if ctx.forgotten is not None:
        return Said(Truth.TRUE, "Forgotten", ctx.forgotten)
    loop = _loop(ctx)
    crashes = Said(Truth.TRUE, "CrashLoop", loop.says_when(ctx.now)) if loop and loop.count > 1 else None
    if ctx.report is None:
        return crashes
    status = ctx.report.status
    if ctx.ended is not None or status.phase is JobPhase.SUSPENDED:
        return Said(Truth.FALSE, status.phase.value)
    # A human is waited for, unless training that goes on in a later round has answered the page.
    paged = [
        each
        for each in ctx.report.incidents
        if each.state is IncidentState.PAGED
        and (status.phase is not JobPhase.RUNNING or each.round == status.round)
    ]
    if paged:
        return Said(Truth.TRUE, "Paged", _told(paged))
    if crashes is not None:
        return crashes
    opened = [each for each in ctx.report.incidents if each.state is IncidentState.OPEN]
    if opened or status.incidents_open:
        return Said(Truth.TRUE, "IncidentOpen", _told(opened))
    short = status.phase in (JobPhase.RUNNING, JobPhase.STALLED, JobPhase.RECOVERING)
    if short and status.members.there < status.members.wanted:
        says = f"{status.members.there} of {status.members.wanted} members are there"
        return Said(Truth.TRUE, "MembersMissing", says)
    return Said(Truth.FALSE, "AsWanted")


def _told(incidents: Iterable[Incident]) -> str:
    return "; ".join(f"{each.kind.value} on {each.blamed}: {each.cause}" for each in incidents)


def _checkpoint_healthy(ctx: Context) -> Said | None:
    if ctx.report is None:
        return None
    status = ctx.report.status
    newest = status.last_checkpoint
    if newest is None:
        return Said(Truth.UNKNOWN, "NoneYet", "no checkpoint was committed yet")
    interval = ctx.job.spec.checkpoint.interval if ctx.job is not None else None
    seconds = getattr(interval, "total_seconds", None)
    allowed_s = STALE_S_UNTIMED if seconds is None else max(STALE_S_MIN, STALE_INTERVALS * seconds())
    if status.phase in (JobPhase.RUNNING, JobPhase.STALLED) and status.now - newest.at > allowed_s:
        says = f"no checkpoint was committed for more than {allowed_s:g} s"
        return Said(Truth.FALSE, "Stale", says)
    return Said(Truth.TRUE, "Committed")


def _divergence_healable(ctx: Context) -> Said | None:
    """Whether the script could do what its spec wants of a loss that rises: told before that is needed."""
    if ctx.job is not None and ctx.job.spec.fault_policy.loss is None:
        return Said(
            Truth.UNKNOWN, "NotAsked", "the spec has no faultPolicy.loss: a loss that rises is only told of"
        )
    if ctx.report is None:
        return None
    if why := ctx.report.status.unfollowed:
        return Said(Truth.FALSE, "ScriptCannot", why)
    if ctx.report.status.step is None:
        return Said(Truth.UNKNOWN, "NoStepYet", "the script says how it restores with its first step")
    return Said(Truth.TRUE, "ScriptCan")


def _capacity_available(ctx: Context) -> Said:
    pods = ctx.pods.live
    waiting = [says for says in (unschedulable(pod) for pod in pods if not pod.spec.node_name) if says is not None]
    if waiting:
        says = f"{len(waiting)} of {len(pods)} pods find no place: {waiting[0]}"
        reason, asked = capacity_says(ctx.observed.capacity) or ("Unschedulable", "")
        return Said(Truth.FALSE, reason, f"{says}; {asked}" if asked else says)
    held = [(why, pod) for pod in pods if (why := undecided(pod)) is not None]
    if held:
        says = f"{len(held)} of {len(pods)} pods have no node yet, {undecided_says(held[0][1])}"
        return Said(Truth.UNKNOWN, held[0][0], says)
    if not pods or any(not pod.spec.node_name for pod in pods):
        return Said(Truth.UNKNOWN, "NotScheduled", "not every pod was looked at by the scheduler")
    return Said(Truth.TRUE, "Scheduled")


def _queue_admitted(ctx: Context) -> Said:
    """Of a job that waits in a queue of Kueue, whether it may have pods, and how many."""
    queue = ctx.queue
    truth = Truth.UNKNOWN if queue.admitted is None else Truth.FALSE if queue.is_closed else Truth.TRUE
    return Said(truth, queue.reason, queue.says)


def _watchdog_reachable(ctx: Context) -> Said | None:
    goes_on = "what trains is not touched, nobody sees its steps, and faults wait"
    if ctx.observed.heard_age_s > SILENT_S:
        return Said(Truth.FALSE, "Away", f"the watchdog is away; {goes_on}")
    report = ctx.observed.report
    if report is None:
        return None
    if report.trouble is not None:
        return Said(Truth.FALSE, "Trouble", f"{report.trouble}; {goes_on}")
    return Said(Truth.TRUE, "Connected")


def _suspended(ctx: Context) -> Said | None:
    if ctx.report is None:
        return None
    status = ctx.report.status
    if status.phase is JobPhase.SUSPENDED:
        return Said(Truth.TRUE, "Suspended", status.reason)
    if ctx.job is not None and ctx.job.spec.suspend and ctx.ended is None:
        return Said(Truth.FALSE, "Suspending", "waiting for the last checkpoint")
    return Said(Truth.FALSE, "NotSuspended")


def _pods_altered(ctx: Context) -> Said:
    """Of what was asked for. The API server takes such pods, so the job is not refused for it."""
    altered = ctx.observed.trial.altered
    if altered is None:
        return Said(Truth.UNKNOWN, "NotTried")
    if not (says := altered.says()):
        return Said(Truth.FALSE, "AsAsked")
    reason = DROPPED if altered.dropped else "Rewritten"
    return Said(Truth.TRUE, reason, f"of a pod of spec.template the API server has {says}; {WHO}")


def _up_to_date(ctx: Context) -> Said:
    if ctx.job is None or ctx.invalid is not None:
        return Said(Truth.UNKNOWN, "SpecRefused")
    edition = edition_of(ctx.job)
    pods = [pod for pod in ctx.pods.live if is_earlier(pod, edition)]
    if not pods:
        return Said(Truth.TRUE, "AsWritten")
    says = difference(pods, ctx.job)
    if ctx.metadata.annotations.get(ROLL_TO) == edition:
        return Said(Truth.FALSE, "Rolling", f"{says}; they are being replaced")
    about = ctx.metadata
    roll = f"to replace them: kubectl holdfast restart {about.name} -n {about.namespace}"
    return Said(Truth.FALSE, "EarlierTemplate", f"{says}; {roll}")


def _policy_checked(ctx: Context) -> Said | None:
    changed = ctx.changed
    if changed is None or not changed.reason or ctx.ended is not None or ctx.deleted_at is not None:
        return None
    return Said(changed.status, changed.reason, changed.says)


def _succeeded(ctx: Context) -> Said:
    if ctx.ended is JobPhase.SUCCEEDED:
        return Said(Truth.TRUE, "Succeeded", "every rank finished")
    if ctx.ended is JobPhase.FAILED:
        known = ctx.recorded.condition("Succeeded")
        says = ctx.report.status.reason if ctx.report else known.message if known else ""
        return Said(Truth.FALSE, "Failed", says)
    return Said(Truth.UNKNOWN, "NotFinished")
