"""The port every detector fills, and what detectors see: raw observations, as the server turns messages and rounds
into them, and the round that they count for.

Samples are not journaled and not kept: detectors hold bounded windows of them, which refill within seconds after a
restart.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Protocol

import msgspec

from holdfast.api.event import ConditionOver, NodeDeparting, ReplicasAgreed, StopEnded
from holdfast.api.finding import Finding, Subject
from holdfast.api.longwork import LongWork
from holdfast.api.membership import CollectiveFailed, ProcessesSpawned, WorkerExited
from holdfast.api.nodecondition import NodeCondition
from holdfast.api.policy import FaultAction, XidAction
from holdfast.api.round import MemberRanks, Round
from holdfast.api.telemetry import NodeReport, RankNonFinite, RankSample

# What a detector proves: mostly that something is wrong; some also prove that something is well again.
Proof = Finding | ConditionOver | NodeDeparting | ReplicasAgreed | StopEnded

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


class Spawned(msgspec.Struct, frozen=True):
    """A worker of `member` trains in processes of its own making, as far as is known."""

    member: str
    node: str
    spawned: ProcessesSpawned


class Reported(msgspec.Struct):
    """A node's report arrived. `counted` is what of it counts for a round, once somebody has asked."""

    report: NodeReport
    counted: tuple[Round, Sequence[RankSample]] | None = None


class Placed(msgspec.Struct, frozen=True):
    """The operator says in which rack (or switch, or power domain) a node is."""

    node: str
    rack: str


class NodeNoted(msgspec.Struct, frozen=True):
    """The operator says which conditions that others set on a node hold, as far as they mean something."""

    node: str
    conditions: tuple[NodeCondition, ...]


class WorkKnown(msgspec.Struct, frozen=True):
    """What the brain knows of the job's long work."""

    work: LongWork


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
    | Spawned
    | Reported
    | Placed
    | NodeNoted
    | WorkKnown
    | RoundStarted
    | RoundStopped
)

# What `RoundInForce` follows.
ROUNDS: tuple[type[Sample], ...] = (RoundStarted, RoundStopped)


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

    def stalled_after_s(self, now: float) -> float | None:
        """After how long without progress a rank is worth a report at once, None while that is Unknown."""
        return None


class RoundInForce:
    """Follows the rounds shown. Whatever carries another round's number is fenced: it is evidence of nothing.

    `round` is the one that runs, and `number` its number; None while none does. `world_size` are the ranks that
    train: of a replica group that is being formed nothing is expected yet. A new round is on its way to the
    launchers while this is told of it, so that following costs next to nothing; what is asked for with every
    report is built when it is first asked for.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._newest: int | None = None  # number of what was shown last, a round or none
        self.round: Round | None = None
        self.number: int | None = None
        self.world_size = 0  # 0 while none runs
        self._ranks_of_node: dict[str, Container[int]] | None = None

    def follow(self, sample: Sample) -> bool:
        """Take one sample; True when it began or ended a round, so that all that was known before is void."""
        if not isinstance(sample, RoundStarted | RoundStopped):
            return False
        started = sample.round if isinstance(sample, RoundStarted) else None
        number = sample.round.number if isinstance(sample, RoundStarted) else sample.number
        late = self._newest is not None and number < self._newest
        if late or (number, started) == (self._newest, self.round):
            return False
        self._newest, self.round = number, started
        self.number, self.world_size = (number, started.training_size) if started else (None, 0)
        self._ranks_of_node = None
        return True

    def samples_in(self, reported: Reported) -> Sequence[RankSample]:
        """The samples of a report that count: of this round, and of ranks that its node runs."""
        if self.round is None:
            return ()
        if (known := reported.counted) is not None and known[0] is self.round:
            return known[1]
        report, number = reported.report, self.number
        ranks = self.ranks_on(report.node)
        samples = [sample for sample in report.ranks if sample.round == number and sample.rank in ranks]
        reported.counted = self.round, samples  # several detectors ask, thousands of times a second
        return samples

    def samples_behind(self, reported: Reported) -> Iterator[RankSample]:
        """Those of ranks that have not taken up the round their replica group goes on in, numbered as in that."""
        if self.round is None or self.number is None or not self.round.goes_on:
            return
        ranks = self.ranks_on(reported.report.node)
        if not isinstance(ranks, range) or (share := self.member_of(ranks.start)) is None:
            return
        for sample in reported.report.ranks:
            rank = self.round.rank_now(sample.round, sample.rank, share.member)
            if rank is not None and sample.round < self.number:
                yield msgspec.structs.replace(sample, rank=rank)

    def ranks_on(self, node: str) -> Container[int]:
        """The ranks that `node` runs in the round, none while none runs; of those that train."""
        if self.round is None:
            return ()
        if self._ranks_of_node is None:
            # One member a node is the rule, and a range answers faster than a set; several members share a set.
            ranks: dict[str, range | set[int]] = {}
            for share in self.round.ranks[: self.round.training]:
                mine = range(share.first_rank, share.first_rank + share.local_size)
                ranks[share.node] = {*ranks[share.node], *mine} if share.node in ranks else mine
            self._ranks_of_node = dict(ranks)
        return self._ranks_of_node.get(node, ())

    def member_of(self, rank: int) -> MemberRanks | None:
        """Who runs `rank`, None when it is outside the world."""
        return self.round.member_of(rank) if self.round else None

    def groups(self) -> Sequence[range]:
        """The ranks of each replica group, none where there are none."""
        found: list[range] = []
        if self.round is None:
            return found
        place = 0
        for group in self.round.groups:
            shares = self.round.ranks[place : place + group.members]
            place += group.members
            found.append(range(shares[0].first_rank, shares[-1].first_rank + shares[-1].local_size))
        return found

    def apart(self, one: str | None, other: str | None) -> bool:
        """Whether these members are in two replica groups."""
        if self.round is None or one is None or other is None:
            return False
        return self.round.group_of(one) != self.round.group_of(other)

    def subject(self, rank: int) -> Subject:
        """`rank` with the member and node that run it."""
        share = self.member_of(rank)
        if share is None:
            return Subject(self._job, rank=rank)
        return Subject(self._job, node=share.node, member=share.member, rank=rank)


def is_own_rule(own: XidAction, standing: XidAction) -> bool:
    """Whether it is the job's own spec alone that makes so much of something, and not what stands for all jobs."""
    return own is not standing and standing is not XidAction.EVICT
