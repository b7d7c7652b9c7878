"""The sensor: a thread asks the driver every second, another waits for its events, and `read` tells what they saw.

A call into a sick driver may not return for minutes. Then nothing that was seen before is told as present: the
samples become Unknown, and which call hangs since when is the reason. When it returns, all goes on.
"""

import logging
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Final

from msgspec.structs import replace

from holdfast.agent.nvml.driver import Driver, DriverAbsent, NvmlFailure
from holdfast.agent.nvml.judgement import GpuJudgement
from holdfast.agent.nvml.look import GpuLook
from holdfast.agent.nvml.session import Round, Session
from holdfast.agent.nvml.watch import EventWatch, address_of
from holdfast.agent.sensors.gpu_detail import GpuDetail
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, GpuSample, NodeEvent, Unreadable, XidRaised

_LOG = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
STALE_S: Final = 5.0  # five looks that did not come
STOP_S: Final = 2.0
_RETRY_S_MIN: Final = 1.0
_RETRY_S_MAX: Final = 30.0  # a driver that was loaded anew is seen half a minute later at most
_ANEW_S: Final = 60.0  # how often a lost GPU is looked for: it comes back with a new session only
_ACTION_S_MAX: Final = 0.3  # an XID does not wait longer to hear what the driver says the GPU needs
_EVENTS_MAX: Final = 256


@dataclass(slots=True)
class _Happened:
    event: NodeEvent
    at: float
    ready: bool


@dataclass(slots=True)
class _Seen:
    """What the threads saw last. `reason`: why there is no present, empty when there is one."""

    at: float
    reason: str = ""
    details: tuple[GpuDetail, ...] = ()
    failed: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)
    nameless: tuple[str, ...] = ()
    deaf: str = ""  # why no events come


