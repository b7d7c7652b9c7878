"""The sensor of NVIDIA's GPUs: beside the thread that asks the driver, another one waits for its events."""

import logging
import os
import threading
import time
from collections.abc import Callable, Iterable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpufailure import GpuFailure, GpuLost, NothingYet, NotTold
from holdfast.agent.gpusensor import STOP_S, GpuSensor, on_pci_bus
from holdfast.agent.gpusnapshot import GpuSnapshot
from holdfast.agent.nvml.driver import Driver
from holdfast.agent.nvml.gpu import Gpu, Session

_LOG = logging.getLogger(__name__)

NAME: Final = "nvml"
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
_DISPLAYS: Final = ("0x03",)  # the PCI class of GPUs, with or without an output for a screen


class NvmlSensor(GpuSensor):
    """Every GPU the driver knows. `known` says whether this machine has NVIDIA GPUs, where there is no driver."""

    def __init__(self, *, known: Callable[[], bool] = lambda: True, memory: ConditionMemory | None = None) -> None:
        self._driver = Driver(time.monotonic)
        super().__init__(NAME, self._driver.longest_running, known=known, memory=memory)

    def _poll(self) -> None:
        session = Session(self._driver)
        _LOG.info("driver answers: gpus=%d unidentified=%d", len(session.gpus), len(session.unidentified))
        watch = EventWatch(self._driver, session.gpus, self._snapshot)

        def sweep(now: float) -> bool:
            return self._snapshot.sweep(session, now, no_events=watch.unreadable) or watch.failed

        try:
            self._sweep(sweep)
        finally:
            stopped = False
            while not stopped and not self._stop.is_set():
                stopped = watch.stop(STOP_S)
            if stopped or watch.stop(STOP_S):  # the library must not be shut down below a call
                session.close()


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
    return os.path.exists(os.path.join(root, "dev/nvidiactl")) or on_pci_bus(_VENDOR, _DISPLAYS, root)
