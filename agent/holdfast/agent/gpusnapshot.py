"""What was last seen of the GPUs through a driver's library, and what happened since it was told last.

Written by the threads that ask the driver and wait for its events, read by the agent's loop.
"""

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from msgspec.structs import replace

from holdfast.agent.conditions.gpus import GpuJudge
from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.gpufailure import GpuFailure, GpuLost, ResetRequired
from holdfast.agent.reading import GpuDetail, Reading, sample_of
from holdfast.agent.union import NVML_EVENTS
from holdfast.api.telemetry import GpuDisappeared, GpuHealth, GpuSample, NodeEvent, Unreadable, XidRaised

STALE_S: Final = 5.0  # five sweeps that did not come
_HANGS_S: Final = 1.0
_ACTION_S_MAX: Final = 0.3  # an XID does not wait longer to hear what the driver says the GPU needs
_EVENTS_MAX: Final = 256


@dataclass(frozen=True, slots=True)
class Sweep:
    """One poll of every GPU. Those without details are `lost`, `reset_required` or `unknown`: reasons by UUID."""

    details: tuple[GpuDetail, ...]
    lost: dict[str, str] = field(default_factory=dict)
    reset_required: dict[str, str] = field(default_factory=dict)
    unknown: dict[str, str] = field(default_factory=dict)


class Gpu(Protocol):
    """One GPU of a session with its driver."""

    uuid: str
    index: int

    def ask_all_next(self) -> None:
        """Let the next poll ask everything."""
        ...

    def recovery_action(self) -> int | None:
        """What the driver says this GPU needs. Raises GpuFailure."""
        ...


class Session(Protocol):
    """One session with a driver. `unidentified`: why GPUs of these numbers do not even say who they are."""

    @property
    def gpus(self) -> Sequence[Gpu]: ...

    @property
    def unidentified(self) -> Mapping[int, GpuFailure]: ...

    def sweep(self, now: float) -> Sweep:
        """Poll every GPU that is not lost. Raises DriverAbsent."""
        ...


@dataclass(slots=True)
class _Happened:
    event: NodeEvent
    at: float
    ready: bool


@dataclass(frozen=True, slots=True)
class _Seen:
    """One sweep. `reason`: why there is no present, empty when there is one; `no_events`: why no events come."""

    at: float
    reason: str = ""
    details: tuple[GpuDetail, ...] = ()
    failed: Mapping[str, str] = field(default_factory=dict)
    unknown: Mapping[str, str] = field(default_factory=dict)
    unidentified: tuple[str, ...] = ()
    no_events: str = ""

    @property
    def all_answer(self) -> bool:
        """Whether the driver answers, for every GPU it lists and every one it listed before."""
        return bool(self.details) and not (self.failed or self.unknown or self.unidentified)


