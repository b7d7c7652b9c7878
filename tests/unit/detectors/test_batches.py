"""Batches that are wrong, and the look-alikes that are right."""

from collections.abc import Callable, Sequence
from random import Random

import msgspec
import pytest
from signals import JOB, a_round, policy, rank_sample, reported

from holdfast.api.finding import Confidence, Finding, FindingKind, Subject
from holdfast.api.policy import XidAction
from holdfast.api.round import Restore, Tier
from holdfast.api.telemetry import BatchAgain, BatchTaken
from holdfast.watchdog.detectors import batches
from holdfast.watchdog.detectors.batches import (
    AGAIN,
    OFFSET,
    OPEN_MAX,
    SAME,
    STEPS_KEPT,
    BatchDetector,
)
from holdfast.watchdog.detectors.detector import RoundStarted
from holdfast.watchdog.detectors.occurrences import OVER_S

GLOBAL = 24  # samples of a step
Numbers = Sequence[int]
Share = Callable[[int, int, int], Numbers]
"""The numbers of the samples that a rank takes for a step: step, rank, world."""


def sample_print(number: int) -> int:
    return (number * 0x9E3779B97F4A7C15 ^ number << 7) % 2**64


def fair(step: int, rank: int, world: int) -> Numbers:
    """Every step has the next samples, whatever the world."""
    first = (step - 1) * GLOBAL
    return range(first + GLOBAL * rank // world, first + GLOBAL * (rank + 1) // world)


def later(share: Share, by: int) -> Share:
    return lambda step, rank, world: share(step + by, rank, world)


class Job:
    """Nodes of two ranks, one report of each a step."""

    def __init__(self, *, nodes: int = 2, **changes: object) -> None:
        self.detector = BatchDetector(policy(nodes_max=8, **changes))
        self.now, self.number, self.nodes = 100.0, 0, nodes
        self.found: list[Finding] = []
        self.round()

    def round(self, *, nodes: int | None = None, restore: Restore | None = None) -> "Job":
        self.number += 1
        self.nodes = nodes or self.nodes
        shown = msgspec.structs.replace(a_round(self.number, nodes=self.nodes), restore=restore or Restore())
        self.detector.observe(RoundStarted(shown), self.now)
        return self

    def train(
        self,
        steps: Sequence[int],
        share: Share = fair,
        *,
        tokens: int = 10,
        tellers: Sequence[int] = range(99),
    ) -> "Job":
        world = 2 * self.nodes
        for step in steps:
            self.now += 1.0
            for node in range(self.nodes):
                told = []
                for rank in (2 * node, 2 * node + 1):
                    numbers = share(step, rank, world)
                    value = sum(map(sample_print, numbers)) % 2**64
                    counts = (len(numbers), tokens * len(numbers))
                    told.append(BatchTaken(self.number, rank, step, value, 0.1, *counts))
                events = tuple(each for each in told if each.rank in tellers)
                self.found += self.detector.observe(reported(f"n{node}", events=events), self.now)
                self.wait(0.0)
        return self

    def wait(self, seconds: float = 10.0) -> "Job":
        self.now += seconds
        wakeup = self.detector.next_wakeup()
        if wakeup is not None and wakeup <= self.now:
            self.found += self.detector.elapse(self.now)
        return self

    @property
    def causes(self) -> list[str]:
        return [each.cause for each in self.found]


def one_shard(step: int, rank: int, world: int) -> Numbers:
    """Rank 3 reads the shard of rank 1."""
    return fair(step, 1 if rank == 3 else rank, world)


def replicas_of(model_ranks: int) -> Share:
    return lambda step, rank, world: fair(step, rank // model_ranks, world // model_ranks)


# Two ranks with one batch


def test_two_ranks_that_read_the_same_shard_are_named_once() -> None:
    job = Job().train(range(1, 5), one_shard)
    assert job.found == [], "some steps may be chance"
    job.train(range(5, 20), one_shard)
    (finding,) = job.found
    assert (finding.kind, finding.cause, finding.round) == (FindingKind.DATA, SAME, 1)
    assert finding.subject == Subject(JOB, node="n0", member="m0", rank=1)
    assert finding.also == (Subject(JOB, node="n1", member="m1", rank=3),)
    assert (finding.asks, finding.confidence, finding.step) == (XidAction.WATCH, Confidence.CERTAIN, 5)
    assert "ranks 1, 3" in finding.error
    assert "6 samples" in finding.error
    job.round().train(range(1, 6), one_shard)
    assert job.causes == [SAME, SAME], "and in a later round again"


def test_ranks_that_all_read_all_are_named_together() -> None:
    (finding,) = Job(nodes=4).train(range(1, 9), lambda step, rank, world: fair(step, 0, world)).found
    assert "ranks 0-7" in finding.error
    assert len(finding.also) == 7
    assert finding.confidence is Confidence.PROBABLE, "all may hold parts of one model"


def test_a_model_in_parts_that_the_job_does_not_tell_of_is_not_certain() -> None:
    job = Job(nodes=4).train(range(1, 20), replicas_of(2))
    (finding,) = job.found
    assert finding.confidence is Confidence.PROBABLE
    assert "spec.parallelism" in finding.error
    one_node_away = Job(nodes=4).train(range(1, 60), replicas_of(2), tellers=range(7))
    assert [each.confidence for each in one_node_away.found] == [Confidence.PROBABLE]


def one_each(number_of: Callable[[int, int], int]) -> Share:
    """A single sample for each rank."""
    return lambda step, rank, world: [number_of(step, rank)]


def test_a_shard_of_which_each_batch_is_one_sample_is_probable() -> None:
    (finding,) = Job().train(range(1, 20), one_each(lambda step, rank: 4 * step + rank % 3)).found
    assert (finding.cause, finding.confidence) == (SAME, Confidence.PROBABLE)
    assert "ranks 0, 3" in finding.error
    assert "parallelism" not in finding.error


def drawn(among: int) -> Share:
    rng = Random(7)
    return one_each(lambda step, rank: rng.randrange(among))


def dealt(among: int) -> Share:
    """A set smaller than the world, in another order each time, some of which are dealt out twice."""

    def number_of(step: int, rank: int) -> int:
        return Random(step).sample(range(among), among)[rank % among]

    return one_each(number_of)


@pytest.mark.parametrize(
    "share",
    [
        pytest.param(drawn(20), id="with replacement"),
        pytest.param(dealt(3), id="fewer samples than ranks"),
        pytest.param(one_each(lambda step, rank: 0 if rank % 2 else 4 * step + rank), id="filled up"),
        pytest.param(one_each(lambda step, rank: 0), id="always one batch"),
        pytest.param(
            one_each(lambda step, rank: step if step % 9 < 4 or not rank else -5 * step - rank), id="at times"
        ),
    ],
)
def test_two_ranks_with_the_same_sample_by_chance_are_right(share: Share) -> None:
    assert Job().train(range(1, 2000), share).found == []


def test_they_are_named_though_not_all_ranks_tell() -> None:
    job = Job().train(range(1, OPEN_MAX + 5), one_shard, tellers=(1, 3))
    assert job.found == [], "the others may still tell of these steps"
    assert job.train([OPEN_MAX + 5], one_shard, tellers=(1, 3)).causes == [SAME]


def test_ranks_of_one_model_rightly_have_the_same_batch() -> None:
    job = Job(nodes=4, model_ranks=2, tensor=2).train(range(1, 20), replicas_of(2))
    assert job.found == []
    # Replicas that have the same batch are two all the same.
    job.round().train(range(20, 40), lambda step, rank, world: fair(step, 0, 4))
    assert job.causes == [SAME]


def test_so_have_stages_of_a_pipeline_in_whichever_order_ranks_are_counted() -> None:
    neighbours = Job(nodes=4, model_ranks=4, tensor=2).train(range(1, 20), replicas_of(4))
    outermost = Job(nodes=4, model_ranks=4, tensor=2).train(
        range(1, 20), lambda step, rank, world: fair(step, rank // 2 % 2, 2)
    )
    assert neighbours.found == outermost.found == []
    split = Job(nodes=4, model_ranks=4, tensor=1, context=2).train(
        range(1, 20), lambda step, rank, world: fair(step, rank // 2 % 2, 2)
    )
    assert split.found == [], "ranks that share a sequence have the same batch, as those that share a layer"


def test_the_last_batches_may_be_smaller_or_empty() -> None:
    def last(step: int, rank: int, world: int) -> Numbers:
        return fair(step, rank, world) if step < 10 else [] if rank > 1 else [999 + step + rank]

    assert Job().train(range(1, 13), last).found == []


# A batch that comes again


def test_what_comes_back_after_it_was_over_is_told_again() -> None:
    job = Job().train(range(1, 20), one_shard).train(range(20, 40))
    job.now += OVER_S
    assert job.train(range(40, 60), one_shard).causes == [SAME, SAME]
    job.found += job.detector.observe(reported("n1", rank_sample(2, again=BatchAgain(61, 3, 1))), job.now)
    job.wait()
    job.found += job.detector.observe(reported("n1", rank_sample(2, again=BatchAgain(62, 4, 2))), job.now)
    assert job.wait().causes == [SAME, SAME, AGAIN]
    job.now += OVER_S
    for _ in range(2):  # each report has the newest
        job.found += job.detector.observe(reported("n1", rank_sample(2, again=BatchAgain(900, 400, 3))), job.now)
    assert job.wait().causes == [SAME, SAME, AGAIN, AGAIN]
    assert job.found[-1].step == 900


def test_a_batch_that_a_rank_takes_again_is_told_with_its_steps() -> None:
    job = Job().train(range(1, 9))
    again = rank_sample(2, again=BatchAgain(8, 3, 1)), rank_sample(3, again=BatchAgain(7, 2, 2))
    for each in again:
        job.found += job.detector.observe(reported("n1", each), job.now)
    assert job.found == [], "others are waited for"
    job.wait()
    (finding,) = job.found
    assert (finding.kind, finding.cause, finding.step, finding.asks) == (
        FindingKind.DATA,
        AGAIN,
        7,
        XidAction.WATCH,
    )
    assert (finding.subject.rank, [each.rank for each in finding.also]) == (2, [3])
    assert "ranks 2-3 took a batch of 6 samples a second time" in finding.error
    assert "rank 3 that of step 2 for step 7, 2 in all" in finding.error
    job.found += job.detector.observe(reported("n1", again[0]), job.now)
    assert job.wait().causes == [AGAIN]


def test_it_is_told_from_the_first_step_on() -> None:
    job = Job()
    for step in range(8, 40):
        again = BatchAgain(step, step - 5, step - 7)
        job.found += job.detector.observe(reported("n0", rank_sample(0, again=again)), job.now)
        assert bool(job.wait(1.0).found) == (step > 8)
    (finding,) = job.found
    assert finding.step == 8, "a rewind goes back before that step"
    assert "that of step 3 for step 8, 2 in all" in finding.error
    assert finding.confidence is Confidence.PROBABLE, "it may be on purpose"


def test_it_is_told_of_ranks_that_told_of_no_batch_too() -> None:
    job = Job()
    job.found += job.detector.observe(reported("n0", rank_sample(0, again=BatchAgain(8, 3, 1))), job.now)
    assert "took a batch a second time" in job.wait().found[0].error


def test_steps_that_had_a_batch_again_rightly_have_another_when_they_are_trained_again() -> None:
    job = Job().train(range(1, 40))
    job.train(range(40, 50), lambda step, rank, world: fair(39 if rank == 1 else step, rank, world))
    for step in (40, 49):
        again = rank_sample(1, again=BatchAgain(step, step - 1 if step == 40 else 48, step - 39))
        job.found += job.detector.observe(reported("n0", again), job.now)
    assert job.wait().causes == [AGAIN]
    assert job.round().train(range(45, 60)).causes == [AGAIN]
    assert job.round().train(range(30, 60), later(fair, 3)).causes == [AGAIN, OFFSET], "what was right is known"


def test_where_batches_come_again_those_of_new_steps_prove_nothing() -> None:
    """As in epochs of seven steps, of which nobody told, and of which only the first steps are taken for right."""

    def in_epochs(step: int, rank: int, world: int) -> Numbers:
        return fair(step % 7, rank, world)

    job = Job().train(range(1, 50), in_epochs)
    job.found += job.detector.observe(reported("n0", rank_sample(1, again=BatchAgain(16, 9, 1))), job.now)
    assert job.wait().round().train(range(50, 80), in_epochs).causes == [AGAIN]


# A restart at the wrong sample


def test_a_step_that_is_trained_again_with_what_it_had_is_right() -> None:
    job = Job().train(range(1, 50)).round().train(range(30, 80))
    assert job.found == []


@pytest.mark.parametrize("nodes", [1, 2, 4])
def test_in_a_world_of_any_size(nodes: int) -> None:
    assert Job().train(range(1, 50)).round(nodes=nodes).train(range(30, 80)).found == []


@pytest.mark.parametrize("nodes", [1, 2, 4])
@pytest.mark.parametrize(
    ("by", "says"), [(-9, "9 steps too early"), (-1, "1 steps too early"), (5, "5 steps too late")]
)
def test_data_that_begin_elsewhere_are_told_with_how_far_off(nodes: int, by: int, says: str) -> None:
    job = Job().train(range(1, 50)).round(nodes=nodes).train(range(30, 60), later(fair, by))
    (finding,) = job.found
    assert (finding.kind, finding.cause, finding.subject) == (FindingKind.DATA, OFFSET, Subject(JOB))
    assert (finding.step, finding.round, finding.asks) == (30, 2, XidAction.WATCH)
    assert finding.confidence is Confidence.CERTAIN
    assert says in finding.error
    assert f"about {abs(by) * GLOBAL} samples" in finding.error


def test_data_that_begin_from_the_start_are_found_though_no_step_is_trained_again() -> None:
    """As when the checkpoint is as new as what was trained last."""
    job = Job().train(range(1, 50)).round().train(range(50, 60), later(fair, -49))
    (finding,) = job.found
    assert (finding.cause, finding.step) == (OFFSET, 50)
    assert "49 steps too early" in finding.error
    assert "unless a further epoch begins there" in finding.error
    assert finding.confidence is Confidence.PROBABLE, "the epoch may be of 49 steps, and have ended just then"


def test_data_that_differ_from_all_that_is_known_are_told_without() -> None:
    job = Job().train(range(1, 50)).round().train(range(40, 60)).round().train(range(50, 80), later(fair, 1000))
    (finding,) = job.found
    assert (finding.cause, finding.step, finding.confidence) == (OFFSET, 50, Confidence.UNKNOWN)
    assert "changed at random" in finding.error
    job.round().train(range(50, 80)).round().train(range(50, 80), later(fair, 2000))
    assert job.causes == [OFFSET], "steps had to be as they were since"


def changed_at_random(chance: float) -> Share:
    """Each sample is changed as it is loaded, or is not."""
    rng = Random(5)
    return lambda step, rank, world: [
        each if rng.random() > chance else rng.randrange(10**6, 10**9) for each in fair(step, rank, world)
    ]


@pytest.mark.parametrize("chance", [1.0, 0.5, 0.05])
def test_samples_that_are_changed_at_random_are_no_restart_at_the_wrong_one(chance: float) -> None:
    share = changed_at_random(chance)
    job = Job().train(range(1, 50), share)
    for first in range(40, 400, 10):
        job.round().train(range(first, first + 20), share)
    assert job.found == []


def test_a_few_steps_that_were_as_before_do_not_prove_that_all_are_to_be() -> None:
    job = Job().train(range(1, 50)).round().train(range(43, 50)).round().train(range(40, 80), later(fair, 1000))
    assert job.found == []


def test_single_samples_in_a_new_order_in_each_epoch_are_no_offset() -> None:
    """All ranks together take one sample a step."""
    orders = [Random(epoch).sample(range(100), 100) for epoch in range(5)]

    def shuffled(step: int, rank: int, world: int) -> Numbers:
        return [] if rank else [orders[step // 100][step % 100]]

    job = Job().train(range(120), shuffled)
    for first in range(120, 400, 20):
        job.round().train(range(first, first + 20), shuffled)
    assert job.found == []


def test_steps_that_were_only_seen_now_and_then_are_enough() -> None:
    job = Job().train(range(0, 2000, 16)).round().train(range(1504, 2500, 32), later(fair, -480))
    assert job.causes == [OFFSET]
    assert "480 steps too early" in job.found[0].error


def test_batches_that_are_passed_over_rightly_differ() -> None:
    restore = Restore(tier=Tier.CHECKPOINT, step=29, skip_until=50)
    job = Job().train(range(1, 50)).round(restore=restore).train(range(30, 60), later(fair, 21))
    assert job.found == []
    # What follows goes on from there.
    job.round().train(range(40, 70), later(fair, 21))
    assert job.found == []
    job.round().train(range(40, 70), later(fair, 11))
    assert job.causes == [OFFSET]
    asked = Restore(tier=Tier.CHECKPOINT, step=29, skip_batches=5)
    assert Job().train(range(1, 50)).round(restore=asked).train(range(30, 60), later(fair, 5)).found == []


def test_padding_of_another_world_is_nothing_else() -> None:
    """Samples that are padded to the longest of a rank's batch have other contents on fewer ranks."""

    def padded(step: int, rank: int, world: int) -> Numbers:
        return [number * 100 + world for number in fair(step, rank, world)]

    job = Job().train(range(1, 50), padded, tokens=10)
    assert job.round(nodes=1).train(range(30, 60), padded, tokens=11).found == []
    assert job.round(nodes=1).train(range(30, 60), later(padded, -3), tokens=11).causes == [OFFSET]
    exact = Job().train(range(1, 50), padded).round().train(range(30, 60), padded)
    assert exact.round(nodes=1).train(range(40, 80), padded).found == [], "nor where it has as many tokens"


def test_a_world_that_takes_more_samples_a_step_is_not_compared() -> None:
    def as_large(step: int, rank: int, world: int) -> Numbers:
        return range(6 * (step * world + rank), 6 * (step * world + rank + 1))

    assert Job().train(range(1, 50), as_large).round(nodes=4).train(range(30, 60), as_large).found == []


def test_epochs_of_the_same_order_are_no_offset() -> None:
    def in_epochs(step: int, rank: int, world: int) -> Numbers:
        return fair(step % 100, rank, world)

    assert Job().train(range(1, 250), in_epochs).round().train(range(250, 300), in_epochs).found == []


def test_data_that_are_always_the_same_prove_nothing_about_where_they_begin() -> None:
    constant = Job(nodes=2).train(range(1, 50), lambda step, rank, world: fair(1, rank, world))
    constant.round().train(range(50, 60), lambda step, rank, world: fair(1, rank, world))
    assert OFFSET not in constant.causes


def test_steps_that_name_no_samples_are_not_one_batch() -> None:
    """They would be an epoch of as many steps as lie between them."""

    def at_times_silent(step: int, rank: int, world: int) -> Numbers:
        return fair(step, rank, world) if step % 7 else []

    job = Job().train(range(1, 101), at_times_silent).round().train(range(101, 121), later(at_times_silent, -49))
    assert job.causes == [OFFSET]
    right = Job().train(range(1, 50), lambda step, rank, world: []).round().train(range(30, 60))
    assert right.found == []


def test_a_step_that_not_all_ranks_tell_of_is_not_judged() -> None:
    job = (
        Job()
        .train(range(1, 50), tellers=(0, 1, 2))
        .round()
        .train(range(30, 60), later(fair, 3), tellers=(0, 1, 2))
    )
    assert job.found == []


# What counts, and how much is kept


def test_what_does_not_belong_to_the_round_or_the_node_is_no_evidence() -> None:
    job = Job()
    for step in range(1, 9):
        foreign = (
            BatchTaken(2, 0, step, 7, 0.1, 6),
            BatchTaken(1, 2, step, 7, 0.1, 6),
            BatchTaken(1, 1, step, 7, 0.1, 6),
        )
        job.found += job.detector.observe(reported("n0", events=foreign), job.now)
    assert job.found == []


def test_what_is_told_a_second_time_counts_once() -> None:
    job = Job()
    for step in range(1, 50):
        job.train([step]).train([step])
    assert job.round().train(range(30, 60)).found == []


def test_memory_is_bounded() -> None:
    job = Job().train(range(1, STEPS_KEPT + 100))
    assert len(job.detector._history) == STEPS_KEPT
    assert not job.detector._open
    job.train(range(STEPS_KEPT + 100, STEPS_KEPT + 200), tellers=(0,))
    assert Job(nodes=8).detector._open_max == OPEN_MAX
    assert len(job.detector._open) == OPEN_MAX
    job.train([STEPS_KEPT + 101], tellers=(1,))
    assert len(job.detector._open) == OPEN_MAX, "what was dropped is not opened again"


def test_what_is_alike_is_kept_up_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(batches, "_TWINS_MAX", 4)
    (finding,) = Job(nodes=4).train(range(1, 9), lambda step, rank, world: fair(step, 0, world)).found
    assert "ranks 0-4" in finding.error, "of so many others with rank 0"
