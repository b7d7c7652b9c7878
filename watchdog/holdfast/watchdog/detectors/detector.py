"""The port every detector fills."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.api.event import ConditionOver, NodeDeparting, ReplicasAgreed
from holdfast.api.finding import Finding
from holdfast.watchdog.sample import Sample

# What a detector proves: mostly that something is wrong; some also prove that something is well again.
Proof = Finding | ConditionOver | NodeDeparting | ReplicasAgreed


class Detector(Protocol):
    """One fault class. Pure: time is an argument, memory is bounded.

    `now` is the watchdog's clock in seconds and never goes back. A detector makes a finding once per fault and
    per round, not once per sample. One that has an attribute `heeds`, a tuple of kinds of samples, is shown no
    others: a beat, which comes every second from every launcher, concerns a single detector.
    """

    def observe(self, sample: Sample, now: float) -> Sequence[Proof]:
        """Take one sample; return what it proves."""
        ...

    def elapse(self, now: float) -> Sequence[Proof]:
        """Return what silence up to `now` proves."""
        ...

    def next_wakeup(self) -> float | None:
        """When `elapse` could next prove something, or None."""
        ...
