"""What the host hears of an accelerator without waiting for it: numbers it computed, and how long it took."""

import time

import torch
from torch import Tensor


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
        """To be read once `is_there`."""
        return self._host.item()


class Stopwatch:
    """One measure. What is timed may be in several pieces, each between `start` and `stop`, on the same thread."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._host_s = 0.0
        self._began_at = 0.0
        self._events: list[tuple[torch.cuda.Event, torch.cuda.Event]] = []

    def start(self) -> None:
        """A piece begins."""
        self._began_at = time.perf_counter()
        if self._device.type == "cuda":
            self._events.append((_timing_event(), _timing_event()))
            self._events[-1][0].record(torch.cuda.current_stream(self._device))

    def stop(self) -> None:
        """It has ended, or is queued."""
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
