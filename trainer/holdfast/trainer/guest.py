"""A run inside of a framework's own loop: `joined()`, for the callbacks of frameworks that train by themselves.

There nobody hands a training function to `Run.enter`, and the process group is the framework's. Such a process
takes part in the round that it was started for: its steps are seen, saves are asked of it, its values are judged.
It cannot go on to another round, since what the framework has built cannot be taken apart, and says so: the next
round has a new process in its place, which the warm parent makes quickly.
"""

import contextlib
import logging
import os
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Final

import torch.distributed as dist

from holdfast.api.control import Assignment, Entered, Entering, Finished, Reenters
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Reentry
from holdfast.trainer import host
from holdfast.trainer.frameworks import Reentering
from holdfast.trainer.group import RoundGroup
from holdfast.trainer.run import Run
from holdfast.trainer.stay import RoundEnded
from holdfast.trainer.torchgroups import default_store

logger = logging.getLogger(__name__)

_BORROWED_TIMEOUT_S: Final = 0.0  # of a group that is not ours to form: never used


def joined() -> Run:
    """The run of this process, for a framework's callback. To be called once the framework has made its process
    group, or needs none; every further call returns the same one.

    Inside of `Run.enter` it is that run. Elsewhere it is a `GuestRun` of this process, under a Holdfast launcher,
    under stock torchrun, or started by hand.

    Raises InvalidInput and Unavailable as `Run` does.
    """
    entered = Run.entered
    if entered is not None:
        return entered
    if _Guest.run is None or _Guest.pid != os.getpid():
        _Guest.run, _Guest.pid = GuestRun(), os.getpid()
    return _Guest.run


class _Guest:
    """The one guest of this process; a forked child (a data loader's) is none."""

    run: "GuestRun | None" = None
    pid = -1


class GuestRun(Run):
    """A run whose rounds are one: it has joined it when the constructor returns, and `leave` ends it.

    An exception that nobody catches is looked at before the process ends: where a peer broke a collective, that
    is told to the launcher, and the process waits to be replaced, so that the one at fault is heard first.
    """

    def __init__(self, environment: Mapping[str, str] | None = None) -> None:
        super().__init__(environment=environment)
        self._reentering = Reentering(Reenters(Reentry.NEVER, "its framework keeps the process group it has made"))
        self._sets_environment = False  # the launcher started this process with the round's
        self._side = contextlib.ExitStack()
        self._side.enter_context(host.side_thread(self._beat, self._launcher))
        assignment = self._host.next_assignment()
        self._stay = self._begin(assignment)
        self._stay.group.form(self._stay.check)
        self._host.say(Entered(round=assignment.round))
        self._reentering.say(self.say)
        self._hook_before = sys.excepthook
        sys.excepthook = self._uncaught

    def training_begins(self) -> None:
        """A framework's own function trains from here on, and `leave` follows when it returns: a process that ends
        before that has left training, whatever its exit code. Not for a loop that a script may break off.
        """
        self._host.say(Entering(round=self.stay.assignment.round))

    def leave(self) -> None:
        """Training has ended well on this rank, and the process is about to end. A loop that begins after all goes
        on in the same round.
        """
        stay = self.stay
        self._end_training()
        self._record.phase(Phase.IDLE)
        self.log.send(stay, self._host.say, rest=True)
        self._host.say(Finished(round=stay.assignment.round, nonfinite=self._last_word))

    def failed(self, error: BaseException) -> None:
        """`error` is about to leave the training loop. An error of the script's own is left to the caller. After a
        peer's fault this process has nothing more to do: it says so and waits until the launcher replaces it.

        Raises RoundEnded when the round is over before that.
        """
        if not isinstance(error, Exception):
            return
        try:
            self._survive(self.stay, error)
        except Exception as own:
            if own is not error:
                raise
        else:
            self.stay.check()

    def _uncaught(self, kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        self._hook_before(kind, error, trace)
        with contextlib.suppress(RoundEnded):
            self.failed(error)

    def _group_of(self, part: Assignment) -> RoundGroup:
        return BorrowedGroup(part)


class BorrowedGroup(RoundGroup):
    """The default process group as a framework has made it: looked at, and left alone."""

    def __init__(self, assignment: Assignment) -> None:
        super().__init__(assignment, backend="", timeout_s=_BORROWED_TIMEOUT_S)

    def form(self, check: Callable[[], None]) -> None:
        if self._assignment.world_size > 1 and dist.is_initialized():
            self.store = default_store()
            self._default = dist.group.WORLD

    def abort(self) -> None:
        """The launcher ends the process."""

    def drop(self) -> None:
        """The process ends by itself."""

    def close(self) -> None:
        """It is the framework's."""
