"""What modules keep beside their tensors is restored as it was saved, whatever a fresh one happens to show."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from holdfast.checkpoint import Checkpointer, Standalone
from holdfast.checkpoint.convert.conversion import Kind, convert, open_source
from holdfast.checkpoint.errors import Unfit

States = dict[str, tuple[Callable[[], Any], Callable[[int], Any]]]

# How it begins, and what it is after so many steps.
STATES: States = {
    "a history that grows": (
        lambda: {"seen": [], "bits": torch.zeros(0)},
        lambda step: {"seen": [0.5] * step, "bits": torch.full((step,), 0.5)},
    ),
    "one tensor of bytes, longer each time": (
        lambda: torch.zeros(0, dtype=torch.uint8),
        lambda step: torch.arange(3 * step, dtype=torch.uint8),
    ),
    "nothing at first": (
        lambda: None,
        lambda step: {"scale": torch.tensor(float(step)), "by block": {1: torch.ones(step), 2: "text"}},
    ),
    "a tensor, then a number": (lambda: torch.zeros(2), lambda step: step),
}


class Scaled(nn.Linear):
    def __init__(self, state: object) -> None:
        super().__init__(2, 1)
        self.state = state

    def get_extra_state(self) -> Any:
        return self.state

    def set_extra_state(self, state: Any) -> None:
        self.state = state


def equal(one: Any, other: Any) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and one.dtype == other.dtype and torch.equal(one, other)
    if isinstance(one, dict):
        return one.keys() == other.keys() and all(equal(one[key], other[key]) for key in one)
    return type(one) is type(other) and bool(one == other)


@pytest.mark.parametrize("kind", STATES)
def test_an_extra_state_of_any_shape_comes_back(kind: str, tmp_path: Path) -> None:
    fresh, grown = STATES[kind]

    def train(until: int) -> tuple[Any, Any]:
        """What was restored of it, and what it was in the end."""
        scaled = Scaled(fresh())
        model = nn.Sequential(scaled, nn.Linear(1, 1))
        optimizer = torch.optim.Adam(model.parameters())
        saves = Checkpointer(Standalone(tmp_path.as_uri()), model=model, optimizer=optimizer, every_steps=1)
        restored = None
        for step, _ in saves.steps(range(10), until=until):
            restored = scaled.state if restored is None else restored
            scaled.state = grown(step)
            for each in model.parameters():
                each.grad = torch.ones_like(each)
            optimizer.step()
        saves.close()
        return restored, scaled.state

    ended = train(3)[1]
    assert equal(train(4)[0], ended)


def test_keys_that_no_save_writes_are_refused(tmp_path: Path) -> None:
    torch.save({"model": nn.Linear(2, 1).state_dict(), "keys": 7}, tmp_path / "a.pt")
    convert(open_source(str(tmp_path / "a.pt")), tmp_path / "b", Kind.HOLDFAST)
    model = nn.Linear(2, 1)
    saves = Checkpointer(
        Standalone(str(tmp_path / "b")), model=model, optimizer=torch.optim.SGD(model.parameters())
    )
    with pytest.raises(Unfit, match=r"keys in .* is not what a save writes"):
        next(saves.steps(range(3)))
