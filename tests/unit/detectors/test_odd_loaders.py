"""What real loaders look like, from the batch that a script takes to what is told of it.

Each is the batches of a rank from a step on, as a process has them that begins there. Four ranks train 120 steps;
new processes of theirs begin again behind step 80, and train to step 160.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count, islice
from random import Random
from typing import Any

import pytest
import torch
from signals import a_round, policy, rank_sample, reported
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from holdfast.api.finding import Confidence, Finding
from holdfast.api.rankrecord import BatchPrint
from holdfast.api.telemetry import BatchAgain, BatchTaken
from holdfast.trainer.batches import Batches
from holdfast.watchdog.detectors.batches import AGAIN, OFFSET, SAME, BatchDetector
from holdfast.watchdog.detectors.detector import RoundStarted

WORLD, BACK_TO, TRAINED_TO, ENDS_AT = 4, 80, 120, 160
Loader = Callable[[int, int], Iterator[object]]
"""The batches of a rank for the steps after the given one: rank, steps that are done."""
CERTAIN, PROBABLE, UNKNOWN = Confidence.CERTAIN, Confidence.PROBABLE, Confidence.UNKNOWN


class Process:
    """One rank, and what an agent would tell of it."""

    def __init__(self, rank: int, data: Iterator[object], epoch_steps: int | None) -> None:
        self.rank, self.data, self.epoch_steps = rank, data, epoch_steps
        self.batches = Batches(lambda: 0)
        self.told: BatchPrint | None = None
        self.again: BatchAgain | None = None

    def batch(self, told: BatchPrint, again_first: int | None) -> None:
        """As a rank record."""
        self.told = told
        if again_first is not None:
            self.again = BatchAgain(told.step, again_first, 1)

    def train(self, step: int) -> None:
        self.told = None
        if self.epoch_steps is not None:
            self.batches.epoch((step - 1) // self.epoch_steps)
        parts = next(self.data)
        for part in parts if isinstance(parts, MicroBatches) else [parts]:
            self.batches.take_if_possible(step, part)
        self.batches.completed(step, self)  # type: ignore[arg-type]


class MicroBatches(list[Any]):
    """All that a rank takes for one step."""


class Job:
    """Four ranks, a report of each step."""

    def __init__(self, loader: Loader, epoch_steps: int | None, **parallelism: int) -> None:
        self.detector = BatchDetector(policy(**parallelism))
        self.loader, self.epoch_steps = loader, epoch_steps
        self.found: list[Finding] = []
        self.samples = 0
        self.now = 0.0

    def round(self, number: int, first: int, last: int) -> "Job":
        self.detector.observe(RoundStarted(a_round(number)), self.now)
        ranks = [Process(rank, self.loader(rank, first - 1), self.epoch_steps) for rank in range(WORLD)]
        for step in range(first, last + 1):
            self.now += 1.0
            for each in ranks:
                each.train(step)
                node, events = f"n{each.rank // 2}", ()
                if (told := each.told) is not None:
                    tokens = told.tokens if told.tokens >= 0 else None
                    counts = (told.samples, tokens)
                    events = (BatchTaken(number, each.rank, step, told.value, 0.1, *counts),)
                    self.samples += told.samples
                sample = rank_sample(each.rank, round=number, again=each.again)
                self.found += self.detector.observe(reported(node, sample, events=events), self.now)
            self.found += self.detector.elapse(self.now)
        return self


def ids(*numbers: int, length: int = 16) -> Tensor:
    """The tokens of the samples of these numbers."""
    rows = [torch.arange(length) * 7919 + number * 104_729 for number in numbers]
    return torch.stack(rows) % 50_257


def numbered(make: Callable[[Sequence[int]], object], *, samples: int = 4) -> Loader:
    """Each rank has its own next samples, and goes on where it was."""

    def batches(rank: int, done: int) -> Iterator[object]:
        for step in count(done):
            first = (step * WORLD + rank) * samples
            yield make(range(first, first + samples))

    return batches


def texts(numbers: Sequence[int]) -> Tensor:
    return ids(*numbers)


def padded(numbers: Sequence[int]) -> object:
    """Texts of many lengths, as long as the longest of the batch."""
    lengths = [3 + number * 31 % 13 for number in numbers]
    mask = torch.stack([torch.arange(max(lengths)) < length for length in lengths]).long()
    tokens = ids(*numbers, length=max(lengths)) * mask
    return {"input_ids": tokens, "attention_mask": mask, "labels": tokens - 100 * (1 - mask), "num_items": 12}


def flat(numbers: Sequence[int]) -> object:
    """Texts one behind the other, and where each ends."""
    texts = [ids(number, length=3 + number * 31 % 13)[0] for number in numbers]
    ends = torch.tensor([0, *(len(each) for each in texts)]).cumsum(0)
    return {"cu_seqlens": ends, "max_seqlen": 15, "ids": torch.cat(texts)}


class Graph:
    """A batch of a library that is no collection."""


def augmented(samples: int) -> Loader:
    """Pictures that are cut and mirrored at random, by a process's own random numbers."""
    seeds = count()

    def batches(rank: int, done: int) -> Iterator[object]:
        generator = torch.Generator().manual_seed(next(seeds))
        while True:
            yield torch.rand(samples, 3, 4, 4, generator=generator), torch.arange(samples)

    return batches


