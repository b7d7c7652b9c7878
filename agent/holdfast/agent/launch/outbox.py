"""What the watchdog must know of the current round, kept so that it can be told again after a reconnect.

Pure. Messages are idempotent by round, so everything kept is repeated after every join. Memory is bounded: the
newest message of each kind is kept per rank, and a newer round empties the box.
"""

from dataclasses import dataclass

import msgspec

from holdfast.api.membership import (
    CheckpointCommitted,
    CollectiveFailed,
    FromLauncher,
    Restored,
    RoundEntered,
    WorkerExited,
    WorkersFinished,
)

Lasting = RoundEntered | WorkerExited | CollectiveFailed | WorkersFinished | CheckpointCommitted | Restored
_LASTING = (RoundEntered, WorkerExited, CollectiveFailed, WorkersFinished, CheckpointCommitted, Restored)


@dataclass(frozen=True, slots=True)
class _Kept:
    message: Lasting
    at: float


class Outbox:
    """Times are seconds on the launcher's monotonic clock."""

    def __init__(self) -> None:
        self._kept: dict[tuple[type[Lasting], int], _Kept] = {}
        self._round = -1

    def keep(self, message: FromLauncher, now: float) -> None:
        """Keep `message` if it is a fact about the newest round; others need no repetition."""
        if not isinstance(message, _LASTING):
            return
        self.advance(message.round)
        if message.round == self._round:
            rank = message.rank if isinstance(message, WorkerExited | CollectiveFailed | Restored) else -1
            self._kept[type(message), rank] = _Kept(message, now)

    def advance(self, round_: int) -> None:
        """A newer round is shown: what was kept of older ones cannot change anything any more."""
        if round_ > self._round:
            self._round = round_
            self._kept.clear()

    def messages(self, now: float) -> list[Lasting]:
        """What is kept, oldest first, with ages as of `now`."""
        return [_aged(kept, now) for kept in sorted(self._kept.values(), key=lambda kept: kept.at)]


def _aged(kept: _Kept, now: float) -> Lasting:
    message = kept.message
    if isinstance(message, WorkerExited | CollectiveFailed):
        return msgspec.structs.replace(message, age_s=message.age_s + max(0.0, now - kept.at))
    return message
