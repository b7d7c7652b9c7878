"""Progress that is not in the journal yet.

A step a second is no news worth a line each. The newest one is held here until a minute has passed since the
last line of its kind, or until anything else is journaled: it goes before that, so that what a decision was made
from is in the journal, and is the same when it is read again. What would lead to a decision by itself is not held.
"""

from collections.abc import Iterable
from typing import Final

import msgspec

from holdfast.api.event import Event, RoundProgressed
from holdfast.watchdog.brain.history import PROGRESS
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Brain, turn

# A watchdog that dies forgets as much of what every rank has completed, until the ranks are heard of again.
HELD_MAX_S: Final = 60.0


class HeldProgress:
    """The newest progress of one job, and the state with it."""

    def __init__(self, brain: Brain) -> None:
        self._brain = brain
        self._event: RoundProgressed | None = None
        # The state with what is held, for readers; None while nobody has asked the brain what the event leads to.
        self.shown: JobState | None = None
        self._began_at = self._written_at = 0.0

    def sift(self, events: Iterable[Event], state: JobState | None, now: float) -> tuple[Event, ...]:
        """What of `events`, and of what is held, is to be journaled now, in order. Held is what leads to nothing
        from `state`; without one nothing is.
        """
        due: list[Event] = list(self.take()) if self.shown is None or state is None else []
        for event in events:
            if not isinstance(event, RoundProgressed):
                due += [*self.take(), event]
                continue
            event = _dated(event, now)
            if due or state is None or not self._may_wait(event, state, now):
                self._event, self.shown, self._written_at = None, None, now  # a newer one says it all
                due.append(event)
        return tuple(due)

    def take(self) -> tuple[RoundProgressed, ...]:
        """What is held, to be journaled now; nothing where nothing is."""
        if self._event is None:
            return ()
        taken, self._event, self.shown = self._event, None, None
        self._written_at = max(self._written_at, taken.completed_at or 0.0)
        return (taken,)

    def keep(self, event: RoundProgressed, now: float) -> None:
        """Hold it while the store refuses, whatever it leads to."""
        self._event, self.shown = _dated(event, now), None

    def _may_wait(self, event: RoundProgressed, state: JobState, now: float) -> bool:
        """Whether it is progress and no more. Of a young round half its life may be held: there is little else."""
        step = turn(self._brain, state, event, now)
        if step.reason.rule != PROGRESS:
            self._began_at = now
            return False
        after = step.state
        # The state with nothing but how far the job is of the one after.
        far = msgspec.structs.replace(
            state,
            step=after.step,
            high_step=after.high_step,
            publishes=after.publishes,
            ledger=after.ledger,
            failures=after.failures,
        )
        if step.effects or far != after or self._brain.next_wakeup(state) != self._brain.next_wakeup(after):
            return False
        if now >= self._written_at + min(HELD_MAX_S, self._written_at - self._began_at):
            return False
        self._event, self.shown = event, after
        return True


def _dated(event: RoundProgressed, now: float) -> RoundProgressed:
    """With the time at which the step was complete: the line may be written much later."""
    if event.completed_at is not None:
        return event
    return msgspec.structs.replace(event, completed_at=now - event.age_s)
