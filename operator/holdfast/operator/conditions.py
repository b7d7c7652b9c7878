"""A TrainingJob's conditions: what is true of it, in Kubernetes' form.

Conventions: https://github.com/kubernetes/community/blob/master/contributors/devel/sig-architecture/api-conventions.md
All known types are there from the first visit on; what cannot be told is Unknown. Messages hold nothing that moves
by itself, such as a step or an age: they would be written anew every second.
"""

from collections.abc import Iterable, Iterator
from enum import StrEnum
from typing import Any

import msgspec

from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase, JobStatus
from holdfast.operator.admission import TRAINS
from holdfast.operator.case import Case
from holdfast.operator.edition import difference, earlier, is_rolled
from holdfast.operator.objects import Condition, Pod
from holdfast.operator.observed import Mode
from holdfast.operator.podbuilder import edition_of
from holdfast.operator.podstate import is_running, joins_late_in_s, late_in_s, unschedulable, why_pending
from holdfast.operator.timestamp import seconds_of, text_of
from holdfast.operator.turns import TURN_S, Standing

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


class Verdict(msgspec.Struct, frozen=True):
    """One condition as it is now. `reason` is one word in CamelCase, `message` a sentence for people."""

    type: str
    truth: Truth
    reason: str
    message: str = ""


def renew(
    recorded: Iterable[Condition], verdicts: Iterable[Verdict], generation: int | None, now: float
) -> list[dict[str, Any]]:
    """The conditions to write. The transition time changes only when the truth does, not with the text."""
    before = {condition.type: condition for condition in recorded}
    renewed = []
    for verdict in verdicts:
        known = before.get(verdict.type)
        stays = known is not None and known.status == verdict.truth and known.last_transition_time
        since = known.last_transition_time if known is not None and stays else text_of(now)
        renewed.append(
            {
                "type": verdict.type,
                "status": verdict.truth.value,
                "reason": verdict.reason,
                "message": verdict.message[:MESSAGE_LENGTH_MAX],
                "lastTransitionTime": since,
                **({} if generation is None else {"observedGeneration": generation}),
            }
        )
    return renewed


def verdicts(case: Case, would: tuple[str, ...]) -> list[Verdict]:
    """All of them. `would` is what an operator that only observes would have done."""
    seen = [
        _ready(case),
        _doubted(case, _progressing(case), well=Truth.FALSE),
        _doubted(case, _degraded(case), well=Truth.FALSE),
        _doubted(case, _checkpoint_healthy(case), well=Truth.TRUE),
        _capacity_available(case),
        _admitted(case),
        _watchdog_reachable(case),
        _suspended(case),
        _invalid_spec(case),
        _up_to_date(case),
        _succeeded(case),
    ]
    return [*seen, _observing(would)] if case.terms.mode is Mode.OBSERVE else seen


def missed_in_s(case: Case) -> float | None:
    """When a watchdog that is away will be missed, if nothing comes before: nobody else asks for that look."""
    left_s = SILENT_S - case.observed.heard_age_s
    return None if case.connected or left_s < 0 else left_s + MARGIN_S


def _unknown(case: Case, type_: str) -> Verdict:
    """The watchdog says nothing of the job: what it said last stays, or nothing is known yet."""
    not_taken = Verdict(type_, Truth.UNKNOWN, "NotTaken", "the watchdog has not taken the job yet")
    return _said_last(case, type_) or not_taken


def _said_last(case: Case, type_: str) -> Verdict | None:
    """As it was written down, perhaps by an operator before this one."""
    known = case.recorded.condition(type_)
    if known is None or known.status not in set(Truth) or not known.reason:
        return None
    return Verdict(type_, Truth(known.status), known.reason, known.message)


def is_unseen(case: Case) -> bool:
    """Whether the job trained when the watchdog was last heard, too long ago to say that it still does."""
    last = case.report.status.phase if case.report is not None else case.recorded.phase
    trained = case.ended is None and last in TRAINS
    return trained and case.observed.heard_age_s > SILENT_S