class NvmlSensor:
    """Every GPU the driver knows. `known` says whether this machine has NVIDIA GPUs, where there is no driver."""

    name = "nvml"

    def __init__(
        self, *, known: Callable[[], bool] = lambda: True, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._known = known
        self._clock = clock
        self._driver = Driver(clock)
        self._lock = threading.Lock()
        self._seen = _Seen(at=clock(), reason="the driver has not answered yet")
        self._silent = False
        self._happened: list[_Happened] = []
        self._judgement = GpuJudgement()
        self._indices: dict[str, int] = {}  # every GPU that ever answered
        self._gone: set[str] = set()  # those of them whose loss was told
        self._stop = threading.Event()
        self._look_now = threading.Event()
        self._thread = threading.Thread(target=self._run, name="nvml", daemon=True)
        self._thread.start()

    def read(self, now: float) -> Reading:
        """What was seen last, and what happened since the reading before."""
        with self._lock:
            if self._silent:
                return Reading()
            events = self._take_events(now)
            conditions = self._judgement.conditions(now)
            seen, indices = self._seen, dict(self._indices)
        if not seen.reason and now - seen.at > STALE_S:
            hang = self._hang(now, longer_than_s=LOOK_EVERY_S)
            seen = _Seen(seen.at, reason=hang or f"nobody has looked for {now - seen.at:.0f} s")
        if seen.reason:
            unknown = tuple(GpuSample(uuid, index, GpuHealth.UNKNOWN) for uuid, index in indices.items())
            return Reading((), unknown, events, (Unreadable(self.name, seen.reason),), conditions)
        return Reading(
            gpus=_samples(seen, indices),
            events=events,
            unreadable=_unreadable(seen, self._hang(now, longer_than_s=STALE_S)),
            conditions=conditions,
            details=seen.details,
        )

    def close(self) -> None:
        """End both threads. One whose call hangs is left behind; it does not keep the process alive."""
        self._stop.set()
        self._look_now.set()
        self._thread.join(2.0 * STOP_S)

    # What the event watch tells, on its thread.

    def xid(self, gpu: GpuLook, xid: int) -> None:
        """Tell it with what the driver says the GPU needs, if it says so soon."""
        happened = _Happened(XidRaised(gpu.uuid, xid, 0.0), self._clock(), ready=False)
        self._happen(happened)
        try:
            action = gpu.recovery_action()
        except NvmlFailure:
            action = None
        with self._lock:
            happened.event = XidRaised(gpu.uuid, xid, 0.0, recovery_action=action)
            happened.ready = True
        self.stirred(gpu)

    def unavailable(self, gpu: GpuLook) -> None:
        """The driver gave it up."""
        with self._lock:
            self._tell_gone(gpu.uuid, "the driver says that the GPU is unavailable")
        self.stirred(gpu)

    def stirred(self, gpu: GpuLook | None) -> None:
        """Look at once instead of at the next second."""
        if gpu is not None:
            gpu.hurry()
        self._look_now.set()

    # The thread that asks.

    def _run(self) -> None:
        retry_s = _RETRY_S_MIN
        while not self._stop.is_set():
            try:
                session = Session(self._driver)
                retry_s = _RETRY_S_MIN
                self._attend(session)
                continue
            except DriverAbsent as failure:
                self._say_absent(str(failure))
            except Exception as error:  # the binding's own; without this thread the node would be blind for ever
                _LOG.exception("looking at GPUs failed")
                self._say_absent(repr(error))
            self._stop.wait(retry_s)
            retry_s = min(2.0 * retry_s, _RETRY_S_MAX)

    def _attend(self, session: Session) -> None:
        """Look every second until told to stop or a new session is called for. Raises DriverAbsent."""
        _LOG.info("driver answers: gpus=%d nameless=%d", len(session.gpus), len(session.nameless))
        watch = EventWatch(self._driver, {address_of(gpu.handle): gpu for gpu in session.gpus}, self)
        try:
            self._look_again_and_again(session, watch)
        finally:
            stopped = False
            while not stopped and not self._stop.is_set():
                stopped = watch.stop(STOP_S)
            if stopped or watch.stop(STOP_S):  # the library must not be shut down below a call
                session.close()

    def _look_again_and_again(self, session: Session, watch: EventWatch) -> None:
        began = self._clock()
        with self._lock:
            self._indices |= {gpu.uuid: gpu.index for gpu in session.gpus}
        while not self._stop.is_set():
            now = self._clock()
            missing = self._take_in(session, session.look(now), now, watch.deaf)
            if (missing or watch.failed) and now - began >= _ANEW_S:
                return
            self._look_now.wait(max(0.0, now + LOOK_EVERY_S - self._clock()))
            self._look_now.clear()

    def _take_in(self, session: Session, look: Round, now: float, deaf: str) -> bool:
        """Publish one look. Returns whether some GPU is missing."""
        present = {gpu.uuid for gpu in session.gpus}
        with self._lock:
            vanished = dict.fromkeys(self._indices.keys() - present, "the driver does not list it any more")
            lost = look.lost | vanished
            for uuid, reason in lost.items():
                self._tell_gone(uuid, reason)
            self._gone &= lost.keys()
            for detail in look.details:
                self._judgement.observe(detail, now)
            for uuid in look.reset_required:
                self._judgement.reset_required(uuid, now)
            self._silent = False
            self._seen = _Seen(
                at=now,
                details=look.details,
                failed=lost | look.reset_required,
                unknown=look.unknown,
                nameless=tuple(session.nameless),
                deaf=deaf,
            )
        return bool(lost or look.reset_required or session.nameless)

    def _say_absent(self, reason: str) -> None:
        silent = not self._indices and not self._known()
        with self._lock:
            if self._seen.reason != reason:
                _LOG.log(logging.INFO if silent else logging.WARNING, "no driver: reason=%r", reason)
            self._silent = silent
            self._seen = _Seen(at=self._clock(), reason=reason)

    def _tell_gone(self, uuid: str, reason: str) -> None:
        if uuid not in self._gone:
            self._gone.add(uuid)
            self._happened.append(_Happened(GpuDisappeared(uuid, 0.0, reason), self._clock(), ready=True))

    def _happen(self, happened: _Happened) -> None:
        with self._lock:
            if len(self._happened) < _EVENTS_MAX:
                self._happened.append(happened)

    def _take_events(self, now: float) -> tuple[NodeEvent, ...]:
        due = [one for one in self._happened if one.ready or now - one.at > _ACTION_S_MAX]
        self._happened = [one for one in self._happened if one not in due]
        return tuple(replace(one.event, age_s=max(0.0, now - one.at)) for one in due)

    def _hang(self, now: float, *, longer_than_s: float) -> str:
        """Which call hangs, empty when none does."""
        running = self._driver.longest_running()
        if running is None or now - running.since <= longer_than_s:
            return ""
        return f"{running.function} has not returned for {now - running.since:.0f} s"


def sample_of(detail: GpuDetail) -> GpuSample:
    """What of a GPU's details goes to the watchdog."""
    return GpuSample(
        uuid=detail.uuid,
        index=detail.index,
        health=GpuHealth.HEALTHY,
        temperature_c=detail.temperature_c,
        memory_temperature_c=detail.memory_temperature_c,
        power_w=detail.power_w,
        utilization_ratio=detail.utilization_ratio,
        margin_c=detail.margin_c,
        throttled_s=detail.thermal_throttled_s,
        throttle=detail.throttle,
    )


def _samples(seen: _Seen, indices: Mapping[str, int]) -> tuple[GpuSample, ...]:
    failed = (GpuSample(uuid, indices.get(uuid, -1), GpuHealth.FAILED) for uuid in seen.failed)
    unknown = (GpuSample(uuid, indices.get(uuid, -1), GpuHealth.UNKNOWN) for uuid in seen.unknown)
    return (*map(sample_of, seen.details), *failed, *unknown)


def _unreadable(seen: _Seen, hang: str) -> tuple[Unreadable, ...]:
    each = [Unreadable(uuid, reason) for uuid, reason in {**seen.failed, **seen.unknown}.items()]
    each += [Unreadable("nvml", reason) for reason in seen.nameless]
    if seen.deaf or hang:
        each.append(Unreadable("nvml-events", seen.deaf or hang))
    return tuple(each)
