"""Settings and optimizers as scripts have them, saved and restored without a launcher."""

from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from holdfast.checkpoint import Checkpointer, Standalone

WHEN_IT_BEGINS = 5


class Headed(nn.Module):
    """`head` begins to be used at a step of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.body, self.head = nn.Linear(2, 1), nn.Linear(2, 1)

    def forward(self, values: Tensor, step: int) -> Tensor:
        found = self.body(values)
        return cast(Tensor, found + self.head(values) if step >= WHEN_IT_BEGINS else found)


def trained(folder: Path, *ends: int, before: Callable[[torch.optim.Optimizer, int], None]) -> list[Any]:
    """What is held after the last of `ends`; after each of the others a process ended."""
    for end in ends:
        torch.manual_seed(end)
        model = Headed()
        for place, each in enumerate(model.parameters()):
            nn.init.constant_(each, 0.1 * (1 + place))
        optimizer = torch.optim.AdamW(model.parameters(), lr=0.1)
        run = Standalone(folder.as_uri())
        saves = Checkpointer(run, model=model, optimizer=optimizer, every_steps=100)
        for step, _ in saves.steps(range(100), until=end):
            before(optimizer, step)
            optimizer.zero_grad()
            model(torch.ones(2), step).square().sum().backward()
            optimizer.step()
        saves.close()
    kept = [optimizer.state[each] for each in model.parameters()]
    return [*model.parameters(), *(each[name] for each in kept for name in sorted(each))]


@pytest.mark.parametrize("kind", [float, np.float64, np.float32], ids=["python", "double", "single"])
def test_what_never_trained_is_restored_without_a_state_and_a_rate_is_restored_as_the_number_it_was(
    kind: type[Any], tmp_path: Path
) -> None:
    def before(optimizer: torch.optim.Optimizer, step: int) -> None:
        rate = optimizer.param_groups[0]["lr"]
        # NumPy before 2 makes a double of it.
        optimizer.param_groups[0]["lr"] = kind(0.1) if step == 1 else kind(rate * 0.9)
        assert step == 1 or type(rate) is kind

    whole, cut = (trained(tmp_path / str(len(ends)), *ends, before=before) for ends in ((8,), (3, 8)))
    assert len(whole) == len(cut) == 4 + 4 * 3
    assert all(torch.equal(one, other) for one, other in zip(whole, cut, strict=True))


def test_arrays_of_numbers_come_back(tmp_path: Path) -> None:
    class Sampler:
        def __init__(self) -> None:
            self.order: Any = np.arange(0)

        def state_dict(self) -> dict[str, Any]:
            return {"order": self.order}

        def load_state_dict(self, state: dict[str, Any]) -> None:
            self.order = state["order"]

    for end in (1, 2):
        model, sampler = nn.Linear(2, 1), Sampler()
        saves = Checkpointer(
            Standalone(tmp_path.as_uri()),
            model=model,
            optimizer=torch.optim.SGD(model.parameters()),
            extra={"sampler": sampler},
        )
        for step, _ in saves.steps(range(9), until=end):
            if step == 1:
                sampler.order = np.arange(4)
        saves.close()
    assert sampler.order.tolist() == [0, 1, 2, 3]
