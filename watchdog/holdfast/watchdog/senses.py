"""Everything that watches one job under one policy: its detectors and its progress, as one thing."""

import logging
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar, runtime_checkable

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Finding
from holdfast.api.policy import Policy
from holdfast.api.status import RankStatus
from holdfast.watchdog.detectors.detector import Detector, Proof
from holdfast.watchdog.newest import Newest
from holdfast.watchdog.sample import Reported, RoundStarted, RoundStopped, Sample

logger = logging.getLogger(__name__)

T = TypeVar("T")

# What a gauge is shown: how far ranks are, and in which round.
GAUGED = (Reported, RoundStarted, RoundStopped)


class Gauge(Protocol):
    """How far the ranks are. Filled by `holdfast.watchdog.progress.Progress`."""

    def observe(self, sample: Sample, now: float) -> Sequence[Event]:
        """Take one sample; return the progress it proves."""
        ...

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the round as last seen."""
        ...

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        """The same of the newest round that was heard of, also when it has ended, and however long ago."""
        ...

    def newest(self) -> Newest:
        """The newest sample of every rank of the round heard of."""
        ...

    def step(self) -> int | None:
        """The lowest last completed step over the ranks, None when Unknown."""
        ...

    def loss(self) -> float | None:
        """The newest loss of the newest round, also when it has ended; None when Unknown."""
        ...

    def step_time_s(self) -> float | None:
        """How long a step takes, None when Unknown."""
        ...


@runtime_checkable
class StallJudge(Protocol):
    """A detector that knows how long a step may take."""

    def stalled_after_s(self, now: float) -> float | None:
        """After how long without progress a rank is worth a report at once, None while that is Unknown."""
        ...


class Senses:
    """Fans samples out to the detectors and the gauge, and gathers what they prove as events.

    One that fails on a sample proves nothing by it, says so in the log, and keeps nobody else from judging.
    `failures` counts those samples by the judge's name, from zero for each.
    """

    def __init__(self, detectors: Sequence[Detector], gauge: Gauge) -> None:
        self.gauge = gauge
        self.failures = Counter({type(judge).__name__: 0 for judge in (gauge, *detectors)})
        self._detectors = tuple(detectors)
        self._heeding: dict[type[Sample], tuple[Detector, ...]] = {}
        self._stall_judges = tuple(each for each in detectors if isinstance(each, StallJudge))

    def observe(self, sample: Sample, now: float) -> tuple[Event, ...]:
        """Take one sample. Progress comes first: a step that was completed was so before any fault after it."""
        proved: list[Event] = []
        if type(sample) in GAUGED:
            proved.extend(self._asked(self.gauge.observe, sample, now))
        for each in self._heeding.get(type(sample)) or self._who_heeds(type(sample)):
            if found := self._asked(each.observe, sample, now):
                proved.extend(map(_event, found))
        return tuple(proved)

    def elapse(self, now: float) -> tuple[Event, ...]:
        """What silence up to `now` proves."""
        return tuple(_event(proof) for each in self._detectors for proof in self._asked(each.elapse, now))

    def next_wakeup(self) -> float | None:
        """When silence could next prove something, or None."""
        wakeups = (each.next_wakeup() for each in self._detectors)
        return min((at for at in wakeups if at is not None), default=None)

    def stalled_after_s(self, now: float) -> float | None:
        """After how long without progress a rank is worth reporting at once, or None."""
        judged = (judge.stalled_after_s(now) for judge in self._stall_judges)
        return min((seconds for seconds in judged if seconds is not None), default=None)

    def _who_heeds(self, kind: type[Sample]) -> tuple[Detector, ...]:
        heeding = tuple(each for each in self._detectors if kind in getattr(each, "heeds", (kind,)))
        self._heeding[kind] = heeding
        return heeding

    def _asked(self, judge: Callable[..., Sequence[T]], *given: object) -> Sequence[T]:
        try:
            return judge(*given)
        except Exception:
            # Letting it out would close the connection of whoever sent the sample, and call that a fault.
            self.failures[type(getattr(judge, "__self__", judge)).__name__] += 1
            logger.exception("a judge failed judge=%s", getattr(judge, "__qualname__", judge))
            return ()


def _event(proof: Proof) -> Event:
    """A judgement as the brain is told of it."""
    return FindingMade(proof) if isinstance(proof, Finding) else proof


SensesFor = Callable[[Policy], Senses]
