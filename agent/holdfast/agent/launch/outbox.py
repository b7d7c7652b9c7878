"""What the watchdog must know of the current round, kept so that it can be told again after a reconnect.

Pure. Messages are idempotent by round, so everything kept is repeated after every join. Memory is bounded: the
newest message of each kind is kept per rank, the newest commit that was asked for beside the newest of all, and a
newer round empties the box. A departure and the newest answer to a self-test are of no round and stay. What
workers wrote waits here only while there is nobody to send it to. What scripts logged does as well, and is told
again from shortly before the connection was lost: a watchdog that died had it in memory alone.
"""

from collections import deque
from operator import itemgetter

import msgspec

from holdfast.api import membership
from holdfast.api.membership import CheckpointCommitted, CollectiveFailed, Departing, Restored, WorkerExited
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.selftest import Tested
from holdfast.api.workeroutput import WorkerOutput

Lasting = (
    membership.RoundEntered
    | membership.GroupReady
    | membership.TrainingBegan
    | membership.ProcessesSpawned
    | membership.WorkersFinished
    | membership.CheckpointsStored
    | membership.RunDescribed
    | CheckpointCommitted
    | CollectiveFailed
    | Restored
    | WorkerExited
)
_MEMBER, _ANSWER = -1, -2  # places that are no rank's
_OUTPUTS_MAX = 64  # 1 MiB
_SCALARS_MAX = 64  # messages, 3 MiB: a minute of one rank
SCALARS_AGAIN_S = 5.0  # whoever publishes fetches them once a second, and may be late


class Outbox:
    """Times are seconds on the launcher's monotonic clock."""

    def __init__(self) -> None:
        self._kept: dict[tuple[type[Lasting], int], tuple[Lasting, float]] = {}
        self._departing: tuple[Departing, float] | None = None
        self._tested: Tested | None = None
        self._round = -1
        self._outputs: deque[WorkerOutput] = deque(maxlen=_OUTPUTS_MAX)
        self._scalars: deque[tuple[float, ScalarsLogged]] = deque(maxlen=_SCALARS_MAX)

    def hold(self, output: WorkerOutput) -> None:
        """The watchdog is away: `output` is for the next connection."""
        self._outputs.append(output)

    def held(self) -> list[WorkerOutput]:
        """What was held, oldest first. It is not held any more."""
        held = list(self._outputs)
        self._outputs.clear()
        return held

    def logged_since(self, at: float) -> list[ScalarsLogged]:
        """What scripts logged since shortly before `at`, when the connection was lost; oldest first."""
        return [logged for said_at, logged in self._scalars if said_at >= at - SCALARS_AGAIN_S]

    def keep(self, message: membership.FromLauncher, now: float) -> None:
        """Keep `message` if it is a fact about the newest round, or what is of no round: a departure, an answer.

        Others need no repetition.
        """
        if isinstance(message, Departing):
            self._departing = (message, now)
        if isinstance(message, Tested):
            self._tested = message
        if isinstance(message, ScalarsLogged):
            self._scalars.append((now, message))
        if not isinstance(message, Lasting):
            return
        self.advance(message.round)
        if message.round < self._round:
            return
        # Messages of one kind and place replace each other: of each rank, and an answer apart from what was due.
        place = _MEMBER
        if isinstance(message, WorkerExited | CollectiveFailed | Restored):
            place = message.rank
        elif isinstance(message, CheckpointCommitted) and message.wanted is not None:
            place = _ANSWER
        self._kept[type(message), place] = message, now

    def advance(self, round_: int) -> None:
        """A newer round is shown: what was kept of older ones cannot change anything any more."""
        if round_ > self._round:
            self._round = round_
            self._kept.clear()

    def messages(self, now: float) -> list[Lasting | Tested | Departing]:
        """What is kept, oldest first and a departure last, with ages and the time that is left as of `now`."""
        told: list[Lasting | Tested | Departing] = []
        for message, at in sorted(self._kept.values(), key=itemgetter(1)):
            if isinstance(message, WorkerExited | CollectiveFailed):
                message = msgspec.structs.replace(message, age_s=message.age_s + max(0.0, now - at))
            told.append(message)
        if self._tested is not None:
            told.append(self._tested)
        if self._departing is not None:
            departing, said_at = self._departing
            within_s = max(0.0, departing.within_s - (now - said_at))
            told.append(msgspec.structs.replace(departing, within_s=within_s))
        return told
