"""What the time of an incident went into, as its record and the journal have it: one phase after the other."""

from collections.abc import Sequence
from enum import StrEnum
from statistics import median

import msgspec

from holdfast.api.event import Journaled, RoundProgressed, entries_of
from holdfast.api.incident import Incident, IncidentState, Rung


class Stage(StrEnum):
    """In the order in which they follow one another. `KNOWING` runs beside the others: nothing waits for it."""

    DETECTING = "detecting"  # from the fault to its finding
    KNOWING = "knowing the cause"  # from the finding until kind and culprit stood as they do now
    DECIDING = "deciding"  # from the finding to the round that is to heal it
    FORMING = "forming"  # until every member had entered the round that did
    LOADING = "loading"  # until its first step: start-up, restore, warm-up
    RECOVERING = "recovering"  # FORMING and LOADING, where the journal does not tell them apart
    COMPUTING_AGAIN = "computing again"  # as many steps as were lost, at the pace of before


class Phase(msgspec.Struct, frozen=True):
    """One stage. `ended` None: it goes on."""

    stage: Stage
    began: float
    ended: float | None

    @property
    def took_s(self) -> float | None:
        return None if self.ended is None else max(0.0, self.ended - self.began)


def phases_of(incident: Incident, journal: Sequence[Journaled]) -> tuple[Phase, ...]:
    """The phases that are known; fewer where nothing was healed, or the journal's lines are gone."""
    found = [Phase(Stage.DETECTING, incident.began_at, incident.detected_at)]
    if incident.known_at is not None or incident.state is IncidentState.OPEN:
        found.append(Phase(Stage.KNOWING, incident.detected_at, incident.known_at))
    decided = next(
        (each.at for each in incident.actions if each.rung is not Rung.PAGE and each.round is not None), None
    )
    if decided is None:
        return tuple(found)
    found.append(Phase(Stage.DECIDING, incident.detected_at, decided))
    found += _healing(incident, journal, decided)
    step_s = pace_before(journal, incident.began_at)
    if incident.recovered_at is not None and incident.lost_steps and step_s is not None:
        again = incident.recovered_at + incident.lost_steps * step_s
        found.append(Phase(Stage.COMPUTING_AGAIN, incident.recovered_at, again))
    return tuple(found)


def _healing(incident: Incident, journal: Sequence[Journaled], decided: float) -> list[Phase]:
    """From the decision to the first step: in two phases where it is known when members entered the round."""
    entered = [
        line.at
        for line in journal
        if any(each.round == incident.recovered_round for each in entries_of(line.event))
    ]
    ended = incident.recovered_at
    before = [at for at in entered if ended is None or at <= ended]
    if not before:
        return [Phase(Stage.RECOVERING, decided, ended)]
    last = max(decided, *before)
    return [Phase(Stage.FORMING, decided, last), Phase(Stage.LOADING, last, ended)]


def pace_before(journal: Sequence[Journaled], at: float, most: int = 32) -> float | None:
    """Seconds a step took, by the newest reports of a round before `at`: the median; None without two of them."""
    told: list[tuple[int, float, int]] = []
    for line in journal:
        event = line.event
        if isinstance(event, RoundProgressed):
            when = event.completed_at if event.completed_at is not None else line.at - event.age_s
            if when <= at:
                told.append((event.round, when, event.step))
    pairs = zip(told[-most:], told[-most:][1:], strict=False)
    steps = [
        (after[1] - before[1]) / (after[2] - before[2])
        for before, after in pairs
        if before[0] == after[0] and after[2] > before[2] and after[1] > before[1]
    ]
    return median(steps) if steps else None
