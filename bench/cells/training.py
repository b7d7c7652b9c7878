"""What a script of one cell trains: model, optimizer, data, and what else it keeps. Nothing here is Holdfast's."""

import hashlib
import math
import random
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Protocol

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.algorithms._checkpoint.checkpoint_wrapper import checkpoint_wrapper
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
from torch.distributed.tensor import DTensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel
from torch.optim import Optimizer
from torch.utils.data import DataLoader, Dataset, DistributedSampler

from cells.axes import Cell
from cells.optimizers import EightBit, Lookahead, PerRow, ScheduleFree

WIDTH: Final = 8
BATCH, BATCHES, EPOCHS = 2, 8, 2  # samples of a rank's batch, and batches in an epoch of the first world
SEED: Final = 7
CUT: Final = 11  # a run is cut after this step of 16, in the second epoch
EARLIER: Final = 5  # and after this one before, where it is cut twice
WAITS_UNTIL: Final = 12  # before the first update: up to here none is made
FREEZES_AFTER, THAWS_AFTER = 6, 12


class Stateful(Protocol):
    """What can say and take its state."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any]) -> Any: ...


class Block(nn.Module):
    """`extra`: with a state that is no tensor. `float8`: with a scaled buffer that each step changes."""

    def __init__(self, *, extra: bool, float8: bool, adapters: bool) -> None:
        super().__init__()
        self.up, self.down, self.norm = nn.Linear(WIDTH, 6), nn.Linear(6, WIDTH), nn.LayerNorm(WIDTH)
        self.has_extra, self.has_float8 = extra, float8
        self.largest: list[float] = []
        if float8:
            self.register_buffer("scaled", torch.zeros(WIDTH, dtype=torch.float8_e4m3fn))
            self.register_buffer("scale", torch.ones(()))
        self.adapter = nn.Sequential(nn.Linear(WIDTH, 2), nn.Linear(2, WIDTH)) if adapters else None

    def forward(self, x: Tensor) -> Tensor:
        y = self.down(torch.tanh(self.up(x)))
        if self.adapter is not None:
            y = y + self.adapter(x)
        if self.has_float8:
            y = y + 0.01 * self.scaled.to(y.dtype) * self.scale.to(y.dtype)
        return x + self.norm(y)

    def completed(self, step: int) -> None:
        """After each step, outside of the graph."""
        if self.has_float8:
            values = torch.sin(torch.arange(WIDTH) * step * 0.1)
            self.scale.copy_(values.abs().max() / 448)
            self.scaled.copy_((values / self.scale).to(torch.float8_e4m3fn))
        if self.has_extra:
            self.largest = [*self.largest, math.sin(step)][-3:]

    def get_extra_state(self) -> dict[str, Any]:
        return {"largest": list(self.largest), "bits": torch.tensor(self.largest).to(torch.bfloat16)}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.largest = list(state["largest"])


class _PlainBlock(Block):
    """Without an extra state: a module that has the methods has one."""

    get_extra_state = nn.Module.get_extra_state  # type: ignore[assignment]
    set_extra_state = nn.Module.set_extra_state  # type: ignore[assignment]


class Net(nn.Module):
    """Tokens in, one number out."""

    def __init__(self, cell: Cell) -> None:
        super().__init__()
        of = Block if cell.format == "extra state" else _PlainBlock
        self.embedding = nn.Embedding(12, WIDTH, sparse=cell.optimizer == "sparse adam")
        self.blocks = nn.ModuleList(
            of(
                extra=cell.format == "extra state",
                float8=cell.format == "float8 buffers",
                adapters=cell.wrapping == "lora",
            )
            for _ in range(2)
        )
        self.drop, self.head = nn.Dropout(0.1), nn.Linear(WIDTH, 2)

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens).mean(1)
        for block in self.blocks:
            x = block(x)
        return self.head(self.drop(x)).float().square().mean()


class Tokens(Dataset[Tensor]):
    def __init__(self, count: int) -> None:
        self._count = count

    def __len__(self) -> int:
        return self._count

    def __getitem__(self, place: int) -> Tensor:
        return torch.tensor([place % 12, place % 7, place // 3 % 12])


class Average:
    """Of the weights, made with the first update of it."""

    def __init__(self, model: nn.Module) -> None:
        self._model = model
        self.weights: dict[str, Tensor] = {}

    @torch.no_grad()
    def update(self) -> None:
        for name, each in self._model.named_parameters():
            if name in self.weights:
                self.weights[name].lerp_(each.detach(), 0.1)
            else:
                self.weights[name] = each.detach().clone()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.weights)

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.weights = dict(state_dict)


@dataclass
class Script:
    """One rank's part. `extra` is what it keeps beside model, optimizer, schedule and scaler."""

    cell: Cell
    net: Net
    model: nn.Module
    optimizer: Optimizer
    schedule: Any = None
    scaler: Any = None
    extra: dict[str, Stateful] = field(default_factory=dict)
    losses: list[str] = field(default_factory=list)

    def loader(self) -> "DataLoader[Tensor]":
        world = dist.get_world_size() if dist.is_initialized() else 1
        rank = dist.get_rank() if dist.is_initialized() else 0
        readers = 1 if self.cell.wrapping == "tp" else self.cell.world_size
        tokens = Tokens(BATCH * BATCHES * readers)
        if world == 1 or readers == 1:
            return DataLoader(tokens, BATCH, shuffle=True)
        sampler: DistributedSampler[Tensor] = DistributedSampler(tokens, world, rank, seed=SEED)
        return DataLoader(tokens, BATCH, sampler=sampler)

    def freezes(self, step: int) -> None:
        """Before `step`: what is trained in it."""
        if self.cell.life not in ("thawed", "frozen"):
            return
        is_frozen = step <= THAWS_AFTER if self.cell.life == "thawed" else step > FREEZES_AFTER
        for each in self.net.blocks[0].parameters():
            each.requires_grad_(not is_frozen)

    def train(self, step: int, batch: Tensor) -> None:
        """One step, as a script writes it."""
        if self.cell.keeps == "generators":
            batch = (batch + int(np.random.randint(3)) + random.randrange(2)) % 12

        def closure() -> Tensor:
            self.optimizer.zero_grad()
            with torch.autocast("cpu", torch.bfloat16, enabled=self.cell.format == "mixed"):
                loss: Tensor = self.model(batch)
            (loss if self.scaler is None else self.scaler.scale(loss)).backward()
            return loss

        is_waiting = self.cell.life == "before the first update" and step <= WAITS_UNTIL
        if self.cell.optimizer == "lbfgs" and not is_waiting:
            loss = self.optimizer.step(closure)  # type: ignore[arg-type]
        else:
            loss = closure()
            if not is_waiting:
                self._update()
        for block in self.net.blocks:
            getattr(block, "_orig_mod", block).completed(step)
        self.losses.append(float(loss.detach() if isinstance(loss, Tensor) else loss).hex())  # type: ignore[arg-type]

    def _update(self) -> None:
        if self.scaler is None:
            self.optimizer.step()
        else:
            self.scaler.step(self.optimizer)
            self.scaler.update()
        if self.schedule is not None:
            self.schedule.step()
        for each in self.extra.values():
            if isinstance(each, Average):
                each.update()
            elif isinstance(each, Optimizer):
                each.step()
                each.zero_grad()

    # What it came to

    def digests(self) -> dict[str, str]:
        """By name, all that a run has which is to be exact: of a sharded tensor the whole."""
        found = {f"model.{name}": _digest(each) for name, each in self.model.state_dict().items()}
        names = {each: name for name, each in self.model.named_parameters()}
        for group in self.optimizer.param_groups:
            for each in group["params"]:
                for key, value in self.optimizer.state.get(each, {}).items():
                    found[f"optimizer.{names.get(each, '?')}.{key}"] = _digest(value)
        for number, group in enumerate(self.optimizer.param_groups):
            settings = {key: value for key, value in group.items() if key not in ("params", "param_names")}
            found |= {f"group {number}.{key}": _digest(value) for key, value in settings.items()}
        if isinstance(self.optimizer, Lookahead):
            found |= {"slow": _digest(self.optimizer.slow), "count": _digest(self.optimizer.count)}
        if self.schedule is not None:
            kept = {key: value for key, value in self.schedule.state_dict().items() if key[0] != "_"}
            found["schedule"] = _digest({key: value for key, value in kept.items() if not callable(value)})
        if self.scaler is not None:
            found["scaler"] = _digest(self.scaler.state_dict())
        for name, each in self.extra.items():
            found |= {f"extra.{name}.{key}": _digest(value) for key, value in each.state_dict().items()}
        return found

    def generators(self) -> dict[str, str]:
        """Of the random numbers of this rank."""
        return {
            "torch": _digest(torch.get_rng_state()),
            "python": _digest(repr(random.getstate())),
            "numpy": _digest(repr(np.random.get_state())),
        }


