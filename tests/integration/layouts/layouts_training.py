"""One training run that goes on in another layout after every few steps, and the same run unsharded."""

import copy
import itertools
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from holdfast.checkpoint import Checkpointer, Standalone

FADING = 0.9  # Of the learning rate, from step to step.
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


@dataclass(frozen=True)
class Relay:
    """A backward pass of the whole model, of which this rank has all, or one of two stages. The other is on rank
    `peer`.
    """

    stage: int | None = None
    peer: int = 0

    def backward(self, model: nn.Module, batch: torch.Tensor) -> None:
        if self.stage is None:
            model(batch).square().mean().backward()
        elif self.stage == 0:
            handed = model(batch)
            dist.send(handed.detach(), self.peer)
            gradient = torch.empty_like(handed)
            dist.recv(gradient, self.peer)
            handed.backward(gradient)
        else:
            given = torch.empty_like(batch)
            dist.recv(given, self.peer)
            model(given.requires_grad_()).square().mean().backward()
            assert given.grad is not None
            dist.send(given.grad, self.peer)


def batch_of(step: int) -> torch.Tensor:
    """The same on every rank: then gradients do not depend on how many there are."""
    return torch.randn(BATCH, WIDTH, generator=torch.Generator().manual_seed(step))


def optimizer_of(model: nn.Module) -> torch.optim.AdamW:
    """Two groups with other settings, of which the weights' change."""
    named = dict(model.named_parameters())
    weights = [parameter for name, parameter in named.items() if name.endswith("weight")]
    biases = [parameter for name, parameter in named.items() if name.endswith("bias")]
    groups = [{"params": weights, "lr": 2e-2}, {"params": biases, "weight_decay": 0.5}]
    return torch.optim.AdamW(groups, lr=1e-2, foreach=True)


def train(leg: Leg) -> Whole:
    """Act: restore what is there, train, save at the end."""
    model, relay = _laid_out(leg)
    optimizer = optimizer_of(model)
    checkpointer = Checkpointer(Standalone(str(leg.folder)), model=model, optimizer=optimizer)
    restored: dict[str, torch.Tensor] = {}
    for step, _ in checkpointer.steps(itertools.count(), until=leg.until):
        if optimizer.state and not restored:  # To gather a state that is not there would make one.
            restored = _gathered(model, optimizer)
        relay.backward(model, batch_of(step))
        _step(optimizer)
    checkpointer.close()
    return Whole(restored, _gathered(model, optimizer))


def train_unsharded(until: int, *, is_mixed: bool) -> dict[str, torch.Tensor]:
    """The parameters after `until` steps of one process without any library of parallelism."""
    model = plain_model()
    optimizer = optimizer_of(model)
    for step in range(1, until + 1):
        worker = copy.deepcopy(model).to(torch.bfloat16) if is_mixed else model
        batch = batch_of(step).to(torch.bfloat16) if is_mixed else batch_of(step)
        worker(batch).square().mean().backward()
        if is_mixed:
            for own, low in zip(model.parameters(), worker.parameters(), strict=True):
                assert low.grad is not None
                own.grad = low.grad.float()
        _step(optimizer)
    return {name: parameter.detach() for name, parameter in model.named_parameters()}


def _step(optimizer: torch.optim.Optimizer) -> None:
    optimizer.step()
    optimizer.zero_grad()
    for group in optimizer.param_groups:
        group["lr"] *= FADING


def _laid_out(leg: Leg) -> tuple[nn.Module, Relay]:
    kind, _, sizes = leg.layout.partition(" ")
    shape = tuple(int(size) for size in sizes.split("x"))
    model = plain_model()
    if kind == "plain":
        return model, Relay()
    if kind == "ddp":
        return DistributedDataParallel(model), Relay()
    if kind == "pp":
        return _stage(model, shape)
    names = ("replica", "shard", "tensor") if kind == "tp" else ("replica", "shard")
    names = names[-len(shape) :]
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=names)
    if kind == "tp":
        _split_tensors(model, mesh["tensor"])
        mesh = mesh[names[:-1]]
    for module in (*model, model):
        fully_shard(module, mesh=mesh, **({"mp_policy": MIXED} if leg.is_mixed else {}))
    return model, Relay()


def _stage(model: nn.Sequential, shape: tuple[int, ...]) -> tuple[nn.Module, Relay]:
    """The half of the model that is this rank's, under the names it has in the whole."""
    mesh = init_device_mesh("cpu", shape, mesh_dim_names=("stage", "shard")[: len(shape)])
    number = mesh.get_local_rank("stage")
    named = list(model.named_children())
    own = nn.Sequential(OrderedDict(named[:1] if number == 0 else named[1:]))
    if len(shape) > 1:
        for module in (*own, own):
            fully_shard(module, mesh=mesh["shard"])
    beside = dist.get_world_size() // 2
    return own, Relay(number, (dist.get_rank() + beside) % dist.get_world_size())


def _split_tensors(model: nn.Sequential, mesh: DeviceMesh) -> None:
    for block in model[:2]:
        parallelize_module(block, mesh, {"up": ColwiseParallel(), "down": RowwiseParallel()})


def _gathered(model: nn.Module, optimizer: torch.optim.Optimizer) -> dict[str, torch.Tensor]:
    named, states = get_state_dict(model, optimizer)
    flat: dict[str, Any] = dict(named)
    for name, state in states["state"].items():
        flat |= {f"{name}.{key}": value for key, value in state.items()}
    own = {
        name: (value.full_tensor() if isinstance(value, DTensor) else value).detach().clone()
        for name, value in flat.items()
    }
    everyone: list[dict[str, torch.Tensor]] = [{} for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, own)
    return {name: value for each in everyone for name, value in each.items()}
