from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_solo import Solo
from msgspec import structs
from torch.utils.data import DataLoader

from holdfast.checkpoint.capture.dataplace import DataPlace
from holdfast.checkpoint.format import manifest


class Noisy:
    """Draws a random number for each batch it reads."""

    def __iter__(self) -> Iterator[float]:
        for _ in range(12):
            yield float(torch.rand(()))


def shuffled() -> Iterable[torch.Tensor]:
    return DataLoader(torch.arange(12), shuffle=True)  # type: ignore[arg-type]


def noisy() -> Iterable[float]:
    return Noisy()


def draw(directory: Path, source: str, until: int) -> list[tuple[int, float, float]]:
    """Each step with its batch and a number drawn in it, as a script sees them that seeds when it starts."""
    torch.manual_seed(0)
    solo = Solo(directory)
    data = {"shuffled": shuffled, "noisy": noisy}[source]()
    return [
        (step, float(batch), float(torch.rand(()))) for step, batch in solo.checkpointer.steps(data, until=until)
    ]


@pytest.mark.parametrize("source", ["shuffled", "noisy"])
def test_numbers_the_data_draws_while_batches_are_passed_over_do_not_count(source: str, tmp_path: Path) -> None:
    whole = draw(tmp_path / "whole", source, 12)
    resumed = draw(tmp_path / "cut", source, 7) + draw(tmp_path / "cut", source, 12)
    assert resumed == whole


class Counter:
    """Knows its position."""

    def __init__(self) -> None:
        self.position = 0

    def __iter__(self) -> Iterator[int]:
        while self.position < 20:
            self.position += 1
            yield self.position - 1

    def state_dict(self) -> dict[str, int]:
        return {"position": self.position}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.position = state["position"]


def take(directory: Path, data: Iterable[int], until: int) -> list[int]:
    return [batch for _, batch in Solo(directory).checkpointer.steps(data, until=until)]


def test_in_a_world_of_another_size_the_ranks_together_pass_over_what_was_taken(tmp_path: Path) -> None:
    solo = Solo(tmp_path)
    solo.checkpointer._place = DataPlace(rank=0, world_size=2)
    assert [batch for _, batch in solo.checkpointer.steps(range(20), until=3)] == [0, 1, 2]
    path = tmp_path / "step-00000003" / manifest.FILE_NAME
    of_two_ranks = structs.replace(manifest.decode(path.read_bytes()), world_size=2)
    path.write_bytes(manifest.encode(of_two_ranks))
    assert take(tmp_path, range(20), 5) == [6, 7]
    assert take(tmp_path, range(20), 6) == [8], "from then on this world's count holds"


def test_batches_to_be_passed_over_reach_into_later_epochs(tmp_path: Path) -> None:
    def epochs(until: int) -> list[tuple[int, int, float]]:
        torch.manual_seed(0)
        solo = Solo(tmp_path)
        return [
            (step, batch, float(torch.rand(())))
            for _ in range(3)
            for step, batch in solo.checkpointer.steps(range(5), until=until)
        ]

    first, second = epochs(8), epochs(15)
    assert [(step, batch) for step, batch, _ in first + second] == [(step + 1, step % 5) for step in range(15)]
    torch.manual_seed(0)
    Solo(tmp_path / "other")
    assert [number for _, _, number in first + second] == [float(torch.rand(())) for _ in range(15)]


def test_data_that_has_learnt_to_say_its_position_since_the_save_passes_batches_over(tmp_path: Path) -> None:
    assert take(tmp_path, range(20), 6) == [0, 1, 2, 3, 4, 5]
    assert take(tmp_path, Counter(), 8) == [6, 7]
    assert take(tmp_path, Counter(), 9) == [8]
