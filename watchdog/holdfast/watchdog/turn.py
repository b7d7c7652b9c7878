"""One turn of the brain, guarded: the same for a live job and for a replay of its journal."""

from typing import Protocol

from holdfast.api.event import Event
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Reason, Step

FAILED_RULE = "brain failed"


class Brain(Protocol):
    """What decides. `holdfast.watchdog.brain` fills this port as a module."""

    def initial(self, job: str) -> JobState:
        """A job nobody has submitted yet."""
        ...

    def advance(self, state: JobState, event: Event, now: float) -> Step:
        """The next state, the effects and why. Pure."""
        ...

    def next_wakeup(self, state: JobState) -> float | None:
        """When a `ClockTicked` could change something, or None."""
        ...


def turn(brain: Brain, state: JobState, event: Event, at: float) -> Step:
    """Apply one event. An event the brain cannot take changes nothing, and says so.

    The event is in the journal already. Letting the error out would stop the job's healing now and at every
    restart, when the same line is read again; skipping it is the same decision in the live job and in a replay.
    """
    try:
        return brain.advance(state, event, at)
    except Exception as error:
        says = f"{type(event).__name__} at {at:.3f} was skipped: {type(error).__name__}: {error}"
        return Step(state, (), Reason(FAILED_RULE, says))
