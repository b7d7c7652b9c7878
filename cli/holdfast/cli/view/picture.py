"""What the followers of a run look at: everything the watchdog said at one moment."""

from dataclasses import dataclass

from holdfast.api.incident import Incident
from holdfast.api.status import JobStatus, RankStatus


@dataclass(frozen=True, slots=True)
class Picture:
    """One look. Incidents are oldest first. `missed`: at the end, scripted faults that were not injected."""

    status: JobStatus
    ranks: tuple[RankStatus, ...] = ()
    incidents: tuple[Incident, ...] = ()
    missed: tuple[str, ...] = ()
