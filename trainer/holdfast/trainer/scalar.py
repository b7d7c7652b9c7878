"""Turning what a training loop hands over (a float, a tensor) into numbers to publish, without waiting.

A number on the CPU is read at once. A number on an accelerator is copied into pinned host memory behind the
work already queued, and read when a later step finds the copy done: it is published one step late, and the
training loop never waits for the device.
"""

import math
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    import torch


class Number(Protocol):
    """A float, or a tensor of one element."""

    def __float__(self) -> float: ...


class Scalar:
    """The newest known value of one published number; NaN while Unknown."""

    def __init__(self) -> None:
        self._known = math.nan
        self._copy: _DeviceCopy | None = None

    def take(self, value: "Number | None") -> float:
        """Hand over this step's value; returns the newest value known on the host. Never synchronises."""
        if value is None:
            return math.nan
        if type(value) is float:
            return _told(value)
        if getattr(value, "is_cuda", False):
            return self._take_device(value)  # type: ignore[arg-type]  # is_cuda: it is a tensor
        item = getattr(value, "item", None)
        return _told(float(value) if item is None else float(item()))

    def forget(self) -> None:
        """What was handed over in the round before says nothing about this one."""
        self._known = math.nan
        if self._copy is not None:
            self._copy.discard()

    def _take_device(self, value: "torch.Tensor") -> float:
        if self._copy is None:
            self._copy = _DeviceCopy()
        arrived = self._copy.arrived()
        if arrived is not None:
            self._known = _told(arrived)
        self._copy.start(value)
        return self._known


def _told(value: float) -> float:
    """The value as it is published. In the record NaN means "not measured": what was, and is no number, is inf."""
    return value if value == value else math.inf


class _DeviceCopy:
    """One number on its way from the device. A new copy starts only when the one before has arrived."""

    def __init__(self) -> None:
        import torch

        self._host = torch.empty((), dtype=torch.float64, pin_memory=True)
        self._event = torch.cuda.Event()  # type: ignore[no-untyped-call]
        self._under_way = False
        self._wanted = False

    def start(self, value: "torch.Tensor") -> None:
        if self._under_way:
            return
        self._host.copy_(value.detach().reshape(()), non_blocking=True)
        self._event.record()
        self._under_way = self._wanted = True

    def arrived(self) -> float | None:
        """The value whose copy has finished since the last call; None when there is none."""
        if not self._under_way or not self._event.query():  # type: ignore[no-untyped-call]
            return None
        self._under_way = False
        return float(self._host) if self._wanted else None

    def discard(self) -> None:
        self._wanted = False
