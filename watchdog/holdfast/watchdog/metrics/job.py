"""How a job goes: its phase, members, steps and checkpoints, and what its ranks do as one."""

from collections import Counter
from collections.abc import Iterable
from typing import Final

from holdfast.api.exposition import Page
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.api.ledger import Row
from holdfast.api.policy import ModelFlops
from holdfast.api.round import Round
from holdfast.api.selftest import Verdict
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.saves import cadence_of
from holdfast.watchdog.brain.slowness import slow_now, where
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.status import ettr_of, membership_of, shown_phase, step_age_s
from holdfast.watchdog.metrics.counts import JobCounts
from holdfast.watchdog.metrics.table import CAUSE_SECONDS
from holdfast.watchdog.metrics.vitals import Vitals

# A human who was paged an hour ago has taken over.
PAGED_SHOWN_S: Final = 3600.0
# In place of a state: healing goes on, and a human was told all the same.
NOTIFIED: Final = "Notified"
INCIDENTS_MAX: Final = 32
NODES_MAX: Final = 64


def write_course(page: Page, state: JobState, *, step_time_s: float | None, now: float) -> None:
    """What is decided."""
    job, running = state.job, state.desired if isinstance(state.desired, Round) else None
    shown = shown_phase(state, step_time_s, now)
    members = membership_of(state, shown)
    for phase in JobPhase:
        page.put("holdfast_job_phase", int(shown is phase), job, phase.value)
    page.put("holdfast_job_round", state.round.number if state.round else 0, job)
    page.put("holdfast_job_members", members.wanted, job, "wanted")
    page.put("holdfast_job_members", members.joined, job, "joined")
    page.put("holdfast_job_members", members.ready, job, "ready")
    page.put("holdfast_job_members", members.spares, job, "spare")
    page.put("holdfast_job_members", state.policy.spares_wanted if state.policy else 0, job, "spares_wanted")
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
    for name, spread in (
        ("holdfast_job_loss", vitals.loss),
        ("holdfast_job_grad_norm", vitals.grad_norm),
        ("holdfast_job_step_seconds", vitals.step_s),
    ):
        if spread is not None:
            page.put(name, spread.least, job, "min")
            page.put(name, spread.median, job, "median")
            page.put(name, spread.greatest, job, "max")
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


def write_faults(page: Page, state: JobState, counts: JobCounts, *, now: float) -> None:
    """What went wrong, who is to blame, and what was done: incidents, budgets, and the nodes that are avoided."""
    job = state.job
    page.put("holdfast_job_restarts_total", state.restart_count, job)
    page.put("holdfast_job_evictions_total", state.eviction_count, job)
    if (policy := state.policy) is not None:
        restarts = sum(at > now - policy.restarts.per_s for at in state.restarts)
        evictions = sum(at > now - policy.evictions.per_s for at in state.evictions)
        page.put("holdfast_job_restart_budget_used_ratio", restarts / max(1, policy.restarts.count), job)
        page.put("holdfast_job_eviction_budget_used_ratio", evictions / max(1, policy.evictions.count), job)
    of_kind = Counter(each.kind for each in state.open_incidents())
    for kind in FindingKind:
        page.put("holdfast_job_incidents_total", counts.incidents[kind], job, kind.value)
        page.put("holdfast_job_incidents_open", of_kind[kind], job, kind.value)
    for outcome in (IncidentState.RECOVERED, IncidentState.PAGED, IncidentState.OBSERVED):
        page.put("holdfast_job_incidents_closed_total", counts.closed[outcome], job, outcome.value)
    page.put_histogram(CAUSE_SECONDS, job, buckets=counts.causes.within, total=counts.causes.total_s)
    page.put("holdfast_job_incidents_unexplained_total", counts.causes.unexplained, job)
    for labels, age_s in culprits(state, now).items():
        page.put("holdfast_job_incident_age_seconds", age_s, job, *labels)
    healed = [each for each in state.incidents if each.recovered_at is not None]
    newest = max(healed, key=lambda each: each.recovered_at or 0.0, default=None)
    page.put("holdfast_job_last_recovery_seconds", newest.time_to_recover_s if newest else None, job)
    page.put("holdfast_job_lost_steps_total", counts.lost_steps, job)
    page.put("holdfast_job_slowed_rank_seconds_total", state.slowed_rank_s, job)
    for who, share in slow_shares(state).items():
        page.put("holdfast_job_slow_rank_ratio", share, job, *who)
    page.put("holdfast_job_avoided_nodes", len(state.avoided), job)
    for node in dict.fromkeys(order.node for order in state.avoided[-NODES_MAX:]):
        page.put("holdfast_job_node_avoided", 1, job, node)


