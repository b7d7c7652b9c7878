"""Every metric of the watchdog. A name here is a promise: dashboards and alert rules are made of them.

`training_job` is NAMESPACE/NAME. A job's ranks are told as one: least, median and greatest over them. No label
holds a rank but that of an open incident's culprit, nor a pod, an incident or a sentence.
"""

from typing import Final

from holdfast.api.metric import Metric, MetricKind

JOB: Final = "training_job"
CAUSE_SECONDS: Final = "holdfast_job_incident_cause_seconds"
_HISTOGRAMS: Final = frozenset({CAUSE_SECONDS})

# Each with what it says and its labels. What only grows is a counter, and its name ends with `_total`.
_ROWS: Final[tuple[tuple[str, ...], ...]] = (
    # The watchdog itself.
    ("holdfast_watchdog_build_info", "1; the watchdog's version.", "version"),
    ("holdfast_watchdog_leading", "1 while this one decides."),
    ("holdfast_watchdog_store_up", "1 while decisions can be recorded."),
    (
        "holdfast_watchdog_store_replicas",
        "Replicas that keep up with the leader's Redis; absent without Sentinels and while it is not known.",
    ),
    ("holdfast_watchdog_loop_lag_seconds", "The latest the event loop was in the last half minute."),
    ("holdfast_watchdog_bad_messages_total", "Messages that could not be read."),
    (
        "holdfast_watchdog_dropped_strangers_total",
        "Connections ended to make room, whose callers had shown no valid token yet.",
    ),
    ("holdfast_watchdog_duplicate_messages_total", "Launchers' messages that came again."),
    ("holdfast_watchdog_duplicate_reports_total", "Agents' reports that came again."),
    ("holdfast_watchdog_fenced_messages_total", "Messages of a round that is over."),
    ("holdfast_watchdog_reports_total", "Agents' reports taken."),
    ("holdfast_watchdog_refused_requests_total", "Requests refused."),
    ("holdfast_watchdog_replaced_connections_total", "Connections that a newer one replaced."),
    ("holdfast_fleet_quarantined_nodes", "Nodes that all jobs are kept away from."),
    ("holdfast_fleet_node_quarantined", "1 for a node that all jobs are kept away from.", "node"),
    (
        "holdfast_fleet_gathered_faults",
        "Faults behind a place (a switch, a rack) where more gather than chance explains; absent without one.",
        "family",
        "kind",
        "place",
    ),
    ("holdfast_watchdog_launchers", "Launchers connected.", JOB),
    ("holdfast_watchdog_agents", "Agents connected.", JOB),
    ("holdfast_watchdog_journal_lines", "Lines in the job's journal, without compacted ones.", JOB),
    ("holdfast_watchdog_journal_bytes", "Size of the job's journal at its newest snapshot.", JOB),
    ("holdfast_watchdog_store_refuses", "1 while the store does not take the job's record.", JOB),
    ("holdfast_watchdog_judge_failures_total", "Samples that a detector failed on.", JOB, "detector"),
    # How a job goes.
    ("holdfast_job_phase", "1 for the phase the job is in, 0 for the others.", JOB, "phase"),
    ("holdfast_job_round", "Number of the newest round; 0 before the first.", JOB),
    (
        "holdfast_job_members",
        "Launchers: wanted and joined in the round, ready (joined, 0 when Stalled), spare and spares_wanted.",
        JOB,
        "state",
    ),
    ("holdfast_job_world_size", "Ranks of the round that runs; 0 while none does.", JOB),
    (
        "holdfast_job_ranks",
        "Ranks of the round by what is heard of them: fresh, stale (not lately), unheard.",
        JOB,
        "heard",
    ),
    ("holdfast_job_step", "Last step complete on every rank.", JOB),
    (
        "holdfast_job_step_age_seconds",
        "For how long no step has been complete of a job that runs and publishes its steps.",
        JOB,
    ),
    ("holdfast_job_high_step", "Highest step ever complete on every rank.", JOB),
    ("holdfast_job_loss", "Loss over the ranks: stat min, median, max.", JOB, "stat"),
    ("holdfast_job_grad_norm", "Gradient norm over the ranks: stat min, median, max.", JOB, "stat"),
    ("holdfast_job_nonfinite_ranks", "Ranks whose loss or gradient norm is no finite number.", JOB),
    (
        "holdfast_job_step_seconds",
        "Duration of the last step over the ranks: stat min, median, p99, max.",
        JOB,
        "stat",
    ),
    ("holdfast_job_tokens_per_second", "Tokens of the last step over its time, of all ranks.", JOB),
    ("holdfast_job_progress_age_seconds", "Since the rank that is furthest behind last published anything.", JOB),
    ("holdfast_job_heard_age_seconds", "Since the rank heard of longest ago was heard of.", JOB),
    ("holdfast_job_checkpoint_step", "Step of the newest checkpoint.", JOB),
    ("holdfast_job_checkpoint_age_seconds", "Since the newest checkpoint was committed.", JOB),
    ("holdfast_job_checkpoint_stall_seconds", "How long the newest stopped training.", JOB),
    ("holdfast_job_checkpoint_interval_seconds", "How far apart they are to be.", JOB),
    ("holdfast_job_storage_restores_total", "Faults that a checkpoint was needed for.", JOB),
    (
        "holdfast_job_verified_step",
        "Last step after which what the ranks held was proved right, by replicas or by devices.",
        JOB,
    ),
    ("holdfast_job_fingerprint_comparisons_total", "Comparisons of the ranks' parameters.", JOB),
    (
        "holdfast_job_fingerprint_disagreements_total",
        "Comparisons in which parameters that must be equal were not.",
        JOB,
    ),
    ("holdfast_job_self_tests_total", "Self-tests of members' devices.", JOB, "verdict"),
    # What went wrong.
    ("holdfast_job_restarts_total", "Rounds that a fault made necessary.", JOB),
    ("holdfast_job_evictions_total", "Nodes the job was moved away from for a fault.", JOB),
    ("holdfast_job_restart_budget_used_ratio", "Restarts in the budget's time over those allowed.", JOB),
    ("holdfast_job_eviction_budget_used_ratio", "Evictions in the budget's time over those allowed.", JOB),
    ("holdfast_job_incidents_total", "Incidents, by what they were first taken for.", JOB, "kind"),
    (
        "holdfast_job_incidents_closed_total",
        "Incidents that are over: Recovered, Paged (left to a human), or Observed (told, and nothing done).",
        JOB,
        "outcome",
    ),
    (
        CAUSE_SECONDS,
        "Of incidents that are over: from detection until kind and culprit stood as they do now, both at least"
        " probable. To be 900 at most.",
        JOB,
    ),
    ("holdfast_job_incidents_unexplained_total", "Incidents that are over, of unknown cause.", JOB),
    ("holdfast_job_incidents_open", "Incidents open now.", JOB, "kind"),
    (
        "holdfast_job_incident_age_seconds",
        "Since an incident began, with its culprit: those open, and those paged until training goes on in a later"
        " round, or for an hour. Notified, for an hour: healing goes on, and a human is told all the same.",
        JOB,
        "kind",
        "state",
        "node",
        "gpu",
        "rank",
    ),
    ("holdfast_job_last_recovery_seconds", "From the newest fault healed to the next step.", JOB),
    ("holdfast_job_lost_steps_total", "Steps that faults had trained again.", JOB),
    (
        "holdfast_job_slow_rank_ratio",
        "The share of each step in which all ranks wait for a slow one, or for what all share (no node), by cause:"
        " Machine, Data, Shape, Software, Everybody. From its finding until it is over, or its round ends.",
        JOB,
        "cause",
        "node",
        "rank",
    ),
    ("holdfast_job_slowed_rank_seconds_total", "Time in which ranks waited for slow ones, of all ranks.", JOB),
    ("holdfast_job_avoided_nodes", "Nodes the job is kept away from.", JOB),
    ("holdfast_job_node_avoided", "1 for a node the job is kept away from.", JOB, "node"),
    # What its time was worth.
    (
        "holdfast_job_ettr_ratio",
        "Useful training time over the time since the first member joined; absent without steps and when Stalled.",
        JOB,
    ),
    (
        "holdfast_job_time_seconds",
        "Time since the first member joined: useful, lost, suspended. What a restore discards becomes lost.",
        JOB,
        "spent",
    ),
    ("holdfast_job_gpu_seconds_total", "GPU time held, with and without ranks.", JOB),
    (
        "holdfast_job_gpu_time_seconds",
        "GPU time by what it was: the rows of the ledger, which sum to what was held. What a restore discards"
        " moves to ComputedAgain.",
        JOB,
        "row",
    ),
    (
        "holdfast_job_gpu_time_cost",
        "Money spent on GPU time by what it was, as holdfast_job_gpu_time_seconds.",
        JOB,
        "row",
        "currency",
    ),
    (
        "holdfast_job_cost_total",
        "Money spent on GPU time so far, each hour at the prices and the GPUs of its time. It never falls.",
        JOB,
        "currency",
    ),
    (
        "holdfast_job_gpu_hour_cost",
        "What a GPU with a rank costs for an hour, as the job says; the mean where prices differ.",
        JOB,
        "currency",
    ),
    ("holdfast_job_budget", "What the job may cost in all, as it says (spec.cost.budget).", JOB, "currency"),
    (
        "holdfast_job_budget_alert_ratio",
        "The share of the budget from which on somebody is told (spec.cost.budget.alertAt).",
        JOB,
    ),
    (
        "holdfast_job_mfu_ratio",
        "Model FLOPs utilization of the last step; absent unless the job says its numbers (spec.utilization).",
        JOB,
    ),
)


def _kind(name: str) -> MetricKind:
    if name in _HISTOGRAMS:
        return MetricKind.HISTOGRAM
    return MetricKind.COUNTER if name.endswith("_total") else MetricKind.GAUGE


WATCHDOG_METRICS: Final = tuple(Metric(name, _kind(name), says, tuple(labels)) for name, says, *labels in _ROWS)