def _unseen(case: Case, type_: str) -> Verdict:
    """The time in it is told once: it would be later with every restart of the operator."""
    known = _said_last(case, type_)
    if known is not None and known.reason == UNSEEN:
        return known
    since = case.now - case.observed.heard_age_s
    if case.report is not None:
        since -= case.report.status.step_age_s or 0.0
    else:
        progressed_at = case.written.get("progressedAt")
        at = seconds_of(progressed_at) if isinstance(progressed_at, str) else None
        since = since if at is None else min(since, at)
    says = f"nobody has seen a step since {text_of(since)}: the watchdog is away"
    return Verdict(type_, Truth.UNKNOWN, UNSEEN, says)


def _doubted(case: Case, verdict: Verdict, *, well: Truth) -> Verdict:
    """That all is `well` holds only of what somebody sees. What was amiss when last seen still stands."""
    doubtful = verdict.truth is well and is_unseen(case)
    return _unseen(case, verdict.type) if doubtful else verdict


def _ready(case: Case) -> Verdict:
    if is_unseen(case):
        return _unseen(case, "Ready")
    if case.report is None:
        return _unknown(case, "Ready")
    status = case.report.status
    if status.phase is not JobPhase.RUNNING:
        return Verdict("Ready", Truth.FALSE, status.phase.value, status.reason)
    members = f"{status.members.ready} of {status.members.wanted} members train in round {status.round}"
    if status.members.ready < status.members.wanted:
        return Verdict("Ready", Truth.FALSE, "MembersMissing", members)
    return Verdict("Ready", Truth.TRUE, "Running", members)


def _progressing(case: Case) -> Verdict:
    if case.deleted_at is not None:
        return Verdict("Progressing", Truth.TRUE, "WindingUp", "the job is deleted and being wound up")
    if case.report is None:
        return _unknown(case, "Progressing")
    status = case.report.status
    loop = case.crash_loop.newest
    if loop is not None and case.ended is None:
        return Verdict("Progressing", Truth.TRUE, "BackingOff", loop.says())
    if held_up := list(_held_up(case)):
        return Verdict("Progressing", Truth.TRUE, "MemberCannotStart", "; ".join(held_up))
    if status.phase in (JobPhase.PENDING, JobPhase.PREFLIGHT, JobPhase.FORMING, JobPhase.RECOVERING):
        return Verdict("Progressing", Truth.TRUE, status.phase.value, status.reason)
    return Verdict("Progressing", Truth.FALSE, status.phase.value, status.reason)


def _held_up(case: Case) -> Iterator[str]:
    """What keeps a pod that has a node from taking part. One without a node is the condition CapacityAvailable."""
    for pod in case.roll.live:
        name, node = pod.metadata.name, pod.spec.node_name
        if not node or pod.status.phase != "Pending":
            continue
        if why := why_pending(pod):
            yield f"{name} on {node}: {why}"
        elif late_in_s(pod, case.now) == 0:
            yield f"{name} on {node}: waits for an image or a volume; look at: kubectl describe pod {name}"
    yield from _not_joined(case)


def _not_joined(case: Case) -> Iterator[str]:
    """Pods that run, and the watchdog counts fewer members. It tells how many there are, not which."""
    late = [pod for pod, left_s in _joining(case) if left_s == 0]
    missing = len(late) - _joined(case)
    if missing <= 0:
        return
    says = "not joined, or is being tested; look at: kubectl logs"
    if missing == len(late):
        for pod in late:
            yield f"{pod.metadata.name} on {pod.spec.node_name}: runs and has {says} {pod.metadata.name}"
        return
    names = ", ".join(pod.metadata.name for pod in late)
    yield f"{missing} of the pods that run has {says} POD, where POD is one of {names}"


def _joining(case: Case) -> list[tuple[Pod, float]]:
    """The pods that run, and for how long each may yet take to join; none while as many have joined."""
    waits = (JobPhase.PREFLIGHT, JobPhase.SUSPENDED)
    if case.report is None or not case.connected or case.ended is not None or case.report.status.phase in waits:
        return []
    if case.report.status.phase in TRAINS and not _joined(case):
        return []  # a watchdog that has just taken over, and that nobody has joined anew yet
    running = [pod for pod in case.roll.live if is_running(pod)]
    if len(running) <= _joined(case):
        return []
    left = [(pod, joins_late_in_s(pod, case.now)) for pod in running]
    return [(pod, left_s) for pod, left_s in left if left_s is not None]


