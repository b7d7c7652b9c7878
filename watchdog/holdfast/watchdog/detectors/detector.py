"""The port every detector fills, and what detectors see: raw observations, as the server turns messages and rounds
into them.

Samples are not journaled and not kept: detectors hold bounded windows of them, which refill within seconds after a
restart.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from holdfast.api.event import ConditionOver, NodeDeparting, ReplicasAgreed
from holdfast.api.finding import Finding
from holdfast.api.membership import CollectiveFailed, WorkerExited
from holdfast.api.policy import FaultAction, XidAction
from holdfast.api.round import Round
from holdfast.api.telemetry import NodeReport, RankNonFinite, RankSample

# What a detector proves: mostly that something is wrong; some also prove that something is well again.
Proof = Finding | ConditionOver | NodeDeparting | ReplicasAgreed

# What a job's word about a class of faults asks of the brain. WATCH asks for nothing but a record.
ASKS: Mapping[FaultAction, XidAction] = MappingProxyType(
    {
        FaultAction.REPORT: XidAction.WATCH,
        FaultAction.RESTART: XidAction.RESTART,
        FaultAction.EVICT: XidAction.EVICT,
    }
)


class Connected(msgspec.Struct, frozen=True):
    """A launcher's connection was accepted."""

    member: str
    node: str


class Expected(msgspec.Struct, frozen=True):
    """A member of an earlier watchdog, which has not connected to this one yet: it has until `by` to do so."""

    member: str
    node: str
    by: float


class Disconnected(msgspec.Struct, frozen=True):
    """A launcher's connection closed without a word (no `Leave`)."""

    member: str


class Left(msgspec.Struct, frozen=True):
    """A launcher left on purpose, or the job no longer counts it: stop watching it."""

    member: str


class Heard(msgspec.Struct, frozen=True):
    """Any message of a launcher arrived."""

    member: str


class Exited(msgspec.Struct, frozen=True):
    """A worker of `member` ended, with a failure unless its exit code is 0."""

    member: str
    node: str
    exit: WorkerExited


class Finished(msgspec.Struct, frozen=True):
    """All workers of `member` ended `round` with success; `nonfinite` is their last word on their values."""

    member: str
    round: int
    nonfinite: tuple[RankNonFinite, ...] = ()


class CollectiveBroke(msgspec.Struct, frozen=True):
    """A worker of `member` is alive but its collective failed."""

    member: str
    node: str
    failure: CollectiveFailed


class Reported(msgspec.Struct):
    """A node's report arrived. `counted` is what of it counts for a round, once somebody has asked."""

    report: NodeReport
    counted: tuple[Round, Sequence[RankSample]] | None = None


class Placed(msgspec.Struct, frozen=True):
    """The operator says in which rack (or switch, or power domain) a node is."""

    node: str
    rack: str


class RoundStarted(msgspec.Struct, frozen=True):
    """The brain showed this round to the launchers."""

    round: Round


class RoundStopped(msgspec.Struct, frozen=True):
    """No round is to run now."""

    number: int


Sample = (
    Connected
    | Expected
    | Disconnected
    | Left
    | Heard
    | Exited
    | Finished
    | CollectiveBroke
    | Reported
    | Placed
    | RoundStarted
    | RoundStopped
)


class Detector(Protocol):
    """One fault class. Pure: time is an argument, memory is bounded.

    `now` is the watchdog's clock in seconds and never goes back. A detector makes a finding once per fault and
    per round, not once per sample. It is shown only the kinds of samples that it subscribes to: a beat, which
    comes every second from every launcher, concerns a single detector.
    """

    subscribes_to: tuple[type[Sample], ...]

    def observe(self, sample: Sample, now: float) -> Sequence[Proof]:
        """Take one sample; return what it proves."""
        ...

    def elapse(self, now: float) -> Sequence[Proof]:
        """Return what silence up to `now` proves. Nothing, unless a detector says otherwise: it is Unknown."""
        return ()

    def next_wakeup(self) -> float | None:
        """When `elapse` could next prove something, or None."""
        return None


def is_own_rule(own: XidAction, standing: XidAction) -> bool:
    """Whether it is the job's own spec alone that makes so much of something, and not what stands for all jobs."""
    return own is not standing and standing is not XidAction.EVICT
