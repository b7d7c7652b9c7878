"""Runs stations side by side in forked children, ends the ones that hang, and leaves the GPUs as it found them.

The process that forks must be single-threaded and must never have touched CUDA, neither of which survives a fork.
"""

import ctypes
import logging
import os
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Final, NoReturn

import msgspec

from holdfast.agent.selftest.device import Device, DeviceKind
from holdfast.agent.selftest.station import START, Began, Done, FromStation, Identified, Pulse, Station, attend
from holdfast.api.decoding import decode
from holdfast.api.selftest import CheckResult, Verdict
from holdfast.wire.frame import FrameReader, frame

log = logging.getLogger(__name__)

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG: Final = 1
_FROM_STATION: Final[msgspec.msgpack.Decoder[FromStation]] = msgspec.msgpack.Decoder(FromStation)
_READ_BYTES: Final = 1 << 16
_REAP_S: Final = 2.0  # a process stuck in the driver may not end even by SIGKILL; it must not hold up the answer
_RECORD_S: Final = 5.0  # asking eight GPUs takes milliseconds

Restore = Callable[[], None]


class Progress:
    """Where one station stands, from its first check to the last, and what is to be said when it hangs or dies.

    Pure: times are seconds on the supervisor's monotonic clock.
    """

    def __init__(self, device: str, checks: Sequence[str], *, limit_s: float, now: float) -> None:
        """`limit_s` is how long it may say nothing: one run of a check, or reaching the device."""
        self._device = device
        self._to_come = list(checks)
        self._limit_s = limit_s
        self._running: str | None = START
        self._since = now
        self._results: list[CheckResult] = []

    @property
    def results(self) -> tuple[CheckResult, ...]:
        return tuple(self._results)

    @property
    def is_complete(self) -> bool:
        return self._running is None and not self._to_come

    @property
    def deadline(self) -> float:
        """When it is late unless it has said something by then."""
        return self._since + self._limit_s

    def take(self, message: FromStation, now: float) -> None:
        """The station said something."""
        self._since = now
        if isinstance(message, Identified):
            self._device, self._running = message.device, None
        elif isinstance(message, Began):
            self._to_come.remove(message.check)
            self._running = message.check
        elif not isinstance(message, Pulse):
            self._running = None
            if isinstance(message, Done):
                self._results.append(message.result)

    def hung(self, now: float) -> None:
        """It was killed for being late: what hung has failed, what was to follow is Unknown."""
        late = self._running or START
        says = f"did not return within {self._limit_s:.0f} s"
        self._end(Verdict.FAILED, says, f"not run: {late} did not return before", now)

    def stopped(self, why: str, now: float) -> None:
        """It ended, or was ended, before it was done, which proves nothing."""
        self._end(Verdict.UNKNOWN, why, f"not run: {why}", now)

    def _end(self, verdict: Verdict, running_says: str, others_say: str, now: float) -> None:
        if self._running is not None:
            took_s = round(now - self._since, 4)
            self._results.append(CheckResult(self._running, self._device, verdict, running_says, took_s))
        self._results += [
            CheckResult(name, self._device, Verdict.UNKNOWN, others_say, 0.0) for name in self._to_come
        ]
        self._running, self._to_come = None, []


@dataclass(frozen=True, slots=True)
class Limits:
    """`check_s`: how long one run of a check may take. `ends_at`: when all must be over (monotonic seconds)."""

    check_s: float
    ends_at: float


@dataclass(slots=True)
class _Child:
    pid: int
    descriptor: int
    progress: Progress
    frames: FrameReader


def supervise(stations: Sequence[Station], limits: Limits) -> list[tuple[CheckResult, ...]]:
    """Each station's results. Returns soon after `limits.ends_at` at the latest."""
    children: list[_Child] = []
    for station in stations:
        children.append(_start(station, limits.check_s, [child.descriptor for child in children]))
    running = {child.descriptor: child for child in children}
    poller = select.poll()
    for descriptor in running:
        poller.register(descriptor, select.POLLIN)
    while running:
        next_s = min([limits.ends_at, *(child.progress.deadline for child in running.values())]) - time.monotonic()
        for descriptor, _ in poller.poll(max(0.0, next_s) * 1e3 + 1):
            child = running[descriptor]
            data = os.read(descriptor, _READ_BYTES)
            for payload in child.frames.feed(data):
                child.progress.take(decode(_FROM_STATION, payload), time.monotonic())
            if not data:  # it has ended, or is about to
                poller.unregister(descriptor)
                del running[descriptor]
                os.close(descriptor)
                status = reap(child.pid)
                if not child.progress.is_complete:
                    child.progress.stopped(_why(status), time.monotonic())
        now = time.monotonic()
        for child in list(running.values()):
            if now >= limits.ends_at:
                child.progress.stopped("the time for the whole test was up", now)
            elif now >= child.progress.deadline:
                child.progress.hung(now)
            else:
                continue
            poller.unregister(child.descriptor)
            del running[child.descriptor]
            os.kill(child.pid, signal.SIGKILL)
            os.close(child.descriptor)
            reap(child.pid)
    return [child.progress.results for child in children]


