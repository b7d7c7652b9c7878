"""Room for an optimizer's state, as a checkpoint says it is made of."""

from dataclasses import dataclass, field
from typing import cast

import pytest
import torch
from torch import nn

from holdfast.checkpoint.restore.plan import make_room
from holdfast.checkpoint.restore.stored import StoredCheckpoint


@dataclass
class Listed:
    """The part of a checkpoint that says what it holds: by name the shape."""

    shapes: dict[str, tuple[int, ...]] = field(default_factory=dict)

    def names(self, prefix: str) -> list[str]:
        return [name for name in self.shapes if name.startswith(prefix)]

    def has_tensor(self, name: str) -> bool:
        return name in self.shapes

    def shape_of(self, name: str) -> tuple[torch.dtype, tuple[int, ...]]:
        return torch.float32, self.shapes[name]


OWN = {
    "model.weight": (2, 2),
    "optimizer.state.weight.step": (),
    "optimizer.state.weight.exp_avg": (2, 2),
}
OTHER_STAGE = {"model.1.weight": (3, 3), "optimizer.state.1.weight.exp_avg": (3, 3)}
NOT_UNDERSTOOD = {"optimizer.state.weight.inner.exp_avg": (2, 2)}


@pytest.mark.parametrize(
    ("more", "keys"),
    [({}, ["step", "exp_avg"]), (OTHER_STAGE, ["step", "exp_avg"]), (NOT_UNDERSTOOD, None)],
    ids=["the whole model", "a stage of it", "something else"],
)
def test_room_is_made_for_what_is_understood(more: dict[str, tuple[int, ...]], keys: list[str] | None) -> None:
    model = nn.Linear(2, 2, bias=False)
    optimizer = torch.optim.AdamW(model.parameters())
    make_room(model, optimizer, cast(StoredCheckpoint, Listed({**OWN, **more})))
    made = {parameter: list(state) for parameter, state in optimizer.state.items()}
    assert made == ({} if keys is None else {model.weight: keys})
