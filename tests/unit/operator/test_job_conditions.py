"""What Prometheus is told of jobs' conditions."""

from operator_builders import job_object

from holdfast.operator.metrics import JobConditions, Metrics


def _said(**statuses: str) -> list[str]:
    conditions = [
        {
            "type": type_,
            "status": status,
            "reason": "Why",
            "message": "",
            "lastTransitionTime": "2026-01-01T00:00:00Z",
        }
        for type_, status in statuses.items()
    ]
    metrics = Metrics()
    metrics.add(JobConditions(lambda: (job_object(status={"conditions": conditions}),)))
    return [line for line in metrics.text().decode().splitlines() if line.startswith("holdfast_job_condition{")]


def test_true_is_one_and_false_is_zero() -> None:
    assert _said(Degraded="True", WatchdogReachable="False") == [
        'holdfast_job_condition{condition="Degraded",training_job="research/gpt"} 1.0',
        'holdfast_job_condition{condition="WatchdogReachable",training_job="research/gpt"} 0.0',
    ]


def test_unknown_is_absent() -> None:
    assert _said(Degraded="Unknown") == []


def test_a_job_without_a_status_says_nothing() -> None:
    assert _said() == []
