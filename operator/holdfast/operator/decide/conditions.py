"""A TrainingJob's conditions: what is true of it, in Kubernetes' form.

Conventions: https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
All known types are there from the first visit on; what cannot be told is Unknown. Messages hold nothing that moves
by itself, such as a step or an age: they would be written anew every second.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase, JobStatus
from holdfast.operator.decide.admission import TRAINS, TURN_S, Standing
from holdfast.operator.decide.context import Context
from holdfast.operator.decide.observed import Mode
from holdfast.operator.decide.podbuilder import difference, edition_of, is_earlier, is_rolled
from holdfast.operator.decide.pods import is_running, joins_late_in_s, late_in_s, unschedulable, why_pending
from holdfast.operator.kube.objects import Condition, Pod, seconds_of, text_of

ITS_TURN = "its pods are made again by themselves when its turn comes"
SILENT_S = 10.0
"""A watchdog that fails over is back before; nothing is said of such a gap."""
UNSEEN = "Unseen"
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


def renew(
    recorded: Iterable[Condition], conditions: Iterable[Condition], generation: int | None, now: float
) -> list[dict[str, Any]]:
    """The conditions to write. The transition time changes only when the truth does, not with the text."""
    before = {each.type: each for each in recorded}
    renewed = []
    for each in conditions:
        known = before.get(each.type)
        stays = known is not None and known.status == each.status and known.last_transition_time
        renewed.append(
            {
                "type": each.type,
                "status": str(each.status),
                "reason": each.reason,
                "message": each.message[:MESSAGE_LENGTH_MAX],
                "lastTransitionTime": known.last_transition_time if known is not None and stays else text_of(now),
                **({} if generation is None else {"observedGeneration": generation}),
            }
        )
    return renewed


def conditions_of(ctx: Context, would: tuple[str, ...]) -> list[Condition]:
    """All of them. `would` is what an operator that only observes would have done."""
    seen = [
        _ready(ctx),
        _doubted(ctx, _progressing(ctx), well=Truth.FALSE),
        _doubted(ctx, _degraded(ctx), well=Truth.FALSE),
        _doubted(ctx, _checkpoint_healthy(ctx), well=Truth.TRUE),
        _capacity_available(ctx),
        _admitted(ctx),
        _watchdog_reachable(ctx),
        _suspended(ctx),
        _invalid_spec(ctx),
        _unknown_fields(ctx),
        _up_to_date(ctx),
        _succeeded(ctx),
    ]
    if ctx.options.mode is Mode.OBSERVE:
        says = f"nothing is changed; would do: {'; '.join(would) or 'nothing'}"
        seen.append(Condition("Observing", Truth.TRUE, "ObserveOnly", says))
    return seen


def missed_in_s(ctx: Context) -> float | None:
    """When a watchdog that is away will be missed, if nothing comes before: nobody else asks for that look."""
    left_s = SILENT_S - ctx.observed.heard_age_s
    return None if ctx.connected or left_s < 0 else left_s + MARGIN_S


def _unknown(ctx: Context, type_: str) -> Condition:
    """The watchdog says nothing of the job: what it said last stays, or nothing is known yet."""
    not_taken = Condition(type_, Truth.UNKNOWN, "NotTaken", "the watchdog has not taken the job yet")
    return _said_last(ctx, type_) or not_taken


def _said_last(ctx: Context, type_: str) -> Condition | None:
    """As it was written down, perhaps by an operator before this one."""
    known = ctx.recorded.condition(type_)
    if known is None or known.status not in set(Truth) or not known.reason:
        return None
    return Condition(type_, known.status, known.reason, known.message)


def is_unseen(ctx: Context) -> bool:
    """Whether the job trained when the watchdog was last heard, too long ago to say that it still does."""
    last = ctx.report.status.phase if ctx.report is not None else ctx.recorded.phase
    return ctx.ended is None and last in TRAINS and ctx.observed.heard_age_s > SILENT_S


def _unseen(ctx: Context, type_: str) -> Condition:
    """The time in it is told once: it would be later with every restart of the operator."""
    known = _said_last(ctx, type_)
    if known is not None and known.reason == UNSEEN:
        return known
    since = ctx.now - ctx.observed.heard_age_s
    if ctx.report is not None:
        since -= ctx.report.status.step_age_s or 0.0
    else:
        progressed_at = ctx.written.get("progressedAt")
        at = seconds_of(progressed_at) if isinstance(progressed_at, str) else None
        since = since if at is None else min(since, at)
    says = f"nobody has seen a step since {text_of(since)}: the watchdog is away"
    return Condition(type_, Truth.UNKNOWN, UNSEEN, says)


def _doubted(ctx: Context, condition: Condition, *, well: Truth) -> Condition:
    """That all is `well` holds only of what somebody sees. What was amiss when last seen still stands."""
    doubtful = condition.status == well and is_unseen(ctx)
    return _unseen(ctx, condition.type) if doubtful else condition


def _ready(ctx: Context) -> Condition:
    if is_unseen(ctx):
        return _unseen(ctx, "Ready")
    if ctx.report is None:
        return _unknown(ctx, "Ready")
    status = ctx.report.status
    if status.phase is not JobPhase.RUNNING:
        return Condition("Ready", Truth.FALSE, status.phase.value, status.reason)
    members = f"{status.members.ready} of {status.members.wanted} members train in round {status.round}"
    if status.members.ready < status.members.wanted:
        return Condition("Ready", Truth.FALSE, "MembersMissing", members)
    return Condition("Ready", Truth.TRUE, "Running", members)


def _progressing(ctx: Context) -> Condition:
    if ctx.deleted_at is not None:
        return Condition("Progressing", Truth.TRUE, "WindingUp", "the job is deleted and being wound up")
    if ctx.report is None:
        return _unknown(ctx, "Progressing")
    status = ctx.report.status
    loop = ctx.crash_loop.newest
    if loop is not None and ctx.ended is None:
        return Condition("Progressing", Truth.TRUE, "BackingOff", loop.says())
    if late := list(_late_starts(ctx)):
        return Condition("Progressing", Truth.TRUE, "MemberCannotStart", "; ".join(late))
    if status.phase in (JobPhase.PENDING, JobPhase.PREFLIGHT, JobPhase.FORMING, JobPhase.RECOVERING):
        return Condition("Progressing", Truth.TRUE, status.phase.value, status.reason)
    return Condition("Progressing", Truth.FALSE, status.phase.value, status.reason)


def _late_starts(ctx: Context) -> Iterator[str]:
    """What keeps a pod that has a node from taking part. One without a node is the condition CapacityAvailable."""
    for pod in ctx.pods.live:
        name, node = pod.metadata.name, pod.spec.node_name
        if not node or pod.status.phase != "Pending":
            continue
        if why := why_pending(pod):
            yield f"{name} on {node}: {why}"
        elif late_in_s(pod, ctx.now) == 0:
            yield f"{name} on {node}: waits for an image or a volume; look at: kubectl describe pod {name}"
    yield from _not_joined(ctx)


def _not_joined(ctx: Context) -> Iterator[str]:
    """Pods that run, and the watchdog counts fewer members. It tells how many there are, not which."""
    late = [pod for pod, left_s in _joining(ctx) if left_s == 0]
    missing = len(late) - _joined(ctx)
    if missing <= 0:
        return
    says = "not joined, or is being tested; look at: kubectl logs"
    if missing == len(late):
        for pod in late:
            yield f"{pod.metadata.name} on {pod.spec.node_name}: runs and has {says} {pod.metadata.name}"
        return
    names = ", ".join(pod.metadata.name for pod in late)
    yield f"{missing} of the pods that run has {says} POD, where POD is one of {names}"


def _joining(ctx: Context) -> list[tuple[Pod, float]]:
    """The pods that run, and for how long each may yet take to join; none while as many have joined."""
    waits = (JobPhase.PREFLIGHT, JobPhase.SUSPENDED)
    if ctx.report is None or not ctx.connected or ctx.ended is not None or ctx.report.status.phase in waits:
        return []
    if ctx.report.status.phase in TRAINS and not _joined(ctx):
        return []  # a watchdog that has just taken over, and that nobody has joined anew yet
    running = [pod for pod in ctx.pods.live if is_running(pod)]
    if len(running) <= _joined(ctx):
        return []
    left = [(pod, joins_late_in_s(pod, ctx.now)) for pod in running]
    return [(pod, left_s) for pod, left_s in left if left_s is not None]


def _joined(ctx: Context) -> int:
    members = ctx.report.status.members if ctx.report is not None else None
    return 0 if members is None else members.there + members.spares


def late_start_in_s(ctx: Context) -> float | None:
    """When the next pod's start or joining is late, if nothing comes before: nobody else asks for that look."""
    left = [left_s for pod in ctx.pods.live if (left_s := late_in_s(pod, ctx.now))]
    left += [left_s for _, left_s in _joining(ctx) if left_s]
    return min(left) + MARGIN_S if left else None