def slow_shares(state: JobState) -> dict[tuple[str, str, str], float]:
    """What of a step all ranks wait for those that are slow, by cause, node and rank: the newest ones."""
    shares: dict[tuple[str, str, str], float] = {}
    for each in [*slow_now(state)][-INCIDENTS_MAX:]:
        rank = str(each.ranks[0]) if len(each.ranks) == 1 else ""
        shares[each.slow.cause.value, where(state, each) or "", rank] = each.slow.share
    return shares


def culprits(state: JobState, now: float) -> dict[tuple[str, str, str, str, str], float]:
    """Ages in seconds by kind, state, node, GPU and rank: the newest incidents. Of two alike the older counts.

    One of which a human was told while healing went on is `NOTIFIED` for an hour, beside what else it is.
    """
    shown = [(each, states) for each in state.incidents if (states := _shown_states(each, state, now))]
    ages: dict[tuple[str, str, str, str, str], float] = {}
    for each, states in shown[-INCIDENTS_MAX:]:
        who = each.culprit
        rank = "" if who.rank is None else str(who.rank)
        for of_state in states:
            labels = (each.kind.value, of_state, who.node or "", who.gpu or "", rank)
            ages[labels] = max(ages.get(labels, 0.0), now - each.began_at)
    return ages


def _shown_states(incident: Incident, state: JobState, now: float) -> list[str]:
    """Open; paged, for an hour, while nobody has answered; and told to a human lately without being waited for."""
    is_open, is_paged = incident.state is IncidentState.OPEN, incident.state is IncidentState.PAGED
    # Training that goes on in a later round has answered the page, as the condition Degraded has it.
    running, paged_in = state.round, incident.round
    later = running is not None and paged_in is not None and paged_in < running.number
    is_answered = later and state.phase is JobPhase.RUNNING
    pages = [each.at for each in incident.actions if each.rung is Rung.PAGE]
    states = []
    if is_open or (is_paged and now - incident.timeline[-1].at <= PAGED_SHOWN_S and not is_answered):
        states.append(incident.state.value)
    if (is_open or incident.state is IncidentState.RECOVERED) and any(now - at <= PAGED_SHOWN_S for at in pages):
        states.append(NOTIFIED)
    return states


def write_worth(page: Page, state: JobState, *, step_time_s: float | None, now: float) -> None:
    """Where its time and its GPUs' time went, and what that cost.

    Of a script that publishes no steps nobody knows which of its time was useful.
    """
    shown = shown_phase(state, step_time_s, now)
    job, spent, currency = state.job, state.ledger.spent(now), state.ledger.currency
    if spent is not None:
        page.put("holdfast_job_time_seconds", spent.held_s, job, "suspended")
        page.put("holdfast_job_gpu_seconds_total", spent.gpu_s, job)
        page.put("holdfast_job_cost_total", spent.cost if currency else None, job, currency)
        accounts = state.ledger.at(now)
        for row in Row:
            amount = accounts.of(row)
            page.put("holdfast_job_gpu_time_seconds", amount.gpu_s, job, row.value)
            page.put("holdfast_job_gpu_time_cost", amount.price if currency else None, job, row.value, currency)
    if spent is not None and state.publishes:
        page.put("holdfast_job_ettr_ratio", ettr_of(state, shown, now), job)
        page.put("holdfast_job_time_seconds", spent.useful_s, job, "useful")
        page.put("holdfast_job_time_seconds", spent.lost_s, job, "lost")
    if state.policy is not None and (price := state.policy.gpu_hour) is not None:
        mean = state.ledger.price_of_now if state.policy.prices else None
        page.put("holdfast_job_gpu_hour_cost", price.amount if mean is None else mean, job, price.currency)
        if (budget := state.policy.budget) is not None:
            page.put("holdfast_job_budget", budget.amount, job, price.currency)
            page.put("holdfast_job_budget_alert_ratio", budget.alert_ratio, job)


def write_utilization(page: Page, state: JobState, tokens_per_s: float | None) -> None:
    """MFU of the round that runs, each rank on a GPU; nothing where the job or its ranks do not say enough."""
    flops = state.policy.flops if state.policy is not None else None
    if flops is None or tokens_per_s is None or not isinstance(state.desired, Round):
        return
    page.put("holdfast_job_mfu_ratio", mfu(tokens_per_s, flops, gpus=state.desired.training_size), state.job)


def mfu(tokens_per_s: float, flops: ModelFlops, *, gpus: int) -> float:
    """Model FLOPs utilization: the tokens a second over those that `gpus` at their peak could make.

    Source: Chowdhery et al. 2022, PaLM, appendix B, https://arxiv.org/abs/2204.02311
    """
    return tokens_per_s * flops.per_token / (gpus * flops.gpu_peak_per_s)
