"""The sensor: a thread asks the driver every second, another waits for its events, and `read` tells what they saw.

A call into a sick driver may not return for minutes. Then nothing that was seen before is told as present: the
samples become Unknown, and which call hangs since when is the reason. When it returns, all goes on.
"""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpufailure import DriverAbsent, GpuFailure, GpuLost, NothingYet, NotTold
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.gpu import Gpu, Session
from holdfast.agent.reading import Reading
from holdfast.agent.sensors.background import kernel_value

_LOG = logging.getLogger(__name__)

NAME: Final = "nvml"
POLL_EVERY_S: Final = 1.0
_STOP_S: Final = 2.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0  # a driver that was loaded anew is seen half a minute later at most
_ANEW_S: Final = 60.0  # how often a lost GPU is looked for: it comes back with a new session only
WAIT_MS: Final = 500
_AFTER_LOSS_S: Final = 0.5  # with a lost GPU in the set the driver does not wait but fails at once
# Structured events, new in driver 615, tell the same incidents again: these bits are what every driver has.
_XID: Final[int] = pynvml.nvmlEventTypeXidCriticalError
_UNAVAILABLE: Final[int] = pynvml.nvmlEventTypeGpuUnavailableError
_WANTED: Final[int] = (
    _XID
    | _UNAVAILABLE
    | pynvml.nvmlEventTypeDoubleBitEccError
    | pynvml.nvmlEventTypeGpuRecoveryAction
    | pynvml.nvmlEventTypeDramRetirementFailure
    | pynvml.nvmlEventTypeFatalPoisonError
)
_VENDOR: Final = "0x10de"
_DISPLAY: Final = "0x03"  # the PCI class of GPUs, with or without an output for a screen


class NvmlSensor:
    """Every GPU the driver knows. `known` says whether this machine has NVIDIA GPUs, where there is no driver."""

    name = NAME

    def __init__(self, *, known: Callable[[], bool] = lambda: True, memory: ConditionMemory | None = None) -> None:
        self._known = known
        self._driver = Driver(time.monotonic)
        self._snapshot = GpuSnapshot(NAME, clock=time.monotonic, hang=self._hang, memory=memory)
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
        began = time.monotonic()
        try:
            while not self._stop.is_set():
                now = time.monotonic()
                missing = self._snapshot.sweep(session, now, no_events=watch.unreadable)
                if (missing or watch.failed) and now - began >= _ANEW_S:
                    return
                self._snapshot.poll_now.wait(max(0.0, now + POLL_EVERY_S - time.monotonic()))
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


class EventWatch:
    """Events of one session with the driver, told to `snapshot` until `stop`."""

    def __init__(self, driver: Driver, gpus: Iterable[Gpu], snapshot: GpuSnapshot) -> None:
        """`unreadable` says why no events come, empty while they do."""
        self.unreadable = ""
        self.failed = False  # events came, and come no more: a new session may help
        self._driver = driver
        self._gpus = {_address_of(gpu.handle): gpu for gpu in gpus}
        self._snapshot = snapshot
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml-events", daemon=True)
        self._thread.start()

    def stop(self, patience_s: float) -> bool:
        """End it. False: a call has not returned within the patience; it will end when the call does."""
        self._stop.set()
        self._thread.join(patience_s)
        return not self._thread.is_alive()

    def _run(self) -> None:
        try:
            events = self._driver.call("nvmlEventSetCreate")
            try:
                self._register_and_wait(events)
            finally:
                self._driver.call("nvmlEventSetFree", events)
        except NotTold as failure:
            self.unreadable = str(failure)
        except GpuFailure as failure:
            self.unreadable, self.failed = str(failure), True
        except Exception as error:  # of whoever is told, or the binding's own
            _LOG.exception("event watch failed")
            self.unreadable, self.failed = repr(error), True

    def _register_and_wait(self, events: Any) -> None:
        told = False
        for gpu in self._gpus.values():
            try:
                wanted = _WANTED & int(self._driver.call("nvmlDeviceGetSupportedEventTypes", gpu.handle))
                self._driver.call("nvmlDeviceRegisterEvents", gpu.handle, wanted, events)
            except (NotTold, GpuLost):
                continue
            told = told or bool(wanted & _XID)
        if not told:
            self.unreadable = "the driver tells no events"
        while told and not self._stop.is_set():
            try:
                event = self._driver.call("nvmlEventSetWait_v2", events, WAIT_MS)
            except NothingYet:
                continue
            except GpuLost:
                self._snapshot.changed(None)
                self._stop.wait(_AFTER_LOSS_S)
                continue
            source = self._gpus.get(_address_of(event.device))
            if source is not None and event.eventType & _XID:
                self._snapshot.xid(source, int(event.eventData))
            elif source is not None and event.eventType & _UNAVAILABLE:
                self._snapshot.unavailable(source)
            else:
                self._snapshot.changed(source)


def _address_of(handle: Any) -> int:
    """What tells one device handle from another."""
    return int(pynvml.cast(handle, pynvml.c_void_p).value or 0)


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
    return any(
        kernel_value(path, "vendor") == _VENDOR and kernel_value(path, "class").startswith(_DISPLAY)
        for path in paths
    )
