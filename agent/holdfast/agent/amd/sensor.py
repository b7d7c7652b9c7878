"""The sensor of AMD GPUs: a thread asks the driver every second, and `read` tells what it saw.

As with NVIDIA's, a call into a sick driver may not return: then the samples become Unknown, and say which call
hangs.
AMD's driver tells no errors as events here; what matters of them is in its counters and in the kernel's log.
"""

import logging
import os
import threading
import time
from typing import Final

from holdfast.agent.amd.driver import AmdDriver
from holdfast.agent.amd.gpu import AmdSession
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpufailure import DriverAbsent
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.reading import Reading
from holdfast.agent.sensors.background import kernel_value

_LOG = logging.getLogger(__name__)

NAME: Final = "amd-smi"
POLL_EVERY_S: Final = 1.0
_STOP_S: Final = 2.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0
_ANEW_S: Final = 60.0  # how often a GPU that is missing is looked for in a new session
_VENDOR: Final = "0x1002"
# The PCI classes of GPUs: displays, and processing accelerators such as Instinct.
# Source: https://pci-ids.ucw.cz/read/PD/
_CLASSES: Final = ("0x03", "0x12")


class AmdSmiSensor:
    """Every GPU that AMD's driver knows."""

    name = NAME

    def __init__(self, *, memory: ConditionMemory | None = None) -> None:
        self._driver = AmdDriver(time.monotonic)
        self._snapshot = GpuSnapshot(NAME, clock=time.monotonic, hang=self._hang, memory=memory)
        self._silent_since: dict[str, float] = {}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name=NAME, daemon=True)
        self._thread.start()

    def read(self, now: float) -> Reading:
        """What was seen last, and what happened since the reading before."""
        return self._snapshot.read(now)

    def close(self) -> None:
        """End the thread. One whose call hangs is left behind; it does not keep the process alive."""
        self._stop.set()
        self._snapshot.poll_now.set()
        self._thread.join(2.0 * _STOP_S)

    def _run(self) -> None:
        retry_s = _RETRY_S_MIN
        while not self._stop.is_set():
            try:
                session = AmdSession(self._driver, self._silent_since)
                retry_s = _RETRY_S_MIN
                self._poll(session)
                continue
            except DriverAbsent as failure:
                reason = str(failure)
            except Exception as error:  # the bindings' own; without this thread the node would be blind for ever
                _LOG.exception("looking at GPUs failed")
                reason = repr(error)
            if self._snapshot.absent(reason, known=lambda: True):
                _LOG.warning("no driver: reason=%r", reason)
            self._stop.wait(retry_s)
            retry_s = min(2.0 * retry_s, _RETRY_S_MAX)

    def _poll(self, session: AmdSession) -> None:
        """Poll every second until told to stop or a new session is called for. Raises DriverAbsent."""
        _LOG.info("driver answers: gpus=%d unidentified=%d", len(session.gpus), len(session.unidentified))
        began = time.monotonic()
        try:
            while not self._stop.is_set():
                now = time.monotonic()
                if self._snapshot.sweep(session, now) and now - began >= _ANEW_S:
                    return
                self._snapshot.poll_now.wait(max(0.0, now + POLL_EVERY_S - time.monotonic()))
                self._snapshot.poll_now.clear()
        finally:
            session.close()

    def _hang(self, now: float, longer_than_s: float) -> str:
        """Which call hangs, empty when none does."""
        running = self._driver.running()
        if running is None or now - running.since <= longer_than_s:
            return ""
        return f"{running.function} has not returned for {now - running.since:.0f} s"


def has_amd_gpus(root: str = "/") -> bool:
    """Whether this machine has AMD GPUs, asked of the kernel: one is on the PCI bus below `root`."""
    devices = os.path.join(root, "sys/bus/pci/devices")
    try:
        names = os.listdir(devices)
    except OSError:
        return False
    paths = [os.path.join(devices, name) for name in names]
    theirs = (path for path in paths if kernel_value(path, "vendor") == _VENDOR)
    return any(kernel_value(path, "class").startswith(_CLASSES) for path in theirs)
