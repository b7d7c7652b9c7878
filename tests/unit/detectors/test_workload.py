"""Ranks with different amounts of work, loaders that are too slow, and what is neither."""

import random
from collections.abc import Callable

import pytest
from signals import JOB, policy, rank_sample, reported, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import XidAction
from holdfast.api.telemetry import StepWork
from holdfast.watchdog.detectors.workload import AMOUNTS, STARVES, WINDOWS, WorkloadDetector

Of = Callable[[int, int], float]  # second, rank


def nothing(second: int, rank: int) -> float:
    return 0.0


def even(second: int, rank: int) -> float:
    return 1000.0


class Job:
    """Nodes of two ranks, five steps in a second, a report of each node in a second."""

    def __init__(self, *, nodes: int = 2, workers: int | None = None, pace: int = 5, **changes: object) -> None:
        self.detector = WorkloadDetector(policy(nodes_max=64, **changes))
        self.nodes, self.workers, self.pace = nodes, workers, pace
        self.now, self.number = 100.0, 0
        self.found: list[Finding] = []
        self.round()

    def round(self) -> "Job":
        self.number += 1
        self.seconds = 0
        self.sums = {rank: [0.0] * 5 for rank in range(2 * self.nodes)}
        self.detector.observe(started(self.number, nodes=self.nodes), self.now)
        return self

    def train(
        self,
        seconds: int,
        *,
        data: Of = nothing,
        tokens: Of | None = even,
        idle: Of = nothing,
        checkpoint: Of = nothing,
    ) -> "Job":
        for _ in range(seconds):
            self.now += 1.0
            self.seconds += 1
            for node in range(self.nodes):
                samples = []
                for rank in (2 * node, 2 * node + 1):
                    sums = self.sums[rank]
                    for place, of in enumerate((data, idle, checkpoint)):
                        sums[place] += of(self.seconds, rank)
                    sums[3] += self.pace * tokens(self.seconds, rank) if tokens else 0
                    work = StepWork(
                        steps=self.seconds * self.pace,
                        wall_s=float(self.seconds),
                        data_s=sums[0],
                        checkpoint_s=sums[2],
                        idle_s=sums[1],
                        collected_s=0.0,
                        tokens=int(sums[3]) if tokens else None,
                        workers=self.workers,
                    )
                    samples.append(rank_sample(rank, round=self.number, work=work))
                self.found += self.detector.observe(reported(f"n{node}", *samples), self.now)
        return self

    @property
    def causes(self) -> list[str]:
        return [each.cause for each in self.found]


def less_on(rank: int, share: float) -> Of:
    return lambda second, each: 1000.0 * (share if each == rank else 1.0)


def waits(share: float, *ranks: int) -> Of:
    return lambda second, rank: share if not ranks or rank in ranks else 0.0


# Amounts of work


def test_a_rank_with_less_to_do_is_named_once() -> None:
    job = Job().train(300, tokens=less_on(2, 0.8))
    (finding,) = job.found
    assert (finding.kind, finding.cause, finding.round) == (FindingKind.DATA, AMOUNTS, 1)
    assert finding.subject == Subject(JOB, node="n1", member="m1", rank=2)
    assert (finding.asks, finding.confidence) == (XidAction.WATCH, Confidence.PROBABLE)
    assert "on rank 2 a step has 800 tokens, where 900 to 1100 are usual" in finding.error
    assert job.round().train(300, tokens=less_on(2, 0.8)).causes == [AMOUNTS, AMOUNTS]


def test_of_two_ranks_and_of_two_halves_both_are_named() -> None:
    job = Job(nodes=1).train(300, tokens=less_on(1, 0.5))
    assert (job.causes, job.found[0].also[0].rank) == ([AMOUNTS], 1)
    halves = Job(nodes=8).train(300, tokens=lambda second, rank: 1000.0 * (1 + rank % 2))
    assert "ranks 0-15 a step has from 1000 to 2000 tokens" in halves.found[0].error


@pytest.mark.parametrize("seed", range(5))
def test_lengths_that_vary_are_no_difference(seed: int) -> None:
    drawn = random.Random(seed)
    job = Job(nodes=16).train(600, tokens=lambda second, rank: drawn.lognormvariate(7.0, 0.8))
    assert job.found == []


def test_a_difference_that_varies_as_much_is_found_when_it_is_large() -> None:
    drawn = random.Random(1)

    def tokens(second: int, rank: int) -> float:
        return drawn.lognormvariate(7.0, 0.3) * (3.0 if rank == 5 else 1.0)

    (finding,) = Job(nodes=8).train(600, tokens=tokens).found
    assert finding.subject.rank == 5


def test_what_does_not_last_is_no_difference() -> None:
    """A smaller batch at the end of every epoch, on one rank."""
    job = Job(nodes=4).train(600, tokens=lambda second, rank: 500.0 if rank == 3 and second % 20 == 0 else 1000.0)
    assert job.found == []


