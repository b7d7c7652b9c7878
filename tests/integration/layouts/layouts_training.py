"""One training run that goes on in another layout after every few steps, and the same run unsharded."""

import copy
import itertools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer, Standalone

WIDTH = 12  # Divided evenly by the tensor-parallel size, as torch wants it, and not by 8.
BATCH = 4
MIXED = MixedPrecisionPolicy(param_dtype=torch.bfloat16, reduce_dtype=torch.float32)


@dataclass(frozen=True)
class Leg:
    """Train in `layout` until step `until`, from where `folder` is."""

    folder: Path
    layout: str
    until: int
    is_mixed: bool = False


@dataclass(frozen=True)
class Whole:
    """Every tensor of model and optimizer, gathered: as restored, and as it was at the end."""

    restored: dict[str, torch.Tensor] = field(default_factory=dict)
    ended: dict[str, torch.Tensor] = field(default_factory=dict)


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down(torch.tanh(self.up(batch)))
        return batch + down


def plain_model() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(Block(), Block(), nn.Linear(WIDTH, 3))


def batch_of(step: int) -> torch.Tensor:
    """The same on every rank: then gradients do not depend on how many there are."""
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def train(leg: Leg) -> Whole:
    """Act: restore what is there, train, save at the end."""
    model = _laid_out(leg)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    checkpointer = Checkpointer(Standalone(str(leg.folder)), model=model, optimizer=optimizer)
    restored: dict[str, torch.Tensor] = {}
    for step, _ in checkpointer.steps(itertools.count(), until=leg.until):
        if optimizer.state and not restored:  # To gather a state that is not there would make one.
            restored = _gathered(model, optimizer)
        loss = model(batch_of(step)).square().mean()
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
    checkpointer.close()
    return Whole(restored, _gathered(model, optimizer))


def train_unsharded(until: int, *, is_mixed: bool) -> dict[str, torch.Tensor]:
    """The parameters after `until` steps of one process without any library of parallelism."""
    model = plain_model()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2, foreach=True)
    for step in range(1, until + 1):
        worker = copy.deepcopy(model).to(torch.bfloat16) if is_mixed else model
        batch = batch_of(step).to(torch.bfloat16) if is_mixed else batch_of(step)
        worker(batch).square().mean().backward()
        if is_mixed:
            for own, low in zip(model.parameters(), worker.parameters(), strict=True):
                assert low.grad is not None
                own.grad = low.grad.float()
        optimizer.step()
        optimizer.zero_grad()
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _laid_out(leg: Leg) -> nn.Module:
    kind, _, sizes = leg.layout.partition(" ")
    shape = tuple(int(size) for size in sizes.split("x"))
    model = plain_model()
    if kind == "plain":
        return model
    if kind == "ddp":
        return DistributedDataParallel(model)
    names = ("replica", "shard", "tensor") if kind == "tp" else ("replica", "shard")
    names = names[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if kind == "tp":
        _split_tensors(model, mesh["tensor"])
        mesh = mesh[names[:-1]]
    for module in (*model, model):
        fully_shard(module, mesh=mesh, **({"mp_policy": MIXED} if leg.is_mixed else {}))
    return model


def _split_tensors(model: nn.Sequential, mesh: DeviceMesh) -> None:
    for block in model[:2]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _gathered(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    named, states = get_state_dict(model, optimizer)
    flat: dict[str, Any] = dict(named)
    for name, state in states["state"].items():
        flat |= {f"{name}.{key}": value for key, value in state.items()}
    return {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in flat.items()
    }
