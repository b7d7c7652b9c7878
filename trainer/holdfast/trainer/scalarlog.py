"""`run.log`: numbers of the script's own, sent in batches by the side thread. Training waits for nobody."""

import logging
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

from holdfast.api.control import Assignment
from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.api.scalars import NAME, NAME_IN_WORDS, NAMES_MAX, SENT_EVERY_S, TAKEN, VALUES_PER_S, ScalarsLogged
from holdfast.trainer.hostcopy import Number, Scalar
from holdfast.trainer.record import RankRecord
from holdfast.trainer.stay import Stay

logger = logging.getLogger(__name__)

_STEP_MAX: Final = 2**53 - 1


class ScalarLog:
    """What `Run.log` is. Called on the training thread; `send` is called by the side thread as well."""

    def __init__(self) -> None:
        self._known: dict[str, Scalar] = {}
        self._logged: deque[tuple[str, int, float]] = deque()
        self._most = 0  # values that may wait at once; 0: this rank is not shown
        self._left_out = 0
        self._has_warned = False
        self._assignment: Assignment | None = None
        self._record: RankRecord | None = None
        self._sent_at = float("-inf")
        self._sending = threading.Lock()

    def __call__(self, step: int | None = None, /, **values: Number) -> None:
        """Log `values` of `step` (default: the step last given to `run.step`; 0 before the first).

        `run.log(step, accuracy=0.9, **{"eval/loss": loss})`. Any rank may call it; rank 0's is shown, and those of
        more ranks where the job says so (`reporting.ranks`). A value is a float or a tensor of one element; one on
        an accelerator is copied behind the work that is queued and read later, and nothing waits for the device.
        Where a host is further ahead of its device than `hostcopy.SLOTS` steps, values are left out. So are those
        above `VALUES_PER_S` values a second; the log says so once.

        Raises InvalidInput for a name that is not allowed, more than `NAMES_MAX` names, a value that is no number,
        and a step that is no whole number of at least 0.
        """
        record = self._record
        if step is None:
            step = 0 if record is None else record.last_step or 0
        elif type(step) is not int or not 0 <= step <= _STEP_MAX:
            raise InvalidInput(Problem("step", step, "give a whole number of at least 0, before the values"))
        for name, value in values.items():
            scalar = self._known.get(name) or self._new(name)
            try:
                if value is None:
                    raise TypeError("nothing was given")
                scalar.take(step, value)
            except (InvalidInput, TypeError, ValueError, RuntimeError) as error:
                raise InvalidInput(Problem(name, value, "log a float, or a tensor of one element")) from error

    def begin(self, assignment: Assignment, record: RankRecord) -> None:
        """A round begins: what is on its way from the device is of the one before, and is left out."""
        self._assignment, self._record = assignment, record
        for scalar in self._known.values():
            scalar.forget()
        shown = assignment.ranks_shown
        self._most = max(1, VALUES_PER_S // shown) if assignment.rank < shown else 0

    def completed(self) -> None:
        """A step is complete: what has come from the device is kept. A name may be logged a thousand steps apart,
        and its value is published with its step only if it is not told much later.
        """
        for scalar in tuple(self._known.values()):  # another thread of the script may log a new name meanwhile
            scalar.collect()

    def finish(self) -> None:
        """No further step comes: wait for what is on its way from the device."""
        step = UNKNOWN_INT if self._record is None else self._record.last_step
        for scalar in self._known.values():
            scalar.finish(step or 0)

    def send(self, stay: Stay | None, say: Callable[[ScalarsLogged], None], *, rest: bool = False) -> None:
        """Say what was logged in `stay`, once in `SENT_EVERY_S`; or the `rest`, before the next one begins."""
        with self._sending:
            now = time.monotonic()
            if stay is not None and self._logged and (rest or now >= self._sent_at + SENT_EVERY_S):
                self._sent_at = now
                say(self._take(stay))

    def _take(self, stay: Stay) -> ScalarsLogged:
        series: dict[str, list[tuple[int, float]]] = {}
        for _ in range(len(self._logged)):
            name, step, value = self._logged.popleft()
            series.setdefault(name, []).append((step, value))
        left_out, self._left_out = self._left_out, 0
        if left_out and not self._has_warned:
            self._has_warned = True
            logger.warning("values are left out, too many are logged count=%d most_per_s=%d", left_out, self._most)
        part = stay.assignment
        told = {name: tuple(points) for name, points in series.items()}
        return ScalarsLogged(part.round, part.rank, told, since=stay.restored_step, left_out=left_out)

    def _new(self, name: str) -> Scalar:
        if not NAME.fullmatch(name):
            raise InvalidInput(Problem("name", name, f"use {NAME_IN_WORDS}"))
        if name in TAKEN:
            fix = "choose another name; a step is given first and without a name: run.log(step, loss=loss)"
            raise InvalidInput(Problem("name", name, fix))
        if len(self._known) >= NAMES_MAX:
            fix = f"log at most {NAMES_MAX} names; put what varies into the value, not into the name"
            raise InvalidInput(Problem("name", name, fix))
        # A value that is not finite is no fault here: only those of `run.step` are judged.
        scalar = self._known[name] = Scalar(lambda step, value: None)
        scalar.arrived = partial(self._arrived, name)
        return scalar

    def _arrived(self, name: str, step: int, value: float) -> None:
        if len(self._logged) < self._most:
            self._logged.append((name, step, value))
        elif self._most:
            self._left_out += 1
