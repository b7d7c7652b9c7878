"""The node as the agent sees it now: the newest readings, and what has been counted since the agent started."""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Final

from holdfast.agent.reading import Reading
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.telemetry import (
    GpuDisappeared,
    ParametersFingerprinted,
    PreemptionNoticed,
    ProcessKilledForMemory,
    ProcessState,
    StepWork,
    XidRaised,
)

# What the records of all ranks of all jobs are counted as: pods come and go, their names would be kept for good.
RANKS: Final = "ranks"


@dataclass(slots=True)
class Looks:
    """How often one sensor was read, and how long that took in all."""

    count: int = 0
    total_s: float = 0.0


@dataclass(slots=True)
class StepParts:
    """What a rank's steps were made of, in seconds by part, over all rounds: none of it ever becomes less.

    In its round a part counts as far as it is beyond what it was at most: a rank that is stopped has waited for
    less, until its step ends.
    """

    total_s: dict[str, float] = field(default_factory=dict)
    _round: int = -1
    _most_s: dict[str, float] = field(default_factory=dict)

    def take(self, round_: int, work: StepWork, newest: int) -> None:
        """The sums of `round_` as they are now; those of a round before the newest are passed over. `newest` is
        that of all ranks that live: where it has gone back, another job has the name, and counts anew.
        """
        if round_ < self._round and round_ != newest:
            return
        if round_ != self._round:
            self._round, self._most_s = round_, {}
        for part, seconds in _parts(work):
            before_s = self._most_s.get(part, 0.0)
            self.total_s[part] = self.total_s.get(part, 0.0) + max(0.0, seconds - before_s)
            self._most_s[part] = max(seconds, before_s)


def _parts(work: StepWork) -> Iterator[tuple[str, float]]:
    """They add up to the whole; what is Unknown of the training is in its rest."""
    paused_s = work.checkpoint_s + work.idle_s
    waiting_s = 0.0 if work.waited_s is None else max(0.0, work.waited_s - work.stopped_s)
    yield "data", work.data_s
    yield "paused", paused_s
    if work.waited_s is not None:
        yield "waiting", waiting_s
    trained_s = max(0.0, work.wall_s - work.data_s - paused_s - waiting_s)
    own_s = min(trained_s, work.own_s)
    yield "own", own_s
    yield "training", trained_s - own_s


@dataclass(slots=True)
class NodeView:
    """Written by the sensing loop, read by the exporter, both on the event loop's thread.

    `node` is the newest reading of the node's own sensors, `jobs` that of each job's ranks. `xids` counts errors
    by (GPU UUID, XID), `xid_at` has when each was last seen; `last_xid` is the newest by GPU UUID. `indices` are
    the GPUs' by UUID, also of those that are lost. `readable` says of every source ever met whether it can be
    read, `failures` how often it could not any more. `kernel_records_lost` is None where no log is read.
    `preempted_at` is when the machine is taken away. `tokens` and `spent` are by (job, rank). Times are
    CLOCK_MONOTONIC in seconds.
    """

    node: Reading = field(default_factory=Reading)
    jobs: Mapping[str, Reading] = field(default_factory=dict)
    read_at: float = 0.0
    xids: Counter[tuple[str, int]] = field(default_factory=Counter)
    xid_at: dict[tuple[str, int], float] = field(default_factory=dict)
    last_xid: dict[str, int] = field(default_factory=dict)
    lost: Counter[str] = field(default_factory=Counter)
    lost_at: dict[str, float] = field(default_factory=dict)
    indices: dict[str, int] = field(default_factory=dict)
    raised: Counter[ConditionKind] = field(default_factory=Counter)
    oom_kills: int = 0
    notices: int = 0
    kernel_records_lost: int | None = None
    preempted_at: float | None = None
    fingerprints: Counter[str] = field(default_factory=Counter)
    tokens: Counter[tuple[str, int]] = field(default_factory=Counter)
    spent: dict[tuple[str, int], StepParts] = field(default_factory=dict)
    readable: dict[str, bool] = field(default_factory=dict)
    failures: Counter[str] = field(default_factory=Counter)
    looks: dict[str, Looks] = field(default_factory=dict)
    _holding: frozenset[tuple[str, str, str]] = frozenset()

    def timed(self, sensor: str, seconds: float) -> None:
        """A look at `sensor` took so long."""
        looks = self.looks.setdefault(sensor, Looks())
        looks.count += 1
        looks.total_s += seconds

    def spent_of(self, job: str, rank: int) -> Iterable[tuple[str, float]]:
        """What is known of the parts of a rank's steps: seconds over all rounds since the agent started."""
        known = self.spent.get((job, rank))
        return () if known is None else known.total_s.items()

    def observe(self, node: Reading, jobs: Mapping[str, Reading], now: float) -> None:
        """Take in the newest readings, made at `now`."""
        for job, reading in jobs.items():
            self.fingerprints[job] += sum(isinstance(each, ParametersFingerprinted) for each in reading.events)
            # A look may miss steps; those between two looks are taken to be like the newest.
            before = self.jobs.get(job, Reading())
            steps = {(each.round, each.rank): each.step for each in before.ranks}
            alive = (each.round for each in reading.ranks if each.process is not ProcessState.GONE)
            newest = max(alive, default=-1)
            for rank in reading.ranks:
                step = steps.get((rank.round, rank.rank))
                if rank.tokens is not None and rank.step is not None and step is not None:
                    self.tokens[job, rank.rank] += max(0, rank.step - step) * rank.tokens
                if rank.work is not None:
                    self.spent.setdefault((job, rank.rank), StepParts()).take(rank.round, rank.work, newest)
        self.node, self.jobs, self.read_at = node, jobs, now
        self.indices.update((gpu.uuid, gpu.index) for gpu in node.gpus)
        self.indices.update((gpu.uuid, gpu.index) for gpu in node.details)
        for event in node.events:
            at = now - event.age_s
            match event:
                case XidRaised(gpu=gpu, xid=xid):
                    self.xids[gpu, xid] += 1
                    self.xid_at[gpu, xid] = at
                    self.last_xid[gpu] = xid
                case GpuDisappeared(gpu=gpu):
                    self.lost[gpu] += 1
                    self.lost_at[gpu] = at
                case ProcessKilledForMemory():
                    self.oom_kills += 1
                case PreemptionNoticed(within_s=within_s):
                    self.notices += 1
                    self.preempted_at = at + within_s
        # A condition holds in many readings and was raised in the first of them.
        raised = (each for each in node.conditions if each.state is ConditionState.RAISED)
        holding = frozenset((each.kind, each.gpu, each.device) for each in raised)
        for kind, _, _ in holding - self._holding:
            self.raised[ConditionKind(kind)] += 1
        self._holding = holding
        unreadable = {each.source for each in node.unreadable}
        if any(reading.unreadable for reading in jobs.values()):
            unreadable.add(RANKS)
        for source in unreadable:
            self.failures[source] += self.readable.get(source, True)
        sources = self.readable.keys() | self.looks.keys() | unreadable
        self.readable = {source: source not in unreadable for source in sources}
