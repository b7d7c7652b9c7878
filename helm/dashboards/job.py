"""One job: how it trains, what broke, what is saved."""

from fleet import BAD_ABOVE_ZERO, NAMESPACE
from grafana import (
    BLUE,
    GREEN,
    GREY,
    RED,
    YELLOW,
    Annotation,
    Dashboard,
    Query,
    Row,
    Variable,
    graph,
    number,
    states,
    table,
)

HERE = '{namespace="$namespace",training_job="$training_job"}'
JOB = Variable(
    name="training_job",
    label="Job",
    query='label_values(holdfast_job_round{namespace="$namespace"}, training_job)',
)


def only(**labels: str) -> str:
    """The selector of this job with further labels."""
    return HERE[:-1] + "".join(f',{name}="{value}"' for name, value in labels.items()) + "}"


NOW = Row(
    "Now",
    (
        number(
            "Step", "Last step complete on every rank.", Query(expr=f"max(holdfast_job_step{HERE})"), unit="none"
        ),
        number(
            "Tokens a second",
            "Tokens of the last step over its time, of all ranks.",
            Query(expr=f"holdfast:job_tokens_per_second{HERE}"),
            unit="short",
        ),
        number(
            "ETTR",
            "Effective training time ratio: useful training time over the time since the first round, suspensions "
            "left out.",
            Query(expr=f"max(holdfast_job_ettr_ratio{HERE})"),
            unit="percentunit",
            steps=((None, RED), (0.8, YELLOW), (0.95, GREEN)),
        ),
        number(
            "Ranks", "World size of the round.", Query(expr=f"max(holdfast_job_world_size{HERE})"), unit="none"
        ),
        number(
            "Open incidents",
            "Faults that are not healed yet.",
            Query(expr=f"sum(max by (kind) (holdfast_job_incidents_open{HERE}))"),
            unit="none",
            steps=BAD_ABOVE_ZERO,
            runbooks=("HoldfastIncidentOpenTooLong", "HoldfastIncidentNeedsHuman"),
        ),
        number(
            "Last recovery",
            "From the newest fault that was healed to the next step.",
            Query(expr=f"max(holdfast_job_last_recovery_seconds{HERE})"),
            unit="s",
        ),
        states(
            "Phase",
            "What the job was doing.",
            Query(expr=f"max by (phase) (holdfast_job_phase{HERE})", legend="{{phase}}"),
            words={0: ("no", GREY), 1: ("yes", BLUE)},
            runbooks=("HoldfastJobFailed", "HoldfastJobNotProgressing"),
        ),
    ),
)
TRAINING = Row(
    "Training",
    (
        graph(
            "Loss",
            "Least, median and greatest over the ranks.",
            Query(expr=f"holdfast:job_loss{HERE}", legend="{{stat}}"),
            unit="none",
            runbooks=("HoldfastLossSpike", "HoldfastLossNotFinite", "HoldfastDivergence"),
        ),
        graph(
            "Gradient norm",
            "Least, median and greatest over the ranks.",
            Query(expr=f"max by (stat) (holdfast_job_grad_norm{HERE})", legend="{{stat}}"),
            unit="none",
        ),
        graph(
            "Step time",
            "Of the last step, over the ranks. In a synchronous job all of them take as long as the slowest.",
            Query(expr=f"holdfast:job_step_seconds{HERE}", legend="{{stat}}"),
            unit="s",
            width=8,
        ),
        graph(
            "Tokens a second",
            "Of all ranks, and what is usual with as many.",
            Query(expr=f"holdfast:job_tokens_per_second{HERE}", legend="tokens a second"),
            Query(expr=f"holdfast:job_tokens_per_second_usual{HERE}", legend="usual"),
            unit="short",
            width=8,
            runbooks=("HoldfastTokensFalling",),
        ),
        graph(
            "MFU",
            "Model FLOPs utilization: the tokens a second over those that the GPUs at their peak could make. For "
            "jobs that say what a token needs and a GPU could do (spec.utilization).",
            Query(expr=f"holdfast:job_mfu{HERE}", legend="MFU"),
            unit="percentunit",
            width=8,
            runbooks=("HoldfastMfuFalling",),
        ),
        graph(
            "Steps",
            "The step, and the highest it ever was: the distance is trained again.",
            Query(expr=f"max(holdfast_job_step{HERE})", legend="step"),
            Query(expr=f"max(holdfast_job_high_step{HERE})", legend="highest"),
            unit="none",
            runbooks=("HoldfastJobNotProgressing",),
        ),
    ),
)
FAULTS = Row(
    "Faults",
    (
        table(
            "Incidents and their culprits",
            "Those open now, and for an hour those left to a human. The value is the age.",
            Query(expr=f"max by (kind, state, node, gpu, rank) (holdfast_job_incident_age_seconds{HERE})"),
            unit="s",
        ),
        graph(
            "Incidents",
            "So far, by what they were first taken for.",
            Query(expr=f"max by (kind) (holdfast_job_incidents_total{HERE}) > 0", legend="{{kind}}"),
            unit="none",
        ),
        graph(
            "Members",
            "Launchers by what they are. None is ready while no step is seen; joined counts those that are there.",
            Query(expr=f"max by (state) (holdfast_job_members{HERE})", legend="{{state}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastSparesExhausted", "HoldfastJobDegraded"),
        ),
        graph(
            "Ranks",
            "By what is heard of them.",
            Query(expr=f"max by (heard) (holdfast_job_ranks{HERE})", legend="{{heard}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastAgentDown",),
        ),
        graph(
            "Silence",
            "Since the rank furthest behind published anything, and since the quietest was heard of.",
            Query(expr=f"max(holdfast_job_progress_age_seconds{HERE})", legend="progress"),
            Query(expr=f"max(holdfast_job_heard_age_seconds{HERE})", legend="heard"),
            unit="s",
            width=8,
        ),
        graph(
            "Budgets used",
            "Of restarts and of evictions. With the first spent the job fails, over the second a human is asked.",
            Query(expr=f"max(holdfast_job_restart_budget_used_ratio{HERE})", legend="restarts"),
            Query(expr=f"max(holdfast_job_eviction_budget_used_ratio{HERE})", legend="evictions"),
            unit="percentunit",
            width=8,
            runbooks=("HoldfastRestartsTooOften", "HoldfastEvictionBudgetNear"),
        ),
        graph(
            "Restarts and evictions",
            "So far.",
            Query(expr=f"max(holdfast_job_restarts_total{HERE})", legend="restarts"),
            Query(expr=f"max(holdfast_job_evictions_total{HERE})", legend="evictions"),
            unit="none",
            width=8,
            runbooks=("HoldfastRestartsTooOften",),
        ),
        table(
            "Nodes it avoids",
            "They get no ranks of this job until they are returned.",
            Query(expr=f"max by (node) (holdfast_job_node_avoided{HERE})"),
            unit="none",
            width=8,
        ),
    ),
)
STATE = Row(
    "What is saved, and whether it is right",
    (
        graph(
            "Age of the newest checkpoint",
            "What a fault would cost at the most, snapshots in memory left out.",
            Query(expr=f"max(holdfast_job_checkpoint_age_seconds{HERE})", legend="age"),
            unit="s",
            width=8,
            runbooks=("HoldfastCheckpointStale",),
        ),
        graph(
            "Saved and verified steps",
            "Step of the newest checkpoint; last step at which all ranks that must hold equal parameters did.",
            Query(expr=f"max(holdfast_job_checkpoint_step{HERE})", legend="checkpoint"),
            Query(expr=f"max(holdfast_job_verified_step{HERE})", legend="verified"),
            unit="none",
            width=8,
        ),
        graph(
            "Comparisons of the replicas",
            "Fingerprints of parameters compared so far, and those that differed.",
            Query(expr=f"max(holdfast_job_fingerprint_comparisons_total{HERE})", legend="compared"),
            Query(expr=f"max(holdfast_job_fingerprint_disagreements_total{HERE})", legend="differed"),
            unit="none",
            width=8,
            runbooks=("HoldfastCorruptionFound",),
        ),
        graph(
            "Self-tests",
            "Of members' devices, so far, by verdict.",
            Query(expr=f"max by (verdict) (holdfast_job_self_tests_total{HERE})", legend="{{verdict}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastSelfTestFailed",),
        ),
        graph(
            "Ranks without a finite loss",
            "Loss or gradient norm is NaN or infinite.",
            Query(expr=f"max(holdfast_job_nonfinite_ranks{HERE})", legend="ranks"),
            unit="none",
            width=8,
            runbooks=("HoldfastLossNotFinite",),
        ),
        graph(
            "Steps trained again",
            "So far, because of faults.",
            Query(expr=f"max(holdfast_job_lost_steps_total{HERE})", legend="steps"),
            unit="none",
            width=8,
        ),
        graph(
            "Time lost to slow ranks",
            "Of all ranks, so far.",
            Query(expr=f"max(holdfast_job_slowed_rank_seconds_total{HERE})", legend="rank time"),
            unit="s",
            runbooks=("HoldfastStraggler",),
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="holdfast-job",
    title="Holdfast / Job",
    description="One job: how it trains, what broke and what was done, what is saved and whether it is right.",
    variables=(NAMESPACE, JOB),
    rows=(NOW, TRAINING, FAULTS, STATE),
    annotations=(
        Annotation(
            name="Incidents",
            expr=f"max by (kind) (increase(holdfast_job_incidents_total{HERE}[$__rate_interval])) > 0",
            title="{{kind}}",
            colour=RED,
        ),
        Annotation(
            name="Rounds",
            expr=f"max(changes(holdfast_job_round{HERE}[$__rate_interval])) > 0",
            title="new round",
            colour=YELLOW,
        ),
        Annotation(
            name="Checkpoints",
            expr=f"max(changes(holdfast_job_checkpoint_step{HERE}[$__rate_interval])) > 0",
            title="checkpoint",
            colour=BLUE,
        ),
    ),
)
