"""The detector of slow ranks and the brain together, in virtual time: what is slow, and what then becomes of it.

What is slow goes with a rank, whoever runs it, or stays with a node, whatever it runs: only the game knows. The
detector is shown what the agents would say, the brain what the detector finds, and the detector the rounds that
the brain shows. A round is saved at once, and half a minute later the next one trains.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from slowness import Job, Matrix, draw
from story import running

from holdfast.api.event import FindingMade
from holdfast.api.finding import Finding
from holdfast.api.policy import SlowAction, StragglerPolicy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Round
from holdfast.api.telemetry import NodeReport, ProcessState, RankSample, StepWork
from holdfast.watchdog.detectors.detector import Reported, RoundStarted
from holdfast.watchdog.detectors.straggler import StragglerDetector

GAP_S = 30.0
SIZES = (8, 8, 16)
PLAYED_S = 5_000.0

Slow = Callable[[Job], None]
"""Makes rank `culprit(job)` of a job slow."""


def culprit(job: Job) -> int:
    return int(np.random.default_rng(job.ranks + job.steps).integers(0, job.ranks))


def short(job: Job) -> None:
    """Now and then: every eight to 24 steps, for a quarter of them."""
    every = int(job.drawn.integers(8, 25))
    job.own[np.arange(job.steps) % every < every // 4, culprit(job)] *= 1.8


def comes_and_goes(job: Job) -> None:
    """For some steps or minutes, again and again."""
    drawn, steps = job.drawn, np.arange(job.steps)
    period = int(np.exp(drawn.uniform(np.log(8), np.log(max(16.0, 1200.0 / job.step_s)))))
    slow = (steps + drawn.integers(0, period)) % period < max(1, int(period * drawn.uniform(0.1, 0.5)))
    job.own[slow, culprit(job)] *= drawn.uniform(1.3, 2.5)


def at_random(job: Job) -> None:
    """The same, without any order."""
    drawn = job.drawn
    lasts, pauses = (max(1.0, drawn.uniform(5.0, 200.0) / job.step_s) for _ in range(2))
    step = int(drawn.exponential(pauses))
    while step < job.steps:
        ends = step + 1 + int(drawn.exponential(lasts))
        job.own[step:ends, culprit(job)] *= drawn.uniform(1.3, 2.5)
        step = ends + int(drawn.exponential(3.0 * pauses))


def evaluates(job: Job) -> None:
    """On rank 0, every some steps, while the others wait."""
    every = int(job.drawn.integers(8, 60))
    job.own[every - 1 :: every, 0] += job.drawn.uniform(1.0, 0.5 * every)


def is_slow(job: Job) -> None:
    job.own[job.onset :, culprit(job)] *= job.drawn.uniform(1.25, 2.0)


GO_WITH_A_RANK = (short, comes_and_goes, at_random, evaluates)


@dataclass(frozen=True)
class Played:
    """What was found, and which nodes the job has left: `first` is who had the slow rank in the first round."""

    found: tuple[Finding, ...]
    evicted: tuple[str, ...]
    first: str
    swaps: int


def play(seed: int, slow: Slow, *, with_node: bool = False) -> Played:
    """One job, with *Evict*. `with_node`: it is the node of the first round that is slow, and not the rank."""
    job = drawn_job(seed, slow)
    fine = job.sums()
    slow(job)
    affected = job.sums()
    rank = culprit(job)
    story = running(
        job.nodes,
        spares=1,
        nodes_min=job.nodes,
        processes_per_node=job.per_node,
        model_ranks=job.model_ranks,
        straggler=StragglerPolicy(action=SlowAction.EVICT),
    )
    first = node_of(story.round, rank)
    assert story.state.policy is not None
    detector = StragglerDetector(story.state.policy)
    detector.observe(RoundStarted(story.round), story.now)
    found: list[Finding] = []
    row, began, swaps = 0, 0, 0
    while row < job.steps - 1:
        is_there = not with_node or node_of(story.round, rank) == first
        sums = affected if is_there else fine
        each_s = sums[0][:, 0]
        until = each_s[row] + 1.0
        later = max(row + 1, int(np.searchsorted(each_s, until)))
        if later >= job.steps:
            break
        story.now += float(each_s[later] - each_s[row])
        row = later
        for report in reports(story.round, job, sums, began, row):
            for proof in detector.observe(report, story.now):
                if isinstance(proof, Finding):
                    found.append(proof)
                    story.tell(FindingMade(proof))
                else:
                    story.tell(proof)
        number = story.round.number
        story.run_on(50 + row)
        if story.state.saving is not None and story.state.saving.saved is None:
            story.save(50 + row)
        if story.round.number != number:
            story.now += GAP_S
            began, swaps = row, swaps + 1
            story.run(51 + row, restored=50 + row)
            detector.observe(RoundStarted(story.round), story.now)
    return Played(tuple(found), tuple(each.node for each in story.state.avoided), first, swaps)


def drawn_job(seed: int, slow: Slow) -> Job:
    """A small one that lasts for `PLAYED_S`."""

    def named(job: Job) -> None:
        raise NotImplementedError

    named.__name__ = slow.__name__
    known = draw(seed, named, sizes=SIZES)  # type: ignore[arg-type]
    steps = int(PLAYED_S / known.step_s)
    shape = (known.ranks, known.per_node, known.model_ranks, known.step_s)
    return Job(*shape, steps, steps // 8, tells_waiting=True, drawn=known.drawn)


def node_of(round_: Round, rank: int) -> str:
    share = round_.member_of(rank)
    assert share is not None
    return share.node


def reports(round_: Round, job: Job, sums: Sequence[Matrix], began: int, row: int) -> list[Reported]:
    """What the agents say when all have completed the step of `row` in a round that began after `began`."""
    if row <= began:
        return []
    columns = [(each[row] - each[began]).tolist() for each in sums]
    told = []
    for rank, (wall, data, checkpoint, idle, collected, waited, delayed, tokens, longest) in enumerate(
        zip(*columns, strict=True)
    ):
        work = StepWork(
            row - began, wall, data, checkpoint, idle, collected, waited, delayed, 0.0, int(tokens), int(longest)
        )
        told.append(
            RankSample(
                round_.number, rank, ProcessState.RUNNING, Phase.FORWARD, 0.0, 0.0, step=50 + row, work=work
            )
        )
    return [
        Reported(
            NodeReport(each.node, "boot", 1, tuple(told[each.first_rank : each.first_rank + each.local_size]))
        )
        for each in round_.ranks
    ]
