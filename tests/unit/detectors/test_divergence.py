"""A loss that rises and stays, a spike that passes, and one rank apart from the others."""

import random
from collections.abc import Callable

import pytest
from signals import JOB, policy, rank_sample, reported, started

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import LossPolicy, XidAction
from holdfast.watchdog.detectors import divergence
from holdfast.watchdog.detectors.divergence import (
    APART_TOLD_MAX,
    CHANGES_THAT_TELL,
    LOOKS_KEPT,
    DivergenceDetector,
)

SUSTAINED = 50
WARM = LOOKS_KEPT + 3 * CHANGES_THAT_TELL


def falling(step: int, rank: int) -> float:
    """As a language model's loss falls."""
    return 2.0 + 8.0 / (1.0 + step / 50.0) + 0.02 * random.Random(1000 * step + rank).gauss(0.0, 1.0)


class Job:
    """`nodes` of two ranks, each heard of once a second, and making ten steps; `loss` of a step and a rank."""

    def __init__(
        self, *, nodes: int = 2, loss: Callable[[int, int], float | None] = falling, model_ranks: int = 1
    ) -> None:
        wanted = LossPolicy(SUSTAINED)
        self.detector = DivergenceDetector(policy(loss=wanted, heartbeat_interval_s=1.0, model_ranks=model_ranks))
        self.nodes, self.loss, self.step, self.pace, self.now = nodes, loss, 0, 10, 100.0
        self.found: list[Finding] = []
        self.round(1)

    def round(self, number: int, step: int = 0) -> "Job":
        self.number, self.step = number, step
        self.detector.observe(started(number, nodes=self.nodes), self.now)
        return self

    def train(self, seconds: int, loss: Callable[[int, int], float | None] | None = None) -> "Job":
        self.loss = loss or self.loss
        for _ in range(seconds):
            self.now += 1.0
            self.step += self.pace
            for node in range(self.nodes):
                ranks = (2 * node, 2 * node + 1)
                told = (
                    rank_sample(r, round=self.number, step=self.step, loss=self.loss(self.step, r)) for r in ranks
                )
                self.found += self.detector.observe(reported(f"n{node}", *told), self.now)
        return self


def risen(step: int, rank: int) -> float:
    return falling(step, rank) + 2.0


def test_a_loss_that_falls_with_noise_is_no_fault() -> None:
    assert Job().train(600).found == []


