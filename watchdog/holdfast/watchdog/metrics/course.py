"""How a job goes: its phase, members, steps and checkpoints, and what its ranks do as one."""

from collections.abc import Iterable

from holdfast.api.exposition import Page
from holdfast.api.round import Round
from holdfast.api.selftest import Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.saves import cadence_of
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.status import membership_of, shown_phase, step_age_s
from holdfast.watchdog.metrics.counts import JobCounts
from holdfast.watchdog.metrics.vitals import Spread, Vitals


def write_course(page: Page, state: JobState, *, step_time_s: float | None, now: float) -> None:
    """What is decided."""
    job, running = state.job, state.desired if isinstance(state.desired, Round) else None
    members = membership_of(state)
    shown = shown_phase(state, step_time_s, now)
    for phase in JobPhase:
        page.put("holdfast_job_phase", int(shown is phase), job, phase.value)
    page.put("holdfast_job_round", state.round.number if state.round else 0, job)
    page.put("holdfast_job_members", members.wanted, job, "wanted")
    page.put("holdfast_job_members", members.ready, job, "ready")
    page.put("holdfast_job_members", members.spares, job, "spare")
    page.put("holdfast_job_members", state.policy.spares if state.policy else 0, job, "spares_wanted")
    page.put("holdfast_job_world_size", running.world_size if running else 0, job)
    if (age_s := step_age_s(state, now)) is not None:
        page.put("holdfast_job_step_age_seconds", age_s, job)
    page.put("holdfast_job_high_step", state.high_step, job)
    page.put("holdfast_job_verified_step", state.verified_step, job)
    if state.checkpoints:
        newest = state.checkpoints[-1]
        page.put("holdfast_job_checkpoint_step", newest.step, job)
        page.put("holdfast_job_checkpoint_age_seconds", max(0.0, now - newest.at), job)
        page.put("holdfast_job_checkpoint_stall_seconds", newest.stall_s, job)
    cadence = cadence_of(state)
    page.put("holdfast_job_checkpoint_interval_seconds", cadence.every_s if cadence else None, job)
    page.put("holdfast_job_storage_restores_total", state.storage_restores, job)


def write_vitals(page: Page, job: str, vitals: Vitals, steps: Iterable[int | None]) -> None:
    """What the ranks do. Of `steps`, as decided and as seen, the greatest is the newest."""
    page.put("holdfast_job_step", max((step for step in steps if step is not None), default=None), job)
    page.put("holdfast_job_ranks", vitals.fresh, job, "fresh")
    page.put("holdfast_job_ranks", vitals.stale, job, "stale")
    page.put("holdfast_job_ranks", vitals.unheard, job, "unheard")
    _write_spread(page, "holdfast_job_loss", job, vitals.loss)
    _write_spread(page, "holdfast_job_grad_norm", job, vitals.grad_norm)
    _write_spread(page, "holdfast_job_step_seconds", job, vitals.step_s)
    if vitals.step_s is not None:
        page.put("holdfast_job_step_seconds", vitals.step_s.p99, job, "p99")
    page.put("holdfast_job_nonfinite_ranks", vitals.nonfinite, job)
    page.put("holdfast_job_tokens_per_second", vitals.tokens_per_s, job)
    page.put("holdfast_job_heard_age_seconds", vitals.heard_age_s, job)
    page.put("holdfast_job_progress_age_seconds", vitals.progress_age_s, job)


def write_proofs(page: Page, job: str, counts: JobCounts) -> None:
    """How often the job's arithmetic was looked at, and what came of it."""
    page.put("holdfast_job_fingerprint_comparisons_total", counts.comparisons, job)
    page.put("holdfast_job_fingerprint_disagreements_total", counts.disagreements, job)
    for verdict in Verdict:
        page.put("holdfast_job_self_tests_total", counts.self_tests[verdict], job, verdict.value)


def _write_spread(page: Page, name: str, job: str, spread: Spread | None) -> None:
    if spread is not None:
        page.put(name, spread.least, job, "min")
        page.put(name, spread.median, job, "median")
        page.put(name, spread.greatest, job, "max")