def _degraded(ctx: Context) -> Condition:
    if ctx.forgotten is not None:
        return Condition("Degraded", Truth.TRUE, "Forgotten", ctx.forgotten)
    if ctx.report is None:
        return _unknown(ctx, "Degraded")
    status, loop = ctx.report.status, ctx.crash_loop.newest
    if ctx.ended is not None or status.phase is JobPhase.SUSPENDED:
        return Condition("Degraded", Truth.FALSE, status.phase.value, "")
    paged = [each for each in ctx.report.incidents if _is_paged(each, status)]
    if paged:
        return Condition("Degraded", Truth.TRUE, "Paged", _told(paged))
    if loop is not None and loop.count > 1:
        says = f"{loop.says()}; {loop.count} in a row, the next one starts at {text_of(loop.due)}"
        return Condition("Degraded", Truth.TRUE, "CrashLoop", says)
    opened = [each for each in ctx.report.incidents if each.state is IncidentState.OPEN]
    if opened or status.incidents_open:
        return Condition("Degraded", Truth.TRUE, "IncidentOpen", _told(opened))
    short = status.phase in (JobPhase.RUNNING, JobPhase.STALLED, JobPhase.RECOVERING)
    if short and status.members.there < status.members.wanted:
        says = f"{status.members.there} of {status.members.wanted} members are there"
        return Condition("Degraded", Truth.TRUE, "MembersMissing", says)
    return Condition("Degraded", Truth.FALSE, "AsWanted", "")


