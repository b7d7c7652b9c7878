"""A job's status and report, from what is decided and what is seen."""

from collections.abc import Iterator
from itertools import islice
from statistics import median
from typing import Protocol

import msgspec

from holdfast.api.incident import CAUSE_WITHIN_S
from holdfast.api.plan import JobReport
from holdfast.api.round import Follows, Round
from holdfast.api.status import Bill, Causes, JobPhase, JobStatus, Membership, PendingTest, reading
from holdfast.watchdog.brain.planned import beside_plan, rates_of
from holdfast.watchdog.brain.saves import cadence_of
from holdfast.watchdog.brain.selftests import waits_for
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.detectors.progress import Progress

REPORTED_INCIDENTS = 10
REPORTED_TESTS = 16
# A step takes seconds. Of longer ones, as many as a checkpoint or a slow batch may hold up.
STALLED_AFTER_S = 60.0
STALLED_STEPS = 10
# Of a script that says nothing of it: what it cannot do, and how it could.
CANNOT = {
    Follows.RESTORE: (
        "go back for its loss",
        "train with Checkpointer.steps, or restore part.restore.step and say run.restored",
    ),
    Follows.BATCHES: (
        "pass over batches",
        "take them from Checkpointer.steps, or pass over part.batches_to_skip(step) of them",
    ),
    Follows.LEARNING_RATE: (
        "cut its learning rate",
        "give Checkpointer a scheduler with base_lrs, or multiply by part.learning_rate_factor(step)",
    ),
}


class Seen(Protocol):
    """How far the ranks are; `detectors.progress.Progress` says it, and whoever made it out of that."""

    def step(self) -> int | None: ...

    def loss(self) -> float | None: ...

    def step_time_s(self) -> float | None: ...


def status_of(state: JobState, progress: Seen | None, now: float) -> JobStatus:
    """The status at `now`. `progress` None: nothing watches the ranks yet, so what they do is Unknown."""
    # Both are of the newest round. What is seen is newer as a rule; a commit or the end of the job may be ahead.
    known = [step for step in (progress.step() if progress else None, state.step) if step is not None]
    running = state.desired if isinstance(state.desired, Round) else None
    phase = shown_phase(state, progress.step_time_s() if progress else None, now)
    reason = f"no step is seen; {state.reason}" if phase is JobPhase.STALLED else state.reason
    return JobStatus(
        job=state.job,
        phase=phase,
        reason=reason,
        round=state.round.number if state.round else None,
        members=membership_of(state, phase),
        world_size=running.world_size if running else 0,
        step=max(known, default=None),
        loss=reading(progress.loss()) if progress else None,
        step_time_s=progress.step_time_s() if progress else None,
        restarts=state.restart_count,
        evictions=state.eviction_count,
        incidents_open=len(state.open_incidents()),
        incidents_total=state.incident_count,
        last_checkpoint=state.checkpoints[-1] if state.checkpoints else None,
        avoided_nodes=tuple(order.node for order in state.avoided),
        now=now,
        ettr=ettr_of(state, phase, now),
        verified_step=state.verified_step,
        verified_by=state.verified_by,
        until_step=state.until_step,
        cadence=cadence_of(state),
        ended_at=state.ended_at,
        unhealthy_from=state.unhealthy_from,
        step_age_s=step_age_s(state, now),
        observed=state.policy is not None and state.policy.observe,
        unfollowed=unfollowed(state),
        tests=tuple(islice(pending_tests(state), REPORTED_TESTS)),
        bill=bill_of(state, now),
        causes=causes_of(state),
        links=state.links.says,
        gatherings=state.gatherings,
        rates=rates_of(state),
        plan=beside_plan(state, progress.step_time_s() if progress else None),
        tests_total=0 if state.ended_at is not None else len(state.trials),
    )


def bill_of(state: JobState, now: float) -> Bill | None:
    """What the job has cost, and may cost; None without a price, and before the first member joined."""
    spent, currency = state.ledger.spent(now), state.ledger.currency
    budget = state.policy.budget if state.policy is not None else None
    if spent is None or not currency:
        return None
    cost = (spent.gpu_s / 3600.0, spent.cost, currency)
    return Bill(*cost, budget.amount, budget.alert_ratio) if budget is not None else Bill(*cost)


def causes_of(state: JobState) -> Causes | None:
    """How soon the causes of the incidents that are kept were known; None without an incident."""
    if not state.incidents:
        return None
    took = [took_s for each in state.incidents if (took_s := each.time_to_cause_s) is not None]
    within = sum(took_s <= CAUSE_WITHIN_S for took_s in took)
    known = sum(each.has_known_cause for each in state.incidents)
    return Causes(known, within, len(state.incidents) - known, median(took) if took else None)