def script_of(cell: Cell) -> Script:
    """As it is made in each process. Raises what torch raises for what it cannot do."""
    torch.manual_seed(SEED)
    random.seed(SEED)
    np.random.seed(SEED)
    net = Net(cell)
    if cell.format == "bf16":
        net.to(torch.bfloat16)
    if cell.wrapping == "lora":
        for name, each in net.named_parameters():
            each.requires_grad_("adapter" in name or "head" in name)
    model = _wrapped(net, cell)
    script = Script(cell, net, model, _optimizer(model, net, cell))
    match cell.keeps:
        case "average":
            script.extra["average"] = Average(model)
        case "scaler":
            script.scaler = torch.amp.GradScaler("cpu", init_scale=2.0**8, growth_interval=3)  # type: ignore[attr-defined]
        case "schedule":
            script.schedule = torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(_scheduled(script.optimizer), 4)
        case "lambda schedule":
            script.schedule = torch.optim.lr_scheduler.LambdaLR(_scheduled(script.optimizer), lambda at: 0.9**at)
        case "second optimizer":
            script.extra["second"] = torch.optim.Adam(net.head.parameters(), lr=0.001)
    return script


def _scheduled(optimizer: Optimizer) -> Optimizer:
    return optimizer.inner if isinstance(optimizer, Lookahead) else optimizer


