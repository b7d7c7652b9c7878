"""Everything that watches one job under one policy: its detectors and its progress, as one thing."""

import logging
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from typing import get_args

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Finding
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Detector, Sample
from holdfast.watchdog.detectors.progress import Progress

logger = logging.getLogger(__name__)


class Senses:
    """Shows each kind of sample to those that subscribe to it, and gathers what they prove as events.

    Progress comes first: a step that was completed was so before any fault after it. One that fails on a sample
    proves nothing by it, says so in the log, and keeps nobody else from judging. `failures` counts those samples
    by the judge's name, from zero for each.
    """

    def __init__(self, detectors: Sequence[Detector], progress: Progress) -> None:
        self.progress = progress
        self.failures = Counter({type(judge).__name__: 0 for judge in (progress, *detectors)})
        self._detectors = tuple(detectors)
        everybody: tuple[Detector | Progress, ...] = (progress, *detectors)
        self._subscribers: dict[type[Sample], tuple[Detector | Progress, ...]] = {
            kind: tuple(each for each in everybody if kind in each.subscribes_to) for kind in get_args(Sample)
        }

    def observe(self, sample: Sample, now: float) -> tuple[Event, ...]:
        """What one sample proves."""
        proofs: list[Finding | Event] = []
        for judge in self._subscribers[type(sample)]:
            try:
                if found := judge.observe(sample, now):
                    proofs.extend(tuple(found))
            except Exception:
                self._failed(judge)
        return _events(proofs) if proofs else ()

    def elapse(self, now: float) -> tuple[Event, ...]:
        """What silence up to `now` proves."""
        proofs: list[Finding | Event] = []
        for judge in self._detectors:
            try:
                proofs.extend(tuple(judge.elapse(now)))
            except Exception:
                self._failed(judge)
        return _events(proofs)

    def next_wakeup(self) -> float | None:
        """When silence could next prove something, or None."""
        wakeups = (each.next_wakeup() for each in self._detectors)
        return min((at for at in wakeups if at is not None), default=None)

    def stalled_after_s(self, now: float) -> float | None:
        """After how long without progress a rank is worth reporting at once, or None."""
        judged = (judge.stalled_after_s(now) for judge in self._detectors)
        return min((seconds for seconds in judged if seconds is not None), default=None)

    def _failed(self, judge: Detector | Progress) -> None:
        """Letting the error out would close the connection of whoever sent the sample, and call that a fault."""
        self.failures[type(judge).__name__] += 1
        logger.exception("a judge failed judge=%s", type(judge).__qualname__)


def _events(proofs: Iterable[Finding | Event]) -> tuple[Event, ...]:
    """Judgements as the brain is told of them."""
    return tuple([FindingMade(proof) if isinstance(proof, Finding) else proof for proof in proofs])


SensesFor = Callable[[Policy], Senses]


def senses_for(policy: Policy) -> Senses:
    """What watches a job in production."""
    return Senses(detectors_for(policy), Progress(policy))
