"""What the driver tells of its own accord: waits for NVML's events on a thread of its own."""

import logging
import threading
from collections.abc import Iterable
from typing import Any, Final

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.nvml.driver import Driver, GpuLost, NothingYet, NotTold, NvmlFailure
from holdfast.agent.nvml.gpu import Gpu
from holdfast.agent.nvml.snapshot import GpuSnapshot

_LOG = logging.getLogger(__name__)

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
                if self._register(events):
                    self._wait(events)
                else:
                    self.unreadable = "the driver tells no events"
            finally:
                self._driver.call("nvmlEventSetFree", events)
        except NotTold as failure:
            self.unreadable = str(failure)
        except NvmlFailure as failure:
            self.unreadable, self.failed = str(failure), True
        except Exception as error:  # of whoever is told, or the binding's own
            _LOG.exception("event watch failed")
            self.unreadable, self.failed = repr(error), True

    def _register(self, events: Any) -> bool:
        registered = False
        for gpu in self._gpus.values():
            try:
                wanted = _WANTED & int(self._driver.call("nvmlDeviceGetSupportedEventTypes", gpu.handle))
                self._driver.call("nvmlDeviceRegisterEvents", gpu.handle, wanted, events)
            except (NotTold, GpuLost):
                continue
            registered = registered or bool(wanted & _XID)
        return registered

    def _wait(self, events: Any) -> None:
        while not self._stop.is_set():
            try:
                event = self._driver.call("nvmlEventSetWait_v2", events, WAIT_MS)
            except NothingYet:
                continue
            except GpuLost:
                self._snapshot.changed(None)
                self._stop.wait(_AFTER_LOSS_S)
                continue
            gpu = self._gpus.get(_address_of(event.device))
            if gpu is not None and event.eventType & _XID:
                self._snapshot.xid(gpu, int(event.eventData))
            elif gpu is not None and event.eventType & _UNAVAILABLE:
                self._snapshot.unavailable(gpu)
            else:
                self._snapshot.changed(gpu)


def _address_of(handle: Any) -> int:
    """What tells one device handle from another."""
    return int(pynvml.cast(handle, pynvml.c_void_p).value or 0)
