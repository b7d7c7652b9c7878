"""A rank's part of the training state, copied bit by bit from the rank of its place in another replica group.

Groups are alike: a rank's shards have the shapes that they have in every other group. What an optimizer keeps of a
parameter it makes at its first step; where the receiver has not made it yet, it is made as the sender has it.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.trainer.across import Across


class Stateful(Protocol):
    """What else belongs to the state: a schedule, a loader, a scaler."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What is copied. `also` is by name, and its states are plain values and tensors, as
    `torch.load(weights_only=True)` takes them. `more` are further tensors, the same number in all groups.
    """

    model: Module
    optimizer: Optimizer
    also: Mapping[str, Stateful]
    more: Sequence[Tensor] = ()

    def send(self, across: Across, to: int) -> None:
        """All of it to the group of that index. Raises what `Across` raises."""
        header = {
            "optimizer": [_kept_of(self.optimizer.state.get(each, {})) for each in self._optimized()],
            "groups": [
                {name: value for name, value in group.items() if name != "params"}
                for group in self.optimizer.param_groups
            ],
            "also": {name: each.state_dict() for name, each in self.also.items()},
        }
        file = io.BytesIO()
        torch.save(header, file)
        text = torch.frombuffer(bytearray(file.getvalue()), dtype=torch.uint8)
        across.send(torch.tensor([text.numel()]), to)
        across.send(text, to)
        for each in self._tensors():
            if (octets := _octets(each)).numel():
                across.send(octets.cpu(), to)

    @torch.no_grad()
    def receive(self, across: Across, source: int) -> None:
        """All of it from the group of that index, in place of what is here. Raises what `Across` raises; what is
        here is then part old and part new.
        """
        size = torch.zeros(1, dtype=torch.int64)
        across.receive(size, source)
        text = torch.empty(int(size.item()), dtype=torch.uint8)
        across.receive(text, source)
        header = torch.load(io.BytesIO(text.numpy().tobytes()), weights_only=True)
        for parameter, kept in zip(self._optimized(), header["optimizer"], strict=True):
            self._make_room(parameter, kept)
        for each in self._tensors():
            octets = _octets(each)
            if octets.numel():
                arrived = torch.empty(octets.numel(), dtype=torch.uint8)
                across.receive(arrived, source)
                octets.copy_(arrived)
        for group, told in zip(self.optimizer.param_groups, header["groups"], strict=True):
            group.update(told)
        for name, part in self.also.items():
            part.load_state_dict(header["also"][name])

    def _optimized(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _tensors(self) -> Iterator[Tensor]:
        """What is held here of every tensor of the state, in an order that all groups have."""
        yield from map(_local, self.model.parameters())
        yield from map(_local, self.model.buffers())
        yield from self.more
        for parameter in self._optimized():
            kept = self.optimizer.state.get(parameter, {})
            yield from (_local(kept[name]) for name in sorted(kept) if isinstance(kept[name], Tensor))

    def _make_room(self, parameter: Tensor, kept: Mapping[str, Any]) -> None:
        """What the optimizer keeps of `parameter` is as the sender has it, values apart."""
        if not kept:
            self.optimizer.state.pop(parameter, None)
            return
        mine = self.optimizer.state[parameter]
        for name in mine.keys() - kept.keys():
            del mine[name]
        for name, told in kept.items():
            if not isinstance(told, list):
                mine[name] = told
                continue
            shape, dtype, device, is_sharded = told
            known = mine.get(name)
            local = _local(known) if isinstance(known, Tensor) else None
            if local is None or (list(local.shape), local.dtype) != (shape, dtype):
                place = "cpu" if device == "cpu" else _local(parameter).device
                mine[name] = _like(parameter, torch.empty(shape, dtype=dtype, device=place), is_sharded=is_sharded)


def _kept_of(kept: Mapping[str, Any]) -> dict[str, Any]:
    """What an optimizer keeps of a parameter: of tensors how they look, of all else the value."""
    return {
        name: [list(_local(each).shape), each.dtype, each.device.type, isinstance(each, DTensor)]
        if isinstance(each, Tensor)
        else each
        for name, each in kept.items()
    }


def _like(parameter: Tensor, local: Tensor, *, is_sharded: bool) -> Tensor:
    if not is_sharded or not isinstance(parameter, DTensor):
        return local
    mesh, placements = parameter.device_mesh, parameter.placements
    return DTensor.from_local(
        local, mesh, placements, run_check=False, shape=parameter.shape, stride=parameter.stride()
    )


def _local(values: Tensor) -> Tensor:
    """What is in this process's memory of a tensor, sharing it."""
    held: Tensor = getattr(values, "_local_tensor", values)
    return held.detach()


def _octets(values: Tensor) -> Tensor:
    """The bytes of a tensor, sharing its memory where it is contiguous; of another one it cannot be written to."""
    if not values.is_contiguous():
        raise RuntimeError(f"a tensor of shape {tuple(values.shape)} is not contiguous: replica groups copy none")
    return values.reshape(-1).view(torch.uint8)
