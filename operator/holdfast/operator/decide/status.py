"""A TrainingJob's status: written whole, seldom, and only when it says something new.

What the watchdog knows keeps its last value while the watchdog is away, but for what says that all is well: a job
that trained is Stalled then, and how many members train and the goodput are left out. Step, goodput and checkpoint
move fast: alone they are written every 30 s at most.
"""

from collections import Counter
from dataclasses import dataclass

from msgspec.structs import replace

from holdfast.api.jobstatus import (
    CheckpointStatus,
    Goodput,
    MembersStatus,
    RecordedIncident,
    TrainingJobStatus,
)
from holdfast.api.plan import JobReport
from holdfast.api.status import JobPhase
from holdfast.operator.decide.action import CreatePod, SetFinalizer
from holdfast.operator.decide.admission import priority_of
from holdfast.operator.decide.conditions import conditions_of, is_unseen, renew
from holdfast.operator.decide.context import Context, Decision
from holdfast.operator.decide.observed import Mode
from holdfast.operator.decide.staffing import next_ordinal
from holdfast.operator.kube.objects import JOB_LABEL, seconds_of, text_of

PROGRESS_EVERY_S = 30.0
INCIDENTS_SHOWN = 10
TEXT_LENGTH_MAX = 500
CHATTY = ("Ready", "Progressing", "CapacityAvailable", "QueueAdmitted")
"""Conditions whose messages are the brain's, the scheduler's and the queue's words of the moment."""


@dataclass(frozen=True, slots=True)
class Draft:
    """`whole` is the status as it should be; `is_due` is whether it is to be written now."""

    whole: TrainingJobStatus
    is_due: bool
    requeue_after_s: float | None = None


def draft(ctx: Context, decision: Decision) -> Draft:
    """The status after `decision`."""
    whole, before = _whole(ctx, decision), ctx.recorded
    progressed_at = before.progressed_at
    if whole == replace(before, progressed_at=None) or SetFinalizer(held=False) in decision.actions:
        return Draft(before, is_due=False)  # there is nothing to say, or nobody left to say it of
    if _slow(whole) == _slow(before):
        # A time in the future is a clock that jumped: no reason to wait.
        at = seconds_of(progressed_at)
        left_s = 0.0 if at is None else at + PROGRESS_EVERY_S - ctx.now
        if 0 < left_s <= PROGRESS_EVERY_S:
            return Draft(before, is_due=False, requeue_after_s=left_s)
    fast_moved = (whole.step, whole.goodput, whole.last_checkpoint) != (
        before.step,
        before.goodput,
        before.last_checkpoint,
    )
    return Draft(replace(whole, progressed_at=text_of(ctx.now) if fast_moved else progressed_at), is_due=True)


def _slow(status: TrainingJobStatus) -> TrainingJobStatus:
    """The status without what moves by itself: numbers, and texts that others write and change."""
    conditions = tuple(replace(each, message="") if each.type in CHATTY else each for each in status.conditions)
    return replace(
        status, conditions=conditions, step=None, goodput=None, last_checkpoint=None, progressed_at=None
    )


def _whole(ctx: Context, decision: Decision) -> TrainingJobStatus:
    known = ctx.recorded
    status = known if ctx.report is None else _from_watchdog(ctx, ctx.report)
    # Of a job that the watchdog was never given because its spec is refused, that.
    if ctx.report is None and ctx.invalid is not None and known.started_at is None:
        phase = JobPhase.INVALID
    elif status.phase is None or (ctx.report is None and status.phase is JobPhase.INVALID):
        phase = JobPhase.PENDING
    else:
        phase = status.phase
    members, goodput = status.members, status.goodput
    if members is not None:  # pods are seen here, also while nobody hears the watchdog
        members = replace(members, pods=len(ctx.pods.there))
    if is_unseen(ctx):
        phase, goodput = JobPhase.STALLED, None
        members = None if members is None else replace(members, ready=None)
    # The newest generation that was taken, or refused, or comes too late to be either.
    generation = ctx.metadata.generation
    is_seen = ctx.taken or ctx.invalid is not None or ctx.ended is not None
    acts = ctx.options.mode is Mode.ACT
    created = sum(isinstance(action, CreatePod) for action in decision.actions) if acts else 0
    would = () if acts else Counter(type(action).__name__ for action in decision.actions).items()
    conditions = conditions_of(ctx, [f"{kind} x{count}" for kind, count in sorted(would)])
    return replace(
        status,
        phase=phase,
        members=members,
        goodput=goodput,
        observed_generation=generation if is_seen else known.observed_generation,
        conditions=renew(known.conditions, conditions, generation or None, ctx.now),
        pods_created=next_ordinal(ctx) + created,
        priority=priority_of(known, ctx.observed.pods),
        selector=f"{JOB_LABEL}={ctx.metadata.name}",
        progressed_at=None,
    )


def _from_watchdog(ctx: Context, report: JobReport) -> TrainingJobStatus:
    status, known, saved = report.status, ctx.recorded, report.status.last_checkpoint
    checkpoint = None
    if saved is not None:
        # The commit's time is told by two clocks: it is reckoned once, and kept.
        time, last = None, known.last_checkpoint
        if last is not None and (last.step, last.uri) == (saved.step, saved.uri):
            time = last.time
        checkpoint = CheckpointStatus(
            step=saved.step,
            uri=saved.uri,
            verified=status.verified_step is not None and saved.step <= status.verified_step,
            time=time or text_of(ctx.now - max(0.0, status.now - saved.at)),
        )
    incidents = tuple(
        RecordedIncident(
            id=each.id,
            kind=each.kind.value,
            culprit=each.blamed,
            cause=each.cause[:TEXT_LENGTH_MAX],
            action=each.actions[-1].does[:TEXT_LENGTH_MAX] if each.actions else "",
            state=each.state.value,
            time_to_recover_seconds=None if (took_s := each.time_to_recover_s) is None else round(took_s, 3),
            slowed_rank_hours=None if each.slowed is None else round(each.slowed.rank_hours, 3),
        )
        for each in report.incidents[:INCIDENTS_SHOWN]
    )
    return TrainingJobStatus(
        phase=status.phase,
        round=status.round,
        members=MembersStatus(status.members.wanted, status.members.ready, status.members.spares),
        world_size=status.world_size,
        step=status.step,
        restarts=status.restarts,
        last_checkpoint=checkpoint,
        goodput=None if status.ettr is None else Goodput(round(status.ettr, 3)),
        recent_incidents=incidents,
        incidents=status.incidents_total,
        started_at=known.started_at or (None if status.round is None else text_of(ctx.now)),
        finished_at=None if ctx.ended is None else text_of(ctx.ended_at),
    )
