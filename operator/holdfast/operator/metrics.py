"""The operator's Prometheus metrics."""

from collections.abc import Callable, Iterable, Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics
from prometheus_client.registry import Collector

from holdfast.api.exposition import Style
from holdfast.operator.kube.objects import Job

VALUES = {"True": 1.0, "False": 0.0}


class Metrics:
    """One registry per operator, so that two of them can live in a process."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self.reconcile_seconds = Histogram(
            "holdfast_operator_reconcile_seconds",
            "From looking at a job to the last event about it.",
            registry=self._registry,
        )
        self.reconciles = Counter(
            "holdfast_operator_reconcile",
            "Looks at a job, by how they went.",
            ["result"],
            registry=self._registry,
        )
        self.watch_restarts = Counter(
            "holdfast_operator_watch_restarts",
            "Watches of the API server that had to start anew.",
            ["resource"],
            registry=self._registry,
        )
        self._blind = Gauge(
            "holdfast_operator_blind_watches",
            "Watches of which nothing was heard for ten seconds.",
            registry=self._registry,
        )
        self.api_requests = Counter(
            "holdfast_operator_api_requests",
            "Requests to the API server, by verb and HTTP status.",
            ["verb", "code"],
            registry=self._registry,
        )
        self.actions = Counter(
            "holdfast_operator_actions",
            "Actions carried out, by kind.",
            ["kind"],
            registry=self._registry,
        )
        self._depth = Gauge(
            "holdfast_operator_workqueue_depth", "Jobs that are to be looked at.", registry=self._registry
        )
        self._leader = Gauge("holdfast_operator_leader", "1 while this one acts.", registry=self._registry)
        self._connected = Gauge(
            "holdfast_operator_watchdog_connected", "Jobs with a line to the watchdog.", registry=self._registry
        )

    def follow(
        self, depth: Callable[[], float], leader: Callable[[], float], connected: Callable[[], float]
    ) -> None:
        """Read these when somebody asks."""
        self._depth.set_function(depth)
        self._leader.set_function(leader)
        self._connected.set_function(connected)

    def watches(self, blind: Callable[[], float]) -> None:
        """Read this when somebody asks, from the start on."""
        self._blind.set_function(blind)

    def add(self, collector: Collector) -> None:
        """Ask this one as well when somebody asks."""
        self._registry.register(collector)

    def text(self, style: Style = Style.CLASSIC) -> bytes:
        """All of them now, in that format."""
        generate = generate_openmetrics if style is Style.OPENMETRICS else generate_latest
        return generate(self._registry)


# The conditions of all jobs as Prometheus metrics, for alerts. What is Unknown is absent, never zero.


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
            for condition in job.recorded().conditions:
                if (value := VALUES.get(condition.status)) is not None:
                    family.add_metric((name, condition.type), value)
        yield family
