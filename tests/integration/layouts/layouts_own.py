"""Training in which each rank holds something of its own under names that all ranks have."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import msgspec
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor
from torch.nn.parallel import DistributedDataParallel
from torch.optim import SGD, AdamW, Optimizer
from torch.optim.lr_scheduler import ReduceLROnPlateau

from holdfast.api.memory import MemoryOrder, NodeMemory
from holdfast.api.round import Restore, Tier
from holdfast.checkpoint import Checkpointer, Standalone

WIDTH = 6
KEY = "a-life-of-the-job"
State = dict[str, Any]


class Net(nn.Module):
    """A mean of the rank's own data, and a count that only some ranks raise."""

    seen: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(WIDTH, 8), nn.BatchNorm1d(8), nn.Linear(8, 1))
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(x)
        return out


class RowNorms(Optimizer):
    """Keeps of the rows that the rank holds of a parameter their mean gradient, in a plain tensor."""

    def __init__(self, parameters: Iterable[Tensor]) -> None:
        super().__init__(parameters, {"lr": 0.05})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:  # type: ignore[override]
        for each in (one for group in self.param_groups for one in group["params"] if one.grad is not None):
            whole = each.grad
            mine = whole.to_local() if isinstance(whole, DTensor) else whole
            now = mine.reshape(mine.shape[0], -1).abs().mean(1)
            held = self.state[each].get("rows")
            self.state[each]["rows"] = now if held is None else held * 0.5 + now * 0.5
            each.add_(whole, alpha=-0.05)


class Metric:
    """A list of the rank's losses and a tensor of them: an object, and what is nested in one."""

    def __init__(self) -> None:
        self.losses: list[float] = []
        self.total = torch.zeros(2)

    def add(self, loss: float) -> None:
        self.losses.append(loss)
        self.total += torch.tensor([loss, 1.0])

    def state_dict(self) -> State:
        return {"losses": list(self.losses), "total": self.total.clone()}

    def load_state_dict(self, state: State) -> None:
        self.losses, self.total = list(state["losses"]), state["total"].clone()


class Kept:
    """What a rank has, which is for the rank alone to know, and nothing before its first step."""

    def __init__(self, of: Callable[[int, int], State]) -> None:
        self._of, self.held = of, State()

    def grow(self, step: int) -> None:
        self.held = self._of(dist.get_rank(), step)

    def state_dict(self) -> State:
        return dict(self.held)

    def load_state_dict(self, state: State) -> None:
        self.held = dict(state)


class Routed(nn.Module):
    """Of its expert rank 0 has had no token yet."""

    def __init__(self, gate: nn.Module) -> None:
        super().__init__()
        self.gate, self.expert = gate, nn.Linear(4, 4)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.gate(x)
        return self.expert(out) if dist.get_rank() else out


@dataclass
class Parts:
    model: nn.Module
    optimizer: Optimizer
    scheduler: Any = None
    extra: dict[str, Any] = field(default_factory=dict)


def _replicated(**settings: Any) -> Parts:
    torch.manual_seed(0)
    model = DistributedDataParallel(Net(), **settings)
    return Parts(model, SGD(model.parameters(), lr=0.05, momentum=0.9))


def own_buffers() -> Parts:
    return _replicated(broadcast_buffers=False)


def broadcast_buffers() -> Parts:
    return _replicated()


def plateau() -> Parts:
    """Each rank's scheduler goes by the rank's own loss; the learning rate stays the same on all."""
    parts = _replicated(broadcast_buffers=False)
    parts.scheduler = ReduceLROnPlateau(parts.optimizer, patience=1000)
    parts.extra = {"metric": Metric()}
    return parts


def experts() -> Parts:
    """Nothing joins the ranks: under one name each has an expert of its own, of a size of its own."""
    torch.manual_seed(dist.get_rank())
    model = nn.Sequential(nn.Linear(WIDTH, 4 + dist.get_rank()), nn.Tanh(), nn.LazyLinear(1))
    model(torch.zeros(2, WIDTH))
    return Parts(model, AdamW(model.parameters(), lr=0.01))


