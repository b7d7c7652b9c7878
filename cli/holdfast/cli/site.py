"""The ports: where jobs are found, what is read of one, and where an intervention is handed in.

Three things fill them: a run on this machine (`localsite`), a watchdog by its address (`addresssite`), and a
cluster (`cluster.clustersite`). `opening` chooses among them.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from holdfast.api.event import Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionState
from holdfast.api.status import NodeStatus, RankStatus
from holdfast.cli.logs import LogLine, LogRequest
from holdfast.cli.seen import RecordedIncidents, SeenStatus
from holdfast.cli.watchdogclient import WatchdogClient

Document = dict[str, Any]


class JobSource(Protocol):
    """One job. Every read raises Unavailable when nobody answers, InvalidInput when there is no such job."""

    @property
    def job(self) -> str:
        """namespace/name."""
        ...

    def status(self) -> SeenStatus:
        """Where it is; from the record where there is one and the watchdog is away."""
        ...

    def incidents(self) -> tuple[Incident, ...] | RecordedIncidents:
        """Oldest first; what the record keeps of them where there is one and the watchdog is away."""
        ...

    def ranks(self) -> tuple[RankStatus, ...]:
        """Every rank; of a job that is over, as it was last seen, which stderr says."""
        ...

    def nodes(self) -> tuple[NodeStatus, ...]:
        """Every node; of a job that is over, as it was last seen, which stderr says."""
        ...

    def logs(self, request: LogRequest) -> Iterator[LogLine]:
        """What workers wrote; headings and what is missing go to stderr."""
        ...

    def journal(self, after: int) -> Iterator[Journaled]:
        """Line by line behind the line `after`; of a run on this machine after its end as well."""
        ...

    def client(self) -> WatchdogClient:
        """For what only the watchdog knows."""
        ...


@dataclass(frozen=True, slots=True)
class Answer:
    """What became of an intervention so far. `name` is what it is called from now on."""

    name: str
    state: InterventionState
    outcome: str


class Site(Protocol):
    """An installation. Raises as `JobSource` does."""

    def statuses(self) -> tuple[SeenStatus, ...]:
        """Every job there is, or that the target means."""
        ...

    def source(self) -> JobSource:
        """The job that the target names, or the only one. Raises InvalidInput naming those to choose from."""
        ...

    def check(self, document: Document) -> Document:
        """Have the server check an Intervention and change nothing. Raises InvalidInput where none can."""
        ...

    def hand_in(self, document: Document, timeout_s: float) -> Answer:
        """Hand in an Intervention and wait for its outcome; 0 returns at once."""
        ...