def in_micro_batches(rank: int, done: int) -> Iterator[object]:
    whole = numbered(texts)(rank, done)
    while True:
        yield MicroBatches(next(whole).split(1))  # type: ignore[attr-defined]


def shard_of(rank_of: Callable[[int], int], *, samples: int = 4, make: Callable[..., object] = ids) -> Loader:
    """Ranks read the shard of another."""
    fair = numbered(lambda numbers: make(*numbers), samples=samples)
    return lambda rank, done: fair(rank_of(rank), done)


def slices(rank: int, done: int) -> Iterator[object]:
    """Two ranks hold the halves of a sample, whose texts are short, so that the second is padding, as a rule."""
    for step in count(done):
        number = step * WORLD + rank // 2
        whole = ids(number, length=32)
        whole[:, 12 if number % 5 else 24 :] = 0
        half = slice(16 * (rank % 2), 16 * (rank % 2) + 16)
        yield {"ids": whole[:, half], "positions": torch.arange(32)[None, half]}


def streamed(rank: int, done: int) -> Iterator[object]:
    """A stream with a buffer that is shuffled, and read again from its beginning by a new process."""
    stream, rng = iter(count(rank, WORLD)), Random(done)
    buffer = list(islice(stream, 64))
    while True:
        numbers = []
        for _ in range(4):
            place = rng.randrange(len(buffer))
            numbers.append(buffer[place])
            buffer[place] = next(stream)
        yield ids(*numbers)


def drawn(among: int, samples: int) -> Loader:
    """With replacement; a new process draws others."""

    def batches(rank: int, done: int) -> Iterator[object]:
        rng = Random(rank + 10 * done)
        while True:
            yield ids(*(rng.randrange(among) for _ in range(samples)))

    return batches