def _joined(case: Case) -> int:
    members = case.report.status.members if case.report is not None else None
    return 0 if members is None else members.ready + members.spares


def held_up_in_s(case: Case) -> float | None:
    """When the next pod's start or joining is late, if nothing comes before: nobody else asks for that look."""
    left = [left_s for pod in case.roll.live if (left_s := late_in_s(pod, case.now))]
    left += [left_s for _, left_s in _joining(case) if left_s]
    return min(left) + MARGIN_S if left else None


def _degraded(case: Case) -> Verdict:
    if case.forgotten is not None:
        return Verdict("Degraded", Truth.TRUE, "Forgotten", case.forgotten)
    if case.report is None:
        return _unknown(case, "Degraded")
    status, loop = case.report.status, case.crash_loop.newest
    if case.ended is not None or status.phase is JobPhase.SUSPENDED:
        return Verdict("Degraded", Truth.FALSE, status.phase.value, "")
    paged = [each for each in case.report.incidents if _is_paged(each, status)]
    if paged:
        return Verdict("Degraded", Truth.TRUE, "Paged", _told(paged))
    if loop is not None and loop.count > 1:
        says = f"{loop.says()}; {loop.count} in a row, the next one starts at {text_of(loop.due)}"
        return Verdict("Degraded", Truth.TRUE, "CrashLoop", says)
    opened = [each for each in case.report.incidents if each.state is IncidentState.OPEN]
    if opened or status.incidents_open:
        return Verdict("Degraded", Truth.TRUE, "IncidentOpen", _told(opened))
    short = status.phase in (JobPhase.RUNNING, JobPhase.STALLED, JobPhase.RECOVERING)
    if short and status.members.ready < status.members.wanted:
        says = f"{status.members.ready} of {status.members.wanted} members are there"
        return Verdict("Degraded", Truth.TRUE, "MembersMissing", says)
    return Verdict("Degraded", Truth.FALSE, "AsWanted", "")


def _is_paged(incident: Incident, status: JobStatus) -> bool:
    """Whether a human is still waited for: training that goes on in a later round has answered the page."""
    if incident.state is not IncidentState.PAGED:
        return False
    return status.phase is not JobPhase.RUNNING or incident.round == status.round


def _told(incidents: Iterable[Incident]) -> str:
    return "; ".join(f"{each.kind.value} on {each.blamed}: {each.cause}" for each in incidents)


def _checkpoint_healthy(case: Case) -> Verdict:
    type_ = "CheckpointHealthy"
    if case.report is None:
        return _unknown(case, type_)
    status = case.report.status
    newest = status.last_checkpoint
    if newest is None:
        return Verdict(type_, Truth.UNKNOWN, "NoneYet", "no checkpoint was committed yet")
    allowed_s = _stale_after_s(case)
    if status.phase in (JobPhase.RUNNING, JobPhase.STALLED) and status.now - newest.at > allowed_s:
        says = f"no checkpoint was committed for more than {allowed_s:g} s"
        return Verdict(type_, Truth.FALSE, "Stale", says)
    return Verdict(type_, Truth.TRUE, "Committed", "")


def _stale_after_s(case: Case) -> float:
    """After what time a checkpoint is late."""
    interval = case.job.spec.checkpoint.interval if case.job is not None else None
    seconds = getattr(interval, "total_seconds", None)
    return STALE_S_UNTIMED if seconds is None else max(STALE_S_MIN, STALE_INTERVALS * seconds())


def _capacity_available(case: Case) -> Verdict:
    type_ = "CapacityAvailable"
    pods = case.roll.live
    waiting = [says for says in (unschedulable(pod) for pod in pods if not pod.spec.node_name) if says is not None]
    if waiting:
        says = f"{len(waiting)} of {len(pods)} pods find no place: {waiting[0]}"
        return Verdict(type_, Truth.FALSE, "Unschedulable", says)
    if not pods or any(not pod.spec.node_name for pod in pods):
        return Verdict(type_, Truth.UNKNOWN, "NotScheduled", "not every pod was looked at by the scheduler")
    return Verdict(type_, Truth.TRUE, "Scheduled", "")


