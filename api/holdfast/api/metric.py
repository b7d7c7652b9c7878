"""What a program tells Prometheus: one row for each family. Names, labels and units are a promise.

Naming: https://prometheus.io/docs/practices/naming/ and https://prometheus.io/docs/specs/om/open_metrics_spec/
"""

from enum import StrEnum

import msgspec


class MetricKind(StrEnum):
    """How Prometheus reads it, in the words of the exposition formats."""

    GAUGE = "gauge"
    COUNTER = "counter"
    SUMMARY = "summary"  # how many and their sum; no quantiles
    HISTOGRAM = "histogram"
    UNKNOWN = "unknown"  # counts of another program, under a name that is not a counter's here


class Metric(msgspec.Struct, frozen=True):
    """One family. `name` is what a query asks for; of a summary it stands before _count and _sum, of a
    histogram also before _bucket.

    `labels` are all it may have, in order. What is Unknown has no sample, never zero.
    """

    name: str
    kind: MetricKind
    help: str
    labels: tuple[str, ...] = ()

    @property
    def family(self) -> str:
        """The family's name in OpenMetrics, where a counter's lacks the _total of its samples."""
        return self.name.removesuffix("_total") if self.kind is MetricKind.COUNTER else self.name