def _is_paged(incident: Incident, status: JobStatus) -> bool:
    """Whether a human is still waited for: training that goes on in a later round has answered the page."""
    if incident.state is not IncidentState.PAGED:
        return False
    return status.phase is not JobPhase.RUNNING or incident.round == status.round


def _told(incidents: Iterable[Incident]) -> str:
    return "; ".join(f"{each.kind.value} on {each.blamed}: {each.cause}" for each in incidents)


def _checkpoint_healthy(ctx: Context) -> Condition:
    type_ = "CheckpointHealthy"
    if ctx.report is None:
        return _unknown(ctx, type_)
    status = ctx.report.status
    newest = status.last_checkpoint
    if newest is None:
        return Condition(type_, Truth.UNKNOWN, "NoneYet", "no checkpoint was committed yet")
    interval = ctx.job.spec.checkpoint.interval if ctx.job is not None else None
    seconds = getattr(interval, "total_seconds", None)
    allowed_s = STALE_S_UNTIMED if seconds is None else max(STALE_S_MIN, STALE_INTERVALS * seconds())
    if status.phase in (JobPhase.RUNNING, JobPhase.STALLED) and status.now - newest.at > allowed_s:
        says = f"no checkpoint was committed for more than {allowed_s:g} s"
        return Condition(type_, Truth.FALSE, "Stale", says)
    return Condition(type_, Truth.TRUE, "Committed", "")


def _capacity_available(ctx: Context) -> Condition:
    type_ = "CapacityAvailable"
    pods = ctx.pods.live
    waiting = [says for says in (unschedulable(pod) for pod in pods if not pod.spec.node_name) if says is not None]
    if waiting:
        says = f"{len(waiting)} of {len(pods)} pods find no place: {waiting[0]}"
        return Condition(type_, Truth.FALSE, "Unschedulable", says)
    if not pods or any(not pod.spec.node_name for pod in pods):
        return Condition(type_, Truth.UNKNOWN, "NotScheduled", "not every pod was looked at by the scheduler")
    return Condition(type_, Truth.TRUE, "Scheduled", "")


