"""Entries of a large round that are not in the journal yet.

Thousands of launchers say within a second that they have entered a round, and each that is applied alone costs
a copy of the roster and a line. Those of a large job are gathered here for some milliseconds, and told as one
event; whatever else happens meanwhile comes behind them. Of a small job every entry is told at once.
"""

from collections.abc import Iterable
from typing import Final

from holdfast.api.event import Event, MemberEntered, MembersEntered
from holdfast.watchdog.brain.state import JobState

# A round of so many members takes seconds to meet; nobody waits for an entry that is told so much later.
MANY_MEMBERS: Final = 256
GATHERED_S: Final = 0.02


class GatheredEntries:
    """Those of one job. `due_at` is when they are to be told at the latest, None while there are none."""

    def __init__(self) -> None:
        self._entries: list[MemberEntered] = []
        self.due_at: float | None = None

    def sift(self, events: Iterable[Event], state: JobState, now: float) -> tuple[Event, ...]:
        """What of `events`, and of what is gathered, is to be told now, in order."""
        due: list[Event] = []
        for event in events:
            if isinstance(event, MemberEntered) and _is_one_of_many(event, state):
                self._entries.append(event)
                self.due_at = now + GATHERED_S if self.due_at is None else self.due_at
            else:
                due += [*self.take(), event]
        return (*due, *self.take()) if self.due_at is not None and now >= self.due_at else tuple(due)

    def take(self) -> tuple[Event, ...]:
        """What is gathered, to be told now; nothing where nothing is."""
        entries, self._entries, self.due_at = self._entries, [], None
        if len(entries) == 1:
            return (entries[0],)
        return (MembersEntered(tuple(entries)),) if entries else ()


def _is_one_of_many(event: MemberEntered, state: JobState) -> bool:
    round = state.round
    return round is not None and event.round == round.number and len(round.ranks) >= MANY_MEMBERS
