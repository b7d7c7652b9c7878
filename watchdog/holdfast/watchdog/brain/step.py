"""What one turn of the brain returns: the next state, what the shell is to do, and why; and how turns are chained.

Each effect is a desired state or a record; applying one twice is harmless."""

from collections.abc import Callable
from typing import Any, Concatenate, ParamSpec, Protocol

import msgspec

from holdfast.api.event import Event
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.api.membership import SaveWanted, Verified
from holdfast.api.plan import Plan
from holdfast.api.round import Desired, Round
from holdfast.api.selftest import TestWanted
from holdfast.watchdog.brain.state import JobState

FAILED_RULE = "brain failed"


class Show(msgspec.Struct, frozen=True, tag=True):
    """Show this to every launcher of the job, now and whenever one connects."""

    desired: Desired


class Publish(msgspec.Struct, frozen=True, tag=True):
    """Show this plan to the operator."""

    plan: Plan


class Save(msgspec.Struct, frozen=True, tag=True):
    """Ask the launchers of a round for one more checkpoint, now and whenever one of them connects."""

    wanted: SaveWanted


class Vouch(msgspec.Struct, frozen=True, tag=True):
    """Tell the member that runs rank 0 what is verified, now and whenever it connects."""

    member: str
    verified: Verified


class Examine(msgspec.Struct, frozen=True, tag=True):
    """Ask a member for a self-test of its devices, now and whenever it connects, until it has answered."""

    member: str
    wanted: TestWanted


class Dismiss(msgspec.Struct, frozen=True, tag=True):
    """End the connections of members that count as lost, saying why: whoever still lives joins anew."""

    members: tuple[str, ...]
    reason: str


class TakeStacks(msgspec.Struct, frozen=True, tag=True):
    """Ask where the ranks of `round` stand before anything of it is ended, and tell the incident (`StacksTaken`).

    `member` and `rank` are the culprit's, None when nobody is named.
    """

    incident: str
    round: Round
    member: str | None = None
    rank: int | None = None


class TakeProfile(msgspec.Struct, frozen=True, tag=True):
    """Ask these ranks of `round` to record their next steps."""

    round: Round
    ranks: tuple[int, ...]
    steps: int


class IncidentOpened(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class IncidentUpdated(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class IncidentClosed(msgspec.Struct, frozen=True, tag=True):
    incident: Incident


class Notify(msgspec.Struct, frozen=True, tag=True):
    """A human is needed."""

    incident: str
    text: str


class Pardon(msgspec.Struct, frozen=True, tag=True):
    """Nothing that happened so far is to be held against the node by any job."""

    node: str
    reason: str


class Answered(msgspec.Struct, frozen=True, tag=True):
    """An intervention came to its end."""

    outcome: InterventionOutcome


IncidentEffect = IncidentOpened | IncidentUpdated | IncidentClosed
Effect = (
    Show
    | Publish
    | Save
    | Vouch
    | Examine
    | Dismiss
    | TakeStacks
    | TakeProfile
    | IncidentEffect
    | Notify
    | Pardon
    | Answered
)


P = ParamSpec("P")


class Reason(msgspec.Struct, frozen=True):
    """Why, as data: the rule that applied, in words for a human, and the guards that were consulted."""

    rule: str
    says: str
    guards: tuple[str, ...] = ()


class Step(msgspec.Struct, frozen=True):
    """The next state, what the shell must do, and why."""

    state: JobState
    effects: tuple[Effect, ...]
    reason: Reason

    def then(
        self, turn: Callable[Concatenate[JobState, P], "Step"], *arguments: P.args, **named: P.kwargs
    ) -> "Step":
        """Go on from this state; effects add up; the first reason that says something is the turn's reason."""
        after = turn(self.state, *arguments, **named)
        reason = after.reason if self.reason.rule in SILENT else self.reason
        if after.reason.rule == NOTHING.rule:
            reason = self.reason
        return Step(after.state, self.effects + after.effects, reason)

    def prefixed(self, effects: tuple[Effect, ...]) -> "Step":
        """The same step, with effects that happened before it."""
        return Step(self.state, effects + self.effects, self.reason)


NOTHING = Reason("nothing", "nothing to do")
IGNORED_RULE = "ignored"
SILENT = (NOTHING.rule, IGNORED_RULE)


def ignore(state: JobState, why: str) -> Step:
    """A named no-op."""
    return Step(state, (), Reason(IGNORED_RULE, why))


def stay(state: JobState) -> Step:
    """No change, nothing to say."""
    return Step(state, (), NOTHING)


def changed(state: JobState, **fields: Any) -> JobState:
    """A copy of the state with some fields replaced."""
    return msgspec.structs.replace(state, **fields)


# One turn of the brain, guarded: the same for a live job and for a replay of its journal.


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
