"""Who gives this process its rounds: a Holdfast launcher, or nobody but the process's own surroundings."""

import logging
import threading
from typing import Protocol

from holdfast.api.checkpoint import Standing
from holdfast.api.control import Assignment, Attached, FromWorker, RoundEnded, ToWorker
from holdfast.api.errors import Unavailable
from holdfast.api.membership import SaveWanted, Verified
from holdfast.trainer.control import Control, ControlClosed
from holdfast.trainer.stay import Stay

logger = logging.getLogger(__name__)

PATIENCE_S = 300.0
"""How long a process whose collective failed waits for its round to be ended, before it gives up and fails.
Long against any decision of the watchdog (seconds), also over a restart of it; short against a human."""


class Host(Protocol):
    """Assigns rounds, ends them, and is told what becomes of them."""

    def next_assignment(self) -> Assignment:
        """Wait for a part in a round. Raises Unavailable when none can come any more."""
        ...

    def attend(self, stay: Stay | None) -> None:
        """`stay` is what this process lives now, and is to be ended with its round; None: it lives none."""
        ...

    def say(self, message: FromWorker) -> None:
        """Tell the launcher; any thread. Never raises: training goes on when nobody listens."""
        ...

    def can_heal(self) -> bool:
        """Whether a round broken by a peer will be followed by another one for this process."""
        ...


class Alone:
    """Plain python or stock torchrun: one round, given by the environment, ended by its training function."""

    def __init__(self, assignment: Assignment) -> None:
        self._assignment = assignment

    def next_assignment(self) -> Assignment:
        return self._assignment

    def attend(self, stay: Stay | None) -> None:
        pass

    def say(self, message: FromWorker) -> None:
        pass

    def can_heal(self) -> bool:
        return False


class Launcher:
    """The launcher behind a control socket. `take` and `lose` are the side thread's, the rest anybody's."""

    def __init__(self, control: Control, *, pid: int) -> None:
        self._control = control
        self._changed = threading.Condition()
        self._assignment: Assignment | None = None
        self._ended_round = -1
        self._end_reason = ""
        self._stay: Stay | None = None
        self._wanted: SaveWanted | None = None
        self._verified: Verified | None = None
        self._lost: str | None = None
        self.say(Attached(pid=pid))

    def next_assignment(self) -> Assignment:
        with self._changed:
            while self._assignment is None:
                if self._lost is not None:
                    raise Unavailable(f"no further round will come: {self._lost}")
                self._changed.wait()
            assignment, self._assignment = self._assignment, None
            return assignment

    def attend(self, stay: Stay | None) -> None:
        with self._changed:
            self._stay = stay
            self._end_what_is_over()
            self._pass_on()

    def say(self, message: FromWorker) -> None:
        try:
            self._control.send(message)
        except ControlClosed as error:
            logger.warning("launcher does not listen message=%s error=%s", type(message).__name__, error)

    def can_heal(self) -> bool:
        return self._lost is None

    def take(self, message: ToWorker) -> None:
        """Act on what the launcher says. An assignment to a newer round ends the one lived now."""
        with self._changed:
            match message:
                case Assignment():
                    self._assignment = message
                    self._note_end(message.round - 1, f"round {message.round} follows: {message.reason}")
                case RoundEnded():
                    self._note_end(message.round, message.reason)
                case SaveWanted():
                    self._wanted = message
                    self._pass_on()
                case Verified():
                    self._verified = message
                    self._pass_on()
            self._end_what_is_over()
            self._changed.notify_all()

    def lose(self, why: str) -> None:
        """The launcher is gone. The round goes on; what waits for the launcher does not."""
        with self._changed:
            self._lost = why
            self._changed.notify_all()

    def stay(self) -> Stay | None:
        return self._stay

    def _note_end(self, round: int, reason: str) -> None:
        if round > self._ended_round:
            self._ended_round, self._end_reason = round, reason

    def _end_what_is_over(self) -> None:
        if self._stay is not None and self._stay.assignment.round <= self._ended_round:
            self._stay.end(self._end_reason)

    def _pass_on(self) -> None:
        """What is said of a round may come before it is entered here."""
        stay, wanted, verified = self._stay, self._wanted, self._verified
        if stay is not None and wanted is not None and stay.assignment.round == wanted.round:
            stay.saves.want(wanted.number)
        if stay is not None and verified is not None and stay.assignment.round == verified.round:
            stay.standing = Standing(verified.step, verified.unhealthy_from)
