"""The sensor: a thread asks the driver every second, another waits for its events, and `read` tells what they saw.

A call into a sick driver may not return for minutes. Then nothing that was seen before is told as present: the
samples become Unknown, and which call hangs since when is the reason. When it returns, all goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Callable
from typing import Final

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.nvml.driver import Driver, DriverAbsent
from holdfast.agent.nvml.events import EventWatch
from holdfast.agent.nvml.session import Session
from holdfast.agent.nvml.snapshot import NAME, GpuSnapshot
from holdfast.agent.reading import Reading

_LOG = logging.getLogger(__name__)

POLL_EVERY_S: Final = 1.0
_STOP_S: Final = 2.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0  # a driver that was loaded anew is seen half a minute later at most
_ANEW_S: Final = 60.0  # how often a lost GPU is looked for: it comes back with a new session only
_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"  # the PCI class of GPUs, with or without an output for a screen


class NvmlSensor:
    """Every GPU the driver knows. `known` says whether this machine has NVIDIA GPUs, where there is no driver."""

    name = NAME

    def __init__(
        self,
        *,
        known: Callable[[], bool] = lambda: True,
        clock: Callable[[], float] = time.monotonic,
        memory: ConditionMemory | None = None,
    ) -> None:
        self._known = known
        self._clock = clock
        self._driver = Driver(clock)
        self._snapshot = GpuSnapshot(clock=clock, hang=self._hang, memory=memory)
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def read(self, now: float) -> Reading:
        """What was seen last, and what happened since the reading before."""
        return self._snapshot.read(now)

    def close(self) -> None:
        """End both threads. One whose call hangs is left behind; it does not keep the process alive."""
        self._stop.set()
        self._snapshot.poll_now.set()
        self._thread.join(2.0 * _STOP_S)

    def _run(self) -> None:
        retry_s = _RETRY_S_MIN
        while not self._stop.is_set():
            try:
                session = Session(self._driver)
                retry_s = _RETRY_S_MIN
                self._poll(session)
                continue
            except DriverAbsent as failure:
                reason = str(failure)
            except Exception as error:  # the binding's own; without this thread the node would be blind for ever
                _LOG.exception("looking at GPUs failed")
                reason = repr(error)
            if self._snapshot.absent(reason, known=self._known):
                _LOG.warning("no driver: reason=%r", reason)
            self._stop.wait(retry_s)
            retry_s = min(2.0 * retry_s, _RETRY_S_MAX)

    def _poll(self, session: Session) -> None:
        """Poll every second until told to stop or a new session is called for. Raises DriverAbsent."""
        _LOG.info("driver answers: gpus=%d unidentified=%d", len(session.gpus), len(session.unidentified))
        watch = EventWatch(self._driver, session.gpus, self._snapshot)
        began = self._clock()
        try:
            while not self._stop.is_set():
                now = self._clock()
                missing = self._snapshot.sweep(session, now, no_events=watch.unreadable)
                if (missing or watch.failed) and now - began >= _ANEW_S:
                    return
                self._snapshot.poll_now.wait(max(0.0, now + POLL_EVERY_S - self._clock()))
                self._snapshot.poll_now.clear()
        finally:
            stopped = False
            while not stopped and not self._stop.is_set():
                stopped = watch.stop(_STOP_S)
            if stopped or watch.stop(_STOP_S):  # the library must not be shut down below a call
                session.close()

    def _hang(self, now: float, longer_than_s: float) -> str:
        """Which call hangs, empty when none does."""
        running = self._driver.longest_running()
        if running is None or now - running.since <= longer_than_s:
            return ""
        return f"{running.function} has not returned for {now - running.since:.0f} s"


def has_nvidia_gpus(root: str = "/") -> bool:
    """Whether this machine has NVIDIA GPUs, asked of the kernel and not of the driver.

    True when one is on the PCI bus, or the driver has made its device files, below `root`.
    """
    if os.path.exists(os.path.join(root, "dev/nvidiactl")):
        return True
    devices = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = os.listdir(devices)
    except OSError:
        return False
    paths = [os.path.join(devices, name) for name in names]
    return any(_line(path, "vendor") == _VENDOR and _line(path, "class").startswith(_DISPLAY) for path in paths)


def _line(device: str, name: str) -> str:
    try:
        with open(os.path.join(device, name), encoding="ascii", errors="replace") as file:
            return file.read(64).strip()
    except OSError:
        return ""