def test_a_loss_that_rises_and_stays_is_one_once_a_round() -> None:
    job = Job().train(WARM)
    before = job.step
    job.train(SUSTAINED // job.pace - 2, risen)
    assert job.found == []
    job.train(60)
    (finding,) = job.found
    assert (finding.kind, finding.subject, finding.round) == (FindingKind.DIVERGENCE, Subject(JOB), 1)
    assert before - job.pace < (finding.step or 0) <= before + 1, (
        "after the last step that was seen to be as usual"
    )
    assert (finding.confidence, finding.asks) == (Confidence.UNKNOWN, None)
    assert "as usual before" in finding.evidence[0].says
    # Gone back, and again.
    job.round(2, step=before).train(3, falling).train(8, risen)
    assert [each.round for each in job.found] == [1, 2]


def test_a_spike_that_passes_is_no_fault() -> None:
    job = Job().train(WARM)
    for _ in range(5):
        job.train(SUSTAINED // job.pace - 2, risen).train(3, falling)
    assert job.found == []


def test_what_rose_is_not_learned_as_usual() -> None:
    job = Job().train(WARM).train(300, risen)
    job.round(2, step=job.step).train(SUSTAINED // job.pace + 3, risen)
    assert [each.round for each in job.found] == [1, 2]


def test_before_it_is_known_what_is_usual_nothing_is_judged() -> None:
    assert Job().train(LOOKS_KEPT // 2).train(60, risen).found == []


def test_a_loss_near_zero_that_is_noise_is_no_fault() -> None:
    job = Job(loss=lambda step, rank: abs(random.Random(7000 * step + rank).gauss(0.0, 1e-4)))
    assert job.train(600).found == []


def test_most_ranks_have_to_say_so() -> None:
    job = Job(nodes=4).train(WARM)
    assert [
        each.asks for each in job.train(60, lambda step, rank: falling(step, rank) + 2.0 * (rank < 3)).found
    ] == [XidAction.WATCH] * 3, "three of eight are apart from the others, and the others go on"


def test_one_rank_that_is_apart_from_the_others_is_named_once() -> None:
    job = Job(nodes=4).train(WARM).train(60, lambda step, rank: falling(step, rank) + 2.0 * (rank == 5))
    (finding,) = job.found
    assert finding.subject == Subject(JOB, node="n2", member="m2", rank=5)
    assert (finding.confidence, finding.asks) == (Confidence.PROBABLE, None)
    assert finding.cause == "the loss of one rank is above the others'"
    assert (finding.step or 0) <= 10 * WARM - SUSTAINED + job.pace, "what brought it there may have begun before"


def test_one_rank_that_learns_its_shard_by_heart_is_named() -> None:
    job = Job(nodes=4).train(WARM).train(60, lambda step, rank: falling(step, rank) * (0.5 if rank == 5 else 1.0))
    (finding,) = job.found
    assert (finding.subject.rank, finding.asks) == (5, None)
    assert finding.cause == "the loss of one rank is below the others'"


def test_one_rank_that_was_apart_from_the_start_is_only_told_of() -> None:
    """It has other data, or nobody knows since when."""
    job = Job(nodes=4).train(WARM + 60, lambda step, rank: falling(step, rank) + 2.0 * (rank == 5))
    assert [(each.subject.rank, each.asks) for each in job.found] == [(5, XidAction.WATCH)]


def test_of_three_ranks_two_that_happen_to_be_close_prove_nothing() -> None:
    """How far ranks are from each other is taken of many looks."""

    def close(step: int, rank: int) -> float:
        drawn = random.Random(1000 * step + rank).gauss(0.0, 0.15)
        return 1.0 + (0.0 if rank < 2 and step > 10 * WARM else drawn) + 0.4 * (rank == 3 and step > 10 * WARM)

    assert Job(loss=close).train(WARM + 60).found == []


def test_however_many_are_apart_few_are_named() -> None:
    nodes = 4 * APART_TOLD_MAX
    job = Job(nodes=nodes).train(WARM)
    job.train(60, lambda step, rank: falling(step, rank) + 2.0 * (rank % 4 == 0))
    assert len(job.found) == APART_TOLD_MAX


def test_where_the_spec_says_nothing_of_losses_nothing_is_watched() -> None:
    detector = DivergenceDetector(policy())
    detector.observe(started(1), 0.0)
    for step in range(1, 400):
        told = (rank_sample(rank, step=step, loss=1.0 if step < 200 else 100.0) for rank in (0, 1))
        assert detector.observe(reported("n0", *told), float(step)) == ()


@pytest.mark.parametrize("loss", [float("nan"), float("inf"), None])
def test_what_is_no_number_is_no_loss(loss: float | None) -> None:
    job = Job().train(WARM)
    told = (rank_sample(rank, step=job.step + 1, loss=loss) for rank in (0, 1))
    assert list(job.detector.observe(reported("n0", *told), job.now + 1.0)) == []
    assert job.train(60).found == []


def test_a_crash_while_the_loss_falls_is_no_divergence() -> None:
    """What is trained again from an older checkpoint has the higher loss of that time."""
    steep = lambda step, rank: 2.0 + 9.0 * 2.718 ** (-step / 1500)  # noqa: E731
    job = Job(loss=steep).train(400)
    job.round(2, step=2500).train(300)
    assert job.found == []
    job.train(60, lambda step, rank: steep(step, rank) + 2.0)
    assert [each.round for each in job.found] == [2], "beyond where it was, it is judged as before"


@pytest.mark.parametrize("with_loss", [{3}, {2, 3}])
def test_ranks_without_a_loss_do_not_count(with_loss: set[int]) -> None:
    """As all stages of a pipeline but the last."""

    def of_last_stage(step: int, rank: int) -> float | None:
        return falling(step, rank) + 2.0 * (step > 10 * WARM) if rank in with_loss else None

    job = Job(loss=of_last_stage).train(WARM + 60)
    assert [each.asks for each in job.found] == [None]


def test_of_many_ranks_those_of_every_stage_are_looked_at(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(divergence, "LOOKED_AT_MAX", 4)
    job = Job(nodes=4, model_ranks=2, loss=lambda step, rank: falling(step, rank) if rank % 2 else None).train(
        WARM
    )
    assert len(job.train(60, lambda step, rank: risen(step, rank) if rank % 2 else None).found) == 1


def test_of_two_ranks_nobody_is_named_and_what_each_said_is_told() -> None:
    def bad_data(step: int, rank: int) -> float:
        return falling(step, rank) + (6.0 if rank == 1 else 0.0)

    job = Job(nodes=1).train(WARM)
    (finding,) = job.train(60, loss=bad_data).found
    assert (finding.subject, finding.confidence) == (Subject(JOB), Confidence.UNKNOWN)
    _, first, second = finding.evidence
    assert first.says.startswith("rank 0: 2.")
    assert second.says.startswith("rank 1: 8.")
    many = Job().train(WARM).train(60, loss=risen).found
    assert [len(each.evidence) for each in many] == [1], "the median is of more ranks than two"


def test_what_is_told_as_usual_was_seen() -> None:
    """A cross-entropy that falls fast and stays near nothing: a line drawn on goes below it."""

    def fast(step: int, rank: int) -> float:
        return 0.002 + 4.0 * 0.97 ** (step / 10.0)

    job = Job(loss=fast).train(WARM)
    job.train(60, loss=lambda step, rank: 3.0)
    (finding,) = job.found
    usual = float(finding.evidence[0].says.rpartition(", ")[2].partition(" ")[0])
    assert usual >= 0.002
    assert "-" not in finding.error


def test_next_to_nothing_is_not_more_than_nothing() -> None:
    job = Job(loss=lambda step, rank: 0.0).train(WARM)
    assert job.train(60, lambda step, rank: 1e-9).found == []
    assert len(job.train(60, lambda step, rank: 1e-3).found) == 1


def test_a_slow_rise_within_reach_is_compared_with_what_was_usual_before_it() -> None:
    """Each look of it is as usual after those before it."""

    def rising(step: int, rank: int) -> float:
        drawn = random.Random(1000 * step + rank).gauss(0.0, 0.12)
        return 2.0 + drawn + max(0.0, min(1.0, (step - 10 * WARM) / 1000))

    assert [each.asks for each in Job(loss=rising).train(WARM + 200).found] == [None]
