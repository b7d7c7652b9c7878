"""What this rank suffers because a drill asks for it; see `holdfast.api.disturbance`."""

import errno
import logging
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from holdfast.api.disturbance import Ailment, Disturbance, take_disturbance
from holdfast.trainer.scalar import Number

logger = logging.getLogger(__name__)
Batch = TypeVar("Batch")


class Drill:
    """One rank's stay in one round. `step` and `batch` belong to the training thread, `write` to any."""

    def __init__(self, run_directory: Path, rank: int, *, break_connections: Callable[[], object]) -> None:
        self._run_directory = run_directory
        self._rank = rank
        self._break_connections = break_connections
        self._suffered: dict[Ailment, Disturbance] = {}
        self._left: dict[Ailment, int] = {}
        self._last_batch: object = None
        self._saves = False

    def step(
        self, step: int, loss: Number | None, grad_norm: Number | None
    ) -> tuple[Number | None, Number | None]:
        """A step is complete: what is to be published of it. May take its time, or raise."""
        if (slow := self._due(Ailment.SLOW, step)) is not None:
            time.sleep(slow.seconds)
        if self._due(Ailment.BREAK_COLLECTIVE, step) is not None:
            self._break_connections()
        if self._due(Ailment.RAISE, step) is not None:
            raise RuntimeError(f"raised on request after step {step}")
        if loss is not None and (spike := self._due(Ailment.SPIKE, step)) is not None:
            loss = float(loss) * spike.times
        if self._saves and self._take(Ailment.FULL_DISK) is not None:
            self._count_down(Ailment.FULL_DISK)
        return loss, grad_norm

    def batch(self, batch: Batch) -> Batch:
        """The batch that the loop is given in place of this one, which is of the same kind."""
        before, self._last_batch = self._last_batch, batch
        wrong = self._due(Ailment.WRONG_DATA, None)
        return batch if wrong is None or before is None else before  # type: ignore[return-value]

    def saves_here(self) -> None:
        """Checkpoints of this rank are written in this round, so that a disk can be full for it."""
        self._saves = True

    def write(self) -> None:
        """Something of a checkpoint is to be written. Raises OSError while the disk plays full."""
        if self._take(Ailment.FULL_DISK) is not None:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    def _due(self, ailment: Ailment, step: int | None) -> Disturbance | None:
        """What is suffered now; it counts as one of its steps."""
        known = self._take(ailment)
        if known is not None:
            logger.warning("disturbed on request ailment=%s step=%s", ailment, step)
            self._count_down(ailment)
        return known

    def _take(self, ailment: Ailment) -> Disturbance | None:
        wanted = take_disturbance(self._run_directory, ailment, self._rank)
        if wanted is not None:
            self._suffered[ailment], self._left[ailment] = wanted, wanted.steps
        return self._suffered.get(ailment)

    def _count_down(self, ailment: Ailment) -> None:
        if ailment not in self._left:
            return
        self._left[ailment] -= 1
        if self._left[ailment] <= 0:
            del self._left[ailment]
            self._suffered.pop(ailment, None)
