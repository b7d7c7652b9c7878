"""The thread that asks a GPU driver every second, whoever made the GPU, and what `read` tells of it.

A call into a sick driver may not return for minutes. Then nothing that was seen before is told as present: the
samples become Unknown, and which call hangs since when is the reason. When it returns, all goes on.
"""

import logging
import os
import threading
import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpufailure import DriverAbsent
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.reading import Reading
from holdfast.agent.sensors.background import kernel_value

_LOG = logging.getLogger(__name__)

STOP_S: Final = 2.0
_POLL_EVERY_S: Final = 1.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0  # a driver that was loaded anew is seen half a minute later at most
_ANEW_S: Final = 60.0  # how often a GPU that is missing is looked for: it comes back with a new session only


@dataclass(frozen=True, slots=True)
class Running:
    """A call that has not returned yet, and since when (CLOCK_MONOTONIC, seconds)."""

    function: str
    since: float


class GpuSensor(ABC):
    """Every GPU that one driver knows. The thread starts with the sensor."""

    def __init__(
        self,
        name: str,
        running: Callable[[], Running | None],
        *,
        known: Callable[[], bool],
        memory: ConditionMemory | None,
    ) -> None:
        """`running` is the driver's call that has not returned for longest. `known` says whether this machine has
        such GPUs, where there is no driver.
        """
        self.name = name
        self._running = running
        self._known = known
        self._snapshot = GpuSnapshot(name, clock=time.monotonic, hang=self._hang, memory=memory)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=name, daemon=True)
        self._thread.start()

    @abstractmethod
    def _poll(self) -> None:
        """Open a session with the driver and `_sweep` until that returns. Raises DriverAbsent."""

    def read(self, now: float) -> Reading:
        """What was seen last, and what happened since the reading before."""
        return self._snapshot.read(now)

    def close(self) -> None:
        """End the thread. One whose call hangs is left behind; it does not keep the process alive."""
        self._stop.set()
        self._snapshot.poll_now.set()
        self._thread.join(2.0 * STOP_S)

    def _sweep(self, sweep: Callable[[float], bool]) -> None:
        """Call `sweep` every second, until told to stop or until it says that a new session may find more."""
        began = time.monotonic()
        while not self._stop.is_set():
            now = time.monotonic()
            if sweep(now) and now - began >= _ANEW_S:
                return
            self._snapshot.poll_now.wait(max(0.0, now + _POLL_EVERY_S - time.monotonic()))
            self._snapshot.poll_now.clear()

    def _run(self) -> None:
        retry_s = _RETRY_S_MIN
        while not self._stop.is_set():
            began = time.monotonic()
            try:
                self._poll()
                retry_s = _RETRY_S_MIN
                continue
            except DriverAbsent as failure:
                reason = str(failure)
            except Exception as error:  # the binding's own; without this thread the node would be blind for ever
                _LOG.exception("looking at GPUs failed")
                reason = repr(error)
            if self._snapshot.absent(reason, known=self._known):
                _LOG.warning("no driver: reason=%r", reason)
            if time.monotonic() - began > _RETRY_S_MAX:  # it was there for a while
                retry_s = _RETRY_S_MIN
            self._stop.wait(retry_s)
            retry_s = min(2.0 * retry_s, _RETRY_S_MAX)

    def _hang(self, now: float, longer_than_s: float) -> str:
        """Which call hangs, empty when none does."""
        running = self._running()
        if running is None or now - running.since <= longer_than_s:
            return ""
        return f"{running.function} has not returned for {now - running.since:.0f} s"


def on_pci_bus(vendor: str, classes: tuple[str, ...], root: str) -> bool:
    """Whether a device of that vendor, of one of these classes, is on the PCI bus below `root`."""
    devices = os.path.join(root, "sys/bus/pci/devices")
    return any(
        kernel_value(path, "vendor") == vendor and kernel_value(path, "class").startswith(classes)
        for path in _paths(devices)
    )


def _paths(folder: str) -> Iterator[str]:
    try:
        names = os.listdir(folder)
    except OSError:
        return
    yield from (os.path.join(folder, name) for name in names)
