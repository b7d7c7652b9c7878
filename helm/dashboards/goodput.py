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


def lost_money() -> str:
    """Money for the GPU time that was lost, by job and currency."""
    gpu_hour = f"max by (namespace, training_job, currency) (holdfast_job_gpu_hour_cost{HERE})"
    lost = f'{HERE[:-1]},spent="lost"}}'
    gpu_hours = f"max by (namespace, training_job) (holdfast_job_gpu_time_seconds{lost}) / 3600"
    return f"{gpu_hour} * on (namespace, training_job) group_left () ({gpu_hours})"


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
            "GPU time so far, each hour at the price and the world size of its time. It never falls.",
            Query(
                expr=f"max by (namespace, training_job, currency) (holdfast_job_cost_total{HERE})",
                legend=f"{LEGEND} ({{{{currency}}}})",
            ),
            unit="none",
        ),
        graph(
            "Lost to faults",
            "Of it, what went into start-up, recovery and discarded steps, at the price of now.",
            Query(
                expr=lost_money(),
                legend=f"{LEGEND} ({{{{currency}}}})",
            ),
            unit="none",
            runbooks=("HoldfastRestartsTooOften", "HoldfastCheckpointStale"),
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
    rows=(TIME, MONEY, ENERGY),
)
