"""One process's stay in one round: known to the training thread that lives it and the side thread that ends it.

In it, the watchdog may ask for one more checkpoint: the ranks of the round agree on the step they all save. While
nothing is wanted nothing is said, so that a step costs nothing. Ranks hear of a request at different moments
while they train, and none may save a step that another has passed: all must save the same one. So a request is
settled in attempts, each of which lives in three keys of the round's store:

    step      the step to save, some way ahead of the rank that came first
    promises  how many ranks promised to save it; a rank that has passed it promises nothing
    verdict   given by the first rank to complete that step: SAVE when every rank had promised, otherwise MISSED

A rank that promised obeys the verdict. It is one word for all, and SAVE only when all wait for it, so either every
rank saves that step or none does. After MISSED, and when the step has been passed already, a rank turns to the
next attempt, which looks further ahead.
"""

import logging
import math
import threading
from collections.abc import Callable
from dataclasses import dataclass

from holdfast.api.checkpoint import Standing
from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput, Problem
from holdfast.trainer.across import Across
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.profiling import Profiling
from holdfast.trainer.torchgroups import Store

logger = logging.getLogger(__name__)

LOOK_AHEAD_S = 1.0
"""A launcher passes a request to all its workers within milliseconds; this leaves room for a slow connection."""
# Ranks in lockstep can be one step boundary apart, and each has to hear before the last.
_LOOK_AHEAD_STEPS_MIN = 2
_DOUBLINGS_MAX = 16


class RoundEnded(BaseException):
    """The round this process trains in is over; leave the training function.

    Like KeyboardInterrupt it is no `Exception`: a training loop that survives bad batches with
    `except Exception` must not survive the end of its round, or its process has to be killed to be freed.
    `Run.enter` catches it. Code in between may clean up in `finally`, and should not catch it.
    """

    def __init__(self, round: int, reason: str) -> None:
        super().__init__(f"round {round} ended: {reason}")
        self.round = round
        self.reason = reason


class Stay:
    """`end` may be called from any thread, and the first reason counts.

    `standing` is what the watchdog has said of the history that goes on. A replica group may go on in a newer
    round without leaving anything: `later` is its part in it, until the training thread has taken it up, and
    `across` what connects it to the other groups.
    """

    def __init__(self, assignment: Assignment, group: RoundGroup) -> None:
        self.assignment = assignment
        self.group = group
        self.saves = WantedSave(assignment.inside().world_size)
        self.standing = Standing(assignment.restore.verified, assignment.restore.unhealthy_from)
        self.restored_step: int | None = None
        self.profiling: Profiling | None = None  # set by the side thread, else the training thread's
        self.later: Assignment | None = None
        self.across: Across | None = None
        self._reason: str | None = None
        self._over = threading.Event()
        self._news = threading.Condition()

    def goes_on_from(self, step: int | None) -> None:
        """`step` was restored, None: nothing. What came after it is trained anew, whatever was known of it."""
        self.restored_step = step
        verified, unhealthy_from = self.standing.verified, self.standing.unhealthy_from
        self.standing = Standing(
            verified=None if verified is None or step is None else min(verified, step),
            unhealthy_from=None if unhealthy_from is None or (step or 0) < unhealthy_from else unhealthy_from,
        )

    @property
    def is_over(self) -> bool:
        return self._reason is not None

    def end(self, reason: str) -> None:
        if self._reason is None:
            self._reason = reason
        self._over.set()
        with self._news:
            self._news.notify_all()

    @property
    def newest(self) -> Assignment:
        """The newest part in a round that this process is known to have."""
        return self.later or self.assignment

    def go_on(self, later: Assignment) -> None:
        """The group goes on as `later`. What waits for groups that cannot answer in the older round is freed.
        What is no newer changes nothing.
        """
        with self._news:
            if later.round <= self.newest.round:
                return
            self.later = later
            self._news.notify_all()
        self.tend()

    def tend(self) -> None:
        """Free the training thread where it waits for other groups in vain. Repeatable; for the side thread."""
        across, later = self.across, self.later
        if across is not None and later is not None and later.round > across.round:
            across.overtaken_by(later)

    def taken_up(self, part: Assignment) -> None:
        """The training thread is in the round of `part` from here on."""
        with self._news:
            self.assignment = part
            if self.later is not None and self.later.round <= part.round:
                self.later = None

    def await_newest(self, is_meant: Callable[[Assignment], bool], timeout_s: float | None = None) -> bool:
        """Wait for a part that is meant; False: none came in time. Raises RoundEnded when the round is over."""
        with self._news:
            found = self._news.wait_for(lambda: self.is_over or is_meant(self.newest), timeout_s)
        self.check()
        return found

    def completed(self) -> None:
        """A step is complete. Raises RoundEnded when the round is over, and InvalidInput when it has replica
        groups and the script knows nothing of them: each would train a model of its own.
        """
        if self.across is None and self.assignment.group is not None:
            fix = "average the gradients with holdfast.trainer.Replicas, or leave that field out of the job"
            size = self.assignment.group.size // self.assignment.local_size
            raise InvalidInput(Problem("parallelism.replicaGroupNodes", size, fix))
        if self.profiling is not None and self.profiling.completed():
            self.profiling = None
        self.check()

    def check(self) -> None:
        """Raises RoundEnded when the round is over."""
        if self._reason is not None:
            raise RoundEnded(self.assignment.round, self._reason)

    def await_end(self, timeout_s: float) -> bool:
        """Wait until the round is over; False when it was not within `timeout_s`."""
        return self._over.wait(timeout_s)


@dataclass(frozen=True, slots=True)
class _Promise:
    number: int
    attempt: int
    step: int


class WantedSave:
    """One rank's side of one more checkpoint. `want` belongs to the side thread, all else to the training thread.

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

    def due(self, step: int, store: Store | None, step_time_s: float | None) -> int | None:
        """This rank has completed `step`: the request that a save of it answers, or None.

        To be asked after every step while `newest` differs from `answered`. `store` is the round's (None when
        this is the only rank). Raises what the store raises.
        """
        if store is None:
            self.answered = self.newest
            return self.answered
        while True:
            # A promise is kept to its end, also when a newer request has come: the others rely on it.
            promise = self._promise = self._promise or self._agree(step, store, step_time_s)
            if step < promise.step:
                return None
            self._promise = None
            key = _key(promise.number, promise.attempt)
            everyone = store.add(f"{key}/promises", 0) == self._world_size
            if store.compare_set(f"{key}/verdict", "", "save" if everyone else "missed") == b"save":
                self.answered = promise.number
                return self.answered
            self._tried = (promise.number, promise.attempt + 1)

    def _agree(self, step: int, store: Store, step_time_s: float | None) -> _Promise:
        """Promise to save the first attempt's step that is not passed yet."""
        number = self.newest
        attempt = self._tried[1] if self._tried[0] == number else 0
        ahead = max(_LOOK_AHEAD_STEPS_MIN, math.ceil(LOOK_AHEAD_S / step_time_s) if step_time_s else 0)
        while True:
            proposal = step + (ahead << min(attempt, _DOUBLINGS_MAX))
            key = _key(number, attempt)
            agreed = int(store.compare_set(f"{key}/step", "", str(proposal)))
            if agreed >= step:
                store.add(f"{key}/promises", 1)
                return _Promise(number, attempt, agreed)
            attempt += 1


def _key(number: int, attempt: int) -> str:
    return f"holdfast/save/{number}/{attempt}"
