"""Jobs in virtual time with something slow in them or none, and what the detector of stragglers makes of each.

A job is drawn from a seed: 8 to 4,096 ranks, a step of 0.1 to 30 s, machines that differ by some percent, noise
of each step with a heavy tail, garbage collection, checkpoints of all ranks, and communication that all wait in.
Every node reports once a second, at its own moment; where a step takes longer, the reports of one step say the
same, and one of them is played. Who is slow is known, so that precision, recall and the steps until it is named
are counted.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from holdfast.api.finding import Finding, SlowCause
from holdfast.api.policy import Policy, SlowAction, StragglerPolicy, XidAction
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.telemetry import NodeReport, ProcessState, RankSample, StepWork
from holdfast.watchdog.detectors.detector import Detector, Placed, Reported, RoundStarted
from holdfast.watchdog.detectors.straggler import StragglerDetector

Matrix = npt.NDArray[np.float64]
"""Steps by ranks, or sums of them; seconds unless said otherwise."""
RACK_NODES = 4
SIZES = (8, 8, 16, 16, 64, 64, 256, 256, 1024, 4096)
SHORT_STEPS_UP_TO = 64  # ranks: larger models have longer steps
FACTOR = 1.3


@dataclass
class Job:
    """One job: its shape, and what its steps are made of, which a fault then changes."""

    ranks: int
    per_node: int
    model_ranks: int
    step_s: float
    steps: int
    onset: int
    tells_waiting: bool
    drawn: np.random.Generator
    own: Matrix = field(init=False)  # share of a step, without what follows
    data: Matrix = field(init=False)
    collected: Matrix = field(init=False)
    delayed: Matrix = field(init=False)
    checkpoint: Matrix = field(init=False)
    tokens: Matrix = field(init=False)
    longest: Matrix = field(init=False)
    network: Matrix = field(init=False)  # by step alone
    idle: Matrix = field(init=False)  # on purpose, by step alone
    lag: npt.NDArray[np.int64] = field(init=False)  # of each node's reports, in steps
    silent_from: npt.NDArray[np.int64] = field(init=False)  # from which step on each node says nothing

    def __post_init__(self) -> None:
        drawn, shape = self.drawn, (self.steps, self.ranks)
        apart = np.clip(drawn.normal(0.0, drawn.uniform(0.003, 0.02), self.ranks), -0.05, 0.05)
        place = drawn.normal(0.0, 0.01, self.model_ranks)[np.arange(self.ranks) % self.model_ranks]
        noise = drawn.normal(0.0, drawn.uniform(0.003, 0.025), shape)
        tail = (drawn.random(shape) < drawn.choice([0.0, 0.001, 0.004])) * drawn.exponential(0.4, shape)
        together = 1.0 + drawn.normal(0.0, drawn.choice([0.0, 0.03, 0.08]), (self.steps, 1))
        self.own = drawn.uniform(0.6, 0.9) * (1.0 + apart + place) * (1.0 + noise + tail) * together.clip(0.5)
        self.data = drawn.exponential(drawn.choice([0.001, 0.01]), shape)
        self.collected = (drawn.random(shape) < 0.02) * drawn.uniform(0.0, 0.05)
        self.delayed = drawn.exponential(0.001, shape)
        saves = (np.arange(self.steps) % 40 == 39) * drawn.choice([0.0, 0.5])
        self.checkpoint = saves[:, None] * (1.0 + 0.05 * drawn.random(shape))
        self.tokens = np.full(shape, 4096.0)
        self.longest = np.full(shape, 2048.0)
        self.network = np.full((self.steps, 1), drawn.uniform(0.05, 0.3)) * (
            1.0 + 0.05 * drawn.random((self.steps, 1))
        )
        self.idle = np.zeros((self.steps, 1))
        self.lag = np.zeros(self.nodes, dtype=np.int64)
        self.silent_from = np.full(self.nodes, self.steps)

    @property
    def nodes(self) -> int:
        return self.ranks // self.per_node

    def any_rank(self, *, but_zero: bool = False) -> int:
        return int(self.drawn.integers(1 if but_zero else 0, self.ranks))

    def node_of(self, rank: int) -> str:
        return f"n{rank // self.per_node}"

    def is_heard(self, node: int, row: int) -> bool:
        """Whether something is heard of the node after the step of that row."""
        return bool(self.lag[node] <= row < self.silent_from[node])

    def sums(self) -> tuple[Matrix, ...]:
        """As the record has them, with one row for each step: steps begin with the second."""
        own = self.own + self.collected + self.delayed
        busy = own + self.data + self.checkpoint
        trained = (busy.max(axis=1, keepdims=True) + self.network) * np.ones_like(busy)
        wall, idle = trained + self.idle, self.idle * np.ones_like(busy)
        seconds = [wall, self.data, self.checkpoint, idle, self.collected, trained - busy, self.delayed]
        work = [self.tokens, self.longest]
        return tuple(np.cumsum(each * self.step_s, axis=0) for each in seconds) + tuple(
            np.cumsum(each, axis=0) for each in work
        )


@dataclass(frozen=True)
class Truth:
    """What is to be named: the cause, and the node (None: nobody's, or nobody). `cause` None: nothing is wrong.
    `is_host`: it is the node that makes its ranks slow, so that another one would help.
    """

    cause: SlowCause | None
    node: str | None = None
    is_host: bool = False


def healthy(job: Job) -> Truth:
    return Truth(None)


def one_rank(job: Job) -> Truth:
    rank = job.any_rank()
    job.own[job.onset :, rank] *= FACTOR
    return Truth(SlowCause.MACHINE, job.node_of(rank))


def one_rank_a_little(job: Job) -> Truth:
    rank = job.any_rank()
    job.own[job.onset :, rank] *= 1.2
    return Truth(SlowCause.MACHINE, job.node_of(rank))


def from_the_start(job: Job) -> Truth:
    rank = job.any_rank(but_zero=True)
    job.onset = 0
    job.own[:, rank] *= FACTOR
    return Truth(SlowCause.MACHINE, job.node_of(rank))


def host(job: Job) -> Truth:
    first = job.any_rank() // job.per_node * job.per_node
    job.own[job.onset :, first : first + job.per_node] *= FACTOR
    return Truth(SlowCause.MACHINE, job.node_of(first))


def rack(job: Job) -> Truth:
    """Its power is capped, or its switch is slow, behind which it loads its data."""
    a_rack = RACK_NODES * job.per_node
    first = job.any_rank() // a_rack * a_rack
    if job.drawn.random() < 0.5:
        job.own[job.onset :, first : first + a_rack] *= FACTOR
    else:
        job.data[job.onset :, first : first + a_rack] += 0.3
    return Truth(SlowCause.EVERYBODY)


def drifting(job: Job) -> Truth:
    rank = job.any_rank()
    job.own[job.onset :, rank] *= 1.0 + 0.4 * np.minimum(1.0, np.arange(job.steps - job.onset) / 60.0)
    return Truth(SlowCause.MACHINE, job.node_of(rank))


def periodic(job: Job) -> Truth:
    rank = job.any_rank(but_zero=True)
    every = int(job.drawn.integers(8, 25))
    slow = np.arange(job.steps) % every < max(1, every // 4)
    slow[: job.onset] = False
    job.own[slow, rank] *= 1.8
    return Truth(SlowCause.MACHINE, job.node_of(rank))


def burst(job: Job) -> Truth:
    """Of two steps, or two seconds."""
    steps = max(2, int(2.0 / job.step_s))
    job.own[job.onset : job.onset + steps, job.any_rank()] *= job.drawn.uniform(1.3, 2.5)
    return Truth(None)


def data(job: Job) -> Truth:
    rank = job.any_rank()
    job.data[job.onset :, rank] += 0.25 + job.drawn.exponential(0.1, job.steps - job.onset)
    return Truth(SlowCause.DATA, job.node_of(rank))


def shape(job: Job) -> Truth:
    rank = job.any_rank()
    longer = 1.0 + job.drawn.uniform(0.1, 0.3) + job.drawn.normal(0.0, 0.03, job.steps - job.onset)
    job.longest[job.onset :, rank] *= longer
    job.own[job.onset :, rank] *= longer**1.5
    return Truth(SlowCause.SHAPE, job.node_of(rank))


def last_stage(job: Job) -> Truth:
    job.onset = 0
    job.own[:, job.model_ranks - 1 :: job.model_ranks] *= 1.25
    return Truth(SlowCause.SHAPE)


def garbage(job: Job) -> Truth:
    rank, every = job.any_rank(), int(job.drawn.integers(3, 12))
    paused = np.arange(job.steps) % every == 0
    paused[: job.onset] = False
    job.collected[paused, rank] += 0.2 * every
    return Truth(SlowCause.SOFTWARE, job.node_of(rank))


def neighbour(job: Job) -> Truth:
    first = job.any_rank() // job.per_node * job.per_node
    shape = (job.steps - job.onset, job.per_node)
    job.delayed[job.onset :, first : first + job.per_node] += job.drawn.uniform(0.15, 0.5, shape)
    return Truth(SlowCause.SOFTWARE, job.node_of(first), is_host=True)


def storage(job: Job) -> Truth:
    job.data[job.onset :] += 0.4 + job.drawn.exponential(0.05, (job.steps - job.onset, job.ranks))
    return Truth(SlowCause.EVERYBODY)


def network(job: Job) -> Truth:
    job.network[job.onset :] += 0.4
    return Truth(SlowCause.EVERYBODY)


def eventful(job: Job) -> Truth:
    """A healthy job of whose time that is played in which something happens: bursts here and there."""
    steps = max(1, int(2.0 / job.step_s))
    for _ in range(4):
        begins = int(job.drawn.integers(0, job.steps - steps))
        job.own[begins : begins + steps, job.any_rank()] *= job.drawn.uniform(1.1, 2.5)
        begins = int(job.drawn.integers(0, job.steps - steps))
        job.data[begins : begins + steps] += 0.5 * job.drawn.random((steps, job.ranks))
    return Truth(None)


def evaluation(job: Job) -> Truth:
    """Rank 0 evaluates every some steps, outside of any phase, and the others wait."""
    job.onset, every = 0, int(job.drawn.integers(8, 25))
    job.own[every - 1 :: every, 0] += every * job.drawn.uniform(0.2, 0.5)
    return Truth(SlowCause.SOFTWARE, job.node_of(0))


def idle(job: Job) -> Truth:
    """All do nothing now and then, on purpose or as they wait for each other: for a moment, and for long."""
    pauses = job.drawn.random((job.steps, 1)) < 0.05
    for part in (job.idle, job.network):
        part += pauses * job.drawn.choice([0.5, 5.0, 50.0], (job.steps, 1))
    return Truth(None)


def missing(job: Job) -> Truth:
    """A rank is slow, and of some nodes nothing is heard: from the begin on, or no more."""
    truth = one_rank(job)
    others = [node for node in range(job.nodes) if f"n{node}" != truth.node]
    silent = job.drawn.choice(others, max(1, len(others) // 4), replace=False)
    job.silent_from[silent] = job.drawn.choice([0, job.onset // 2, job.onset], len(silent))
    return truth


def late(job: Job) -> Truth:
    """A rank is slow, and reports of some other nodes take some steps or ten seconds, its own take a step."""
    truth = one_rank(job)
    slow = [f"n{node}" == truth.node for node in range(job.nodes)]
    job.lag = job.drawn.integers(0, 3 + int(10.0 / job.step_s), job.nodes) * (job.drawn.random(job.nodes) < 0.3)
    job.lag[slow] = 1
    return truth


def two(job: Job) -> Truth:
    """One rank of two."""
    return one_rank(job)


def healthy_two(job: Job) -> Truth:
    return Truth(None)


Fault = Callable[[Job], Truth]
FAULTS: tuple[Fault, ...] = (
    one_rank,
    one_rank_a_little,
    from_the_start,
    host,
    rack,
    drifting,
    periodic,
    burst,
    data,
    shape,
    last_stage,
    garbage,
    neighbour,
    storage,
    network,
    evaluation,
    idle,
    missing,
    late,
    two,
    healthy_two,
    healthy,
)
OF_TWO = (two, healthy_two)
NO_WAITING_NEEDED = (data, garbage, burst, healthy, eventful, storage, network)
"""What can be told where waiting is Unknown, as on a GPU."""


def draw(seed: int, fault: Fault, *, sizes: Sequence[int] = SIZES) -> Job:
    """The job of that seed, before the fault."""
    drawn = np.random.default_rng([seed, *fault.__name__.encode()])
    ranks = int(sizes[seed % len(sizes)])
    per_node = 1 if ranks <= 16 and drawn.random() < 0.5 else min(8, ranks // 4)
    many = [each for each in (1, 2, 8) if ranks // each >= 4 and ranks % each == 0]
    model_ranks = int(drawn.choice(many[1:] if fault is last_stage else many))
    if fault in OF_TWO:
        ranks, per_node, model_ranks = 2, 1, 1
    shortest = 0.1 if ranks <= SHORT_STEPS_UP_TO else 1.0
    step_s = float(np.exp(drawn.uniform(np.log(shortest), np.log(30.0))))
    if fault is rack:
        ranks, per_node = max(ranks, 16), max(1, min(8, ranks // 16))
    # A look of the detector takes about so many steps.
    slack = max(1.0, max(3.0, ranks * 1.2e-3) / step_s)
    # A job is compared with itself, once that is known: after some 50 looks.
    onset = int(slack * drawn.integers(90, 110) if fault in (storage, network) else slack * drawn.integers(36, 50))
    steps = onset + int(slack * (180 if fault is periodic else 110))
    tells = fault not in NO_WAITING_NEEDED or seed % 4 != 3
    return Job(ranks, per_node, model_ranks, step_s, steps, onset, tells, drawn)


@dataclass(frozen=True)
class Outcome:
    """What the detector said of one job. `steps` to name: None where it was not named rightly."""

    job: Job
    truth: Truth
    found: tuple[Finding, ...]

    def is_right(self, finding: Finding) -> bool:
        """Whether it says what is slow, and blames no other node."""
        slow = finding.slow
        return (
            slow is not None
            and self.truth.cause is slow.cause
            and (self.truth.node is None or finding.subject.node == self.truth.node)
        )

    @property
    def right(self) -> list[Finding]:
        return [each for each in self.found if self.is_right(each)]

    @property
    def is_named(self) -> bool:
        return bool(self.right)

    @property
    def steps_to_name(self) -> int:
        return (self.right[0].step or 0) - self.job.onset

    @property
    def looks_like_eviction(self) -> list[Finding]:
        """Findings for which the ladder may take a node away that has done nothing."""
        may = [each for each in self.found if each.asks is not XidAction.WATCH]
        is_of_the_node = self.truth.cause is SlowCause.MACHINE or self.truth.is_host
        return [each for each in may if not (is_of_the_node and each.subject.node == self.truth.node)]


def play(seed: int, fault: Fault, *, sizes: Sequence[int] = SIZES) -> Outcome:
    """One job from its first step to its last."""
    job = draw(seed, fault, sizes=sizes)
    truth = fault(job)
    # Whatever the ladder may act on at all, it may act on at once.
    wanted = StragglerPolicy(action=SlowAction.SWAP, sustained=1)
    policy = Policy(
        "sim/slow",
        1,
        job.nodes,
        processes_per_node=job.per_node,
        model_ranks=job.model_ranks,
        straggler=wanted,
    )
    detector = StragglerDetector(policy)
    begin(job, detector)
    proved = [each for report, at in reports(job) for each in detector.observe(report, at)]
    return Outcome(job, truth, tuple(each for each in proved if isinstance(each, Finding)))


def begin(job: Job, *detectors: Detector) -> None:
    """The round in which it trains."""
    shares = tuple(MemberRanks(f"m{n}", f"n{n}", n * job.per_node, job.per_node) for n in range(job.nodes))
    shown = Round("sim/slow", 1, shares, Endpoint("127.0.0.1", 29500), Restore(), Entry.RESPAWN, "")
    for detector in detectors:
        detector.observe(RoundStarted(shown), 0.0)
        for node in range(job.nodes):
            detector.observe(Placed(f"n{node}", f"r{node // RACK_NODES}"), 0.0)


def reports(job: Job) -> Iterator[tuple[Reported, float]]:
    """What the agents of all nodes say, in the order in which it arrives, and when."""
    sums = job.sums()
    ends = sums[0][:, 0]
    phases = job.drawn.random(job.nodes)
    order = np.argsort(phases)
    if job.step_s >= 1.0:
        for row in range(job.steps):
            told = _rows(sums, job, np.full(job.nodes, row))
            for node in order:
                if job.is_heard(node, row):
                    yield _report(told, job, node), float(ends[row] + phases[node])
        return
    for second in range(1, int(ends[-1])):
        rows = np.searchsorted(ends, second + phases, side="right") - 1
        if rows.min() < 0:
            continue
        told = _rows(sums, job, rows)
        for node in order:
            if job.is_heard(node, rows[node]):
                yield _report(told, job, node), float(second + phases[node])


def _rows(sums: Sequence[Matrix], job: Job, of_nodes: Any) -> list[RankSample]:
    """Of each rank what is known when its node has completed the step of its row."""
    rows = np.repeat(np.maximum(of_nodes - job.lag, 0), job.per_node)
    columns = [each[rows, np.arange(job.ranks)].tolist() for each in sums]
    told = []
    for rank, (row, wall, data, checkpoint, idle, collected, waited, delayed, tokens, longest) in enumerate(
        zip(rows.tolist(), *columns, strict=True)
    ):
        known = (waited, delayed) if job.tells_waiting else (None, None)
        work = StepWork(row + 1, wall, data, checkpoint, idle, collected, *known, 0.0, int(tokens), int(longest))
        told.append(RankSample(1, rank, ProcessState.RUNNING, Phase.FORWARD, 0.0, 0.0, step=row + 1, work=work))
    return told


def _report(told: Sequence[RankSample], job: Job, node: int) -> Reported:
    mine = tuple(told[node * job.per_node : (node + 1) * job.per_node])
    return Reported(NodeReport(f"n{node}", "boot", 1, mine))