def unfollowed(state: JobState) -> str:
    """Why the job could not do what its spec wants of a divergence; empty while it could, or nothing is wanted."""
    loss = state.policy.loss if state.policy is not None else None
    if loss is None or state.follows is None or state.ended_at is not None:
        return ""
    wanted = {
        Follows.RESTORE: True,
        Follows.BATCHES: loss.skip_batches > 0,
        Follows.LEARNING_RATE: loss.learning_rate_scale != 1.0,
    }
    missing = [each for each in wanted if wanted[each] and each not in state.follows]
    if not missing:
        return ""
    cannot = " and ".join(f"cannot {CANNOT[each][0]}" for each in missing)
    return f"the script {cannot}; {'; '.join(CANNOT[each][1] for each in missing)}"


def pending_tests(state: JobState) -> Iterator[PendingTest]:
    """The self-tests that are waited for, those first that are given up first. Of a job that is over, none is."""
    if state.ended_at is not None:
        return
    by_name = state.members.by_name
    for each in state.trials.values():
        node, turn = by_name[each.member].node, waits_for(state, each)
        yield PendingTest(each.member, node, each.level, each.reason, each.at, each.bars, turn)


def tests_of_nodes(state: JobState) -> dict[str, str]:
    """By node: which test of it is waited for, or else what a test said of its links, in words."""
    told = dict(state.links.bad)
    for test in pending_tests(state):
        waits = f"; waits for {test.waits_for}" if test.waits_for else ""
        told[test.node] = f"{test.level} self-test pending, {test.reason}{waits}"
    return told


def shown_phase(state: JobState, step_time_s: float | None, now: float) -> JobPhase:
    """The job's phase; Stalled in place of Running where no step was seen for a minute, or ten steps' time."""
    age_s = step_age_s(state, now)
    stalled_after_s = max(STALLED_AFTER_S, STALLED_STEPS * (step_time_s or 0.0))
    return JobPhase.STALLED if age_s is not None and age_s > stalled_after_s else state.phase


def ettr_of(state: JobState, shown: JobPhase, now: float) -> float | None:
    """The effective training time ratio at `now`; None of a script that tells no steps, and while none is seen.

    Whether the time since the newest step was useful the next one tells, or a restore. For a minute, or ten steps'
    time, the ratio up to the newest step stands for that of now; beyond that nobody knows it.
    """
    return state.ledger.ettr(now) if state.publishes and shown is not JobPhase.STALLED else None


def step_age_s(state: JobState, now: float) -> float | None:
    """For how many seconds no step is complete that anybody told of, while ranks should make some; else None."""
    stepped_at = state.ledger.stepped_at
    trains = state.phase is JobPhase.RUNNING and stepped_at is not None
    return max(0.0, now - stepped_at) if trains and stepped_at is not None else None


def report_of(state: JobState, progress: Progress | None, trouble: str | None, now: float) -> JobReport:
    """What the operator is shown. `trouble` is why nothing can be decided, None while all is well."""
    return JobReport(
        status=with_trouble(status_of(state, progress, now), trouble),
        generation=state.policy.generation if state.policy else None,
        uid=state.policy.uid if state.policy else "",
        admitted=state.policy.admitted if state.policy else None,
        incidents=state.incidents[: -REPORTED_INCIDENTS - 1 : -1],
        trouble=trouble,
        policy=state.policy,
    )


def with_trouble(told: JobStatus, trouble: str | None) -> JobStatus:
    """The status, saying that nothing can be decided where that is so."""
    if trouble is None:
        return told
    return msgspec.structs.replace(told, reason=f"{told.reason}; nothing can be decided: {trouble}")


def membership_of(state: JobState, shown: JobPhase) -> Membership:
    """Members with ranks, or on their way to get some, have joined; those beyond are spares.

    Who must pass a self-test first, or does not suit the job, is neither; nor is anybody of a job that is over.
    Who joined is ready, but for a job that is shown as Stalled: nobody sees any of them train.
    """
    wanted = state.policy.members_wanted if state.policy else 0
    if state.ended_at is not None:
        return Membership(wanted=wanted, ready=0, spares=0, joined=0)
    tested = {name for name, each in state.trials.items() if each.bars}
    away = {*state.members.absent(), *tested, *state.fit.misfits}
    there = len(state.members) - len(away)
    if state.round is None:
        joined = min(there, wanted)
    else:
        joined = there - sum(1 for name in state.members.beyond(state.ranked()) if name not in away)
    ready = 0 if shown is JobPhase.STALLED else joined
    return Membership(wanted=wanted, ready=ready, spares=there - joined, joined=joined)
