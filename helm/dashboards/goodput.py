"""What the time and the money went into."""

from fleet import NAMESPACE
from grafana import GREEN, RED, YELLOW, Dashboard, Query, Row, Variable, graph, number

HERE = '{namespace="$namespace",training_job=~"$training_job"}'
JOBS = Variable(
    name="training_job",
    label="Jobs",
    query='label_values(holdfast_job_round{namespace="$namespace"}, training_job)',
    every=True,
)
LEGEND = "{{training_job}}"


def spent(what: str) -> str:
    """Seconds of that kind, by job."""
    return f'sum by (namespace, training_job) (holdfast:job_time_seconds{{{HERE[1:-1]},spent="{what}"}})'


# What is neither a step that is kept, nor held ready, nor unknown yet.
OF_FAULTS = "Slow|Detecting|Deciding|Forming|Loading|ComputedAgain|SelfTest|WaitingForNodes|EvictedHealthy"


def lost_money() -> str:
    """Money for the GPU time that was lost, by job and currency."""
    lost = f'{HERE[:-1]},row=~"{OF_FAULTS}"}}'
    by_row = f"max by (namespace, training_job, row, currency) (holdfast_job_gpu_time_cost{lost})"
    return f"sum by (namespace, training_job, currency) ({by_row})"


LEDGER = Row(
    "GPU time by row of the ledger",
    (
        graph(
            "GPU-hours",
            "Every GPU-second is in one row; the rows sum to what was held.",
            Query(
                expr="sum by (row) (max by (namespace, training_job, row) "
                f"(holdfast_job_gpu_time_seconds{HERE})) / 3600 > 0",
                legend="{{row}}",
            ),
            unit="none",
        ),
        graph(
            "Share that is not productive",
            "Of all GPU time so far, by row.",
            Query(
                expr="sum by (row) (max by (namespace, training_job, row) "
                f'(holdfast_job_gpu_time_seconds{HERE[:-1]},row!="Productive"}})) / ignoring (row) group_left () '
                "sum(max by (namespace, training_job, row) "
                f"(holdfast_job_gpu_time_seconds{HERE})) > 0",
                legend="{{row}}",
            ),
            unit="percentunit",
        ),
    ),
)
TIME = Row(
    "Time",
    (
        number(
            "ETTR",
            "Effective training time ratio of the jobs together: useful time over all their time, suspensions "
            "left out.",
            Query(expr=f"sum({spent('useful')}) / (sum({spent('useful')}) + sum({spent('lost')}))"),
            unit="percentunit",
            width=6,
            steps=((None, RED), (0.8, YELLOW), (0.95, GREEN)),
        ),
        number(
            "Useful",
            "Time in which new steps were made.",
            Query(expr=f"sum({spent('useful')})"),
            unit="s",
            width=6,
        ),
        number(
            "Lost",
            "Time that faults, restarts and steps trained again took.",
            Query(expr=f"sum({spent('lost')})"),
            unit="s",
            width=6,
        ),
        number(
            "Steps trained again",
            "Because of faults.",
            Query(expr=f"sum(max by (training_job) (holdfast_job_lost_steps_total{HERE}))"),
            unit="none",
            width=6,
        ),
        graph(
            "ETTR by job",
            "Useful training time over the time since the first round, suspensions left out.",
            Query(expr=f"max by (training_job) (holdfast_job_ettr_ratio{HERE})", legend=LEGEND),
            unit="percentunit",
        ),
        graph(
            "Time lost",
            "By job, so far.",
            Query(expr=spent("lost"), legend=LEGEND),
            unit="s",
            runbooks=("HoldfastRestartsTooOften",),
        ),
        graph(
            "Time suspended",
            "By job, so far. It counts for neither.",
            Query(expr=spent("suspended"), legend=LEGEND),
            unit="s",
            width=8,
        ),
        graph(
            "Last recovery",
            "From the newest fault that was healed to the next step.",
            Query(expr=f"max by (training_job) (holdfast_job_last_recovery_seconds{HERE})", legend=LEGEND),
            unit="s",
            width=8,
        ),
        graph(
            "How incidents ended",
            "So far.",
            Query(
                expr="sum by (outcome) (max by (training_job, outcome) "
                f"(holdfast_job_incidents_closed_total{HERE}))",
                legend="{{outcome}}",
            ),
            unit="none",
            width=8,
            runbooks=("HoldfastIncidentNeedsHuman",),
        ),
    ),
)
MONEY = Row(
    "Money, for jobs that say what a GPU costs (spec.cost), in the job's own currency",
    (
        graph(
            "Cost an hour",
            "Of the ranks that run now.",
            Query(expr=f"holdfast:job_cost_per_hour{HERE}", legend=f"{LEGEND} ({{{{currency}}}})"),
            unit="none",
        ),
        graph(
            "Cost of a million tokens",
            "At the pace of the last step.",
            Query(
                expr=f"holdfast:job_cost_per_hour{HERE} / on (namespace, training_job) group_left () "
                f"(holdfast:job_tokens_per_second{HERE} * 3600) * 1e6",
                legend=f"{LEGEND} ({{{{currency}}}})",
            ),
            unit="none",
        ),
        graph(
            "Spent",
            "GPU time so far, each hour at the prices and the GPUs of its time. It never falls.",
            Query(
                expr=f"max by (namespace, training_job, currency) (holdfast_job_cost_total{HERE})",
                legend=f"{LEGEND} ({{{{currency}}}})",
            ),
            unit="none",
        ),
        graph(
            "Lost to faults",
            "Of it, what went into start-up, recovery, slow ranks and discarded steps.",
            Query(
                expr=lost_money(),
                legend=f"{LEGEND} ({{{{currency}}}})",
            ),
            unit="none",
            runbooks=("HoldfastRestartsTooOften", "HoldfastCheckpointStale"),
        ),
        graph(
            "Money by row of the ledger",
            "What the GPU time was, and its money: the rows sum to what was spent.",
            Query(
                expr="sum by (row, currency) (max by (namespace, training_job, row, currency) "
                f"(holdfast_job_gpu_time_cost{HERE})) > 0",
                legend="{{row}} ({{currency}})",
            ),
            unit="none",
        ),
        graph(
            "Budget used",
            "Of the jobs that have one (spec.cost.budget).",
            Query(
                expr=f"max by (namespace, training_job) (holdfast_job_cost_total{HERE}) / "
                f"max by (namespace, training_job) (holdfast_job_budget{HERE})",
                legend=LEGEND,
            ),
            unit="percentunit",
            runbooks=("HoldfastBudget", "HoldfastBudgetForecast"),
        ),
    ),
)
ENERGY = Row(
    "Energy",
    (
        graph(
            "Power of all GPUs",
            "What they draw together.",
            Query(expr="sum(holdfast:gpu_power_watts)", legend="power"),
            unit="watt",
        ),
        graph(
            "Energy an hour",
            "From the GPUs' own counters.",
            Query(expr="sum(increase(holdfast:gpu_energy_joules_total[1h]))", legend="energy"),
            unit="joule",
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="holdfast-goodput",
    title="Holdfast / Goodput and money",
    description="How much of the time was training, what the rest went into, and what it cost.",
    variables=(NAMESPACE, JOBS),
    rows=(TIME, LEDGER, MONEY, ENERGY),
)
