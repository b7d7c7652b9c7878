"""What a rank restores of one checkpoint, where each piece of it belongs, and what does not fit."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec
import torch
from torch.distributed.tensor import DTensor
from torch.optim import Optimizer

from holdfast.checkpoint.capture import asked, groups, loopplace, optimizerstate, randomness
from holdfast.checkpoint.capture.allowed import NOTHING, Allowed
from holdfast.checkpoint.capture.dataplace import Stateful
from holdfast.checkpoint.capture.shard import Boxes, Shard, is_in_chunks, shard_of
from holdfast.checkpoint.capture.state import (
    KEYS,
    OUTLINE,
    SCALER,
    SCHEDULER,
    TrainingState,
    begun_prefix,
    data_name,
    equivalence_name,
    random_prefix,
)
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format import archive
from holdfast.checkpoint.format.index import Box
from holdfast.checkpoint.format.nested import Keys, NamePath, Outline, flatten, names_in
from holdfast.checkpoint.format.wrappers import unwrapped
from holdfast.checkpoint.restore.blocks import Wants
from holdfast.checkpoint.restore.shape import EXTRA, MODEL, OPTIMIZER, Shapes
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.restore.strip import Target

_SHOWN = 5  # Names of a kind: enough to see what they have in common.
_ROOTS = (f"{MODEL}.", f"{OPTIMIZER}.", f"{EXTRA}.")
_EXTRA_STATE = "_extra_state"  # what torch.nn.Module calls it; source: torch/nn/modules/module.py
_IMMUTABLE = (type(None), bool, int, float, str)

# What torch's schedulers add to a group. Source: torch/optim/lr_scheduler.py
_OF_SCHEDULERS = {"initial_lr", "max_lr", "min_lr", "base_momentum", "max_momentum"}

Place = Shard | NamePath
"""Where something belongs: into a tensor of this rank, or at a path of the nested state."""


class Fitting:
    """Whether a checkpoint holds what a model asks for, looked at name by name; `finish` raises when one did not
    fit, and says everything that is in the way at once. `asked` are the names that were looked at, `missing` those
    that it does not hold, `kept` those that may be missing and stay as the script made them; `misfits` say what
    differs.
    """

    def __init__(
        self, checkpoint: StoredCheckpoint, allowed: Allowed = NOTHING, held: Iterable[str] | None = None
    ) -> None:
        """`held` are the names that this rank held when it was saved; None: nobody knows."""
        self._checkpoint = checkpoint
        self._allowed = allowed
        self._held = None if held is None else frozenset(held)
        self.kept: list[str] = []
        self.missing: list[str] = []
        self.misfits: list[str] = []
        self.asked: set[str] = set()

    def tensor(self, name: str, shard: Shard) -> bool:
        """Whether there is such a tensor, of that dtype and whole shape."""
        if not self._holds(name, self._checkpoint.has_tensor, "a tensor"):
            return False
        (dtype, shape), wanted = self._checkpoint.shape_of(name), shard.local.dtype
        if (dtype, shape) == (wanted, shard.shape):
            return True
        if self._allowed.may_miss(name) and self._allowed.may_leave(name):
            self.kept.append(name)
            return False
        which = "number of dims"
        if len(shape) == len(shard.shape):
            sizes = zip(shape, shard.shape, strict=True)
            dims = [str(dim) for dim, (their, our) in enumerate(sizes) if their != our]
            differing = [f"dim {', '.join(dims)}"] if dims else []
            which = " and ".join(differing + (["dtype"] if dtype != wanted else []))
        theirs, ours = _kind_text(dtype, shape), _kind_text(wanted, shard.shape)
        self.misfits.append(f"{name}: the checkpoint has {theirs}, the model wants {ours} ({which})")
        return False

    def object(self, name: str) -> bool:
        """Whether there is such an object."""
        return self._holds(name, self._checkpoint.has_object, "an object")

    def _holds(self, name: str, has: Callable[[str], bool], wanted: str) -> bool:
        self.asked.add(name)
        if has(name):
            return True
        if self._checkpoint.has_tensor(name) or self._checkpoint.has_object(name):
            self.misfits.append(f"{name}: the model wants {wanted}, the checkpoint has none of that name")
        elif self._allowed.may_miss(name):
            self.kept.append(name)
        else:
            self.missing.append(name)
        return False

    def finish(self) -> None:
        """Raises Unfit, with all that was found."""
        if not self.misfits and not self.missing:
            return
        said = list(self.misfits[:_SHOWN])
        if len(self.misfits) > _SHOWN:
            said.append(f"and {len(self.misfits) - _SHOWN} more that differ")
        if self.missing:
            said.append(
                f"{self._checkpoint.name} does not hold {_some(self.missing)} "
                f"(may_be_missing=[{self.missing[0]!r}, ...] if that is meant)"
            )
        if others := self.left_over():
            said.append(f"it holds, and the model does not ask for, {_some(others)}")
        raise Unfit("; ".join(said))

    def left_over(self) -> list[str]:
        """What the checkpoint holds of model, optimizer and further objects, and was not asked for."""
        return [
            name
            for name in self._checkpoint.names()
            if name.startswith(_ROOTS)
            and not name.startswith(groups.PREFIX)
            and name not in self.asked
            and not self._allowed.may_leave(name)
        ]

    def own_left_over(self) -> list[str]:
        """Those of them that this rank had, as far as that is known. All else is for other ranks to ask for."""
        return [name for name in self.left_over() if self._held is None or name in self._held]

    def lost(self) -> list[str]:
        """Those of them that this rank held of a further object in other content than other ranks."""
        apart = self._checkpoint.apart
        return [
            name for name in self.own_left_over() if self._held and name in apart and name.startswith(f"{EXTRA}.")
        ]


def refuse_left_over(checkpoint: str, names: Sequence[str]) -> None:
    """Raises Unfit for what no rank asked for, with the way out; for none of it nothing."""
    if names:
        raise Unfit(
            f"{checkpoint} holds what the script has not got: {_some(names)}. Give the script what it was saved "
            f"with, or write Checkpointer(..., may_be_left_over=[{names[0]!r}, ...]) for what is not restored"
        )


def _kind_text(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{len(names)} names: {shown}" + (", …" if len(names) > _SHOWN else "")


@dataclass(frozen=True, slots=True)
class Regrouping:
    """Which saved group's settings a parameter group has back: those of its parameters, whatever its number.

    A group keeps its own parameters, and what it has that none had (`kept`). Where they were is known once the
    saved lists were read, so all saved groups are read, beside the state; they are small. `members` are the lists
    of this rank, `own` the places of all else that its groups have; `lists` and `saved` are those of the
    checkpoint, to be read. `sources` are the saved groups of each group's parameters, once that is known, and
    `left_over` the names of those that are none's.
    """

    members: dict[str, Sequence[str]] = field(default_factory=dict)
    own: dict[str, Place] = field(default_factory=dict)
    lists: dict[str, Target] = field(default_factory=dict)
    saved: dict[str, Target | torch.Tensor] = field(default_factory=dict)
    kept: list[str] = field(default_factory=list)
    sources: dict[str, list[str]] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)

    def settle(self, unpack: Callable[[str, Target], object]) -> list[tuple[Place, object]]:
        """Where what belongs, once all was read. Raises Unfit when parameters that are in one group were saved in
        several that differ, or by another optimizer.
        """
        # Each parameter with the number of the group it was saved in.
        homes: dict[str, str] = {}
        for name, target in self.lists.items():
            parameters = unpack(name, target)
            if isinstance(parameters, list | tuple):
                homes |= dict.fromkeys(map(unwrapped, parameters), groups.number_of(name))
        of_members = {
            groups.number_of(name): list(dict.fromkeys(homes[each] for each in parameters if each in homes))
            for name, parameters in self.members.items()
        }
        values = {
            name: unpack(name, each) if isinstance(each, Target) else each for name, each in self.saved.items()
        }
        found: list[tuple[Place, object]] = []
        for number in dict.fromkeys(map(groups.number_of, (*self.members, *self.own))):
            # Where nobody has saved the list of another stage of a pipeline, there is only the number to go by.
            self.sources[number] = of_members.get(number) or [number]
            found += self._settings(number, self.sources[number], values)
        taken = {source for each in self.sources.values() for source in each}
        saved = dict.fromkeys(map(groups.number_of, (*self.lists, *self.saved)))
        self.left_over.extend(f"{groups.PREFIX}{number}" for number in saved if number not in taken)
        return found

    def _settings(
        self, number: str, sources: Sequence[str], values: Mapping[str, object]
    ) -> list[tuple[Place, object]]:
        """Of one group: where what belongs, of what its parameters had in the groups that are its `sources`."""
        own = {groups.setting_of(name): name for name in self.own if groups.number_of(name) == number}
        saved = {groups.setting_of(name) for name in values if groups.number_of(name) in sources}
        lacking, more = sorted(own.keys() - saved), sorted(saved - own.keys())
        if lacking and set(more) - _OF_SCHEDULERS:
            raise Unfit(
                f"{groups.PREFIX}{number}: the optimizer has settings that were not saved ({', '.join(lacking)}), "
                f"and what was saved has others ({', '.join(more)}): it was another optimizer"
            )
        self.kept.extend(own[each] for each in lacking)
        found: list[tuple[Place, object]] = []
        for setting in sorted(saved):
            name = own.get(setting, f"{groups.PREFIX}{number}.{setting}")
            first, *others = (groups.named_in(source, name) for source in sources)
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
            if setting not in own:
                found.append((("optimizer", "param_groups", int(number), *setting.split(".")), value))
                continue
            place = self.own[name]
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

    objects: list[tuple[NamePath, object]]
    settings: list[tuple[Place, object]]
    loads: list[tuple[Stateful, Any]]


@dataclass(slots=True)
class Plan:
    """Tensors are read where they belong; objects are read packed, and nothing of them is applied before `unpack`
    has succeeded on every rank. `loads` are for those who take their state as one object. `random` is fresh memory
    for the random state that this rank follows, `begun` for that of the pass over the data. `left_over` are the
    names that this rank does not ask for, `kept` those that stay as the script made them, `unused` what was saved
    whole and the script has none of.
    """

    checkpoint: StoredCheckpoint
    wants: Wants
    sharded: dict[str, Any]
    outline: Outline | Keys = field(default_factory=list)
    objects: list[tuple[NamePath, str, Target]] = field(default_factory=list)
    regrouping: Regrouping = field(default_factory=Regrouping)
    loads: list[tuple[Stateful, str, Target]] = field(default_factory=list)
    begun: dict[str, torch.Tensor] = field(default_factory=dict)
    random: dict[str, torch.Tensor] = field(default_factory=dict)
    left_over: list[str] = field(default_factory=list)
    lost: list[str] = field(default_factory=list)
    kept: list[str] = field(default_factory=list)
    unused: list[str] = field(default_factory=list)

    @classmethod
    def of(
        cls, checkpoint: StoredCheckpoint, state: TrainingState, rank: int, world_size: int | None = None
    ) -> "Plan":
        """As `rank` of that world (None: the saved one) restores it. The state stays as it is. Raises Unfit when
        the checkpoint does not hold what `state` asks for, Damaged when it is not whole.
        """
        plan, fitting = cls.looked_at(checkpoint, state, rank, world_size)
        fitting.finish()
        plan.left_over = fitting.left_over()
        plan.lost = fitting.lost()
        return plan

    @classmethod
    def looked_at(
        cls, checkpoint: StoredCheckpoint, state: TrainingState, rank: int, world_size: int | None = None
    ) -> "tuple[Plan, Fitting]":
        """The same, also where it does not fit: the second says why not. Raises Unfit where that cannot be said
        name by name, and Damaged.
        """
        checkpoint = checkpoint.seen_by(rank, world_size or checkpoint.manifest.world_size)
        plan = cls(
            checkpoint=checkpoint,
            wants=Wants(checkpoint.map),
            sharded=state.sharded(),
            outline=_outline(checkpoint),
        )
        is_same_world = world_size in (None, checkpoint.manifest.world_size)
        held = names_in(plan.outline) if is_same_world and isinstance(plan.outline, dict) else None
        fitting = Fitting(checkpoint, state.allowed, held)
        plan._add_model(fitting)
        plan._take_shape(state, fitting, world_size)
        plan._add_optimizer_and_extra(fitting)
        for name, single in state.singles.items():
            if fitting.object(name):
                plan.loads.append((single, name, plan._add_object(name)))
        plan._add_own(state, rank, fitting)
        plan.kept += fitting.kept
        plan.unused = [each for each in (SCHEDULER, SCALER) if checkpoint.has_object(each)]
        plan.unused = [each for each in plan.unused if each not in state.singles]
        return plan, fitting

    def unpack(self) -> Contents:
        """Once read. Raises as `StoredCheckpoint.unpack` and `Regrouping.settle` do."""
        unpacker = Unpacker()

        def unpack(name: str, target: Target) -> object:
            return self.checkpoint.unpack(name, target.content().tobytes(), by=unpacker.unpack)

        def unpack_object(name: str, target: Target) -> object:
            found = unpack(name, target)
            if is_in_chunks(found):
                raise Unfit(f"{name} in {self.checkpoint.name} is a tensor that is said to be an object")
            return found

        return Contents(
            objects=[(path, unpack_object(name, target)) for path, name, target in self.objects],
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
        if state.settings is not None:
            state.settings.matched(self.regrouping.sources)

    def _add_model(self, fitting: Fitting) -> None:
        """What modules keep beside their tensors may be larger than in a fresh one, or another kind of value."""
        model, shapes = self.sharded[MODEL], Shapes(self.checkpoint, self.outline, {})
        for name, held in model.items():
            if name.endswith(_EXTRA_STATE) and shapes.has(f"{MODEL}.{name}"):
                model[name] = shapes.whole(f"{MODEL}.{name}", held)
        self._add_sharded(fitting, {MODEL: model})

    def _take_shape(self, state: TrainingState, fitting: Fitting, world_size: int | None) -> None:
        """That of what was saved of the optimizer and further objects. Of a parameter that is not restored, what
        the optimizer had of it is not either.
        """
        known = optimizerstate.named_parameters(state.model)
        kept = {name.removeprefix(f"{MODEL}.") for name in fitting.kept}
        parameters = {name: each for name, each in known.items() if name not in kept}
        shapes = Shapes(self.checkpoint, self.outline, parameters, world_size=world_size)
        if known:
            numbered = optimizerstate.numbered(state.optimizer)
            trained = optimizerstate.parameters_of(state.model, state.optimizer).keys() & parameters.keys()
            self.sharded[OPTIMIZER] = shapes.optimizer(self.sharded[OPTIMIZER], numbered, trained)
        extra = {}
        for name, held in self.sharded.pop(EXTRA, {}).items():
            if shapes.has(f"{EXTRA}.{name}"):
                own = state.extra[name]
                numbered = optimizerstate.numbered(own) if isinstance(own, Optimizer) else []
                extra[name] = shapes.whole(f"{EXTRA}.{name}", held, numbered)
                self._compare_extra(fitting, {EXTRA: {name: held}}, {EXTRA: {name: extra[name]}})
            else:
                self.kept.append(f"{EXTRA}.{name}")
        if extra:
            self.sharded[EXTRA] = extra

    def _compare_extra(self, fitting: Fitting, held: Mapping[str, Any], given: Mapping[str, Any]) -> None:
        """What is shown of a further object and is not given: it is kept, and named; but for a sharded tensor
        that no rank has saved, which is asked for.
        """
        saved = flatten(given).values
        for name, value in flatten(held).values.items():
            shows_nothing = isinstance(value, Mapping | list) and not value
            if shows_nothing or name in saved:
                continue
            shard = shard_of(name, value) if isinstance(value, DTensor) else None
            if shard is not None and not self.checkpoint.has_tensor(name):
                fitting.tensor(name, shard)
            else:
                self.kept.append(name)

    def _add_optimizer_and_extra(self, fitting: Fitting) -> None:
        self._add_sharded(fitting, {name: each for name, each in self.sharded.items() if name != MODEL})
        # Of all saved groups what this rank's have: any of them may be that of its parameters.
        if not self.regrouping.members:
            return
        for name in self.checkpoint.names(groups.PREFIX):
            if groups.is_list(name):
                self.regrouping.lists[name] = self._add_object(name)
            else:
                is_object = self.checkpoint.has_object(name)
                self.regrouping.saved[name] = self._add_object(name) if is_object else self._add_tensor(name)

    def _add_sharded(self, fitting: Fitting, state: Mapping[str, Any]) -> None:
        flat = flatten(state)
        boxes: Boxes = {}
        for name, value in flat.values.items():
            if groups.is_list(name):
                self.regrouping.members[name] = cast(Sequence[str], value)
                continue
            shard = shard_of(name, value, boxes) if is_in_chunks(value) else None
            if name.startswith(groups.PREFIX):
                self.regrouping.own[name] = shard or flat.paths[name]
                continue
            if is_in_chunks(value):
                fits = shard is not None and fitting.tensor(name, shard)
            else:
                fits = fitting.object(name)
            if fits and shard is not None:
                self.wants.add(Target(shard.local), self.checkpoint.tensor_strips(name, shard.box))
            elif fits:
                self.objects.append((flat.paths[name], name, self._add_object(name)))

    def _add_own(self, state: TrainingState, rank: int, fitting: Fitting) -> None:
        """Of what was saved per rank, that of the rank this one follows."""
        source = randomness.source_rank(rank, self.checkpoint.manifest.world_size)
        owners: tuple[tuple[Stateful | None, str], ...] = (
            (state.data, data_name(source)),
            (state.equivalence, equivalence_name(source)),
            (state.loop, loopplace.NAME),
            (state.settings, asked.NAME),
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


def _outline(checkpoint: StoredCheckpoint) -> Outline | Keys:
    """That of the rank that this one follows; of an older checkpoint the keys of dictionaries where some are no
    text. Raises Unfit when it is something else.
    """
    name = OUTLINE if checkpoint.has_object(OUTLINE) else KEYS
    found = checkpoint.read_object(name) if checkpoint.has_object(name) else []
    if name == OUTLINE and isinstance(found, dict):
        return found
    try:
        return msgspec.convert(None if name == OUTLINE else found, Keys)
    except msgspec.ValidationError as error:
        raise Unfit(f"{name} in {checkpoint.name} is not what a save writes: {error}") from error


def _whole(shape: tuple[int, ...]) -> Box:
    return Box(offsets=(0,) * len(shape), sizes=shape)


def _place(nested: Any, path: NamePath, value: object) -> None:
    """A dictionary's key may be no text, though it is in `path`."""
    for step in path[:-1]:
        nested = nested[_key(nested, step)]
    nested[_key(nested, path[-1])] = value


def _key(nested: Any, step: str | int) -> Any:
    if not isinstance(nested, dict) or step in nested:
        return step
    return next((key for key in nested if str(key) == step), step)


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
