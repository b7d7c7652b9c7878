"""Every metric of the watchdog. A name here is a promise: dashboards and alert rules are made of them.

`training_job` is NAMESPACE/NAME. A job's ranks are told as one: least, median and greatest over them. No label
holds a rank but that of an open incident's culprit, nor a pod, an incident or a sentence.
"""

from typing import Final

from holdfast.api.metric import Metric, MetricKind

JOB: Final = ("training_job",)
_GAUGE, _COUNTER = MetricKind.GAUGE, MetricKind.COUNTER

_OWN = (
    Metric("holdfast_watchdog_build_info", _GAUGE, "1; the watchdog's version.", ("version",)),
    Metric("holdfast_watchdog_leading", _GAUGE, "1 while this one decides."),
    Metric("holdfast_watchdog_store_up", _GAUGE, "1 while decisions can be recorded."),
    Metric(
        "holdfast_watchdog_store_replicas",
        _GAUGE,
        "Replicas that keep up with the leader's Redis; absent without Sentinels and while it is not known.",
    ),
    Metric("holdfast_watchdog_loop_lag_seconds", _GAUGE, "The latest the event loop was in the last half minute."),
    Metric("holdfast_watchdog_bad_messages_total", _COUNTER, "Messages that could not be read."),
    Metric(
        "holdfast_watchdog_dropped_strangers_total",
        _COUNTER,
        "Connections ended to make room, whose callers had shown no valid token yet.",
    ),
    Metric("holdfast_watchdog_duplicate_messages_total", _COUNTER, "Launchers' messages that came again."),
    Metric("holdfast_watchdog_duplicate_reports_total", _COUNTER, "Agents' reports that came again."),
    Metric("holdfast_watchdog_fenced_messages_total", _COUNTER, "Messages of a round that is over."),
    Metric("holdfast_watchdog_reports_total", _COUNTER, "Agents' reports taken."),
    Metric("holdfast_watchdog_refused_requests_total", _COUNTER, "Requests refused."),
    Metric("holdfast_watchdog_replaced_connections_total", _COUNTER, "Connections that a newer one replaced."),
    Metric("holdfast_fleet_quarantined_nodes", _GAUGE, "Nodes that all jobs are kept away from."),
    Metric("holdfast_fleet_node_quarantined", _GAUGE, "1 for a node that all jobs are kept away from.", ("node",)),
    Metric("holdfast_watchdog_launchers", _GAUGE, "Launchers connected.", JOB),
    Metric("holdfast_watchdog_agents", _GAUGE, "Agents connected.", JOB),
    Metric("holdfast_watchdog_journal_lines", _GAUGE, "Lines in the job's journal, without compacted ones.", JOB),
    Metric("holdfast_watchdog_journal_bytes", _GAUGE, "Size of the job's journal at its newest snapshot.", JOB),
    Metric("holdfast_watchdog_store_refuses", _GAUGE, "1 while the store does not take the job's record.", JOB),
    Metric(
        "holdfast_watchdog_judge_failures_total",
        _COUNTER,
        "Samples that a detector failed on.",
        (*JOB, "detector"),
    ),
)

_COURSE = (
    Metric("holdfast_job_phase", _GAUGE, "1 for the phase the job is in, 0 for the others.", (*JOB, "phase")),
    Metric("holdfast_job_round", _GAUGE, "Number of the newest round; 0 before the first.", JOB),
    Metric(
        "holdfast_job_members",
        _GAUGE,
        "Launchers: wanted and joined in the round, ready (joined, 0 when Stalled), spare and spares_wanted.",
        (*JOB, "state"),
    ),
    Metric("holdfast_job_world_size", _GAUGE, "Ranks of the round that runs; 0 while none does.", JOB),
    Metric(
        "holdfast_job_ranks",
        _GAUGE,
        "Ranks of the round by what is heard of them: fresh, stale (not lately), unheard.",
        (*JOB, "heard"),
    ),
    Metric("holdfast_job_step", _GAUGE, "Last step complete on every rank.", JOB),
    Metric(
        "holdfast_job_step_age_seconds",
        _GAUGE,
        "For how long no step has been complete of a job that runs and publishes its steps.",
        JOB,
    ),
    Metric("holdfast_job_high_step", _GAUGE, "Highest step ever complete on every rank.", JOB),
    Metric("holdfast_job_loss", _GAUGE, "Loss over the ranks: stat min, median, max.", (*JOB, "stat")),
    Metric(
        "holdfast_job_grad_norm", _GAUGE, "Gradient norm over the ranks: stat min, median, max.", (*JOB, "stat")
    ),
    Metric(
        "holdfast_job_nonfinite_ranks",
        _GAUGE,
        "Ranks whose loss or gradient norm is no finite number.",
        JOB,
    ),
    Metric(
        "holdfast_job_step_seconds",
        _GAUGE,
        "Duration of the last step over the ranks: stat min, median, p99, max.",
        (*JOB, "stat"),
    ),
    Metric("holdfast_job_tokens_per_second", _GAUGE, "Tokens of the last step over its time, of all ranks.", JOB),
    Metric(
        "holdfast_job_progress_age_seconds",
        _GAUGE,
        "Since the rank that is furthest behind last published anything.",
        JOB,
    ),
    Metric("holdfast_job_heard_age_seconds", _GAUGE, "Since the rank heard of longest ago was heard of.", JOB),
    Metric("holdfast_job_checkpoint_step", _GAUGE, "Step of the newest checkpoint.", JOB),
    Metric("holdfast_job_checkpoint_age_seconds", _GAUGE, "Since the newest checkpoint was committed.", JOB),
    Metric("holdfast_job_checkpoint_stall_seconds", _GAUGE, "How long the newest stopped training.", JOB),
    Metric("holdfast_job_checkpoint_interval_seconds", _GAUGE, "How far apart they are to be.", JOB),
    Metric("holdfast_job_storage_restores_total", _COUNTER, "Faults that a checkpoint was needed for.", JOB),
    Metric(
        "holdfast_job_verified_step",
        _GAUGE,
        "Last step after which what the ranks held was proved right, by replicas or by devices.",
        JOB,
    ),
    Metric("holdfast_job_fingerprint_comparisons_total", _COUNTER, "Comparisons of the ranks' parameters.", JOB),
    Metric(
        "holdfast_job_fingerprint_disagreements_total",
        _COUNTER,
        "Comparisons in which parameters that must be equal were not.",
        JOB,
    ),
    Metric("holdfast_job_self_tests_total", _COUNTER, "Self-tests of members' devices.", (*JOB, "verdict")),
)

