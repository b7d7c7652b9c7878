"""What the watchdog must know of the current round, kept so that it can be told again after a reconnect.

Pure. Messages are idempotent by round, so everything kept is repeated after every join. Memory is bounded: the
newest message of each kind is kept per rank, the newest commit that was asked for beside the newest of all, and a
newer round empties the box. A departure and the newest answer to a self-test are of no round and stay. What
workers wrote waits here only while there is nobody to send it to.
"""

from collections import deque
from dataclasses import dataclass

import msgspec

from holdfast.api.membership import (
    CheckpointCommitted,
    CheckpointsStored,
    CollectiveFailed,
    Departing,
    FromLauncher,
    Restored,
    RoundEntered,
    TrainingBegan,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.selftest import Tested
from holdfast.api.workeroutput import WorkerOutput

Lasting = (
    RoundEntered
    | TrainingBegan
    | WorkerExited
    | CollectiveFailed
    | WorkersFinished
    | CheckpointCommitted
    | CheckpointsStored
    | Restored
)
_LASTING = (
    RoundEntered,
    TrainingBegan,
    WorkerExited,
    CollectiveFailed,
    WorkersFinished,
    CheckpointCommitted,
    CheckpointsStored,
    Restored,
)

_MEMBER, _ANSWER = -1, -2  # places that are no rank's
_OUTPUTS_MAX = 64  # 1 MiB


@dataclass(frozen=True, slots=True)
class _Kept:
    message: Lasting
    at: float


class Outbox:
    """Times are seconds on the launcher's monotonic clock."""

    def __init__(self) -> None:
        self._kept: dict[tuple[type[Lasting], int], _Kept] = {}
        self._departing: tuple[Departing, float] | None = None
        self._tested: Tested | None = None
        self._round = -1
        self._outputs: deque[WorkerOutput] = deque(maxlen=_OUTPUTS_MAX)

    def hold(self, output: WorkerOutput) -> None:
        """The watchdog is away: `output` is for the next connection."""
        self._outputs.append(output)

    def held(self) -> list[WorkerOutput]:
        """What was held, oldest first. It is not held any more."""
        held = list(self._outputs)
        self._outputs.clear()
        return held

    def keep(self, message: FromLauncher, now: float) -> None:
        """Keep `message` if it is a fact about the newest round, or what is of no round: a departure, an answer.

        Others need no repetition.
        """
        if isinstance(message, Departing):
            self._departing = (message, now)
        if isinstance(message, Tested):
            self._tested = message
        if not isinstance(message, _LASTING):
            return
        self.advance(message.round)
        if message.round == self._round:
            self._kept[type(message), _place(message)] = _Kept(message, now)

    def advance(self, round_: int) -> None:
        """A newer round is shown: what was kept of older ones cannot change anything any more."""
        if round_ > self._round:
            self._round = round_
            self._kept.clear()

    def messages(self, now: float) -> list[Lasting | Tested | Departing]:
        """What is kept, oldest first and a departure last, with ages and the time that is left as of `now`."""
        lasting: list[Lasting | Tested] = [
            _aged(kept, now) for kept in sorted(self._kept.values(), key=lambda kept: kept.at)
        ]
        if self._tested is not None:
            lasting.append(self._tested)
        if self._departing is None:
            return [*lasting]
        message, said_at = self._departing
        within_s = max(0.0, message.within_s - (now - said_at))
        return [*lasting, msgspec.structs.replace(message, within_s=within_s)]


def _place(message: Lasting) -> int:
    """Messages of one kind and place replace each other: of each rank, and an answer apart from what was due."""
    if isinstance(message, WorkerExited | CollectiveFailed | Restored):
        return message.rank
    is_answer = isinstance(message, CheckpointCommitted) and message.wanted is not None
    return _ANSWER if is_answer else _MEMBER


def _aged(kept: _Kept, now: float) -> Lasting:
    message = kept.message
    if isinstance(message, WorkerExited | CollectiveFailed):
        return msgspec.structs.replace(message, age_s=message.age_s + max(0.0, now - kept.at))
    return message
