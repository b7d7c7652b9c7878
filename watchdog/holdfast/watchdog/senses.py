"""Everything that watches one job under one policy: its detectors and its progress, as one thing."""

from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Finding
from holdfast.api.policy import Policy
from holdfast.api.status import RankStatus
from holdfast.watchdog.detectors.detector import Detector
from holdfast.watchdog.sample import Sample


class Gauge(Protocol):
    """How far the ranks are. Filled by `holdfast.watchdog.progress.Progress`."""

    def observe(self, sample: Sample, now: float) -> Sequence[Event]: ...
    def ranks(self, now: float) -> tuple[RankStatus, ...]: ...
    def step(self) -> int | None: ...
    def loss(self) -> float | None: ...
    def step_time_s(self) -> float | None: ...


class Senses:
    """Fans samples out to the detectors and the gauge, and gathers what they prove as events."""

    def __init__(self, detectors: Sequence[Detector], gauge: Gauge) -> None:
        self._detectors = tuple(detectors)
        self.gauge = gauge
        # Only the hang detector knows how long a step may take.
        self._stall_judges = [judge for each in detectors if (judge := getattr(each, "stalled_after_s", None))]

    def observe(self, sample: Sample, now: float) -> tuple[Event, ...]:
        """Take one sample. Progress comes first: a step that was completed was so before any fault after it."""
        progress = self.gauge.observe(sample, now)
        return (*progress, *_made(each.observe(sample, now) for each in self._detectors))

    def elapse(self, now: float) -> tuple[Event, ...]:
        """What silence up to `now` proves."""
        return _made(each.elapse(now) for each in self._detectors)

    def next_wakeup(self) -> float | None:
        """When silence could next prove something, or None."""
        wakeups = (each.next_wakeup() for each in self._detectors)
        return min((at for at in wakeups if at is not None), default=None)

    def stalled_after_s(self, now: float) -> float | None:
        """After how long without progress a rank is worth reporting at once, or None."""
        judged = (judge(now) for judge in self._stall_judges)
        return min((seconds for seconds in judged if seconds is not None), default=None)


SensesFor = Callable[[Policy], Senses]


def _made(findings: Iterable[Sequence[Finding]]) -> tuple[Event, ...]:
    return tuple(FindingMade(finding) for made in findings for finding in made)