def _wrapped(net: Net, cell: Cell) -> nn.Module:
    world = dist.get_world_size() if dist.is_initialized() else 1
    policy = {"mp_policy": MixedPrecisionPolicy(torch.bfloat16, torch.float32)} if cell.format == "mixed" else {}

    def replicated(module: nn.Module) -> nn.Module:
        # gloo cannot send 8-bit floats.
        return DistributedDataParallel(module, broadcast_buffers=cell.format != "float8 buffers")

    def compiled(module: nn.Module) -> nn.Module:
        return torch.compile(module, backend="eager")  # type: ignore[return-value]

    def sharded(**words: Any) -> nn.Module:
        for block in net.blocks:
            fully_shard(block, **words, **policy)
        return fully_shard(net, **words, **policy)

    match cell.wrapping:
        case "ddp":
            return replicated(net)
        case "fsdp2":
            return sharded(mesh=init_device_mesh("cpu", (world,)))
        case "hsdp":
            shape = (world // 2, 2) if world > 2 else (1, world)
            return sharded(mesh=init_device_mesh("cpu", shape, mesh_dim_names=("replicate", "shard")))
        case "tp":
            plan: Mapping[str, Any] = {"up": ColwiseParallel(), "down": RowwiseParallel()}
            for block in net.blocks:
                parallelize_module(block, init_device_mesh("cpu", (world,)), dict(plan))
            return net
        case "compile":
            return compiled(net)
        case "ddp of compile":
            return replicated(compiled(net))
        case "compile of ddp":
            return compiled(replicated(net))
        case "ac of compile" | "fsdp2 of ac of compile":
            for number, block in enumerate(net.blocks):
                net.blocks[number] = checkpoint_wrapper(compiled(block))
            return net if cell.wrapping == "ac of compile" else sharded(mesh=init_device_mesh("cpu", (world,)))
    return net


def _optimizer(model: nn.Module, net: Net, cell: Cell) -> Optimizer:
    trained = [each for each in model.parameters() if each.requires_grad]
    optim = torch.optim
    match cell.optimizer:
        case "sgd":
            return optim.SGD(trained, lr=0.05, momentum=0.9)
        case "adamw":
            return optim.AdamW(trained, lr=0.01)
        case "amsgrad":
            return optim.AdamW(trained, lr=0.01, amsgrad=True)
        case "tensor lr":
            return optim.AdamW(trained, lr=torch.tensor(0.01))
        case "nadam":
            return optim.NAdam(trained, lr=0.01)
        case "adagrad":
            return optim.Adagrad(trained, lr=0.01)
        case "adafactor":
            return optim.Adafactor(trained, lr=0.01)
        case "muon":
            return optim.Muon([each for each in trained if each.dim() == 2], lr=0.01)
        case "lbfgs":
            return optim.LBFGS(trained, lr=0.1, max_iter=2, history_size=3)
        case "sparse adam":
            return optim.SparseAdam([net.embedding.weight], lr=0.01)
        case "schedule-free":
            return ScheduleFree(trained)
        case "lookahead":
            return Lookahead(optim.SGD(trained, lr=0.05, momentum=0.9))
        case "8-bit":
            return EightBit(trained)
        case "per row":
            return PerRow(trained)
    raise ValueError(cell.optimizer)


def told_epoch(loader: "DataLoader[Tensor]", epoch: int) -> None:
    """As scripts do it."""
    if isinstance(loader.sampler, DistributedSampler):
        loader.sampler.set_epoch(epoch)


def batches(script: Script) -> Iterator[tuple[int, int, Tensor]]:
    """Epoch, step and batch of an undisturbed run."""
    loader, step = script.loader(), 0
    for epoch in range(EPOCHS):
        told_epoch(loader, epoch)
        for batch in loader:
            step += 1
            yield epoch, step, batch


def _digest(value: Any) -> str:
    """Of every bit, and of the type."""
    seen = hashlib.blake2b(digest_size=8)
    _feed(seen, value)
    return seen.hexdigest()


def _feed(seen: Any, value: Any) -> None:
    if isinstance(value, DTensor):
        value = value.full_tensor()
    if isinstance(value, Tensor):
        whole = value.detach().cpu()
        whole = whole.to_dense() if whole.is_sparse else whole.contiguous()
        seen.update(f"{whole.dtype}{list(whole.shape)}".encode())
        if whole.numel():
            seen.update(whole.reshape(-1).view(torch.uint8).numpy().tobytes())
    elif isinstance(value, Mapping):
        for key, each in sorted(value.items(), key=lambda item: repr(item[0])):
            seen.update(repr(key).encode())
            _feed(seen, each)
    elif isinstance(value, list | tuple):
        seen.update(f"{type(value).__name__}{len(value)}".encode())
        for each in value:
            _feed(seen, each)
    else:
        seen.update(f"{type(value).__name__}:{value!r}".encode())
