"""What the loop tells of its loss and gradient norm in one round, and which steps all ranks leave out for them."""

import logging
import math
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Final

import torch
import torch.distributed as dist

from holdfast.api.rankrecord import Odd, odd
from holdfast.api.telemetry import NonFinite
from holdfast.trainer.gradscaling import SCALED_IN_A_ROW
from holdfast.trainer.hostcopy import Number, Scalar, number_of
from holdfast.trainer.record import RankRecord
from holdfast.trainer.spikeguard import SpikeGuard

logger = logging.getLogger(__name__)

SKIPS_IN_A_ROW: Final = 8
"""So many skipped steps one after the other are no odd batch: they count as not finite from the first of them on,
so that the job goes back, and in the end a human is asked."""
# What one rank says of a step, the worst last.
_GOOD, _SPIKE, _NOT_FINITE = 0, 1, 2
_REMEMBERED: Final = 64  # values of a device are told a few steps late


class Skips:
    """The steps whose loss or gradient norm is not finite and which are left out in one round, on all ranks alike.

    Parameters that a NaN went into are lost; a step that is left out before the optimizer runs costs only its
    batch. The gradients' all-reduce carries one rank's NaN to all, but not every rank's loss shows it, so the
    ranks agree: one flag is reduced over the round's group, and only when the script asks.
    """

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._steps: deque[int] = deque(maxlen=_REMEMBERED)
        self._row: list[int] = []

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    def agree(
        self, step: int, loss: Number | None, grad_norm: Number | None, guard: SpikeGuard | None = None
    ) -> bool:
        """Whether `step` is left out, the same on every rank. Collective; waits for the device."""
        own = (_odd(loss), _odd(grad_norm))
        norm = None if guard is None or grad_norm is None or any(own) else float(grad_norm)
        spikes = guard is not None and norm is not None and guard.is_spike(norm)
        worst = _worst(_NOT_FINITE if any(own) else _SPIKE if spikes else _GOOD, loss, grad_norm)
        if worst != _NOT_FINITE:
            self._row.clear()
            if guard is not None and norm is not None:
                guard.learn(norm, skipped=worst == _SPIKE)
            if worst == _SPIKE:
                self.left_out(step)
                logger.warning("a step is left out for its gradient norm step=%d grad_norm=%s", step, norm)
            return worst == _SPIKE
        self.left_out(step)
        self._record.skipped(step, *own)
        self._row.append(step)
        if len(self._row) == SKIPS_IN_A_ROW:
            self._record.not_finite(self._row[0], loss=own[0], grad_norm=own[1])
        del self._row[SKIPS_IN_A_ROW:]
        return True

    def left_out(self, step: int) -> None:
        """The optimizer did not run at `step`: what its loss and gradient norm are does no harm."""
        self._steps.append(step)


def _odd(value: Number | None) -> Odd:
    return Odd.FINITE if value is None else odd(number_of(value))


def _worst(mine: int, *values: Number | None) -> int:
    """Of what all ranks say."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return mine
    device = next((each.device for each in values if isinstance(each, torch.Tensor) and each.is_cuda), None)
    if device is None:
        on_device = torch.cuda.is_available() and dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu")
    flag = torch.tensor(mine, dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return int(flag.item())


class StepValues:
    """One rank's values of one round. What is not finite is published, unless the step was left out."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self.loss = Scalar(partial(self._not_finite, "loss"))
        self.grad_norm = Scalar(partial(self._not_finite, "grad_norm"))
        self.skips = Skips(record)
        self._scaled: deque[tuple[int, Callable[[], bool]]] = deque(maxlen=_REMEMBERED)
        self._in_a_row = {"loss": (0, 0), "grad_norm": (0, 0)}  # up to which step, and how many

    def scaled(self, step: int, is_left_out: Callable[[], bool]) -> None:
        """A gradient scaler stepped the optimizer at `step`, or did not: `is_left_out` is asked where need be."""
        self._scaled.append((step, is_left_out))

    def take(self, step: int, loss: Number | None, grad_norm: Number | None) -> tuple[float | None, float | None]:
        """Of `step`; what of both is known now, of a step before perhaps."""
        return self.loss.take(step, loss), self.grad_norm.take(step, grad_norm)

    def settle(self, *, parameters_finite: bool | None = None) -> NonFinite | None:
        """Wait for what is on its way from the device; what of all was not finite, the parameters after the newest
        step among it.
        """
        step = self._record.last_step
        if step is None:
            return None
        self.loss.finish(step)
        self.grad_norm.finish(step)
        if parameters_finite is False and not self._record.was_unhealthy:
            self._record.not_finite(step, parameters=True)
        return self._record.nonfinite()

    def is_finite(self) -> bool | None:
        """Whether all were, those of the newest step among them; None: they were not told, or are on their way.
        What was left out did no harm.
        """
        step = self._record.last_step
        if step is None or self._record.was_unhealthy:
            return None if step is None else False
        if step in self.skips or self._is_scaled(step):
            return True
        told = [value for each in (self.loss, self.grad_norm) if (value := each.newest(step)) is not None]
        return all(map(math.isfinite, told)) if told else None

    def _not_finite(self, name: str, step: int, value: float) -> None:
        if step in self.skips:
            return
        if self._is_usual(name, step):
            if name == "loss":  # a scale does not change it: it is told, and does no harm
                self._record.skipped(step, odd(value), Odd.FINITE)
            return
        if name == "loss":
            self._record.not_finite(step, loss=odd(value))
        else:
            self._record.not_finite(step, grad_norm=odd(value))

    def _is_scaled(self, step: int) -> bool:
        """Whether a gradient scaler left `step` out."""
        return any(each == step and is_left_out() for each, is_left_out in self._scaled)

    def _is_usual(self, name: str, step: int) -> bool:
        """Whether a value of `step` that is not finite is a scaler's overflow. A loss is that not for long."""
        last, count = self._in_a_row[name]
        self._in_a_row[name] = step, (count + 1 if step == last + 1 else 1)
        limit = SCALED_IN_A_ROW if name == "grad_norm" else SKIPS_IN_A_ROW
        return self._in_a_row[name][1] < limit and self._is_scaled(step)
