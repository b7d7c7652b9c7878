"""One more checkpoint, asked for by the watchdog: the ranks of a round agree on the step they all save.

While nothing is wanted nothing is said, so that a step costs nothing. Ranks hear of a request at different moments
while they train, and none may save a step that another has passed: all must save the same one. So a request is
settled in attempts, each of which lives in three keys of the round's store:

    step      the step to save, some way ahead of the rank that came first
    promises  how many ranks promised to save it; a rank that has passed it promises nothing
    verdict   given by the first rank to complete that step: SAVE when every rank had promised, otherwise MISSED

A rank that promised obeys the verdict. It is one word for all, and SAVE only when all wait for it, so either every
rank saves that step or none does. After MISSED, and when the step has been passed already, a rank turns to the
next attempt, which looks further ahead.
"""

import math
from dataclasses import dataclass
from typing import Protocol

LOOK_AHEAD_S = 1.0
"""A launcher passes a request to all its workers within milliseconds; this leaves room for a slow connection."""
_LOOK_AHEAD_STEPS_MIN = (
    2  # Ranks in lockstep can be one step boundary apart, and each has to hear before the last.
)
_DOUBLINGS_MAX = 16

_SAVE = b"save"
_MISSED = b"missed"


class Notes(Protocol):
    """What is needed of the round's store."""

    def add(self, key: str, value: int) -> int: ...

    def compare_set(self, key: str, expected: str | bytes, value: str | bytes) -> bytes: ...


@dataclass(frozen=True, slots=True)
class _Promise:
    number: int
    attempt: int
    step: int

    def key(self, name: str) -> str:
        return _key(self.number, self.attempt, name)


class WantedSave:
    """One rank's side of it, for one round. `want` belongs to the side thread, all else to the training thread.

    While `newest` and `answered` are the same, nothing is wanted.
    """

    def __init__(self, world_size: int) -> None:
        self._world_size = world_size
        self._promise: _Promise | None = None
        self._tried = (-1, 0)  # the request and how many attempts at it have failed
        self.newest = -1
        self.answered = -1

    def want(self, number: int) -> None:
        """A request was shown. Shown again it changes nothing; a newer one counts."""
        self.newest = max(self.newest, number)

    def due(self, step: int, notes: Notes | None, step_time_s: float | None) -> int | None:
        """This rank has completed `step`: the request that a save of it answers, or None.

        To be asked after every step while `newest` differs from `answered`. `notes` is the round's store (None
        when this is the only rank). Raises what the store raises.
        """
        if notes is None:
            self.answered = self.newest
            return self.answered
        while True:
            # A promise is kept to its end, also when a newer request has come: the others rely on it.
            promise = self._promise = self._promise or self._agree(step, notes, step_time_s)
            if step < promise.step:
                return None
            self._promise = None
            if self._verdict(promise, notes) == _SAVE:
                self.answered = promise.number
                return self.answered
            self._tried = (promise.number, promise.attempt + 1)

    def _agree(self, step: int, notes: Notes, step_time_s: float | None) -> _Promise:
        """Promise to save the first attempt's step that is not passed yet."""
        number = self.newest
        attempt = self._tried[1] if self._tried[0] == number else 0
        while True:
            proposal = str(step + _lead_steps(step_time_s, attempt))
            agreed = int(notes.compare_set(_key(number, attempt, "step"), "", proposal))
            if agreed >= step:
                notes.add(_key(number, attempt, "promises"), 1)
                return _Promise(number, attempt, agreed)
            attempt += 1

    def _verdict(self, promise: _Promise, notes: Notes) -> bytes:
        promises = notes.add(promise.key("promises"), 0)
        verdict = _SAVE if promises == self._world_size else _MISSED
        return notes.compare_set(promise.key("verdict"), "", verdict)


def _lead_steps(step_time_s: float | None, attempt: int) -> int:
    steps = math.ceil(LOOK_AHEAD_S / step_time_s) if step_time_s else 0
    return int(max(_LOOK_AHEAD_STEPS_MIN, steps) << min(attempt, _DOUBLINGS_MAX))


def _key(number: int, attempt: int, name: str) -> str:
    return f"holdfast/save/{number}/{attempt}/{name}"
