"""A rank's part of the training state, copied bit by bit from the rank of its place in another replica group.

Groups are alike: a rank's shards have the shapes that they have in every other group. What an optimizer keeps of a
parameter it makes at its first step; where the receiver has not made it yet, it is made as the sender has it.
"""

import io
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Protocol

import numpy as np
import torch
import xxhash
from torch import Tensor
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.api.errors import InvalidInput, Problem
from holdfast.trainer.across import Across
from holdfast.trainer.torchtensors import local_of, tree_flatten_with_path, tree_map_with_path

_DIGEST_BITS = 63  # of a whole number that a tensor holds
# What NumPy's numbers and arrays of numbers are unpacked with: a learning rate is often one of its numbers.
_NUMPY: Final[list[Any]] = [
    *(each.__reduce__()[0] for each in (np.float64(0), np.zeros(1))),
    *(np.ndarray, np.dtype, bytes),
    *(type(np.dtype(each)) for each in "?bhilqBHILQefdFD"),
]


class Stateful(Protocol):
    """What else belongs to the state: a schedule, a loader, a scaler, averaged weights."""

    def state_dict(self) -> dict[str, Any]: ...

    def load_state_dict(self, state_dict: dict[str, Any], /) -> Any: ...


@dataclass(frozen=True, slots=True)
class TrainingState:
    """What is copied. `also` is by name, and its states are plain values, NumPy's among them, and tensors, as
    `torch.load(weights_only=True)` takes them, or shards of the parameters' kind. `more` are further tensors, the
    same number in all groups.
    """

    model: Module
    optimizer: Optimizer
    also: Mapping[str, Stateful]
    more: Sequence[Tensor] = ()

    def send(self, across: Across, to: int) -> None:
        """All of it to the group of that index. Raises what `Across` raises."""
        header, tensors = self._header()
        text = torch.frombuffer(bytearray(header), dtype=torch.uint8)
        across.send(torch.tensor([text.numel()]), to)
        across.send(text, to)
        for each in (*self._tensors(), *tensors):
            if (octets := _octets(each)).numel():
                across.send(octets, to)

    @torch.no_grad()
    def receive(self, across: Across, source: int) -> None:
        """All of it from the group of that index, in place of what is here. Raises what `Across` raises; what is
        here is then part old and part new.
        """
        size = torch.zeros(1, dtype=torch.int64)
        across.receive(size, source)
        text = torch.empty(int(size.item()), dtype=torch.uint8)
        across.receive(text, source)
        header = _unpacked(text.numpy().tobytes())
        self._fit(header["held"], header["groups"])
        for trained, trains in zip(self.model.parameters(), header["trains"], strict=True):
            trained.requires_grad_(trains)
        for parameter, kept in zip(self._optimized(), header["optimizer"], strict=True):
            self._make_room(parameter, kept)
        for each in self._tensors():
            if each.numel():
                each.copy_(_arrived(across, source, each.shape, each.dtype))
        for group, settings in zip(self.optimizer.param_groups, header["groups"], strict=True):
            for name, value in settings.items():
                if name == "params":
                    continue
                if isinstance(value, Tensor) and isinstance(group.get(name), Tensor):
                    group[name].copy_(value)  # a learning rate that is on the device stays there
                else:
                    group[name] = value
        also: dict[str, dict[str, Any]] = header["also"]
        for name, told in header["tensors"].items():
            here = {str(path): each for path, each in tree_flatten_with_path(self.also[name].state_dict())[0]}
            tensors = {
                path: _like(here.get(path), _arrived(across, source, shape, dtype), is_sharded=is_sharded)
                for path, (shape, dtype, is_sharded) in told.items()
            }
            also[name] = tree_map_with_path(
                lambda path, each, tensors=tensors: tensors.get(str(path), each), also[name]
            )
        for name, part in self.also.items():
            part.load_state_dict(also[name])

    def digest(self) -> int:
        """Of every bit that `send` would send: groups of the same one are alike."""
        header, tensors = self._header()
        found = xxhash.xxh3_64(header)
        for each in (*self._tensors(), *tensors):
            found.update(_octets(each).numpy().data)
        return found.intdigest() >> (64 - _DIGEST_BITS)

    def _header(self) -> tuple[bytes, list[Tensor]]:
        """What is no tensor, packed; and the tensors that come behind those of the model and the optimizer."""
        tensors: list[Tensor] = []
        told: dict[str, dict[str, tuple[list[int], torch.dtype, bool]]] = {}
        also = {}
        for name, part in self.also.items():
            leaves, _ = tree_flatten_with_path(state := part.state_dict())
            also[name] = tree_map_with_path(_plain, state)
            told[name] = {}
            for path, each in leaves:
                if isinstance(each, Tensor):
                    tensors.append(local := local_of(each))
                    told[name][str(path)] = list(local.shape), local.dtype, isinstance(each, DTensor)
        header = {
            "held": self._shapes(),
            "trains": [each.requires_grad for each in self.model.parameters()],
            "optimizer": [_kept_of(self.optimizer.state.get(each, {})) for each in self._optimized()],
            "groups": self._settings(),
            "also": also,
            "tensors": told,
        }
        file = io.BytesIO()
        torch.save(header, file)
        return file.getvalue(), tensors

    def check(self) -> None:
        """Raises InvalidInput for what could not be copied when it is needed."""
        for name, part in self.also.items():
            file = io.BytesIO()
            try:
                torch.save(tree_map_with_path(_plain, part.state_dict()), file)
                _unpacked(file.getvalue())
            except Exception as error:
                fix = "let its state_dict() hold numbers, strings and tensors, in dicts, lists and tuples"
                raise InvalidInput(Problem(f"also.{name}", type(part).__name__, fix)) from error

    def _fit(self, held: list[tuple[list[int], torch.dtype]], optimized: list[dict[str, Any]]) -> None:
        """What is here is as the sender has it, values apart: a buffer may grow while a model trains, and an
        optimizer may be given further parameters. Raises InvalidInput where groups are not alike.
        """
        parameters, buffers = list(self.model.parameters()), list(self.model.buffers())
        for buffer, (shape, dtype) in zip(buffers, held[len(parameters) :], strict=False):
            if not isinstance(buffer, DTensor) and buffer.dtype == dtype and list(buffer.shape) != shape:
                buffer.resize_(shape)
        if (mine := self._shapes()) != held:
            first = next((pair for pair in zip(mine, held, strict=False) if pair[0] != pair[1]), None)
            here, other = first or (f"{len(mine)} tensors", f"{len(held)}")
            fix = f"build the same model in every replica group; another one has {other} there"
            raise InvalidInput(Problem("model", str(here), fix))
        groups = self.optimizer.param_groups
        for told in optimized[len(groups) :]:
            self.optimizer.add_param_group({**told, "params": [parameters[place] for place in told["params"]]})
        places, there = ([each["params"] for each in settings] for settings in (self._settings(), optimized))
        if places != there:
            fix = f"give it the same in every replica group; another one has those of places {there}"
            raise InvalidInput(Problem("optimizer", f"parameters of places {places}", fix))

    def _shapes(self) -> list[tuple[list[int], torch.dtype]]:
        return [(list(each.shape), each.dtype) for each in self._held()]

    def _settings(self) -> list[dict[str, Any]]:
        """Those of the optimizer, with the places of their parameters in the model."""
        places = {id(each): place for place, each in enumerate(self.model.parameters())}
        return [
            {**group, "params": [places.get(id(each)) for each in group["params"]]}
            for group in self.optimizer.param_groups
        ]

    def _optimized(self) -> Iterator[Tensor]:
        for group in self.optimizer.param_groups:
            yield from group["params"]

    def _held(self) -> Iterator[Tensor]:
        """What is held here of the model, and of what is further copied, in an order that all groups have."""
        yield from map(local_of, self.model.parameters())
        yield from map(local_of, self.model.buffers())
        yield from map(local_of, self.more)

    def _tensors(self) -> Iterator[Tensor]:
        """What is held here of every tensor of the state, in an order that all groups have."""
        yield from self._held()
        for parameter in self._optimized():
            kept = self.optimizer.state.get(parameter, {})
            yield from (local_of(kept[name]) for name in sorted(kept) if isinstance(kept[name], Tensor))

    def _make_room(self, parameter: Tensor, kept: Mapping[str, Any]) -> None:
        """What the optimizer keeps of `parameter` is as the sender has it, values apart."""
        if not kept:
            self.optimizer.state.pop(parameter, None)
            return
        mine = self.optimizer.state[parameter]
        for name in mine.keys() - kept.keys():
            del mine[name]
        for name, (is_tensor, told) in kept.items():
            if not is_tensor:
                mine[name] = told
                continue
            shape, dtype, device, is_sharded = told
            known = mine.get(name)
            local = local_of(known) if isinstance(known, Tensor) else None
            if local is None or (list(local.shape), local.dtype) != (shape, dtype):
                place = "cpu" if device == "cpu" else local_of(parameter).device
                mine[name] = _like(parameter, torch.empty(shape, dtype=dtype, device=place), is_sharded=is_sharded)


