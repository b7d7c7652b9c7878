"""What went wrong with a job, who is to blame, and what was done."""

from collections import Counter
from typing import Final

from holdfast.api.exposition import Page
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident, IncidentState
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.metrics.counts import JobCounts

# A human who was paged an hour ago has taken over.
PAGED_SHOWN_S: Final = 3600.0
INCIDENTS_MAX: Final = 32
NODES_MAX: Final = 64


def write_faults(page: Page, state: JobState, counts: JobCounts, *, now: float) -> None:
    """Incidents with their culprits, budgets, and the nodes that are avoided."""
    job = state.job
    page.put("holdfast_job_restarts_total", state.restart_count, job)
    page.put("holdfast_job_evictions_total", state.eviction_count, job)
    _write_budgets(page, state, now)
    of_kind = Counter(each.kind for each in state.open_incidents())
    for kind in FindingKind:
        page.put("holdfast_job_incidents_total", counts.incidents[kind], job, kind.value)
        page.put("holdfast_job_incidents_open", of_kind[kind], job, kind.value)
    for outcome in (IncidentState.RECOVERED, IncidentState.PAGED, IncidentState.OBSERVED):
        page.put("holdfast_job_incidents_closed_total", counts.closed[outcome], job, outcome.value)
    for labels, age_s in culprits(state, now).items():
        page.put("holdfast_job_incident_age_seconds", age_s, job, *labels)
    page.put("holdfast_job_last_recovery_seconds", _last_recovery_s(state), job)
    page.put("holdfast_job_lost_steps_total", counts.lost_steps, job)
    page.put("holdfast_job_avoided_nodes", len(state.avoided), job)
    for node in dict.fromkeys(order.node for order in state.avoided[-NODES_MAX:]):
        page.put("holdfast_job_node_avoided", 1, job, node)


def culprits(state: JobState, now: float) -> dict[tuple[str, str, str, str, str], float]:
    """Ages in seconds by kind, state, node, GPU and rank: the newest incidents. Of two alike the older counts."""
    shown = [each for each in state.incidents if _is_shown(each, state, now)][-INCIDENTS_MAX:]
    ages: dict[tuple[str, str, str, str, str], float] = {}
    for each in shown:
        who = each.culprit
        rank = "" if who.rank is None else str(who.rank)
        labels = (each.kind.value, each.state.value, who.node or "", who.gpu or "", rank)
        ages[labels] = max(ages.get(labels, 0.0), now - each.began_at)
    return ages


def _is_shown(incident: Incident, state: JobState, now: float) -> bool:
    if incident.state is IncidentState.PAGED:
        return now - incident.timeline[-1].at <= PAGED_SHOWN_S and not _is_answered(incident, state)
    return incident.state is IncidentState.OPEN


def _is_answered(incident: Incident, state: JobState) -> bool:
    """Training that goes on in a later round has answered the page, as the condition Degraded has it."""
    running, paged_in = state.round, incident.round
    return (
        state.phase is JobPhase.RUNNING
        and running is not None
        and paged_in is not None
        and paged_in < running.number
    )


def _last_recovery_s(state: JobState) -> float | None:
    healed = [each for each in state.incidents if each.recovered_at is not None]
    return max(healed, key=lambda each: each.recovered_at or 0.0).time_to_recover_s if healed else None


def _write_budgets(page: Page, state: JobState, now: float) -> None:
    policy = state.policy
    if policy is None:
        return
    restarts = sum(at > now - policy.restarts.per_s for at in state.restarts)
    evictions = sum(at > now - policy.evictions.per_s for at in state.evictions)
    page.put("holdfast_job_restart_budget_used_ratio", restarts / max(1, policy.restarts.count), state.job)
    page.put("holdfast_job_eviction_budget_used_ratio", evictions / max(1, policy.evictions.count), state.job)
