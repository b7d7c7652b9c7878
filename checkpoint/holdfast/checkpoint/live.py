"""The state of a training loop, looked at again and again without asking for its state dict.

`get_state_dict` costs tens to hundreds of microseconds per tensor. Yet between two steps hardly anything changes
but the content: the tensors are the same objects in the same places. So the places are remembered, every one is
looked at each time, and only a change of the state's shape has the state dict asked for again.
"""

import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from operator import is_
from typing import Any

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.tensor import DTensor
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.checkpoint.claims import Claim
from holdfast.checkpoint.shard import Shard, shard_of
from holdfast.checkpoint.state import FlatState, TrainingState

_LOG = logging.getLogger(__name__)

_MODEL, _STATE, _GROUPS = "model.", "optimizer.state.", "optimizer.param_groups."
_HELD = (_MODEL, _STATE)

_Place = tuple[Any, Any]
"""A dictionary that is in use, and the key of a value in it."""


@dataclass(frozen=True, slots=True)
class Look:
    """The state now. `generation` grows whenever names, kinds or boxes are not those of the look before.

    `shards` are memory in use, not copies.
    """

    generation: int
    shards: Mapping[str, Shard]
    objects: Mapping[str, object]
    paths: Mapping[str, tuple[str | int, ...]]

    def claims(self) -> list[Claim]:
        tensors = [
            Claim(name, shard.box.offsets, shard.box.volume * shard.local.element_size())
            for name, shard in self.shards.items()
        ]
        return tensors + [Claim(name, (), 0) for name in self.objects]


class _Held:
    """A tensor in its place."""

    __slots__ = ("_address", "_holder", "_key", "_local", "_spec", "_stride", "_value", "name", "shard")

    def __init__(self, name: str, holder: Any, key: Any) -> None:
        self.name = name
        self._holder, self._key = holder, key
        self._take(holder[key])

    def is_same(self) -> bool:
        """Whether the same tensor, over the same memory, is still there."""
        value: Any = self._holder.get(self._key)
        if value is not self._value:
            return False
        local = value
        if self._spec is not None:
            local = value._local_tensor
            if value._spec is not self._spec or local is not self._local:
                return False
        known = self.shard
        return known is None or (
            local.data_ptr() == self._address
            and local.dtype is known.local.dtype
            and local.stride() == self._stride
            and local.shape == known.local.shape
        )

    def follow(self) -> bool:
        """Take the tensor that is there now. False when it is none, or of another kind."""
        value = self._holder.get(self._key)
        if not isinstance(value, torch.Tensor):
            return False
        before = self.shard
        self._take(value)
        return _signature(self.name, before) == _signature(self.name, self.shard)

    def _take(self, value: torch.Tensor) -> None:
        self._value: Any = value
        self._spec = value._spec if isinstance(value, DTensor) else None
        self._local = value._local_tensor if isinstance(value, DTensor) else value
        self.shard = shard_of(self.name, value)
        self._address = self._local.data_ptr()
        self._stride = self._local.stride()


class _Plan:
    """The places of everything that the model and the optimizer's state are made of."""

    def __init__(self, state: TrainingState, flat: FlatState) -> None:
        """Raises LookupError with a name when something of the flat state is not found in its place."""
        places = dict(_places(state.model, state.optimizer))
        self.tensors: list[_Held] = []
        self._values: dict[str, _Place] = {}
        for name, value in flat.values.items():
            if name.startswith(_HELD):
                self._find(name, value, *places[name])
        self._names = [
            flat.values[f"{_GROUPS}{number}.params"] for number in range(len(state.optimizer.param_groups))
        ]
        if _has_state_dict_of_its_own(state.optimizer):
            raise LookupError("optimizer.state_dict")
        self._structure = list(_structure(state.model, state.optimizer))

    def holds(self, state: TrainingState) -> bool:
        """Whether everything is where it was, and of the kind it was."""
        structure = list(_structure(state.model, state.optimizer))
        if len(structure) != len(self._structure) or not all(map(is_, structure, self._structure)):
            return False
        return all(held.is_same() or held.follow() for held in self.tensors)

    def rest(self, optimizer: Optimizer) -> FlatState:
        """What of the optimizer is not a tensor in a place."""
        groups = [
            {**{key: value for key, value in group.items() if key != "params"}, "params": names}
            for group, names in zip(optimizer.param_groups, self._names, strict=True)
        ]
        values, paths = flatten_state_dict({"optimizer": {"param_groups": groups}})
        found = {name: holder[key] for name, (holder, key) in self._values.items()}
        return FlatState(values={**values, **found}, paths=dict(paths))

    def _find(self, name: str, value: object, holder: Any, key: Any) -> None:
        if isinstance(value, torch.Tensor):
            held = _Held(name, holder, key)
            if not _is_memory_of(held.shard, shard_of(name, value)):
                raise LookupError(name)
            self.tensors.append(held)
        elif holder[key] is value:
            self._values[name] = holder, key
        else:
            raise LookupError(name)