def _unpacked(content: bytes) -> Any:
    """Plain values, and tensors in host memory. Runs no code from `content`; raises UnpicklingError where that
    would be needed.
    """
    torch.serialization.add_safe_globals(_NUMPY)
    return torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)


def _kept_of(kept: Mapping[str, Any]) -> dict[str, tuple[bool, Any]]:
    """What an optimizer keeps of a parameter: whether it is a tensor, and then how that looks, else the value."""
    return {
        name: (True, (list(local_of(each).shape), each.dtype, each.device.type, isinstance(each, DTensor)))
        if isinstance(each, Tensor)
        else (False, each)
        for name, each in kept.items()
    }


def _plain(_: object, value: object) -> object:
    return None if isinstance(value, Tensor) else value


def _like(whole: Any, local: Tensor, *, is_sharded: bool) -> Tensor:
    """A tensor of which this rank holds `local`, sharded as `whole` is."""
    if not is_sharded or not isinstance(whole, DTensor):
        return local
    return DTensor.from_local(
        local.to(whole.device),
        whole.device_mesh,
        whole.placements,
        run_check=False,
        shape=whole.shape,
        stride=whole.stride(),
    )


def _octets(values: Tensor) -> Tensor:
    """The bytes of a tensor, in host memory."""
    return values.contiguous().cpu().reshape(-1).view(torch.uint8)


def _arrived(across: Across, source: int, shape: Sequence[int], dtype: torch.dtype) -> Tensor:
    """A tensor that `source` has sent the bytes of, in host memory."""
    values = torch.empty(tuple(shape), dtype=dtype)
    if values.numel():
        across.receive(values.reshape(-1).view(torch.uint8), source)
    return values