def _admitted(ctx: Context) -> Condition:
    match ctx.standing:
        case Standing.YIELDED:
            says = "a job that is ahead of it waits for the same nodes, and both hold less than they need; "
            return Condition("Admitted", Truth.FALSE, "Yielded", f"{says}{ITS_TURN}")
        case Standing.TURN_OVER:
            says = f"it did not get nodes.min within {TURN_S:g} s and others wait for the same nodes; "
            return Condition("Admitted", Truth.FALSE, "TurnOver", f"{says}{ITS_TURN}")
        case Standing.RETRIED:
            says = "tried again; a job that had no turn yet goes before it while it holds less than nodes.min"
            return Condition("Admitted", Truth.TRUE, "Retried", says)
    return Condition("Admitted", Truth.TRUE, "Admitted", "")


def _watchdog_reachable(ctx: Context) -> Condition:
    type_ = "WatchdogReachable"
    goes_on = "what trains is not touched, nobody sees its steps, and faults wait"
    if ctx.observed.heard_age_s > SILENT_S:
        return Condition(type_, Truth.FALSE, "Away", f"the watchdog is away; {goes_on}")
    report = ctx.observed.report
    if report is None:
        not_heard = Condition(type_, Truth.UNKNOWN, "NotHeard", "nothing was heard from the watchdog yet")
        return _said_last(ctx, type_) or not_heard
    if report.trouble is not None:
        return Condition(type_, Truth.FALSE, "Trouble", f"{report.trouble}; {goes_on}")
    return Condition(type_, Truth.TRUE, "Connected", "")


def _suspended(ctx: Context) -> Condition:
    if ctx.report is None:
        return _unknown(ctx, "Suspended")
    status = ctx.report.status
    if status.phase is JobPhase.SUSPENDED:
        return Condition("Suspended", Truth.TRUE, "Suspended", status.reason)
    if ctx.job is not None and ctx.job.spec.suspend and ctx.ended is None:
        return Condition("Suspended", Truth.FALSE, "Suspending", "waiting for the last checkpoint")
    return Condition("Suspended", Truth.FALSE, "NotSuspended", "")


def _invalid_spec(ctx: Context) -> Condition:
    if ctx.problems:
        return Condition("InvalidSpec", Truth.TRUE, "SpecRefused", ctx.invalid or "")
    if ctx.invalid is not None:
        return Condition("InvalidSpec", Truth.TRUE, "TemplateRefused", ctx.invalid)
    return Condition("InvalidSpec", Truth.FALSE, "SpecAccepted", "")


def _unknown_fields(ctx: Context) -> Condition:
    """Of what was applied. The API server took the job without them, so it is not refused for them."""
    type_ = "UnknownFields"
    left_out = ctx.observed.left_out
    if left_out is None:
        return Condition(type_, Truth.UNKNOWN, "NotApplied", "")
    if not left_out:
        return Condition(type_, Truth.FALSE, "NoneDropped", "")
    mend = "the job goes on without; correct what was applied, and apply it again"
    says = f"not known, and dropped by the API server: {', '.join(left_out)}; {mend}"
    return Condition(type_, Truth.TRUE, "Dropped", says)


def _up_to_date(ctx: Context) -> Condition:
    if ctx.job is None or ctx.invalid is not None:
        return Condition("UpToDate", Truth.UNKNOWN, "SpecRefused", "")
    edition = edition_of(ctx.job)
    pods = [pod for pod in ctx.pods.live if is_earlier(pod, edition)]
    if not pods:
        return Condition("UpToDate", Truth.TRUE, "AsWritten", "")
    says = difference(pods, ctx.job)
    if is_rolled(ctx.metadata, edition):
        return Condition("UpToDate", Truth.FALSE, "Rolling", f"{says}; they are being replaced")
    about = ctx.metadata
    roll = f"to replace them: kubectl holdfast restart {about.name} -n {about.namespace}"
    return Condition("UpToDate", Truth.FALSE, "EarlierTemplate", f"{says}; {roll}")


def _succeeded(ctx: Context) -> Condition:
    if ctx.ended is JobPhase.SUCCEEDED:
        return Condition("Succeeded", Truth.TRUE, "Succeeded", "every rank finished")
    if ctx.ended is JobPhase.FAILED:
        known = ctx.recorded.condition("Succeeded")
        says = ctx.report.status.reason if ctx.report else known.message if known else ""
        return Condition("Succeeded", Truth.FALSE, "Failed", says)
    return Condition("Succeeded", Truth.UNKNOWN, "NotFinished", "")
