"""The samples of one scrape, family by family."""

from collections.abc import Iterable, Iterator, Sequence

from prometheus_client import core

from holdfast.api.metric import Metric, MetricKind

_FAMILIES = {
    MetricKind.GAUGE: core.GaugeMetricFamily,
    MetricKind.COUNTER: core.CounterMetricFamily,
    MetricKind.SUMMARY: core.SummaryMetricFamily,
    MetricKind.UNKNOWN: core.UnknownMetricFamily,
}


class Sheet:
    """Has a family for each of `rows`, in their order. Giving it a sample of another one raises KeyError."""

    def __init__(self, rows: Iterable[Metric]) -> None:
        self._families = {row.name: _FAMILIES[row.kind](row.family, row.help, labels=row.labels) for row in rows}

    def __iter__(self) -> Iterator[core.Metric]:
        """Every family, also those without a sample."""
        return iter(self._families.values())

    def put(self, name: str, labels: Sequence[str], value: float | None) -> None:
        """One sample; `labels` in the order of the row. None is Unknown: no sample."""
        if value is not None:
            self._families[name].add_metric(labels, value)

    def put_summary(self, name: str, labels: Sequence[str], *, count: int, total: float) -> None:
        """How many there were, and their sum."""
        self._families[name].add_metric(labels, count_value=count, sum_value=total)
