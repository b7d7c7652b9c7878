"""Entries of a large round, and words of readiness of its groups, that are not in the journal yet.

Thousands of launchers say within a second that they have entered a round, or that they wait for the other
replica groups, and each that is applied alone costs a copy of the roster and a line. Those of a large job are
gathered here for some milliseconds, and told as one event; whatever else happens meanwhile comes behind them. Of a
small job each is told at once.
"""

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Final

from holdfast.api.event import Event, MemberEntered, MemberReady, MembersEntered, MembersReady
from holdfast.watchdog.brain.state import JobState

# A round of so many members takes seconds to meet; nobody waits for an entry that is told so much later.
MANY_MEMBERS: Final = 256
GATHERED_S: Final = 0.02

Told = MemberEntered | MemberReady


class GatheredEntries:
    """Those of one job. `due_at` is when they are to be told at the latest, None while there are none."""

    def __init__(self) -> None:
        self._told: list[Told] = []
        self.due_at: float | None = None

    def sift(self, events: Iterable[Event], state: JobState, now: float) -> tuple[Event, ...]:
        """What of `events`, and of what is gathered, is to be told now, in order."""
        due: list[Event] = []
        for event in events:
            if isinstance(event, Told) and _is_one_of_many(event, state):
                self._told.append(event)
                self.due_at = now + GATHERED_S if self.due_at is None else self.due_at
            else:
                due += [*self.take(), event]
        return (*due, *self.take()) if self.due_at is not None and now >= self.due_at else tuple(due)

    def take(self) -> tuple[Event, ...]:
        """What is gathered, to be told now; nothing where nothing is."""
        told, self._told, self.due_at = self._told, [], None
        return tuple(_together(told))


def _together(told: Iterable[Told]) -> Iterator[Event]:
    """One event for all that follow one another and are of a kind."""
    for kind, same in groupby(told, key=type):
        many = tuple(same)
        if len(many) == 1:
            yield many[0]
        elif kind is MemberEntered:
            yield MembersEntered(tuple([each for each in many if isinstance(each, MemberEntered)]))
        else:
            yield MembersReady(tuple([each for each in many if isinstance(each, MemberReady)]))


def _is_one_of_many(event: Told, state: JobState) -> bool:
    round = state.round
    if round is None or len(round.ranks) < MANY_MEMBERS:
        return False
    return event.round == round.number if isinstance(event, MemberEntered) else event.epoch in state.forming