def rows() -> Parts:
    """Of 7 rows two ranks hold 4 and 3."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(WIDTH, 7), nn.Tanh(), nn.Linear(7, 8), nn.Tanh(), nn.Linear(8, 2))
    fully_shard(model, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    return Parts(model, RowNorms(model.parameters()))


def lazy_moments() -> Parts:
    torch.manual_seed(dist.get_rank())
    model = Routed(nn.Linear(WIDTH, 4))
    return Parts(model, AdamW(model.parameters(), lr=0.01))


def lazy_momentum() -> Parts:
    torch.manual_seed(0)
    model = Routed(DistributedDataParallel(nn.Linear(WIDTH, 4)))
    return Parts(model, SGD(model.parameters(), lr=0.01, momentum=0.9))


def lazy_rows() -> Parts:
    torch.manual_seed(0)
    gate = nn.Linear(WIDTH, 4)
    fully_shard(gate, mesh=init_device_mesh("cpu", (dist.get_world_size(),)))
    model = Routed(gate)
    return Parts(model, RowNorms(model.parameters()))


def _keeping(of: Callable[[int, int], State]) -> Parts:
    parts = _replicated(broadcast_buffers=False)
    parts.extra = {"kept": Kept(of)}
    return parts


def average_on_one() -> Parts:
    return _keeping(lambda rank, step: {} if rank else {"mean": torch.full((2,), step / 7), "of": {step: 1.0}})


def keys_by_rank() -> Parts:
    return _keeping(
        lambda rank, step: {
            "tensors": [torch.full((1,), float(step))] * (rank + 1),
            "seen": {(rank, "x"): torch.ones(step), rank: step, **({"5": 1} if rank else {5: 1})},
            **({"z": 1, "a": 2} if rank else {"a": 2, "z": 1}),
        }
    )


def tensor_or_none() -> Parts:
    return _keeping(
        lambda rank, step: {
            "wide": None if rank else torch.ones(step, 2),
            "one": {"deep": torch.ones(1)} if rank else torch.tensor(2.0),
            "dims": torch.ones(2, 2) if rank else torch.ones(2),
        }
    )


LAZY = (lazy_moments, lazy_momentum, lazy_rows)
KINDS: dict[str, Callable[[], Parts]] = {
    each.__name__: each
    for each in (
        *(own_buffers, broadcast_buffers, plateau, experts, rows),
        *(*LAZY, average_on_one, keys_by_rank, tensor_or_none),
    )
}


@dataclass(frozen=True)
class Course:
    """Until which step, and where it is saved. With `memory` nothing is saved; `late` is the step after which the
    ranks' counts differ.
    """

    kind: str
    folder: Path
    until: int
    every: int = 4
    memory: bool = False
    late: int = 0


@dataclass(frozen=True)
class Seen:
    """What this rank holds as the run begins and at its end, by name, as lists."""

    step: int
    began: State
    ended: State
    losses: list[str]


class Remembering(Standalone):
    """Under Holdfast's memory: one node for all ranks."""

    def __init__(self, course: Course) -> None:
        super().__init__("" if course.memory else str(course.folder))
        if course.memory:
            order = MemoryOrder(every_steps=1, since_round=0)
            restore = Restore(tier=Tier.MEMORY, owner=KEY)
            memory = NodeMemory(order, str(course.folder / "memory"), "")
            self.assignment = msgspec.structs.replace(self.assignment, restore=restore, memory=memory)


def held_by(parts: Parts) -> State:
    """All that this rank holds, to the bit."""
    state: State = {f"model.{name}": each for name, each in parts.model.state_dict().items()}
    for number, parameter in enumerate(parts.model.parameters()):
        held = parts.optimizer.state.get(parameter, {})
        state |= {f"optimizer.{number}.{key}": each for key, each in held.items()}
    for name, each in parts.extra.items():
        state |= {f"extra.{name}.{key}": value for key, value in each.state_dict().items()}
    if parts.scheduler is not None:
        state["scheduler"] = {key: parts.scheduler.state_dict()[key] for key in ("best", "num_bad_epochs")}
    return {name: _plain(value) for name, value in state.items()}


def _plain(value: Any) -> Any:
    if isinstance(value, dict):
        return [(repr(key), _plain(each)) for key, each in value.items()]
    if isinstance(value, list):
        return [_plain(each) for each in value]
    if not isinstance(value, Tensor):
        return value
    local = value.to_local() if isinstance(value, DTensor) else value
    return type(value).__name__, str(local.dtype), local.detach().tolist()


def train(course: Course) -> Seen:
    rank = dist.get_rank()
    parts = KINDS[course.kind]()
    checkpointer = Checkpointer(
        Remembering(course),
        model=parts.model,
        optimizer=parts.optimizer,
        scheduler=parts.scheduler,
        extra=parts.extra,
        every_steps=course.every,
    )
    first = checkpointer.resume(until=course.until)
    began, losses = held_by(parts), []
    for step in range(first + 1, course.until + 1):
        generator = torch.Generator().manual_seed(1000 * step + rank)
        batch = torch.randn(5, WIDTH, generator=generator) * (1 + rank) + rank
        loss = parts.model(batch).square().mean()
        loss.backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
        for name, buffer in parts.model.named_buffers():
            if name.endswith("seen") and step > course.late:
                buffer.add_(rank + 1)
        if parts.scheduler is not None:
            parts.scheduler.step(loss.item())
            parts.extra["metric"].add(loss.item())
        for each in parts.extra.values():
            if isinstance(each, Kept):
                each.grow(step)
        losses.append(loss.item().hex())
        checkpointer.completed(step)
    checkpointer.finish()
    checkpointer.close()
    return Seen(first, began, held_by(parts), losses)
