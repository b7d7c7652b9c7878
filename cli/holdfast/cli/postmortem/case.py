"""All that is known of a job when somebody writes about its incidents."""

from collections.abc import Sequence
from functools import cached_property

import msgspec

from holdfast.api.event import JobSubmitted, Journaled, RoundProgressed
from holdfast.api.incident import Incident
from holdfast.api.ledger import LedgerReport
from holdfast.api.policy import Policy
from holdfast.cli.figures import Figures
from holdfast.cli.postmortem.phases import Phase, phases_of
from holdfast.cli.rounds.chronicle import rounds_of
from holdfast.cli.rounds.comparison import Compared, compared


class Case(msgspec.Struct, frozen=True, dict=True):
    """One job at `now` (watchdog's clock). `incidents` are oldest first. What could not be read is empty, and each
    sentence of `unread` says why.
    """

    job: str
    now: float
    incidents: Sequence[Incident]
    journal: Sequence[Journaled] = ()
    ledger: LedgerReport | None = None
    figures: Figures = Figures()
    unread: tuple[str, ...] = ()

    @property
    def policy(self) -> Policy | None:
        """The newest one that the journal has."""
        told = [each.event.policy for each in self.journal if isinstance(each.event, JobSubmitted)]
        return told[-1] if told else None

    @cached_property
    def rounds(self) -> Sequence[Compared]:
        return compared(rounds_of(self.journal), self.figures)

    @cached_property
    def phases(self) -> dict[str, tuple[Phase, ...]]:
        """Of every incident, by its id."""
        return {each.id: phases_of(each, self.journal) for each in self.incidents}

    def others(self, incident: Incident) -> Sequence[Sequence[Phase]]:
        """The phases of the job's other incidents."""
        return [phases for id, phases in self.phases.items() if id != incident.id]

    def ended(self, incident: Incident) -> float:
        """When it was over, as far as is known: now, while it is open."""
        told = [each.at for each in incident.timeline]
        if incident.recovered_at is not None:
            return incident.recovered_at
        return self.now if incident.state == "Open" or not told else max(told)

    @cached_property
    def steps(self) -> Sequence[tuple[float, float]]:
        """When which step was complete on all ranks, as it was journaled."""
        found = []
        for line in self.journal:
            if isinstance(event := line.event, RoundProgressed):
                at = event.completed_at if event.completed_at is not None else line.at - event.age_s
                found.append((at, float(event.step)))
        return sorted(found)
