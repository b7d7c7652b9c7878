"""The panels of the chart's dashboards, and which real run has something to show on each.

A run proves a panel when its query had data at some moment of the run, chosen as Grafana would choose it. Panels
go by their dashboard; those that need another kind of run are named one by one.
"""

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from types import MappingProxyType

from helmchart import CHART


class Shower(StrEnum):
    """What is scraped: each is one file of tests."""

    TROUBLED_JOB = "a job on this machine that meets one fault after the other"
    DAMAGED_JOB = "a job on this machine that saves checkpoints and compares fingerprints"
    INSTALLATION = "a watchdog over a Redis, and a machine on which everything fails"
    OPERATOR = "an operator on an API server"


DASHBOARDS: Mapping[str, Shower] = MappingProxyType(
    {
        "holdfast-fleet": Shower.INSTALLATION,
        "holdfast-goodput": Shower.TROUBLED_JOB,
        "holdfast-job": Shower.TROUBLED_JOB,
        "holdfast-node": Shower.INSTALLATION,
    }
)
ELSEWHERE: Mapping[tuple[str, str], Shower] = MappingProxyType(
    {
        ("holdfast-fleet", "Operators that act"): Shower.OPERATOR,
        ("holdfast-fleet", "Tokens a second"): Shower.TROUBLED_JOB,
        ("holdfast-fleet", "Effective training time (ETTR)"): Shower.TROUBLED_JOB,
        ("holdfast-fleet", "Nodes that jobs avoid"): Shower.TROUBLED_JOB,
        ("holdfast-goodput", "Energy an hour"): Shower.INSTALLATION,
        ("holdfast-job", "Age of the newest checkpoint"): Shower.DAMAGED_JOB,
        ("holdfast-job", "Saved and verified steps"): Shower.DAMAGED_JOB,
        ("holdfast-job", "Comparisons of the replicas"): Shower.DAMAGED_JOB,
        ("holdfast-job", "Self-tests"): Shower.DAMAGED_JOB,
        ("holdfast-node", "Steps"): Shower.TROUBLED_JOB,
        ("holdfast-node", "Loss"): Shower.TROUBLED_JOB,
        ("holdfast-node", "Silence"): Shower.TROUBLED_JOB,
    }
)


@dataclass(frozen=True)
class Panel:
    """One query of one panel."""

    dashboard: str
    title: str
    query: str

    def __str__(self) -> str:
        return f"{self.dashboard}: {self.title}: {self.query}"

    @property
    def shower(self) -> Shower:
        return ELSEWHERE.get((self.dashboard, self.title), DASHBOARDS[self.dashboard])

    def ever(self, *, namespace: str, job: str = "") -> str:
        """The query as Grafana sends it, of each second of the last half hour."""
        chosen = {"$namespace": namespace, "$training_job": job, "$node": ".*"}
        chosen |= {"$__rate_interval": "8s", "$__range": "1m"}
        query = self.query
        for name, value in chosen.items():
            query = query.replace(name, value)
        return f"count_over_time(({query})[30m:1s])"


def panels(shower: Shower | None = None) -> Iterator[Panel]:
    """All of them, or those that one run proves."""
    for path in sorted((CHART / "dashboards").glob("*.json")):
        for panel in json.loads(path.read_text())["panels"]:
            for target in panel.get("targets", ()):
                each = Panel(path.stem, panel["title"], target["expr"])
                if shower in (None, each.shower):
                    yield each