def test_of_tokens_that_are_not_told_nothing_is_known() -> None:
    assert Job().train(300, tokens=None).found == []


def test_stages_that_tell_other_amounts_are_not_looked_at_alone() -> None:
    """Of the two ranks of a model, which is more than are looked at, not always the same one."""
    assert Job(nodes=600, model_ranks=2).detector._stride % 2


# Loaders


@pytest.mark.parametrize(
    ("share", "workers", "says"),
    [
        (0.5, 4, "8 loader processes for each rank would do, there are 4"),
        (0.25, 3, "4 loader processes for each rank would do, there are 3"),
        (0.3, 0, "1 loader processes for each rank would do, there is none"),
        (0.8, 0, "4 loader processes for each rank would do, there is none"),
        (0.5, None, "2.0 times as many loader processes as now would do"),
    ],
)
def test_a_loader_that_is_too_slow_is_told_with_how_many_would_do(
    share: float, workers: int | None, says: str
) -> None:
    job = Job(workers=workers).train(300, data=waits(share))
    (finding,) = job.found
    assert (finding.kind, finding.cause, finding.subject) == (FindingKind.DATA, STARVES, Subject(JOB))
    assert f"waited for in {share:.0%} of the time on 4 of 4 ranks" in finding.error
    assert says in finding.error
    assert job.round().train(300, data=waits(share)).causes == [STARVES, STARVES]


def test_one_rank_whose_data_come_too_slowly_is_named() -> None:
    (finding,) = Job(nodes=4).train(300, data=waits(0.4, 5)).found
    assert finding.subject == Subject(JOB, node="n2", member="m2", rank=5)
    assert "on rank 5: " in finding.error


def test_a_little_waiting_is_no_fault() -> None:
    assert Job().train(600, data=waits(0.15)).found == []


def test_waiting_that_passes_is_none() -> None:
    """A burst, as when a shard is opened."""
    job = Job().train(600, data=lambda second, rank: 0.9 if second % 60 < 15 else 0.0)
    assert job.found == []


def test_what_is_not_training_does_not_count() -> None:
    """Of a second the job evaluates 0.6 and saves 0.2; of the rest the half is waiting."""
    job = Job(workers=1).train(300, data=waits(0.1), idle=waits(0.6), checkpoint=waits(0.2))
    assert "50% of the time" in job.found[0].error
    assert Job().train(300, idle=waits(1.0)).found == []


def test_slow_steps_are_looked_at_over_longer() -> None:
    """A window has at least so many steps: one step of many that is slow is nothing."""
    job = Job(pace=1).train(16 * (WINDOWS + 3) + 20, data=waits(0.5))
    assert job.causes == [STARVES]
    assert Job(pace=1).train(16 * WINDOWS, data=waits(0.5)).found == []


def test_a_round_begins_anew() -> None:
    job = Job().train(25, data=waits(0.5)).round().train(25, data=waits(0.5)).round().train(25, data=waits(0.5))
    assert job.found == []


def test_sums_that_begin_anew_are_followed() -> None:
    """A process that was replaced within the round, as its agent saw it."""
    job = Job().train(300)
    job.seconds, job.sums = 0, {rank: [0.0] * 5 for rank in range(4)}
    assert job.train(300).found == []
    assert job.train(100, data=waits(0.5)).causes == [STARVES]


def test_a_rank_that_tells_nothing_is_no_matter() -> None:
    job = Job()
    for _ in range(100):
        job.now += 1.0
        job.found += job.detector.observe(reported("n0", rank_sample(0), rank_sample(1)), job.now)
        job.found += job.detector.observe(reported("nowhere", rank_sample(0)), job.now)
    assert job.found == []


def test_no_step_is_said_to_have_less_than_no_tokens() -> None:
    def noisy(second: int, rank: int) -> float:
        return 50_000.0 if rank == 3 else 1000.0 * random.Random(1000 * (second // 10) + rank).choice((0.1, 1.9))

    job = Job(pace=2).train(300, tokens=noisy)
    assert job.causes == [AMOUNTS]
    assert "-" not in job.found[0].error


@pytest.mark.parametrize("cause", [AMOUNTS, STARVES])
def test_what_comes_back_after_it_was_over_is_told_again(cause: str) -> None:
    wrong = {"tokens": less_on(2, 0.8)} if cause == AMOUNTS else {"data": waits(0.5)}
    job = Job().train(300, **wrong)
    assert job.train(300, **wrong).causes == [cause], "it goes on"
    assert job.train(100).train(200, **wrong).causes == [cause], "it was hardly over"
    assert job.train(400).train(200, **wrong).causes == [cause, cause]
    assert job.train(400).train(200, **wrong).causes == [cause, cause], "what comes and goes is told more rarely"
