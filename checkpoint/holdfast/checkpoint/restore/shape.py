"""In which shape the optimizer and further objects are restored: that in which they were saved, whatever those of
a process that begins happen to show.

An optimizer that never stepped holds nothing, and so does an average that is made at its first update. What they
consist of is read off the checkpoint. A tensor that is held already, of the same dtype and shape, is read into;
another one is made like a parameter of that name or number where it has its shape, sharded as that is.
"""

from collections.abc import Collection, Mapping, Sequence
from copy import copy
from typing import Any, Final

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, zeros

from holdfast.checkpoint.capture.optimizerstate import GROUPS, STATE
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.nested import (
    Keys,
    NamePath,
    Outline,
    filled,
    flatten,
    joined,
    names_in,
    nest,
)
from holdfast.checkpoint.format.wrappers import unwrapped
from holdfast.checkpoint.restore.stored import StoredCheckpoint

MODEL, OPTIMIZER, EXTRA = "model", "optimizer", "extra"
_NOTHING: Final = object()


class Shapes:
    """Nested state as `checkpoint` has it, of tensors of this rank; objects are empty until they are read."""

    def __init__(
        self,
        checkpoint: StoredCheckpoint,
        outline: Outline | Keys,
        parameters: Mapping[str, torch.Tensor],
        *,
        world_size: int | None = None,
    ) -> None:
        """`outline` is that of the rank that this one follows; of an older checkpoint it is the keys that were
        saved. `parameters` are the model's on this rank of a world of that size (None: the saved one), by name.
        """
        saved = checkpoint.manifest.world_size
        self._is_same_world = world_size in (None, saved)
        self._checkpoint = checkpoint
        self._outline = outline if isinstance(outline, dict) else None
        self._keys = outline if isinstance(outline, list) else []
        self._parameters = parameters
        first = next(iter(parameters.values()), None)
        self._device = first.device if first is not None else torch.device("cpu")

    def optimizer(
        self, held: Mapping[str, Any], numbered: Sequence[torch.Tensor], trained: Collection[str]
    ) -> dict[str, Any]:
        """Of the parameters that are `numbered`, of the names `trained`. But for the settings of its groups, which
        are as `held`: those have a way of their own.
        """
        whole = self._below(OPTIMIZER)
        whole = dict(whole) if isinstance(whole, dict) else {}
        whole.pop(GROUPS, None)
        if isinstance(state := whole.get(STATE), dict):
            whole[STATE] = self._state_of(state, trained)
        settings = {key: value for key, value in held.items() if key != STATE}
        found = self._filled(whole, (OPTIMIZER,), held, numbered)
        return {**settings, **{key: value for key, value in found.items() if key != STATE or value}}

    def _state_of(self, state: Outline, trained: Collection[str]) -> Outline:
        """The outline of what is kept of each of the parameters `trained`, and of what is no parameter's. What the
        rank held of a parameter is that; of one that it did not have, it is what any rank held.
        """
        known = self._outline.get(MODEL) if self._outline is not None and self._is_same_world else None
        own = known if isinstance(known, dict) else {}
        everywhere = self._by_names(OPTIMIZER)
        by_any = everywhere.get(STATE, {}) if isinstance(everywhere, dict) else {}
        found: Outline = {}
        both = state | by_any | state
        if not self._is_same_world:  # ranks follow others than their neighbours do; all are to have one order
            first = [name for name in self._parameters if name in both]
            both = {key: both[key] for key in dict.fromkeys((*first, *both))}
        for key, below in both.items():
            is_parameter = key in trained
            if is_parameter and key in own and key not in state:
                continue  # this rank had it, and nothing of it
            if not is_parameter and (self._is_of_model(key) or key not in state):
                continue
            other = by_any.get(key)
            is_all = key in own or set(names_in(below)) >= set(names_in(other))
            found[key] = below if is_all else other
        return found

    def _is_of_model(self, key: object) -> bool:
        return self._checkpoint.has_tensor(f"{MODEL}.{key}")

    def has(self, root: str) -> bool:
        """Whether anything was saved of what has this name, or begins with it."""
        return self._below(root) is not _NOTHING

    def whole(self, root: str, held: object, numbered: Sequence[torch.Tensor] = ()) -> Any:
        """Of what was saved under this name: a further object, which may be an optimizer of parameters that are
        `numbered`, or what a module keeps beside its tensors. A tensor that it shows and any rank has saved is
        given too, and in another world anything else: a pipeline may be cut elsewhere.
        """
        outline = self._below(root)
        if self._outline is not None:
            kind = torch.Tensor if self._is_same_world else object
            outline = self._with_shown(outline, _way(root), held, kind)
        return self._filled(outline, _way(root), held, numbered)

    def _with_shown(self, outline: Any, way: NamePath, held: object, kind: type) -> Any:
        """The outline, and what is `held` besides, is of this kind and was saved."""
        if not (isinstance(outline, dict) and isinstance(held, Mapping)):
            return outline
        shown = copy(outline)
        for key, value in held.items():
            path = (*way, str(key))
            name = joined(path)
            if key in outline:
                shown[key] = self._with_shown(outline[key], path, value, kind)
            elif isinstance(value, Mapping):
                if below := self._with_shown({}, path, value, kind):
                    shown[key] = below
            elif isinstance(value, kind) and (
                self._checkpoint.has_tensor(name) or self._checkpoint.has_object(name)
            ):
                shown[key] = None
        return shown

    def _below(self, root: str) -> Any:
        """The outline of what was saved under this name."""
        if self._outline is None:
            return self._by_names(root)
        below: Any = self._outline
        for step in _way(root):
            if not isinstance(below, dict) or step not in below:
                return _NOTHING
            below = below[step]
        return below

    def _by_names(self, root: str) -> Any:
        """The same, as far as names tell it, of all that any rank has saved."""
        way = _way(root)
        names = [each for each in self._checkpoint.names(root) if each == root or each.startswith(f"{root}.")]
        paths = {name: self._path(name)[len(way) :] for name in names}
        if not paths:
            return _NOTHING
        if any(not path for path in paths.values()):  # it is one tensor, or one object
            return None
        there = {path[:length] for path in paths.values() for length in range(len(path))}
        below_way = [(path[len(way) :], each) for path, each in self._keys if path[: len(way)] == way]
        keys = [(path, each) for path, each in below_way if path in there]
        return nest(dict.fromkeys(_in_order(paths)), paths, keys)

    def _path(self, name: str) -> NamePath:
        """One without a path is of a checkpoint that something else wrote."""
        return self._checkpoint.index.paths.get(name, tuple(name.split(".")))

    def _filled(self, outline: Any, way: NamePath, held: object, numbered: Sequence[torch.Tensor]) -> Any:
        there = flatten(held).values if isinstance(held, Mapping) else {}

        def value_of(path: NamePath) -> object:
            name, below = joined(path), path[len(way) :]
            one = there.get(joined(below)) if below else held
            if way[0] != OPTIMIZER and isinstance(one, DTensor):
                return one  # how it is sharded is known; whether it fits is for others to say
            if not self._checkpoint.has_tensor(name):
                return {}
            return self._room(name, one, self._like(below, numbered) if below else None)

        return filled(outline, value_of, way)

    def _room(self, name: str, held: object, like: torch.Tensor | None) -> torch.Tensor:
        dtype, shape = self._checkpoint.shape_of(name)
        if isinstance(held, torch.Tensor) and (held.dtype, tuple(held.shape)) == (dtype, shape):
            return held
        if like is None:
            return torch.zeros(shape, dtype=dtype, device=self._device)
        if shape == tuple(like.shape):
            return torch.zeros_like(like, dtype=dtype, requires_grad=False)
        if shape == ():  # a count of steps, which torch keeps in the processor's memory, or moves
            return torch.zeros((), dtype=dtype)
        is_apart = name in self._checkpoint.apart
        if is_apart and isinstance(like, DTensor) and not self._is_same_world:
            saved = self._checkpoint.manifest.world_size
            raise Unfit(
                f"{name}: each of {saved} ranks had its own, of its part of a sharded parameter. "
                f"Restore on {saved} ranks, or have the optimizer keep it as a DTensor"
            )
        if is_apart or not isinstance(like, DTensor):
            return torch.zeros(shape, dtype=dtype, device=like.device)
        placements = [_kept(each, shape, tuple(like.shape)) for each in like.placements]
        return zeros(shape, dtype=dtype, device_mesh=like.device_mesh, placements=placements)

    def _like(self, path: NamePath, numbered: Sequence[torch.Tensor]) -> torch.Tensor | None:
        """The parameter that this belongs to, by a name or a number on the way to it."""
        for length in range(len(path), 0, -1):
            for begin in range(len(path) - length + 1):
                name = unwrapped(joined(path[begin : begin + length]))
                if (found := self._parameters.get(name)) is not None:
                    return found
        number = next((int(step) for step in path if isinstance(step, int) or step.isdecimal()), len(numbered))
        return numbered[number] if number < len(numbered) else None


def _way(root: str) -> NamePath:
    return tuple(root.split(".", 1))


def _in_order(paths: Mapping[str, NamePath]) -> list[str]:
    """Names as they are in the checkpoint, but for places in a list, which are in their own order."""
    first: dict[NamePath, int] = {}
    for path in paths.values():
        for length in range(1, len(path) + 1):
            first.setdefault(path[:length], len(first))

    def rank(name: str) -> list[int]:
        path = paths[name]
        return [step if isinstance(step, int) else first[path[: at + 1]] for at, step in enumerate(path)]

    return sorted(paths, key=rank)


def _kept(placement: Placement, shape: tuple[int, ...], of: tuple[int, ...]) -> Placement:
    """What is smaller than its parameter is split as that is where it is as long, as sums over other dims are."""
    if isinstance(placement, Shard) and placement.dim < len(shape) and shape[placement.dim] == of[placement.dim]:
        return Shard(placement.dim)
    return Replicate()