def epochs(steps: int, *, samples: int = 4, shuffles: bool = False) -> Loader:
    """So many steps an epoch, in one order or in another each time, right after a restart."""

    def batches(rank: int, done: int) -> Iterator[object]:
        for step in count(done):
            order = list(range(steps * WORLD))
            if shuffles:
                Random(step // steps).shuffle(order)
            place = order[step % steps * WORLD + rank]
            yield ids(*range(place * samples, (place + 1) * samples))

    return batches


def dealt_out(among: int) -> Loader:
    """As a DistributedSampler deals out a set that is smaller than the world: some twice, to make it even."""

    def batches(rank: int, done: int) -> Iterator[object]:
        for step in count(done):
            order = list(range(among))
            Random(step).shuffle(order)
            yield ids(order[rank % among])

    return batches


def until(steps: int, then: Callable[[int, int], object]) -> Loader:
    """A rank's own data end, and something fills up."""

    def batches(rank: int, done: int) -> Iterator[object]:
        own = numbered(texts)(rank, done)
        for step in count(done):
            yield next(own) if step < steps else then(rank, step)

    return batches


def each_batch(times: int, loader: Loader) -> Loader:
    """Several steps with each batch."""

    def batches(rank: int, done: int) -> Iterator[object]:
        for batch in loader(rank, done // times):
            yield from [batch] * times

    return batches


def from_the_first(loader: Loader) -> Loader:
    """A restart that does not give the data their state back."""
    return lambda rank, done: loader(rank, 0)


def begins_anew(rank: int, done: int) -> Iterator[object]:
    """A loader that begins anew in the middle of its epoch."""
    yield from islice(numbered(texts)(rank, done), max(0, 100 - done))
    yield from numbered(texts)(rank, 40)


LOOK_ALIKES: dict[str, tuple[Loader, dict[str, int]]] = {
    "texts of one length": (numbered(texts), {}),
    "texts padded to the longest, with masks and labels": (numbered(padded), {}),
    "strings": (numbered(lambda numbers: [f"text {each}" for each in numbers]), {}),
    "strings with labels": (
        numbered(lambda numbers: {"text": [f"text {each}" for each in numbers], "label": torch.zeros(4)}),
        {},
    ),
    "as default_collate makes of lists of numbers": (
        numbered(lambda numbers: {"ids": list(ids(*numbers).T), "label": torch.zeros(4)}),
        {},
    ),
    "time before samples": (numbered(lambda numbers: ids(*numbers).T), {}),
    "a table of numbers": (numbered(lambda numbers: (torch.tensor([[n, n % 2] for n in numbers]).float(),)), {}),
    "pictures, cut and mirrored at random": (augmented(4), {}),
    "one picture at a time, cut and mirrored at random": (augmented(1), {}),
    "half precision": (numbered(lambda numbers: ids(*numbers).to(torch.bfloat16)), {}),
    "several micro-batches a step": (in_micro_batches, {}),
    "ranks of one model": (shard_of(lambda rank: rank // 2), {"model_ranks": 2, "tensor": 2}),
    "halves of a sample, mostly padding": (slices, {"model_ranks": 2, "tensor": 2}),
    "halves of a sample, mostly padding, of a job that does not say so": (slices, {}),
    "a stream whose buffer is shuffled": (streamed, {}),
    "single samples drawn with replacement": (drawn(30, 1), {}),
    "pairs drawn with replacement": (drawn(10, 2), {}),
    "epochs of 20 steps of single samples in new orders": (epochs(20, samples=1, shuffles=True), {}),
    "epochs of 70 steps in one order": (epochs(70), {}),
    "epochs of 70 steps of single samples in one order": (epochs(70, samples=1), {}),
    "fewer samples than ranks": (dealt_out(3), {}),
    "padding where a rank has no more": (until(60, lambda rank, step: torch.zeros(4, 16, dtype=torch.int64)), {}),
    "one sample of padding where a rank has no more": (until(60, lambda rank, step: ids(0)), {}),
    "nothing where a rank has no more": (until(60, lambda rank, step: ids(0)[:0]), {}),
}
"""Right, and compared: nothing is told of them."""

SILENT: dict[str, Loader] = {
    "a causal mask before the ids": numbered(lambda numbers: (torch.ones(16, 16).tril(), ids(*numbers))),
    "texts one behind the other, with where each ends": numbered(flat),
    "packed sequences": numbered(lambda n: pack_sequence([ids(each, length=3)[0] for each in n])),
    "lists of texts of many lengths": numbered(lambda n: [ids(each, length=3 + each % 7)[0] for each in n]),
    "labels beside lists of numbers": numbered(lambda n: {"ids": ids(*n).tolist(), "label": torch.zeros(4)}),
    "labels beside arrays": numbered(lambda n: (ids(*n).numpy(), torch.arange(4))),
    "labels beside objects": numbered(lambda n: ([Graph() for _ in n], torch.arange(4))),
    "a batch that is no collection": numbered(lambda n: Graph()),
    "nested texts": numbered(lambda n: torch.nested.nested_tensor(list(ids(*n)), layout=torch.jagged)),
    "on a device": numbered(lambda n: ids(*n).to("meta")),
    "synthetic samples that are all the same": numbered(lambda n: torch.ones(4, 16)),
}
"""Compared with nothing."""

TOLD: dict[str, tuple[Loader, dict[str, Any], set[tuple[str, Confidence]]]] = {
    "a shard that two of four ranks read": (shard_of(lambda rank: max(1, rank)), {}, {(SAME, CERTAIN)}),
    "its single samples": (shard_of(lambda rank: max(1, rank), samples=1), {}, {(SAME, PROBABLE)}),
    "all ranks read all": (shard_of(lambda rank: 0), {}, {(SAME, PROBABLE)}),
    "ranks of one model of a job that does not say so": (shard_of(lambda rank: rank // 2), {}, {(SAME, PROBABLE)}),
    "replicas that read all": (shard_of(lambda r: 0), {"model_ranks": 2, "tensor": 2}, {(SAME, PROBABLE)}),
    "one batch learned by heart": (
        lambda rank, done: iter(lambda: ids(*range(rank, rank + 4)), None),
        {},
        {(AGAIN, PROBABLE)},
    ),
    "several steps with each batch": (each_batch(4, numbered(texts)), {}, {(AGAIN, PROBABLE)}),
    "two steps with each batch of an epoch": (
        each_batch(2, numbered(texts)),
        {"epoch_steps": 999},
        {(AGAIN, PROBABLE)},
    ),
    "epochs of 20 steps in one order": (epochs(20), {}, {(AGAIN, PROBABLE)}),
    "epochs of 7 steps of two samples in one order": (epochs(7, samples=2), {}, {(AGAIN, PROBABLE)}),
    "epochs of 20 steps of the same batches in new orders": (epochs(20, shuffles=True), {}, {(AGAIN, PROBABLE)}),
    "fours drawn with replacement from few": (drawn(6, 4), {"epoch_steps": 999}, {(AGAIN, PROBABLE)}),
    "a loader that begins anew within an epoch": (begins_anew, {"epoch_steps": 999}, {(AGAIN, PROBABLE)}),
    "data that begin at the first sample": (from_the_first(numbered(texts)), {}, {(OFFSET, CERTAIN)}),
    "a stream that begins at the first sample": (from_the_first(numbered(padded)), {}, {(OFFSET, CERTAIN)}),
}
"""Told, and how sure."""


def told_of(loader: Loader, *, epoch_steps: int | None = None, **parallelism: int) -> Job:
    job = Job(loader, epoch_steps, **parallelism)
    return job.round(1, 1, TRAINED_TO).round(2, BACK_TO + 1, ENDS_AT)


@pytest.mark.parametrize("name", LOOK_ALIKES)
def test_nothing_is_told_of_what_is_right(name: str) -> None:
    loader, parallelism = LOOK_ALIKES[name]
    job = told_of(loader, **parallelism)
    assert [(each.cause, each.confidence, each.error) for each in job.found] == []
    assert job.samples > 0


@pytest.mark.parametrize("name", SILENT)
def test_what_names_no_samples_is_compared_with_nothing(name: str) -> None:
    job = told_of(SILENT[name])
    assert (job.found, job.samples) == ([], 0)


@pytest.mark.parametrize("name", TOLD)
def test_what_is_wrong_or_looks_so_is_told_with_how_sure_that_is(name: str) -> None:
    loader, details, expected = TOLD[name]
    job = told_of(loader, **details)
    assert {(each.cause, each.confidence) for each in job.found} == expected, [each.error for each in job.found]
