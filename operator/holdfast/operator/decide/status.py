"""A TrainingJob's status: written whole, seldom, and only when it says something new.

What the watchdog knows keeps its last value while the watchdog is away, but for what says that all is well: a job
that trained is Stalled then, and how many members train and the goodput are left out. Step, goodput and checkpoint
move fast: alone they are written every 30 s at most.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.api.incident import Incident
from holdfast.api.plan import JobReport
from holdfast.api.status import JobPhase, JobStatus
from holdfast.operator.decide.action import CreatePod, SetFinalizer
from holdfast.operator.decide.admission import priority_of
from holdfast.operator.decide.conditions import conditions_of, is_unseen, renew
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.observed import Mode
from holdfast.operator.decide.staffing import next_ordinal
from holdfast.operator.kube.objects import seconds_of, selector_of, text_of

PROGRESS_EVERY_S = 30.0
INCIDENTS_SHOWN = 10
TEXT_LENGTH_MAX = 500
FAST = ("step", "goodput", "lastCheckpoint")
CHATTY = ("Ready", "Progressing", "CapacityAvailable")
"""Conditions whose messages are the brain's and the scheduler's words of the moment."""
FROM_WATCHDOG = (
    *("round", "members", "worldSize", "step", "restarts", "lastCheckpoint", "goodput"),
    *("recentIncidents", "incidents", "startedAt", "finishedAt"),
)


@dataclass(frozen=True, slots=True)
class Draft:
    """`whole` is the status as it should be, `write` the same when it is to be written now."""

    whole: Mapping[str, Any]
    write: Mapping[str, Any] | None
    requeue_after_s: float | None = None


def draft(case: Context, decision: Decision) -> Draft:
    """The status after `decision`. A field that is not in it is to be removed."""
    whole = _whole(case, decision)
    before = dict(case.written)
    progressed_at = before.pop("progressedAt", None)
    if whole == before or SetFinalizer(held=False) in decision.actions:
        return Draft(case.written, None)  # there is nothing to say, or nobody left to say it of
    slow_moved = _without_fast(whole) != _without_fast(before)
    left_s = _left_s(progressed_at, case.now)
    if not slow_moved and left_s > 0:
        return Draft(case.written, None, left_s)
    fast_moved = any(whole.get(field) != before.get(field) for field in FAST)
    moment = text_of(case.now) if fast_moved else progressed_at
    stamped = whole if moment is None else {**whole, "progressedAt": moment}
    return Draft(stamped, stamped)


def _left_s(progressed_at: object, now: float) -> float:
    """How long fast numbers have to wait. A time in the future is a clock that jumped: no reason to wait."""
    at = seconds_of(progressed_at) if isinstance(progressed_at, str) else None
    left_s = 0.0 if at is None else at + PROGRESS_EVERY_S - now
    return left_s if left_s <= PROGRESS_EVERY_S else 0.0


def _without_fast(status: Mapping[str, Any]) -> dict[str, Any]:
    """The status without what moves by itself: numbers, and texts that others write and change."""
    slow = {key: value for key, value in status.items() if key not in FAST}
    return {**slow, "conditions": [_without_chatter(each) for each in status.get("conditions", ())]}


def _without_chatter(condition: Mapping[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in condition.items() if key != "message" or condition["type"] not in CHATTY}


def _whole(case: Context, decision: Decision) -> dict[str, Any]:
    acting = case.options.mode is Mode.ACT
    created = sum(1 for action in decision.actions if isinstance(action, CreatePod)) if acting else 0
    report = case.report
    known = {key: case.written[key] for key in FROM_WATCHDOG if key in case.written}
    status: dict[str, Any] = {
        "phase": _phase(case),
        "podsCreated": next_ordinal(case) + created,
        "selector": selector_of(case.metadata.name),
        "priority": priority_of(case.recorded, case.observed.pods),
        "recentIncidents": [],
        **(known if report is None else _from_watchdog(case, report)),
    }
    if members := status.get("members"):  # pods are seen here, also while nobody hears the watchdog
        status["members"] = {**members, "pods": len(case.pods.there)}
    if is_unseen(case):
        members = status.get("members") or {}
        status |= {"members": {key: value for key, value in members.items() if key != "ready"}, "goodput": None}
    status["observedGeneration"] = _observed_generation(case)
    generation = case.metadata.generation or None
    status["conditions"] = renew(
        case.recorded.conditions, conditions_of(case, would(decision)), generation, case.now
    )
    return {key: value for key, value in status.items() if value is not None}


def _phase(case: Context) -> str:
    """What the watchdog says; of a job that it was never given because its spec is refused, that."""
    if is_unseen(case):
        return JobPhase.STALLED.value
    if case.report is not None:
        return case.report.status.phase.value
    if case.invalid is not None and case.recorded.started_at is None:
        return JobPhase.INVALID.value
    known = case.recorded.phase
    return known if known and known != JobPhase.INVALID.value else JobPhase.PENDING.value


def _observed_generation(case: Context) -> int | None:
    """The newest generation that was taken, or refused, or comes too late to be either."""
    generation = case.metadata.generation
    return (
        generation if case.taken or case.invalid is not None or case.ended else case.recorded.observed_generation
    )


def _from_watchdog(case: Context, report: JobReport) -> dict[str, Any]:
    status = report.status
    started_at = case.recorded.started_at or (None if status.round is None else text_of(case.now))
    return {
        "round": status.round,
        "members": {
            "wanted": status.members.wanted,
            "ready": status.members.ready,
            "spares": status.members.spares,
        },
        "worldSize": status.world_size,
        "step": status.step,
        "restarts": status.restarts,
        "lastCheckpoint": _checkpoint(case, status),
        "goodput": None if status.ettr is None else {"ettr": round(status.ettr, 3)},
        "recentIncidents": [_incident(each) for each in report.incidents[:INCIDENTS_SHOWN]],
        "incidents": status.incidents_total,
        "startedAt": started_at,
        "finishedAt": text_of(case.ended_at) if case.ended is not None else None,
    }


def _checkpoint(case: Context, status: JobStatus) -> dict[str, Any] | None:
    """The commit's time is told by two clocks: it is reckoned once, and kept."""
    checkpoint = status.last_checkpoint
    if checkpoint is None:
        return None
    known = case.recorded.last_checkpoint
    same = known is not None and (known.step, known.uri) == (checkpoint.step, checkpoint.uri)
    time = known.time if known is not None and same else None
    age_s = max(0.0, status.now - checkpoint.at)
    return {
        "step": checkpoint.step,
        "uri": checkpoint.uri,
        "verified": status.verified_step is not None and checkpoint.step <= status.verified_step,
        "time": time or text_of(case.now - age_s),
    }


def _incident(incident: Incident) -> dict[str, Any]:
    shown = {
        "id": incident.id,
        "kind": incident.kind.value,
        "culprit": incident.blamed,
        "cause": incident.cause[:TEXT_LENGTH_MAX],
        "action": incident.actions[-1].does[:TEXT_LENGTH_MAX] if incident.actions else "",
        "state": incident.state.value,
    }
    took_s = incident.time_to_recover_s
    return shown if took_s is None else {**shown, "timeToRecoverSeconds": round(took_s, 3)}


def would(decision: Decision) -> tuple[str, ...]:
    """What the decision would do, counted by kind; the watchdog is not told either."""
    counts: dict[str, int] = {}
    for action in decision.actions:
        kind = type(action).__name__
        counts[kind] = counts.get(kind, 0) + 1
    return tuple(f"{kind} x{count}" for kind, count in sorted(counts.items()))
