"""What happened to a job while this watchdog watched: counters that only grow, for Prometheus.

Counted where events are applied. A restart of the watchdog begins with the incidents the state still knows and
with zero for the rest, which Prometheus takes for what it is.
"""

import math
from collections import Counter
from collections.abc import Iterable, Sequence
from enum import StrEnum
from typing import Final

from holdfast.api.event import Event, FindingMade, MemberTested, ReplicasAgreed
from holdfast.api.finding import FindingKind, ProvedBy
from holdfast.api.incident import CAUSE_WITHIN_S, Incident, IncidentState
from holdfast.api.selftest import Verdict
from holdfast.watchdog.brain.history import is_of_replicas
from holdfast.watchdog.brain.step import Effect, IncidentClosed, IncidentOpened
from holdfast.watchdog.detectors.replica_vote import REPLAY

CAUSE_BOUNDS_S: Final = (1.0, 10.0, 60.0, 300.0, CAUSE_WITHIN_S, 3600.0, math.inf)


class Count(StrEnum):
    """What the watchdog counts about itself. Each has a metric of its name."""

    BAD_MESSAGES = "bad_messages"
    DROPPED_STRANGERS = "dropped_strangers"
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


class CauseTimes:
    """How long it took to know the causes of incidents that are over, each counted once. `within` is by bound."""

    def __init__(self) -> None:
        self.within = dict.fromkeys(CAUSE_BOUNDS_S, 0)
        self.total_s = 0.0
        self.unexplained = 0
        self._counted: set[str] = set()

    def add(self, incident: Incident) -> None:
        """One that is over; once it is, a later end of the same one changes nothing."""
        if incident.id in self._counted:
            return
        self._counted.add(incident.id)
        took_s = incident.time_to_cause_s
        self.unexplained += not incident.has_known_cause
        if took_s is None:
            return
        self.total_s += took_s
        for bound in CAUSE_BOUNDS_S:
            self.within[bound] += took_s <= bound


class JobCounts:
    """One job's. Written from one thread."""

    def __init__(self) -> None:
        self.incidents: Counter[FindingKind] = Counter()
        self.closed: Counter[IncidentState] = Counter()
        self.causes = CauseTimes()
        self.lost_steps = 0
        self.self_tests: Counter[Verdict] = Counter()
        self.comparisons = 0
        self.disagreements = 0

    def begin(self, incidents: Sequence[Incident]) -> None:
        """Take in what an earlier run left."""
        self.incidents.update(each.kind for each in incidents)
        self._close([each for each in incidents if each.state is not IncidentState.OPEN])

    def note(self, event: Event, effects: Sequence[Effect]) -> None:
        """One event was applied, and led to these effects."""
        match event:
            case MemberTested(verdict=verdict):
                self.self_tests[verdict] += 1
            case ReplicasAgreed(by=ProvedBy.REPLICAS):
                self.comparisons += 1
            case FindingMade(finding=finding) if (
                finding.kind is FindingKind.CORRUPTION and is_of_replicas(finding) and finding.cause != REPLAY
            ):
                self.comparisons += 1
                self.disagreements += 1
        for effect in effects:
            if isinstance(effect, IncidentOpened):
                self.incidents[effect.incident.kind] += 1
        self._close([each.incident for each in effects if isinstance(each, IncidentClosed)])

    def _close(self, incidents: Iterable[Incident]) -> None:
        """Incidents that one round healed share what it cost: those steps are trained again once."""
        lost: dict[object, int] = {}
        for incident in incidents:
            self.closed[incident.state] += 1
            self.causes.add(incident)
            key = incident.id if incident.recovered_round is None else incident.recovered_round
            lost[key] = max(lost.get(key, 0), incident.lost_steps or 0)
        self.lost_steps += sum(lost.values())
