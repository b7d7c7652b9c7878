"""One session with the driver, until it is closed or the driver goes away: its GPUs, and its events."""

import contextlib
import logging
import threading
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import pynvml  # type: ignore[import-untyped] # NVIDIA publishes no types

from holdfast.agent.nvml.driver import (
    CallFailed,
    Driver,
    DriverAbsent,
    GpuLost,
    NothingYet,
    NotTold,
    NvmlFailure,
    ResetRequired,
)
from holdfast.agent.nvml.gpu import GpuLook, identify
from holdfast.agent.reading import GpuDetail


@dataclass(frozen=True, slots=True)
class Round:
    """One look at every GPU. Those without details are `lost`, `reset_required` or `unknown`: reasons by UUID."""

    details: tuple[GpuDetail, ...]
    lost: dict[str, str] = field(default_factory=dict)
    reset_required: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Session:
    """GPUs that do not answer at the start give no name: they are `nameless`, why by their number."""

    def __init__(self, driver: Driver) -> None:
        """Begin. Raises DriverAbsent."""
        self._driver = driver
        self.gpus: list[GpuLook] = []
        self.nameless: dict[int, NvmlFailure] = {}
        self._lost: dict[str, str] = {}
        try:
            driver.call("nvmlInit")
        except DriverAbsent:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from failure
        try:
            self._enumerate()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End it. A driver that is gone has ended it already."""
        with contextlib.suppress(NvmlFailure):
            self._driver.call("nvmlShutdown")

    def look(self, now: float) -> Round:
        """Ask every GPU that is not lost. Raises DriverAbsent."""
        reset: dict[str, str] = {}
        unknown: dict[str, str] = {}
        details = []
        for gpu in self.gpus:
            if gpu.uuid in self._lost:
                continue
            try:
                details.append(gpu.look(now))
            except GpuLost as failure:
                self._lost[gpu.uuid] = str(failure)
            except ResetRequired as failure:
                reset[gpu.uuid] = str(failure)
            except CallFailed as failure:
                unknown[gpu.uuid] = str(failure)
        return Round(tuple(details), dict(self._lost), reset, unknown)

    def _enumerate(self) -> None:
        try:
            count = int(self._driver.call("nvmlDeviceGetCount"))
        except DriverAbsent:
            raise
        except NvmlFailure as failure:
            raise DriverAbsent(str(failure)) from failure
        for index in range(count):
            try:
                self.gpus.append(identify(self._driver, index))
            except DriverAbsent:
                raise
            except NvmlFailure as failure:
                self.nameless[index] = failure


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


class Listener(Protocol):
    """Who is told. Called on the watch's thread."""

    def xid(self, gpu: GpuLook, xid: int) -> None:
        """The driver reported an XID on this GPU."""

    def unavailable(self, gpu: GpuLook) -> None:
        """The driver says that this GPU is not available."""

    def stirred(self, gpu: GpuLook | None) -> None:
        """Something happened to this GPU, None: to some GPU, that its values will tell."""


class EventWatch:
    """What the driver tells of its own accord in one session: a thread waits for NVML's events, until `stop`."""

    def __init__(self, driver: Driver, gpus: Iterable[GpuLook], listener: Listener) -> None:
        """`deaf` says why no events come, empty while they do."""
        self.deaf = ""
        self.failed = False  # it heard, and hears no more: a new session may help
        self._driver = driver
        self._gpus = {_address_of(gpu.handle): gpu for gpu in gpus}
        self._listener = listener
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
                    self.deaf = "the driver tells no events"
            finally:
                self._driver.call("nvmlEventSetFree", events)
        except NotTold as failure:
            self.deaf = str(failure)
        except NvmlFailure as failure:
            self.deaf, self.failed = str(failure), True
        except Exception as error:  # the listener's, or the binding's own
            _LOG.exception("event watch failed")
            self.deaf, self.failed = repr(error), True

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
                self._listener.stirred(None)
                self._stop.wait(_AFTER_LOSS_S)
                continue
            self._tell(event)

    def _tell(self, event: Any) -> None:
        gpu = self._gpus.get(_address_of(event.device))
        if gpu is None:
            self._listener.stirred(None)
        elif event.eventType & _XID:
            self._listener.xid(gpu, int(event.eventData))
        elif event.eventType & _UNAVAILABLE:
            self._listener.unavailable(gpu)
        else:
            self._listener.stirred(gpu)


def _address_of(handle: Any) -> int:
    """What tells one device handle from another."""
    return int(pynvml.cast(handle, pynvml.c_void_p).value or 0)
