"""Leaving out a step whose loss or gradient norm is not finite, on all ranks alike.

Parameters that a NaN went into are lost; a step that is left out before the optimizer runs costs only its batch.
The gradients' all-reduce carries one rank's NaN to all, but not every rank's loss shows it, so the ranks agree:
one flag is reduced over the round's group, and only when the script asks.
"""

from collections import deque
from typing import TYPE_CHECKING, Final

import torch
import torch.distributed as dist

from holdfast.api.rankrecord import UNKNOWN_INT, Odd, odd
from holdfast.trainer.record import RankRecord

if TYPE_CHECKING:
    from holdfast.trainer.hostcopy import Number

SKIPS_IN_A_ROW: Final = 8
"""So many skipped steps one after the other are no odd batch: they count as not finite from the first of them on,
so that the job goes back, and in the end a human is asked."""
_REMEMBERED: Final = 64  # values of a device are told a few steps late


class Skips:
    """The steps that one rank left out in one round. `newest` is the last one, `UNKNOWN_INT` before the first."""

    def __init__(self, record: RankRecord) -> None:
        self._record = record
        self._steps: deque[int] = deque(maxlen=_REMEMBERED)
        self._row: list[int] = []
        self.newest = UNKNOWN_INT

    def __contains__(self, step: int) -> bool:
        return step in self._steps

    def agree(self, step: int, loss: "Number | None", grad_norm: "Number | None") -> bool:
        """Whether `step` is left out, the same on every rank. Collective; waits for the device."""
        own = (_odd(loss), _odd(grad_norm))
        if not _any_rank(any(own), loss, grad_norm):
            self._row.clear()
            return False
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
        self.newest = step


def _odd(value: "Number | None") -> Odd:
    return Odd.FINITE if value is None else odd(float(value))


def _any_rank(mine: bool, *values: "Number | None") -> bool:
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return mine
    device = next((each.device for each in values if isinstance(each, torch.Tensor) and each.is_cuda), None)
    if device is None:
        on_device = torch.cuda.is_available() and dist.get_backend() == "nccl"
        device = torch.device("cuda", torch.cuda.current_device()) if on_device else torch.device("cpu")
    flag = torch.tensor(int(mine), dtype=torch.int32, device=device)
    dist.all_reduce(flag, op=dist.ReduceOp.MAX)
    return bool(flag.item())
