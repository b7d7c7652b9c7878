"""All jobs and nodes at a glance, and whether Holdfast itself works. For the one who was just paged."""

from grafana import GREEN, RED, YELLOW, Dashboard, Query, Row, Variable, graph, number, table

HERE = '{namespace="$namespace"}'
NAMESPACE = Variable(
    name="namespace", label="Installed in", query="label_values(holdfast_watchdog_leading, namespace)"
)
BAD_AT_ZERO = ((None, RED), (1, GREEN))
BAD_ABOVE_ZERO = ((None, GREEN), (1, RED))


def members(state: str) -> str:
    """Launchers in that state, by job."""
    return f'max by (training_job) (holdfast_job_members{{namespace="$namespace",state="{state}"}})'


HOLDFAST = Row(
    "Holdfast itself",
    (
        number(
            "Watchdogs that lead",
            "One, always. Without one no fault is healed.",
            Query(expr=f"sum(holdfast_watchdog_leading{HERE})"),
            unit="none",
            steps=BAD_AT_ZERO,
            runbooks=("HoldfastNobodyLeads",),
        ),
        number(
            "Store",
            "1 while decisions can be recorded.",
            Query(expr=f"min(holdfast_watchdog_store_up{HERE})"),
            unit="none",
            steps=BAD_AT_ZERO,
            runbooks=("HoldfastStoreAway",),
        ),
        number(
            "Operators that act",
            "One in a cluster. Without one, pods and nodes stay as they are.",
            Query(expr=f"sum(holdfast_operator_leader{HERE})"),
            unit="none",
            steps=BAD_AT_ZERO,
            runbooks=("HoldfastNoOperatorLeads",),
        ),
        number(
            "Agents that answer",
            "Nodes whose agent is scraped and answers.",
            Query(expr="count(count by (node) (holdfast_agent_build_info))"),
            unit="none",
            runbooks=("HoldfastAgentDown",),
        ),
        number(
            "Sources not readable",
            "Over all nodes. What they would tell is Unknown.",
            Query(expr="sum(holdfast_sensor_up == bool 0)"),
            unit="none",
            steps=((None, GREEN), (1, YELLOW)),
            runbooks=("HoldfastSensorUnreadable",),
        ),
        number(
            "Alerts that page",
            "Critical alerts that fire now.",
            Query(
                expr='count(ALERTS{alertname=~"Holdfast.*",alertstate="firing",severity="critical"}) or vector(0)'
            ),
            unit="none",
            steps=BAD_ABOVE_ZERO,
        ),
        graph(
            "Alerts that fire",
            "By name.",
            Query(expr='count by (alertname) (ALERTS{alertname=~"Holdfast.*",alertstate="firing"})'),
            unit="none",
        ),
        graph(
            "Watchdog: lag and reports",
            "How late its event loop was, and agents' reports it took, a second.",
            Query(expr=f"max by (pod) (holdfast_watchdog_loop_lag_seconds{HERE})", legend="lag of {{pod}}, s"),
            Query(
                expr=f"sum(rate(holdfast_watchdog_reports_total{HERE}[$__rate_interval]))",
                legend="reports a second",
            ),
            unit="none",
            runbooks=("HoldfastWatchdogSlow",),
        ),
    ),
)
JOBS = Row(
    "Jobs",
    (
        table(
            "Phases",
            "The phase each job is in.",
            Query(expr=f"max by (training_job, phase) (holdfast_job_phase{HERE}) == 1"),
            unit="none",
            width=8,
        ),
        table(
            "Open incidents and their culprits",
            "Those open now, and for an hour those left to a human. The value is the age.",
            Query(
                expr="max by (training_job, kind, state, node, gpu, rank) "
                f"(holdfast_job_incident_age_seconds{HERE})"
            ),
            unit="s",
            width=16,
        ),
        graph(
            "Tokens a second",
            "Of all ranks of a job.",
            Query(expr=f"holdfast:job_tokens_per_second{HERE}", legend="{{training_job}}"),
            unit="short",
        ),
        graph(
            "Effective training time (ETTR)",
            "Useful training time over the time since the first round, suspensions left out.",
            Query(expr=f"max by (training_job) (holdfast_job_ettr_ratio{HERE})", legend="{{training_job}}"),
            unit="percentunit",
        ),
        graph(
            "Incidents",
            "New ones, by what they were first taken for.",
            Query(
                expr="sum by (kind) (max by (training_job, kind) "
                f"(increase(holdfast_job_incidents_total{HERE}[$__range])))",
                legend="{{kind}}",
            ),
            unit="none",
        ),
        graph(
            "Members that are missing",
            "Wanted in the round and not there.",
            Query(
                expr=f"{members('wanted')} - {members('joined')}",
                legend="{{training_job}}",
            ),
            unit="none",
            runbooks=("HoldfastJobDegraded",),
        ),
    ),
)
NODES = Row(
    "Nodes and GPUs",
    (
        graph(
            "GPUs by health",
            "What the agents say. A GPU that is Unknown is in neither.",
            Query(expr="sum(holdfast_gpu_healthy)", legend="healthy"),
            Query(expr="sum(holdfast_gpu_healthy == bool 0)", legend="failed"),
            unit="none",
            width=8,
            runbooks=("HoldfastGpuLost",),
        ),
        graph(
            "Conditions that hold",
            "GPUs, links and nodes, by what is wrong with them.",
            Query(expr="sum by (kind) (holdfast_condition)", legend="{{kind}}"),
            unit="none",
            width=8,
        ),
        graph(
            "XIDs an hour",
            "By number, over all GPUs.",
            Query(expr="sum by (xid) (increase(holdfast_xid_errors_total[1h]))", legend="XID {{xid}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastGpuXid",),
        ),
        graph(
            "GPU temperatures",
            "Over the fleet.",
            Query(expr="max(holdfast:gpu_temperature_celsius)", legend="hottest"),
            Query(expr="quantile(0.5, holdfast:gpu_temperature_celsius)", legend="median"),
            unit="celsius",
            width=8,
            runbooks=("HoldfastGpuHot", "HoldfastRackHot"),
        ),
        graph(
            "Nodes with a hot GPU",
            "By rack, where racks are known.",
            Query(expr="sum by (rack) (holdfast:node_hot)", legend="rack {{rack}}"),
            unit="none",
            width=8,
            runbooks=("HoldfastRackHot",),
        ),
        table(
            "Nodes that jobs avoid",
            "They get no ranks of the job until they are returned.",
            Query(expr=f"max by (training_job, node) (holdfast_job_node_avoided{HERE})"),
            unit="none",
            width=8,
        ),
    ),
)

DASHBOARD = Dashboard(
    uid="holdfast-fleet",
    title="Holdfast / Fleet",
    description="All jobs and nodes at a glance, and whether Holdfast itself works.",
    variables=(NAMESPACE,),
    rows=(HOLDFAST, JOBS, NODES),
)
