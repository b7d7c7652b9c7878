"""What one turn of the brain returns, and how turns are chained."""

from collections.abc import Callable
from typing import Any

import msgspec

from holdfast.watchdog.effect import Effect
from holdfast.watchdog.state import JobState


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

    def then(self, turn: Callable[[JobState], "Step"]) -> "Step":
        """Go on from this state; effects add up; the first reason that says something is the turn's reason."""
        after = turn(self.state)
        reason = after.reason if self.reason.rule in SILENT else self.reason
        if after.reason.rule == NOTHING.rule:
            reason = self.reason
        return Step(after.state, self.effects + after.effects, reason)

    def prefixed(self, effects: tuple[Effect, ...]) -> "Step":
        """The same step, with effects that happened before it."""
        return Step(self.state, effects + self.effects, self.reason)


NOTHING = Reason("nothing", "nothing to do")
SILENT = (NOTHING.rule, "ignored")


def ignore(state: JobState, why: str) -> Step:
    """A named no-op."""
    return Step(state, (), Reason("ignored", why))


def stay(state: JobState) -> Step:
    """No change, nothing to say."""
    return Step(state, (), NOTHING)


def changed(state: JobState, **fields: Any) -> JobState:
    """A copy of the state with some fields replaced."""
    return msgspec.structs.replace(state, **fields)