_FAULTS = (
    Metric("holdfast_job_restarts_total", _COUNTER, "Rounds that a fault made necessary.", JOB),
    Metric("holdfast_job_evictions_total", _COUNTER, "Nodes the job was moved away from for a fault.", JOB),
    Metric(
        "holdfast_job_restart_budget_used_ratio", _GAUGE, "Restarts in the budget's time over those allowed.", JOB
    ),
    Metric(
        "holdfast_job_eviction_budget_used_ratio",
        _GAUGE,
        "Evictions in the budget's time over those allowed.",
        JOB,
    ),
    Metric(
        "holdfast_job_incidents_total", _COUNTER, "Incidents, by what they were first taken for.", (*JOB, "kind")
    ),
    Metric(
        "holdfast_job_incidents_closed_total",
        _COUNTER,
        "Incidents that are over: Recovered, Paged (left to a human), or Observed (told, and nothing done).",
        (*JOB, "outcome"),
    ),
    Metric("holdfast_job_incidents_open", _GAUGE, "Incidents open now.", (*JOB, "kind")),
    Metric(
        "holdfast_job_incident_age_seconds",
        _GAUGE,
        "Since an incident began, with its culprit: those open, and those paged until training goes on in a later"
        " round, or for an hour. Notified, for an hour: healing goes on, and a human is told all the same.",
        (*JOB, "kind", "state", "node", "gpu", "rank"),
    ),
    Metric("holdfast_job_last_recovery_seconds", _GAUGE, "From the newest fault healed to the next step.", JOB),
    Metric("holdfast_job_lost_steps_total", _COUNTER, "Steps that faults had trained again.", JOB),
    Metric("holdfast_job_avoided_nodes", _GAUGE, "Nodes the job is kept away from.", JOB),
    Metric("holdfast_job_node_avoided", _GAUGE, "1 for a node the job is kept away from.", (*JOB, "node")),
)

_WORTH = (
    Metric(
        "holdfast_job_ettr_ratio",
        _GAUGE,
        "Useful training time over the time since the first member joined; absent without steps and when Stalled.",
        JOB,
    ),
    Metric(
        "holdfast_job_time_seconds",
        _GAUGE,
        "Time since the first member joined: useful, lost, suspended. What a restore discards becomes lost.",
        (*JOB, "spent"),
    ),
    Metric("holdfast_job_gpu_seconds_total", _COUNTER, "GPU time held, with the world size of each time.", JOB),
    Metric(
        "holdfast_job_gpu_time_seconds",
        _GAUGE,
        "GPU time by what it was: useful, lost. What a restore discards becomes lost.",
        (*JOB, "spent"),
    ),
    Metric(
        "holdfast_job_cost_total",
        _COUNTER,
        "Money spent on GPU time so far, each hour at the price and the world size of its time. It never falls.",
        (*JOB, "currency"),
    ),
    Metric(
        "holdfast_job_gpu_hour_cost", _GAUGE, "What a GPU costs for an hour, as the job says.", (*JOB, "currency")
    ),
    Metric(
        "holdfast_job_mfu_ratio",
        _GAUGE,
        "Model FLOPs utilization of the last step; absent unless the job says its numbers (spec.utilization).",
        JOB,
    ),
)

WATCHDOG_METRICS: Final = (*_OWN, *_COURSE, *_FAULTS, *_WORTH)