def _admitted(case: Case) -> Verdict:
    match case.standing:
        case Standing.YIELDED:
            says = "a job that is ahead of it waits for the same nodes, and both hold less than they need; "
            return Verdict("Admitted", Truth.FALSE, "Yielded", f"{says}{ITS_TURN}")
        case Standing.TURN_OVER:
            says = f"it did not get nodes.min within {TURN_S:g} s and others wait for the same nodes; "
            return Verdict("Admitted", Truth.FALSE, "TurnOver", f"{says}{ITS_TURN}")
        case Standing.RETRIED:
            says = "tried again; a job that had no turn yet goes before it while it holds less than nodes.min"
            return Verdict("Admitted", Truth.TRUE, "Retried", says)
    return Verdict("Admitted", Truth.TRUE, "Admitted", "")


def _watchdog_reachable(case: Case) -> Verdict:
    type_ = "WatchdogReachable"
    goes_on = "what trains is not touched, nobody sees its steps, and faults wait"
    if case.observed.heard_age_s > SILENT_S:
        return Verdict(type_, Truth.FALSE, "Away", f"the watchdog is away; {goes_on}")
    report = case.observed.report
    if report is None:
        not_heard = Verdict(type_, Truth.UNKNOWN, "NotHeard", "nothing was heard from the watchdog yet")
        return _said_last(case, type_) or not_heard
    if report.trouble is not None:
        return Verdict(type_, Truth.FALSE, "Trouble", f"{report.trouble}; {goes_on}")
    return Verdict(type_, Truth.TRUE, "Connected", "")


def _suspended(case: Case) -> Verdict:
    if case.report is None:
        return _unknown(case, "Suspended")
    status = case.report.status
    if status.phase is JobPhase.SUSPENDED:
        return Verdict("Suspended", Truth.TRUE, "Suspended", status.reason)
    asked = case.job is not None and case.job.spec.suspend and case.ended is None
    if asked:
        return Verdict("Suspended", Truth.FALSE, "Suspending", "waiting for the last checkpoint")
    return Verdict("Suspended", Truth.FALSE, "NotSuspended", "")


def _invalid_spec(case: Case) -> Verdict:
    if case.problems:
        return Verdict("InvalidSpec", Truth.TRUE, "SpecRefused", case.invalid or "")
    if case.invalid is not None:
        return Verdict("InvalidSpec", Truth.TRUE, "TemplateRefused", case.invalid)
    return Verdict("InvalidSpec", Truth.FALSE, "SpecAccepted", "")


def _up_to_date(case: Case) -> Verdict:
    if case.job is None or case.invalid is not None:
        return Verdict("UpToDate", Truth.UNKNOWN, "SpecRefused", "")
    pods = earlier(case, case.job)
    if not pods:
        return Verdict("UpToDate", Truth.TRUE, "AsWritten", "")
    says = difference(pods, case.job)
    if is_rolled(case.metadata, edition_of(case.job)):
        return Verdict("UpToDate", Truth.FALSE, "Rolling", f"{says}; they are being replaced")
    about = case.metadata
    roll = f"to replace them: kubectl holdfast restart {about.name} -n {about.namespace}"
    return Verdict("UpToDate", Truth.FALSE, "EarlierTemplate", f"{says}; {roll}")


def _succeeded(case: Case) -> Verdict:
    if case.ended is JobPhase.SUCCEEDED:
        return Verdict("Succeeded", Truth.TRUE, "Succeeded", "every rank finished")
    if case.ended is JobPhase.FAILED:
        known = case.recorded.condition("Succeeded")
        says = case.report.status.reason if case.report else known.message if known else ""
        return Verdict("Succeeded", Truth.FALSE, "Failed", says)
    return Verdict("Succeeded", Truth.UNKNOWN, "NotFinished", "")


def _observing(would: tuple[str, ...]) -> Verdict:
    says = "; ".join(would) if would else "nothing"
    return Verdict("Observing", Truth.TRUE, "ObserveOnly", f"nothing is changed; would do: {says}")