class GpuSnapshot:
    """`name` is the sensor's. `clock` is CLOCK_MONOTONIC in seconds. `hang` says which call hangs for longer than
    so many seconds.
    """

    def __init__(
        self,
        name: str,
        *,
        clock: Callable[[], float],
        hang: Callable[[float, float], str],
        memory: ConditionMemory | None = None,
    ) -> None:
        self.poll_now = threading.Event()
        self._name = name
        self._clock = clock
        self._hang = hang
        self._lock = threading.Lock()
        self._seen = _Seen(at=clock(), reason="the driver has not answered yet")
        self._silent = False
        self._happened: list[_Happened] = []
        self._memory = memory or ConditionMemory()
        self._judge = GpuJudge()
        self._judge.take_up(self._memory.recall(clock()), rebooted=self._memory.rebooted)
        self._indices: dict[str, int] = {}  # every GPU that ever answered
        self._gone: set[str] = set()  # those of them whose loss was told

    def read(self, now: float) -> Reading:
        """What was seen last, and what happened since the reading before."""
        with self._lock:
            if self._silent:
                return Reading()
            due = [one for one in self._happened if one.ready or now - one.at > _ACTION_S_MAX]
            self._happened = [one for one in self._happened if one not in due]
            events = tuple(replace(one.event, age_s=max(0.0, now - one.at)) for one in due)
            conditions, held = self._judge.book.report(now), self._judge.book.held()
            all_clear = self._judge.book.all_clear() if self._seen.all_answer else ()
            seen, indices = self._seen, dict(self._indices)
        self._memory.keep(held, now)
        reason = seen.reason
        if not reason and now - seen.at > STALE_S:
            reason = self._hang(now, _HANGS_S) or f"nobody has looked for {now - seen.at:.0f} s"
        if reason:
            gpus = tuple(GpuSample(uuid, index, GpuHealth.UNKNOWN) for uuid, index in indices.items())
            return Reading((), gpus, events, (Unreadable(self._name, reason),), conditions)
        failed = (GpuSample(uuid, indices.get(uuid, -1), GpuHealth.FAILED) for uuid in seen.failed)
        unknown = (GpuSample(uuid, indices.get(uuid, -1), GpuHealth.UNKNOWN) for uuid in seen.unknown)
        unreadable = [Unreadable(uuid, why) for uuid, why in {**seen.failed, **seen.unknown}.items()]
        unreadable += [Unreadable(self._name, why) for why in seen.unidentified]
        if no_events := seen.no_events or self._hang(now, STALE_S):
            unreadable.append(Unreadable(NVML_EVENTS, no_events))
        return Reading(
            gpus=(*map(sample_of, seen.details), *failed, *unknown),
            events=events,
            unreadable=tuple(unreadable),
            conditions=conditions,
            all_clear=all_clear,
            details=seen.details,
        )

    # From the thread that waits for events.

    def xid(self, gpu: Gpu, xid: int) -> None:
        """The driver reported an XID. It is told with what the driver says the GPU needs, if it says so soon."""
        happened = _Happened(XidRaised(gpu.uuid, xid, 0.0), self._clock(), ready=False)
        with self._lock:
            if len(self._happened) < _EVENTS_MAX:
                self._happened.append(happened)
        try:
            action = gpu.recovery_action()
        except GpuFailure:
            action = None
        with self._lock:
            happened.event = XidRaised(gpu.uuid, xid, 0.0, recovery_action=action)
            happened.ready = True
        self.changed(gpu)

    def unavailable(self, gpu: Gpu) -> None:
        """The driver gave it up."""
        with self._lock:
            self._tell_gone(gpu.uuid, "the driver says that the GPU is unavailable")
        self.changed(gpu)

    def changed(self, gpu: Gpu | None) -> None:
        """Something happened to this GPU, None: to some GPU. Poll at once instead of at the next second."""
        if gpu is not None:
            gpu.ask_all_next()
        self.poll_now.set()

    # From the thread that asks.

    def sweep(self, session: Session, now: float, *, no_events: str = "") -> bool:
        """Poll every GPU of the session. Returns whether one is missing. Raises DriverAbsent."""
        sweep = session.sweep(now)
        with self._lock:
            self._add_missing(sweep, session)
            for uuid, reason in sweep.lost.items():
                self._tell_gone(uuid, reason)
            self._gone &= sweep.lost.keys()
            for detail in sweep.details:
                self._judge.observe(detail, now)
            for uuid in sweep.reset_required:
                self._judge.reset_required(uuid, now)
            failed = sweep.lost | sweep.reset_required
            unidentified = tuple(
                f"GPU {index} does not answer: {why}" for index, why in session.unidentified.items()
            )
            self._silent = False
            self._seen = _Seen(now, "", sweep.details, failed, sweep.unknown, unidentified, no_events)
            if self._seen.all_answer:
                self._judge.all_answer(now)
        return bool(failed or session.unidentified)

    def absent(self, reason: str, *, known: Callable[[], bool]) -> bool:
        """There is no driver. Returns whether that is news. Silent where no GPU is `known` to be here."""
        silent = not self._indices and not known()
        with self._lock:
            news = self._seen.reason != reason
            self._silent = silent
            self._seen = _Seen(at=self._clock(), reason=reason)
        return news

    def _add_missing(self, sweep: Sweep, session: Session) -> None:
        """Add the GPUs that the session cannot identify: one that gives no UUID is known by its number."""
        present = {gpu.uuid: gpu.index for gpu in session.gpus}
        self._indices |= present
        for uuid in self._indices.keys() - present:
            failure = session.unidentified.get(self._indices[uuid])
            if failure is None:
                sweep.lost[uuid] = "the driver does not list it any more"
            elif isinstance(failure, ResetRequired):
                sweep.reset_required[uuid] = str(failure)
            elif isinstance(failure, GpuLost) or uuid in self._gone:
                sweep.lost[uuid] = str(failure)
            else:
                sweep.unknown[uuid] = str(failure)

    def _tell_gone(self, uuid: str, reason: str) -> None:
        if uuid not in self._gone:
            self._gone.add(uuid)
            self._happened.append(_Happened(GpuDisappeared(uuid, 0.0, reason), self._clock(), ready=True))
