from collections.abc import Iterable, Iterator
from pathlib import Path

import pytest
import torch
from checkpoint_solo import Solo
from torch.utils.data import DataLoader


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
