"""The state of a training loop, looked at again and again without asking for its state dict.

Asking for it costs tens to hundreds of microseconds per tensor. Yet between two steps hardly anything changes
but the content: the tensors are the same objects in the same places. So the places are remembered, every one is
looked at each time, and only a change of the state's shape has the state dict asked for again.
"""

import logging
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from operator import is_
from typing import Any

import msgspec
import torch
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.shard import Shard, is_in_chunks, shard_of
from holdfast.checkpoint.capture.state import OUTLINE, TrainingState
from holdfast.checkpoint.capture.torchstate import local_of, names_of, sharding_of
from holdfast.checkpoint.format.archive import Packed, content_of, packed
from holdfast.checkpoint.format.nested import Flat, Outline, flatten

_LOG = logging.getLogger(__name__)

_MODEL, _STATE, _GROUPS = "model.", "optimizer.state.", groups.PREFIX
_HELD = (_MODEL, _STATE)
_Place = tuple[Any, Any]
"""A dictionary that is in use, and the key of a value in it."""

ChunkKey = tuple[str, tuple[int, ...]]
"""A chunk's name and offsets."""


class Claim(msgspec.Struct, frozen=True, order=True):
    """A rank holds this chunk of `name` (offsets are empty for objects and scalars). Objects have no dtype.
    `is_local`: it is about the part of a sharded parameter that the rank holds, and so never what others hold.
    """

    name: str
    offsets: tuple[int, ...]
    size_bytes: int
    dtype: str = ""
    shape: tuple[int, ...] = ()
    sizes: tuple[int, ...] = ()
    is_local: bool = False

    @property
    def key(self) -> ChunkKey:
        return self.name, self.offsets

    @property
    def form(self) -> tuple[object, ...]:
        """Of two chunks that can be one."""
        return self.dtype, self.shape, self.sizes


@dataclass(frozen=True, slots=True)
class Look:
    """The state now. `generation` grows whenever names, kinds or boxes are not those of the look before.

    Shards are memory in use, not copies: `held` of the model and the optimizer, `given` of what else has tensors.
    `held` is the same object, of the same `revision`, while none of its tensors has moved in memory.
    """

    generation: int
    revision: int
    held: Mapping[str, Shard]
    given: Mapping[str, Shard]
    objects: Mapping[str, object]
    paths: Mapping[str, tuple[str | int, ...]]

    @property
    def shards(self) -> dict[str, Shard]:
        return {**self.held, **self.given}

    def claims(self) -> list[Claim]:
        shards = self.shards
        tensors = [
            Claim(
                name,
                shard.box.offsets,
                shard.box.volume * shard.local.element_size(),
                str(shard.local.dtype).removeprefix("torch."),
                shard.shape,
                shard.box.sizes,
                self._is_local(name, shard, shards),
            )
            for name, shard in shards.items()
        ]
        return tensors + [Claim(name, (), 0) for name in self.objects]

    def _is_local(self, name: str, shard: Shard, shards: Mapping[str, Shard]) -> bool:
        """Whether it is a plain tensor that the optimizer keeps of a parameter of which this rank has a part."""
        path = self.paths[name]
        if not name.startswith(_STATE) or not shard.is_plain or not shard.shape or len(path) < 3:
            return False
        whole = shards.get(f"{_MODEL}{path[2]}")
        return whole is not None and whole.box.sizes != whole.shape

    def members(self) -> groups.Members:
        """Which of this rank's parameters are in which group of its optimizer."""
        return _members(self.objects)

    def settings(self) -> dict[str, str]:
        """What the groups have beside their parameters, as text."""
        tensors = {name: shard.local for name, shard in self.given.items()}
        return {
            name: groups.as_text(value)
            for name, value in {**self.objects, **tensors}.items()
            if name.startswith(_GROUPS) and not groups.is_list(name)
        }


class _Held:
    """Tensors in their places. What is compared of them is kept in columns: that is several times as fast."""

    def __init__(self) -> None:
        self.shards: dict[str, Shard] = {}
        self.revision = 0
        self._names: list[str] = []
        self._places: list[_Place] = []
        self._values: list[Any] = []
        self._kinds: list[object] = []

    def add(self, name: str, place: _Place, shard: Shard | None) -> None:
        """`shard` is this rank's part of the tensor in that place, None when it holds nothing of it."""
        self._names.append(name)
        self._places.append(place)
        holder, key = place
        self._values.append(holder[key])
        if shard is not None:
            self.shards[name] = shard

    def settle(self) -> None:
        """All are added."""
        self._kinds = _kinds(self._values)
        self.revision += 1

    def follow(self) -> bool:
        """Take the tensors that are in these places now. False when one is missing, or of another kind."""
        values = [holder.get(key) for holder, key in self._places]
        if all(map(is_, values, self._values)) and _kinds(values) == self._kinds:
            return True
        for name, value in zip(self._names, values, strict=True):
            shard = shard_of(name, value) if is_in_chunks(value) else None
            if _signature(name, shard) != _signature(name, self.shards.get(name)):
                return False
            if shard is not None:
                self.shards[name] = shard
        self._values = values
        self.settle()
        return True


def _kinds(values: Sequence[Any]) -> list[object]:
    """Where the memory of these tensors is and how it is read, and of sharded ones how they are sharded."""
    locals_ = [local_of(value) for value in values]
    return [
        [each.data_ptr() for each in locals_],
        [each.shape for each in locals_],
        [each.stride() for each in locals_],
        [each.dtype for each in locals_],
        sharding_of(values),
    ]


def _there(place: _Place) -> object:
    holder, key = place
    return holder[key]


