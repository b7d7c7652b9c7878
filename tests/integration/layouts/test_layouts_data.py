"""What becomes of a place in the data when the world changes its size."""

import logging
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from layouts_troupe import Troupe
from torch.utils.data import DistributedSampler, TensorDataset
from torchdata.stateful_dataloader import StatefulDataLoader

from holdfast.checkpoint import Checkpointer, Standalone

SAMPLES = 24
BATCH = 2


class Counted:
    """Deals samples out to the ranks in turn; its position is how many all have taken together."""

    counts_globally = True

    def __init__(self) -> None:
        self.taken = 0

    def __iter__(self) -> Iterator[list[torch.Tensor]]:
        while True:
            first = self.taken + dist.get_rank()
            self.taken += dist.get_world_size()
            yield [torch.tensor([[float(first)]])]

    def state_dict(self) -> dict[str, int]:
        return {"taken": self.taken}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.taken = state["taken"]


@dataclass(frozen=True)
class Pass:
    """Train on until step `until`, or until the epoch ends."""

    folder: Path
    until: int | None = None
    is_counted: bool = False


class Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.INFO)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.heard.append(record.getMessage())


def shuffled() -> StatefulDataLoader[Any]:
    samples = TensorDataset(torch.arange(float(SAMPLES)).reshape(SAMPLES, 1))
    return StatefulDataLoader(samples, batch_size=BATCH, sampler=DistributedSampler(samples, seed=3))


def train(given: Pass) -> tuple[list[int], list[str]]:
    """Which samples this rank saw, and what the library said of them."""
    logger, listener = logging.getLogger("holdfast.checkpoint.capture.dataplace"), Listener()
    logger.addHandler(listener)
    logger.setLevel(logging.INFO)
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    checkpointer = Checkpointer(Standalone(str(given.folder)), model=model, optimizer=optimizer)
    data = Counted() if given.is_counted else shuffled()
    seen = [
        int(sample) for _, (batch,) in checkpointer.steps(data, until=given.until) for sample in batch.flatten()
    ]
    checkpointer.close()
    logger.removeHandler(listener)
    return seen, listener.heard


def seen_by(said: list[tuple[list[int], list[str]]]) -> list[int]:
    return [sample for seen, _ in said for sample in seen]


@pytest.mark.parametrize(("ranks", "until"), [((1, 2), 4), ((2, 1), 3)], ids=["1 to 2", "2 to 1"])
def test_no_sample_of_an_epoch_is_lost_or_seen_twice_when_the_world_changes_its_size(
    ranks: tuple[int, int], until: int, troupe: Troupe, tmp_path: Path
) -> None:
    before, after = ranks
    first = seen_by(troupe.play(train, Pass(tmp_path, until), ranks=before))
    assert len(first) == before * until * BATCH
    said = troupe.play(train, Pass(tmp_path), ranks=after)
    assert sorted(first + seen_by(said)) == list(range(SAMPLES))
    batches = before * until // after
    spoken = f"saved_world_size={before} world_size={after} by=passing batches over batches={batches}"
    assert said[0][1] == [f"data goes on in a world of another size {spoken}"]


def test_where_it_does_not_come_out_even_fewer_batches_than_ranks_are_seen_again(
    troupe: Troupe, tmp_path: Path
) -> None:
    first = seen_by(troupe.play(train, Pass(tmp_path, 3), ranks=1))
    then = seen_by(troupe.play(train, Pass(tmp_path), ranks=2))
    assert set(first + then) == set(range(SAMPLES))
    assert len(first + then) == SAMPLES + BATCH


@pytest.mark.parametrize("ranks", [1, 2], ids=str)
def test_in_a_world_of_the_same_size_the_loader_has_its_state_back(
    ranks: int, troupe: Troupe, tmp_path: Path
) -> None:
    first = seen_by(troupe.play(train, Pass(tmp_path, 3), ranks=ranks))
    said = troupe.play(train, Pass(tmp_path), ranks=ranks)
    assert sorted(first + seen_by(said)) == list(range(SAMPLES))
    assert said[0][1] == []


@pytest.mark.parametrize("ranks", [(1, 2), (2, 1), (3, 2)], ids=str)
def test_data_that_counts_globally_has_its_state_back_in_any_world(
    ranks: tuple[int, int], troupe: Troupe, tmp_path: Path
) -> None:
    before, after = ranks
    first = seen_by(troupe.play(train, Pass(tmp_path, 3, is_counted=True), ranks=before))
    said = troupe.play(train, Pass(tmp_path, 7, is_counted=True), ranks=after)
    assert sorted(first + seen_by(said)) == list(range(3 * before + 4 * after))
    assert "by=its own global count" in said[0][1][0]
