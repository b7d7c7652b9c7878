"""What a rank restores of one checkpoint, where each piece of it belongs, and what does not fit."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch.nn import Module
from torch.optim import Optimizer

from holdfast.checkpoint.capture import groups, loopplace, randomness
from holdfast.checkpoint.capture.dataplace import Stateful
from holdfast.checkpoint.capture.shard import Boxes, Shard, shard_of
from holdfast.checkpoint.capture.state import (
    TrainingState,
    begun_prefix,
    data_name,
    equivalence_name,
    random_prefix,
)
from holdfast.checkpoint.capture.torchstate import flatten_state_dict, names_of
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.index import Box
from holdfast.checkpoint.restore.blocks import Wants
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.restore.strip import Target

_SHOWN = 5  # Names of a kind: enough to see what they have in common.
_MODEL, _PREFIX = "model.", "optimizer.state."
_ROOTS = (_MODEL, _PREFIX, "extra.")
_IMMUTABLE = (type(None), bool, int, float, str)

_Path = tuple[str | int, ...]
Place = Shard | _Path
"""Where something belongs: into a tensor of this rank, or at a path of the nested state."""


class Fitting:
    """Whether a checkpoint holds what a model asks for, looked at name by name; `finish` raises when one did not
    fit, and says everything that is in the way at once.
    """

    def __init__(self, checkpoint: StoredCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._missing: list[str] = []
        self._misfits: list[str] = []
        self._seen: set[str] = set()

    def tensor(self, name: str, shard: Shard) -> bool:
        """Whether there is such a tensor, of that dtype and whole shape."""
        if not self._holds(name, self._checkpoint.has_tensor, "a tensor"):
            return False
        (dtype, shape), wanted = self._checkpoint.shape_of(name), shard.local.dtype
        if (dtype, shape) == (wanted, shard.shape):
            return True
        which = "number of dims"
        if len(shape) == len(shard.shape):
            sizes = zip(shape, shard.shape, strict=True)
            dims = [str(dim) for dim, (their, our) in enumerate(sizes) if their != our]
            differing = [f"dim {', '.join(dims)}"] if dims else []
            which = " and ".join(differing + (["dtype"] if dtype != wanted else []))
        theirs, ours = _kind_text(dtype, shape), _kind_text(wanted, shard.shape)
        self._misfits.append(f"{name}: the checkpoint has {theirs}, the model wants {ours} ({which})")
        return False

    def object(self, name: str) -> bool:
        """Whether there is such an object."""
        return self._holds(name, self._checkpoint.has_object, "an object")

    def _holds(self, name: str, has: Callable[[str], bool], wanted: str) -> bool:
        self._seen.add(name)
        if has(name):
            return True
        if self._checkpoint.has_tensor(name) or self._checkpoint.has_object(name):
            self._misfits.append(f"{name}: the model wants {wanted}, the checkpoint has none of that name")
        else:
            self._missing.append(name)
        return False

    def finish(self) -> None:
        """Raises Unfit, with all that was found."""
        if not self._misfits and not self._missing:
            return
        said = list(self._misfits[:_SHOWN])
        if len(self._misfits) > _SHOWN:
            said.append(f"and {len(self._misfits) - _SHOWN} more that differ")
        if self._missing:
            said.append(f"{self._checkpoint.name} does not hold {_some(self._missing)}")
        others = [name for name in self._checkpoint.names() if name.startswith(_ROOTS) and name not in self._seen]
        if others:
            said.append(f"it holds, and the model does not ask for, {_some(others)}")
        raise Unfit("; ".join(said))


def _kind_text(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{len(names)} names: {shown}" + (", …" if len(names) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class Regrouping:
    """Which saved group's settings a parameter group has back: those of its parameters, whatever its number.

    A group keeps its own parameters. Where they were is known once the saved lists were read, so all saved groups
    are read, beside the state; they are small. `members` are the lists of this rank, `own` the places of all else
    that its groups have; `lists` and `saved` are those of the checkpoint, to be read.
    """

    members: dict[str, Sequence[str]] = field(default_factory=dict)
    own: dict[str, Place] = field(default_factory=dict)
    lists: dict[str, Target] = field(default_factory=dict)
    saved: dict[str, Target | torch.Tensor] = field(default_factory=dict)

    def settle(self, unpack: Callable[[str, Target], object]) -> list[tuple[Place, object]]:
        """Where what belongs, once all was read. Raises Unfit when parameters that are in one group were saved in
        several that differ, or in one that has not got a setting.
        """
        # Each parameter with the number of the group it was saved in.
        homes: dict[str, str] = {}
        for name, target in self.lists.items():
            parameters = unpack(name, target)
            if isinstance(parameters, list | tuple):
                homes |= dict.fromkeys(parameters, groups.number_of(name))
        sources = {
            groups.number_of(name): list(dict.fromkeys(homes[each] for each in parameters if each in homes))
            for name, parameters in self.members.items()
        }
        values = {
            name: unpack(name, each) if isinstance(each, Target) else each for name, each in self.saved.items()
        }
        found = []
        for name, place in self.own.items():
            number = groups.number_of(name)
            # Where nobody has saved the list of another stage of a pipeline, there is only the number to go by.
            first, *others = (groups.named_in(source, name) for source in sources.get(number) or [number])
            for each in (first, *others):
                if each not in values:
                    raise Unfit(f"{name}: its parameters were saved in a group without it, there is no {each}")
            value, one = values[first], groups.as_text(values[first])
            for other in others:
                two = groups.as_text(values[other])
                if one != two:
                    raise Unfit(
                        f"{name}: its parameters were saved in groups that differ, {first} is {one} and {other} "
                        f"is {two}; give the optimizer the parameter groups it was saved with"
                    )
            shape = tuple(value.shape) if isinstance(value, torch.Tensor) else None
            if shape != (place.shape if isinstance(place, Shard) else None):
                raise Unfit(f"{name}: its parameters were saved with another kind of value, {one}")
            found.append((place, value))
        return found


@dataclass(frozen=True, slots=True)
class Contents:
    """The objects of a plan, unpacked: those of the nested state, the `settings` of the optimizer's groups, and
    what each of the `loads` is given.
    """

    objects: list[tuple[_Path, object]]
    settings: list[tuple[Place, object]]
    loads: list[tuple[Stateful, Any]]


@dataclass(slots=True)
class Plan:
    """Tensors are read where they belong; objects are read packed, and nothing of them is applied before `unpack`
    has succeeded on every rank. `loads` are for those who take their state as one object. `random` is fresh memory
    for the random state that this rank follows, `begun` for that of the pass over the data.
    """

    checkpoint: StoredCheckpoint
    wants: Wants
    sharded: dict[str, Any]
    objects: list[tuple[_Path, str, Target]] = field(default_factory=list)
    regrouping: Regrouping = field(default_factory=Regrouping)
    loads: list[tuple[Stateful, str, Target]] = field(default_factory=list)
    begun: dict[str, torch.Tensor] = field(default_factory=dict)
    random: dict[str, torch.Tensor] = field(default_factory=dict)

    @classmethod
    def of(cls, checkpoint: StoredCheckpoint, state: TrainingState, rank: int) -> "Plan":
        """Raises Unfit when the checkpoint does not hold what `state` asks for, Damaged when it is not whole. An
        optimizer that never stepped is given room for its state; all else stays as it is.
        """
        make_room(state.model, state.optimizer, checkpoint)
        plan = cls(checkpoint=checkpoint, wants=Wants(checkpoint.map), sharded=state.sharded())
        fitting = Fitting(checkpoint)
        plan._add_sharded(fitting)
        for name, single in state.singles.items():
            if fitting.object(name):
                plan.loads.append((single, name, plan._add_object(name)))
        plan._add_own(state, rank, fitting)
        fitting.finish()
        return plan

    def unpack(self) -> Contents:
        """Once read. Raises as `StoredCheckpoint.unpack` and `Regrouping.settle` do."""
        unpacker = Unpacker()

        def unpack(name: str, target: Target) -> object:
            return self.checkpoint.unpack(name, target.content().tobytes(), by=unpacker.unpack)

        return Contents(
            objects=[(path, unpack(name, target)) for path, name, target in self.objects],
            settings=self.regrouping.settle(unpack),
            loads=[(taker, unpack(name, target)) for taker, name, target in self.loads],
        )

    def apply(self, contents: Contents, state: TrainingState) -> None:
        """The tensors are in place; so is everything else now."""
        for path, value in contents.objects:
            _place(self.sharded, path, value)
        for place, value in contents.settings:
            if isinstance(place, tuple):
                _place(self.sharded, place, value)
            elif isinstance(value, torch.Tensor):
                place.local.copy_(value[place.box.within(_whole(place.shape))])
        state.load_sharded(self.sharded)
        for taker, value in contents.loads:
            taker.load_state_dict(value)

    def _add_sharded(self, fitting: Fitting) -> None:
        wanted, paths = flatten_state_dict(self.sharded)
        boxes: Boxes = {}
        for name, value in wanted.items():
            shard = shard_of(name, value, boxes) if isinstance(value, torch.Tensor) else None
            if isinstance(value, torch.Tensor):
                fits = shard is not None and fitting.tensor(name, shard)
            else:
                fits = fitting.object(name)
            if not fits:
                continue
            if groups.is_list(name):
                self.regrouping.members[name] = value
            elif name.startswith(groups.PREFIX):
                self.regrouping.own[name] = shard or paths[name]
            elif shard is not None:
                self.wants.add(Target(shard.local), self.checkpoint.tensor_strips(name, shard.box))
            else:
                self.objects.append((paths[name], name, self._add_object(name)))
        # Of all saved groups what this rank's have: any of them may be that of its parameters.
        asked = {groups.setting_of(name) for name in self.regrouping.own}
        for name in self.checkpoint.names(groups.PREFIX):
            if groups.is_list(name):
                self.regrouping.lists[name] = self._add_object(name)
            elif groups.setting_of(name) in asked:
                is_object = self.checkpoint.has_object(name)
                self.regrouping.saved[name] = self._add_object(name) if is_object else self._add_tensor(name)

    def _add_own(self, state: TrainingState, rank: int, fitting: Fitting) -> None:
        """Of what was saved per rank, that of the rank this one follows."""
        source = randomness.source_rank(rank, self.checkpoint.manifest.world_size)
        owners: tuple[tuple[Stateful | None, str], ...] = (
            (state.data, data_name(source)),
            (state.equivalence, equivalence_name(source)),
            (state.loop, loopplace.NAME),
        )
        for owner, name in owners:
            is_there = self.checkpoint.has_object(name) or self.checkpoint.has_tensor(name)
            if owner is not None and is_there and fitting.object(name):
                self.loads.append((owner, name, self._add_object(name)))
        for prefix, memory in ((random_prefix(source), self.random), (begun_prefix(source), self.begun)):
            for name in self.checkpoint.names(prefix):
                memory[name.removeprefix(prefix)] = self._add_tensor(name)

    def _add_tensor(self, name: str) -> torch.Tensor:
        """Fresh memory, for all of it."""
        dtype, shape = self.checkpoint.shape_of(name)
        tensor = torch.empty(shape, dtype=dtype)
        self.wants.add(Target(tensor), self.checkpoint.tensor_strips(name, _whole(shape)))
        return tensor

    def _add_object(self, name: str) -> Target:
        strips = self.checkpoint.object_strips(name)
        target = Target.of_bytes(strips[0][1].row_bytes)
        self.wants.add(target, strips)
        return target


def _whole(shape: tuple[int, ...]) -> Box:
    return Box(offsets=(0,) * len(shape), sizes=shape)


def _place(nested: Any, path: _Path, value: object) -> None:
    for step in path[:-1]:
        nested = nested[step]
    nested[path[-1]] = value


class Unpacker:
    """Objects out of archives, each content unpacked once: an optimizer's settings are one object per parameter
    and setting, nearly all of them equal. Never runs code from an archive; see `archive.unpack_object`.
    """

    def __init__(self) -> None:
        self._known: dict[bytes, object] = {}

    def unpack(self, packed: bytes) -> object:
        """The object. What can be changed is a new one each time."""
        if packed in self._known:
            return self._known[packed]
        value = archive.unpack_object(packed)
        each = value if isinstance(value, tuple) else (value,)
        if all(isinstance(one, _IMMUTABLE) for one in each):
            self._known[packed] = value
        return value


def make_room(model: Module, optimizer: Optimizer, checkpoint: StoredCheckpoint) -> None:
    """Give an optimizer that never stepped empty state tensors of the names and kinds in `checkpoint`.

    Stock torch makes an optimizer's state by stepping it once with zero gradients, which for a DTensor model takes
    longer than the whole restore. What the state consists of can be read off the checkpoint instead.

    A state tensor either is a scalar or has its parameter's shape, and then its sharding. When the checkpoint
    holds anything else, nothing is done and the stock way is left to do it.
    """
    if optimizer.state or not all(checkpoint.has_tensor(name) for name in checkpoint.names(_PREFIX)):
        return
    # By parameter: what its state tensors are called, their dtype and their whole shape.
    kinds: dict[str, list[tuple[str, torch.dtype, tuple[int, ...]]]] = {}
    for name in checkpoint.names(_PREFIX):
        known_as, _, key = name.removeprefix(_PREFIX).rpartition(".")
        kinds.setdefault(known_as, []).append((key, *checkpoint.shape_of(name)))
    state = {}
    for name, parameter in model.named_parameters():
        (known_as,) = names_of(model, name)
        room = {}
        for key, dtype, shape in kinds.pop(known_as, ()):
            if shape not in ((), tuple(parameter.shape)):
                return
            plain = shape == () and parameter.dim() > 0
            room[key] = torch.zeros((), dtype=dtype) if plain else torch.zeros_like(parameter, dtype=dtype)
        if room:
            state[parameter] = room
    held = {parameter for group in optimizer.param_groups for parameter in group["params"]}
    # Parameters of other stages are none of this rank's; what else is left over is not understood.
    is_understood = all(checkpoint.has_tensor(f"{_MODEL}{known_as}") for known_as in kinds)
    if is_understood and held >= state.keys():
        optimizer.state.update(state.items())
