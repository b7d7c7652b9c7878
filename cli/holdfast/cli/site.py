"""The ports: where jobs are found, what is read of one, and where an intervention is handed in.

Three things fill them: a run on this machine (`localsite`), a watchdog by its address (`watchdogsource`), and a
cluster (`cluster.clustersite`). Each is imported when it is meant: a read on this machine starts at once.
"""

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Protocol

from holdfast.cli.target import Place, Surroundings, Target, place_of

if TYPE_CHECKING:  # a command that only asks for its help waits for none of these
    from holdfast.api.event import Journaled
    from holdfast.api.incident import Incident
    from holdfast.api.status import NodeStatus, RankStatus
    from holdfast.cli.logs import LogLine, LogRequest
    from holdfast.cli.seen import RecordedIncidents, SeenStatus
    from holdfast.cli.watchdogclient import WatchdogClient
    from holdfast.cli.watchdogsource import Answer, Document


class JobSource(Protocol):
    """One job. Every read raises Unavailable when nobody answers, InvalidInput when there is no such job."""

    @property
    def job(self) -> str:
        """namespace/name."""
        ...

    def status(self) -> "SeenStatus":
        """Where it is; from the record where there is one and the watchdog is away."""
        ...

    def incidents(self) -> "tuple[Incident, ...] | RecordedIncidents":
        """Oldest first; what the record keeps of them where there is one and the watchdog is away."""
        ...

    def ranks(self) -> "tuple[RankStatus, ...]":
        """Every rank; of a job that is over, as it was last seen, which stderr says."""
        ...

    def nodes(self) -> "tuple[NodeStatus, ...]":
        """Every node; of a job that is over, as it was last seen, which stderr says."""
        ...

    def logs(self, request: "LogRequest") -> "Iterator[LogLine]":
        """What workers wrote; headings and what is missing go to stderr."""
        ...

    def journal(self, after: int) -> "Iterator[Journaled]":
        """Line by line behind the line `after`; of a run on this machine after its end as well."""
        ...

    def client(self) -> "WatchdogClient":
        """For what only the watchdog knows."""
        ...


class Site(Protocol):
    """An installation. Raises as `JobSource` does."""

    def statuses(self) -> "tuple[SeenStatus, ...]":
        """Every job there is, or that the target means."""
        ...

    def source(self) -> JobSource:
        """The job that the target names, or the only one. Raises InvalidInput naming those to choose from."""
        ...

    def check(self, document: "Document") -> "Document":
        """Have the server check an Intervention and change nothing. Raises InvalidInput where none can."""
        ...

    def hand_in(self, document: "Document", timeout_s: float) -> "Answer":
        """Hand in an Intervention and wait for its outcome; 0 returns at once."""
        ...


def open_site(target: Target) -> Site:
    """The installation that `target` means. Raises InvalidInput, Unavailable."""
    match place_of(target, look_around):
        case Place.STATE_DIRECTORY:
            from holdfast.cli.localsite import LocalSite

            return LocalSite(target)
        case Place.ADDRESS:
            from holdfast.cli.watchdogsource import AddressSite

            return AddressSite(target)
        case Place.CLUSTER:
            from holdfast.cli.cluster.clustersite import ClusterSite

            return ClusterSite(target)


def look_around() -> Surroundings:
    """What there is in this directory and this process's environment."""
    from holdfast.cli.statedirectory import runs_under_here

    if runs_under_here():
        return Surroundings.LOCAL_RUN
    if os.environ.get("KUBECONFIG") or os.environ.get("KUBERNETES_SERVICE_HOST"):
        return Surroundings.CLUSTER_ACCESS
    return Surroundings.NOTHING
