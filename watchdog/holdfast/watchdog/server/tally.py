"""What the watchdog counts about itself, and how Prometheus reads it."""

from collections import Counter
from collections.abc import Iterable
from enum import StrEnum


class Count(StrEnum):
    """Counters, by what they count. Names are a promise to dashboards."""

    BAD_MESSAGES = "bad_messages"
    DUPLICATE_MESSAGES = "duplicate_messages"
    DUPLICATE_REPORTS = "duplicate_reports"
    FENCED_MESSAGES = "fenced_messages"
    REPORTS = "reports"
    REFUSED_REQUESTS = "refused_requests"
    REPLACED_CONNECTIONS = "replaced_connections"


class Tally:
    """Counters since the program started. Written from one thread."""

    def __init__(self) -> None:
        self._counts: Counter[Count] = Counter()

    def add(self, what: Count) -> None:
        self._counts[what] += 1

    def __getitem__(self, what: Count) -> int:
        return self._counts[what]


def prometheus_text(tally: Tally, gauges: Iterable[tuple[str, str, float]]) -> str:
    """All counters, and gauges as (name, job, value), in the text exposition format. Job "" is all of them.

    Source: https://prometheus.io/docs/instrumenting/exposition_formats/
    """
    lines: list[str] = []
    for what in Count:
        name = f"holdfast_watchdog_{what.value}_total"
        lines += [f"# TYPE {name} counter", f"{name} {tally[what]}"]
    typed: set[str] = set()
    for name, job, value in sorted(gauges):
        if name not in typed:
            lines.append(f"# TYPE {name} gauge")
            typed.add(name)
        labels = f'{{job="{job}"}}' if job else ""
        lines.append(f"{name}{labels} {value:g}")
    return "\n".join(lines) + "\n"
