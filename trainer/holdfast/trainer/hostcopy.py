"""What the host hears of an accelerator without waiting for it: numbers it computed, and how long it took.

What a training loop hands over (a float, a tensor) becomes a number to publish. One on the CPU is read at once.
One on an accelerator is copied into pinned host memory behind the work already queued, and read when a later step
finds the copy done: it is published a step late or more, and the training loop never waits for the device. Every
step's number is read: none that is not finite is missed.
"""

import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Final, Protocol

import torch
from torch import Tensor

from holdfast.api.errors import InvalidInput, Problem


class HostCopy:
    """One number of a device on its way to the host, behind the work already queued. Of the CPU it is there."""

    def __init__(self, number: Tensor) -> None:
        """`number` has one element."""
        self._host = number
        self._copied: torch.cuda.Event | None = None
        if number.is_cuda:
            self._host = torch.empty((), dtype=number.dtype, pin_memory=True)
            self._host.copy_(number.reshape(()), non_blocking=True)
            self._copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            self._copied.record(torch.cuda.current_stream(number.device))

    def is_there(self) -> bool:
        return self._copied is None or bool(self._copied.query())  # type: ignore[no-untyped-call]

    @property
    def value(self) -> int | float | bool:
        """Waits for it, unless `is_there`."""
        if self._copied is not None:
            self._copied.synchronize()
        return self._host.item()


class Stopwatch:
    """One measure. What is timed may be in several pieces, each a `with` block, on the same thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host_s = 0.0
        self._began_at = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def __enter__(self) -> None:
        self._began_at = time.perf_counter()
        if self._device.type == "cuda":
            self._events.append((_timing_event(), _timing_event()))
            self._events[-1][0].record(torch.cuda.current_stream(self._device))

    def __exit__(self, *_: object) -> None:
        """The piece has ended, or is queued."""
        if self._device.type == "cuda":
            self._events[-1][1].record(torch.cuda.current_stream(self._device))
        self._host_s += time.perf_counter() - self._began_at

    def taken_s(self) -> float | None:
        """Host or device, whichever took longer; None while the device is not done."""
        if not all(end.query() for _, end in self._events):  # type: ignore[no-untyped-call]
            return None
        device_ms = sum(float(begin.elapsed_time(end)) for begin, end in self._events)
        return max(self._host_s, device_ms / 1e3)


def _timing_event() -> torch.cuda.Event:
    return torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]


SLOTS: Final = 8  # numbers that may be under way at once: how many steps the host may be ahead of its device


class Number(Protocol):
    """A float, or a tensor of one element."""

    def __float__(self) -> float: ...


NotFinite = Callable[[int, float], None]
"""Told of a step whose value was not a finite number, and the value. A device's may be told late."""


Arrived = Callable[[int, float], object]
"""Told of a step's value once it is known on the host."""


def number_of(value: Number) -> float:
    """What a script gave as a number; waits for the device that it is on.

    Raises InvalidInput where it is none, and what the device raises.
    """
    try:
        item = getattr(value, "item", None)
        return float(value) if item is None else float(item())
    except (TypeError, ValueError, RuntimeError) as error:
        if isinstance(error, RuntimeError) and (not isinstance(value, Tensor) or value.numel() == 1):
            raise
        said = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
        raise InvalidInput(
            Problem("loss or grad_norm", said, "give a float, or a tensor of one element")
        ) from error


class Scalar:
    """The newest known value of one published number; None while Unknown. `tell` hears of what is not finite,
    `arrived`, which may change from round to round, of every value.
    """

    def __init__(self, tell: NotFinite) -> None:
        self.arrived: Arrived | None = None
        self._known: float | None = None
        self._known_of: int | None = None  # the step it is of
        self._copies: _DeviceCopies | None = None
        self._tell = tell

    def take(self, step: int, value: Number | None) -> float | None:
        """Hand over the value of `step`; returns the newest value known on the host. Never synchronises."""
        if value is None:
            return None
        if type(value) is not float:
            if getattr(value, "is_cuda", False):
                if self._copies is None:
                    self._copies = _DeviceCopies.on_cuda()
                self.collect()
                self._copies.start(step, value)  # type: ignore[arg-type]  # is_cuda: it is a tensor
                return self._known
            value = number_of(value)
        if value - value != 0.0:
            self._tell(step, value)
        self._known, self._known_of = value, step
        if self.arrived is not None:
            self.arrived(step, value)
        return value

    def newest(self, step: int) -> float | None:
        """The value of `step`, the newest handed over; None: none was, or it is on its way from the device."""
        self.collect()
        return self._known if self._known_of == step else None

    def finish(self, step: int) -> None:
        """`step` was the last: wait for what is on its way from the device, for nobody will look later."""
        if self._copies is not None:
            self._copies.wait()
            self.collect()
            self._copies.flush(step)
            self._copies.wait()
            self.collect()

    def forget(self) -> None:
        """What was handed over in the round before says nothing about this one."""
        self._known = self._known_of = None
        if self._copies is not None:
            self._copies.discard()

    def collect(self) -> None:
        """What has arrived from the device since the last look."""
        for arrived_step, arrived in self._copies.arrived() if self._copies is not None else ():
            self._known, self._known_of = arrived, arrived_step
            if self.arrived is not None:
                self.arrived(arrived_step, arrived)
            if arrived - arrived != 0.0:
                self._tell(arrived_step, arrived)


@dataclass
class _Slot:
    """Room on the host for one number on its way from the device; `event` is recorded behind the copy."""

    host: Tensor
    event: Any  # torch.cuda.Event, whose methods have no types


class _DeviceCopies:
    """Numbers on their way from the device, in order; none is left out.

    While every slot is under way, which takes a host that is `SLOTS` steps ahead of its device, values are
    added up times zero, on the device: whether one was not finite is then told with the next that is copied.
    """

    def __init__(self, slots: list[_Slot]) -> None:
        self._free = slots
        self._under_way: deque[tuple[int, _Slot]] = deque()
        self._held: Tensor | None = None
        self._discarded = 0  # of those under way, the oldest: of a round that is over

    @classmethod
    def on_cuda(cls) -> "_DeviceCopies":
        host = torch.empty(SLOTS, dtype=torch.float64, pin_memory=True)
        return cls([_Slot(host[place], torch.cuda.Event()) for place in range(SLOTS)])  # type: ignore[no-untyped-call]

    def start(self, step: int, value: Tensor) -> None:
        value = value.detach().reshape(())
        if self._held is not None:
            value = value + self._held
        if not self._free:
            self._held = value * 0.0
            return
        slot = self._free.pop()
        slot.host.copy_(value, non_blocking=True)
        slot.event.record()
        self._held = None
        self._under_way.append((step, slot))

    def arrived(self) -> list[tuple[int, float]]:
        """Steps and values whose copies have finished since the last call, oldest first."""
        told = []
        while self._under_way and self._under_way[0][1].event.query():
            step, slot = self._under_way.popleft()
            if self._discarded:
                self._discarded -= 1
            else:
                told.append((step, float(slot.host)))
            self._free.append(slot)
        return told

    def wait(self) -> None:
        """Until all that is under way has arrived."""
        for _, slot in self._under_way:
            slot.event.synchronize()

    def flush(self, step: int) -> None:
        """Send what was held back for want of a slot, as of `step`."""
        if self._held is not None:
            held, self._held = self._held, None
            self.start(step, held)

    def discard(self) -> None:
        self._discarded, self._held = len(self._under_way), None
