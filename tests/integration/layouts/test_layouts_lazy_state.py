"""What nobody holds yet when a sharded run begins again is restored as it was, also into another number of ranks:
an optimizer's smaller factors, another optimizer, an average that is made at its first update.
"""

import itertools
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from layouts_training import WIDTH, batch_of
from layouts_troupe import Troupe
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.optim import AdamW, Optimizer

from holdfast.checkpoint import Checkpointer, Standalone

HIDDEN = 8
State = dict[str, Tensor]


class Factored(Optimizer):
    """Scales each gradient by averages of its rows and of its columns, as Adafactor does."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in (one for group in self.param_groups for one in group["params"]):
            squares = each.grad.square()
            columns = squares.mean(0)
            if isinstance(columns, DTensor):
                columns = columns.redistribute(placements=[Replicate()])
            for name, now in (("rows", squares.mean(1)), ("columns", columns)):
                held = self.state[each].get(name)
                self.state[each][name] = now.clone() if held is None else held * 0.9 + now * 0.1
            scale = self.state[each]["rows"].unsqueeze(1) + self.state[each]["columns"].unsqueeze(0) + 1.0
            each.data.sub_(each.grad / scale * 0.05)


class Average:
    def __init__(self) -> None:
        self.shadow: State = {}

    def update(self, model: nn.Module) -> None:
        for name, each in model.named_parameters():
            now = each.detach()
            self.shadow[name] = self.shadow[name] * 0.9 + now * 0.1 if name in self.shadow else now.clone()

    def state_dict(self) -> dict[str, Any]:
        return {"shadow": dict(self.shadow)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.shadow = dict(state.get("shadow", {}))


@dataclass(frozen=True)
class Seen:
    """All of it, gathered: as it was when the run began, and at its end."""

    began: State
    ended: State


def train(given: tuple[Path, int]) -> Seen:
    folder, until = given
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, HIDDEN), nn.Tanh(), nn.Linear(HIDDEN, 4))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    optimizer = Factored(weights)
    other = AdamW([each for name, each in model.named_parameters() if name.endswith("bias")], lr=0.1)
    average, began = Average(), State()
    saves = Checkpointer(
        Standalone(str(folder)), model=model, optimizer=optimizer, extra={"average": average, "other": other}
    )
    for step, _ in saves.steps(itertools.count(), until=until):
        began = began or gathered(model, (optimizer, other), average)
        model(batch_of(step)).square().mean().backward()
        for each in (optimizer, other):
            each.step()
            each.zero_grad()
        average.update(model)
    saves.close()
    return Seen(began, gathered(model, (optimizer, other), average))


def gathered(model: nn.Module, optimizers: Iterable[Optimizer], average: Average) -> State:
    named = dict(model.named_parameters())
    flat: dict[str, Any] = {**named, **{f"average of {name}": each for name, each in average.shadow.items()}}
    for name, parameter in named.items():
        for optimizer in optimizers:
            flat |= {f"{name}: {key}": each for key, each in optimizer.state.get(parameter, {}).items()}
    return {
        name: (each.full_tensor() if isinstance(each, DTensor) else each).detach().clone()
        for name, each in flat.items()
    }


def assert_equal(one: State, other: State) -> None:
    assert one.keys() == other.keys()
    assert [name for name in one if not torch.equal(one[name], other[name])] == []


def test_training_goes_on_bit_for_bit(troupe: Troupe, tmp_path: Path) -> None:
    undisturbed, *_ = troupe.play(train, (tmp_path / "whole", 6), ranks=2)
    troupe.play(train, (tmp_path / "cut", 3), ranks=2)
    cut, *_ = troupe.play(train, (tmp_path / "cut", 6), ranks=2)
    assert len(cut.ended) == 4 + 4 + 2 * 2 + 2 * 3
    assert_equal(undisturbed.ended, cut.ended)


def test_it_is_the_same_in_another_number_of_ranks(troupe: Troupe, tmp_path: Path) -> None:
    ended = troupe.play(train, (tmp_path, 3), ranks=2)[0].ended
    for ranks, until in ((4, 5), (1, 7), (3, 9)):
        seen = troupe.play(train, (tmp_path, until), ranks=ranks)[0]
        assert_equal(ended, seen.began)
        ended = seen.ended