class _Plan:
    """The places of everything that the model and the optimizer's state are made of."""

    def __init__(self, state: TrainingState, flat: Flat) -> None:
        """Raises LookupError with a name when something of the flat state is not found in its place."""
        optimizer = state.optimizer
        hooks = ("_optimizer_state_dict_pre_hooks", "_optimizer_state_dict_post_hooks")
        if type(optimizer).state_dict is not Optimizer.state_dict or any(
            getattr(optimizer, each, None) for each in hooks
        ):
            raise LookupError("optimizer.state_dict")
        places = dict(_places(state.model, state.optimizer))
        self.held = _Held()
        self._values: dict[str, _Place] = {}
        for name, value in flat.values.items():
            if not name.startswith(_HELD):
                continue
            if is_in_chunks(value):
                self._hold(name, places[name], value)
            elif _there(places[name]) is value:
                self._values[name] = places[name]
            else:
                raise LookupError(name)
        self.held.settle()
        self._outline = {name: each for name, each in flat.outline.items() if name != "extra"}
        self.paths = {name: path for name, path in flat.paths.items() if name.startswith((*_HELD, _GROUPS))}
        self._names = {
            f"{_GROUPS}{number}.params": flat.values[f"{_GROUPS}{number}.params"]
            for number in range(len(state.optimizer.param_groups))
        }
        self._structure = list(_structure(state.model, state.optimizer))

    def _hold(self, name: str, place: _Place, value: torch.Tensor) -> None:
        """Two tensors are one, but for what autograd knows of them."""
        there, memory = _there(place), local_of(value)
        is_elsewhere = not isinstance(there, torch.Tensor) or _kinds([there]) != _kinds([value])
        if is_elsewhere or (memory.data_ptr() == 0 and memory.numel() > 0):
            raise LookupError(name)
        self.held.add(name, place, shard_of(name, value))

    def holds(self, state: TrainingState) -> bool:
        """Whether everything is where it was, and of the kind it was."""
        structure = list(_structure(state.model, state.optimizer))
        is_same = len(structure) == len(self._structure) and all(map(is_, structure, self._structure))
        return is_same and self.held.follow()

    def rest(self, optimizer: Optimizer) -> Flat:
        """What of the optimizer is not a tensor in a place."""
        groups = [
            {key: value for key, value in group.items() if key != "params"} for group in optimizer.param_groups
        ]
        flat = flatten({"optimizer": {"param_groups": groups}})
        found = {name: holder[key] for name, (holder, key) in self._values.items()}
        return Flat({**flat.values, **self._names, **found}, {**self.paths, **flat.paths}, self._outline)


class _Outlines:
    """The rank's outline, packed anew only when it is another one."""

    def __init__(self) -> None:
        self._known: Outline = {}
        self._extra = b""
        self._packed = Packed(b"", b"")

    def pack(self, outline: Outline) -> Packed:
        """What is not of further objects is looked at only where it is another object than the last time."""
        extra = content_of(outline.get("extra"))
        is_same = all(outline[name] is self._known.get(name) for name in outline if name != "extra")
        if not (is_same and extra == self._extra):
            content = content_of(outline)
            if content != self._packed.content:
                self._packed = packed(outline)
            self._known, self._extra = outline, extra
        return self._packed


class LiveState:
    """`look` belongs to the training thread."""

    def __init__(self, state: TrainingState, *, rank: int) -> None:
        self._state = state
        self._rank = rank
        self._plan: _Plan | None = None
        self._generation = 0
        self._signature: tuple[object, ...] = ()
        self._held_signature: list[object] = []
        self._outlines = _Outlines()

    def look(self, *, with_data: bool = True) -> Look:
        """The state as it is now. Raises InvalidInput for what cannot be stored. A loader that is asked for its
        place before it is begun may begin: until then it is not asked (`with_data`).
        """
        state = self._state if with_data else replace(self._state, data=None)
        if self._plan is not None and self._plan.holds(self._state):
            return self._seen(self._plan.rest(self._state.optimizer).beside(state.own(self._rank)))
        flat = state.flat(self._rank)
        try:
            self._plan = _Plan(self._state, flat)
        except LookupError as missing:
            self._plan = None
            _LOG.debug("state is asked for its state dict at every snapshot name=%s", missing)
        held = self._plan.held.shards if self._plan is not None else {}
        self._held_signature = [_signature(*each) for each in held.items()]
        left = {name: flat.values[name] for name in flat.values.keys() - held.keys()}
        return self._seen(Flat(left, flat.paths, flat.outline))

    def _seen(self, flat: Flat) -> Look:
        """Of all but what is held in places."""
        values = {**flat.values, OUTLINE: self._outlines.pack(flat.outline)}
        paths = {**flat.paths, OUTLINE: (OUTLINE,)}
        given: dict[str, Shard] = {}
        objects: dict[str, object] = {}
        for name in sorted(values):
            value = values[name]
            if is_in_chunks(value):
                if (shard := shard_of(name, value)) is not None:
                    given[name] = shard
            else:
                objects[name] = value
        tensors = [_signature(*each) for each in given.items()]
        signature = self._held_signature, tensors, list(objects), _members(objects)
        if signature != self._signature:
            self._signature = signature
            self._generation += 1
        held = self._plan.held if self._plan is not None else _Held()
        return Look(self._generation, held.revision, held.shards, given, objects, paths)


def _members(objects: Mapping[str, object]) -> groups.Members:
    return {name: value for name, value in objects.items() if isinstance(value, list) and groups.is_list(name)}


def _signature(name: str, shard: Shard | None) -> tuple[object, ...]:
    return (name,) if shard is None else (name, shard.local.dtype, shard.shape, shard.box)


def _places(model: Module, optimizer: Optimizer) -> Iterator[tuple[str, _Place]]:
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
    names = names_of(model, name)
    if len(names) != 1:
        raise LookupError(name)
    return next(iter(names))


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