class LiveState:
    """`look` belongs to the training thread."""

    def __init__(self, state: TrainingState, *, rank: int) -> None:
        self._state = state
        self._rank = rank
        self._plan: _Plan | None = None
        self._held_paths: dict[str, tuple[str | int, ...]] = {}
        self._generation = 0
        self._signature: list[object] = []

    def look(self) -> Look:
        """The state as it is now. Raises InvalidInput for what cannot be stored."""
        if self._plan is None or not self._plan.holds(self._state):
            return self._look_anew()
        rest, own = self._plan.rest(self._state.optimizer), self._state.own(self._rank)
        held = {each.name: each.shard for each in self._plan.tensors if each.shard is not None}
        values = {**rest.values, **own.values}
        return self._seen(held, values, {**self._held_paths, **rest.paths, **own.paths})

    def _look_anew(self) -> Look:
        flat = self._state.flat(self._rank)
        try:
            self._plan = _Plan(self._state, flat)
        except LookupError as missing:
            self._plan = None
            _LOG.debug("state is asked for its state dict at every snapshot name=%s", missing)
        self._held_paths = {name: path for name, path in flat.paths.items() if name.startswith(_HELD)}
        return self._seen({}, flat.values, flat.paths)

    def _seen(
        self, held: dict[str, Shard], values: Mapping[str, object], paths: Mapping[str, tuple[str | int, ...]]
    ) -> Look:
        """Held tensors first, so that their order does not depend on how they were found."""
        given: dict[str, Shard] = {}
        objects: dict[str, object] = {}
        for name, value in values.items():
            if not isinstance(value, torch.Tensor):
                objects[name] = value
            elif (shard := shard_of(name, value)) is not None:
                (held if name.startswith(_HELD) else given)[name] = shard
        shards = {**held, **given}
        signature: list[object] = [*map(_signature, shards, shards.values()), *sorted(objects)]
        if signature != self._signature:
            self._signature = signature
            self._generation += 1
        return Look(generation=self._generation, shards=shards, objects=objects, paths=paths)


def _signature(name: str, shard: Shard | None) -> tuple[object, ...]:
    return (name,) if shard is None else (name, shard.local.dtype, shard.shape, shard.box)


def _is_memory_of(one: Shard | None, other: Shard | None) -> bool:
    if one is None or other is None:
        return one is other
    ours, theirs = one.local, other.local
    return (
        _signature("", one) == _signature("", other)
        and ours.data_ptr() == theirs.data_ptr()
        and ours.stride() == theirs.stride()
        and (ours.data_ptr() != 0 or ours.numel() == 0)
    )


def _places(model: Module, optimizer: Optimizer) -> Iterator[tuple[str, tuple[Any, Any]]]:
    """By flat name, where the model's and the optimizer's tensors are."""
    for prefix, module in model.named_modules(remove_duplicate=False):
        for holder in (module._parameters, module._buffers):
            for key, value in holder.items():
                if value is not None:
                    yield f"{_MODEL}{_known_as(model, f'{prefix}.{key}' if prefix else key)}", (holder, key)
    for name, parameter in model.named_parameters():
        for key in optimizer.state.get(parameter, ()):
            yield f"{_STATE}{_known_as(model, name)}.{key}", (optimizer.state[parameter], key)


def _known_as(model: Module, name: str) -> str:
    """Raises LookupError for a parameter that is several in one."""
    names = _get_fqns(model, name)
    if len(names) != 1:
        raise LookupError(name)
    return next(iter(names))


def _has_state_dict_of_its_own(optimizer: Optimizer) -> bool:
    hooks = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
    return type(optimizer).state_dict is not Optimizer.state_dict or any(
        getattr(optimizer, each, None) for each in hooks
    )


def _structure(model: Module, optimizer: Optimizer) -> Iterator[object]:
    """What stays one and the same object for as long as the state has its shape."""
    for module in model.modules():
        yield from module._modules
        for holder in (module._parameters, module._buffers):
            yield holder
            for key, value in holder.items():
                yield key
                yield value is None
        yield from sorted(module._non_persistent_buffers_set)
    for group in optimizer.param_groups:
        yield from group["params"]
    for parameter, state in optimizer.state.items():
        yield parameter
        yield state
        yield from state