def _start(station: Station, limit_s: float, others: Sequence[int]) -> _Child:
    ours, theirs = os.pipe2(os.O_CLOEXEC)
    sys.stdout.flush()
    sys.stderr.flush()
    parent = os.getpid()
    pid = os.fork()
    if pid == 0:
        for descriptor in (ours, *others):
            os.close(descriptor)
        _be_station(station, theirs, parent)
    os.close(theirs)
    names = [check.name for check in station.checks]
    progress = Progress(station.device.name, names, limit_s=limit_s, now=time.monotonic())
    return _Child(pid, ours, progress, FrameReader())


def _be_station(station: Station, descriptor: int, parent: int) -> NoReturn:
    def send(message: FromStation) -> None:
        data = frame(msgspec.msgpack.encode(message))
        while data:
            data = data[os.write(descriptor, data) :]

    status = 1
    try:
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() == parent:
            attend(station, send)
            status = 0
    except BaseException:
        traceback.print_exc()
    finally:
        sys.stderr.flush()
        os._exit(status)


def _why(status: int | None) -> str:
    """Why a station ended before it was done."""
    code = 0 if status is None else os.waitstatus_to_exitcode(status)
    if code == 0:
        return "the device could not be reached"
    return f"the test's process ended with {f'signal {-code}' if code < 0 else f'exit code {code}'}"


def reap(pid: int) -> int | None:
    """Its wait status, None when it has not ended in time: then its parent's end is left to reap it."""
    give_up = time.monotonic() + _REAP_S
    while time.monotonic() < give_up:
        ended, status = os.waitpid(pid, os.WNOHANG)
        if ended:
            return status
        time.sleep(0.005)
    return None


@contextmanager
def kept_as_found(devices: Sequence[Device], record: Callable[[], Restore] | None = None) -> Iterator[None]:
    """Keep what `record` records over the block (None: the GPUs' power limits, clocks and persistence).

    Does nothing on a CPU. A keeper process records it before and puts it back after, also when the test is killed:
    it hears of that by the end of a pipe, and is in no process group that is killed with the test. It asks the
    driver on its own, so that a driver that hangs holds up nobody.
    """
    if all(device.kind is not DeviceKind.CUDA for device in devices):
        yield
        return
    recorded_read, recorded_write = os.pipe2(os.O_CLOEXEC)
    over_read, over_write = os.pipe2(os.O_CLOEXEC)
    keeper = os.fork()
    if keeper == 0:
        os.close(over_write)
        _keep(record or _record_settings, recorded_write, over_read)
    os.close(recorded_write)
    os.close(over_read)
    try:
        if not select.select([recorded_read], [], [], _RECORD_S)[0]:
            log.warning("the settings of the GPUs are not known, and will not be put back")
        yield
    finally:
        os.close(recorded_read)
        os.close(over_write)
        reap(keeper)


def _keep(record: Callable[[], Restore], recorded: int, over: int) -> NoReturn:
    try:
        os.setsid()
        restore = record()
        os.close(recorded)
        os.read(over, 1)
        restore()
    except Exception as error:
        log.warning("the settings of the GPUs are not kept: %s", error)
    finally:
        os._exit(0)


def _record_settings() -> Restore:
    # Only here: a test on the CPU needs no driver and no binding to it.
    from holdfast.agent.nvml.devicesettings import record_settings, restore_settings
    from holdfast.agent.nvml.driver import Driver
    from holdfast.api.errors import Unavailable
    from holdfast.api.telemetry import Unreadable

    driver = Driver(time.monotonic)
    recorded = record_settings(driver)
    if isinstance(recorded, Unreadable):
        raise Unavailable(recorded.reason)

    def restore() -> None:
        for failed in restore_settings(driver, recorded):
            log.warning("a setting was not put back gpu=%s reason=%s", failed.source, failed.reason)

    return restore
