"""The conditions of all jobs as Prometheus metrics, for alerts. What is Unknown is absent, never zero."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from holdfast.operator.objects import Job
from holdfast.operator.recorded import read_recorded

VALUES = {"True": 1.0, "False": 0.0}


class JobConditions(Collector):
    """Reads the jobs' status when somebody asks, so that a standby and a restarted operator say the same."""

    def __init__(self, jobs: Callable[[], Iterable[Job]]) -> None:
        self._jobs = jobs

    def collect(self) -> Iterator[Metric]:
        """One sample per job and condition."""
        family = GaugeMetricFamily(
            "holdfast_job_condition",
            "1: the job's condition is True, 0: it is False; absent: Unknown.",
            labels=("training_job", "condition"),
        )
        for job in self._jobs():
            name = f"{job.metadata.namespace}/{job.metadata.name}"
            recorded, _ = read_recorded(job.status)
            for condition in recorded.conditions:
                if (value := VALUES.get(condition.status)) is not None:
                    family.add_metric((name, condition.type), value)
        yield family
