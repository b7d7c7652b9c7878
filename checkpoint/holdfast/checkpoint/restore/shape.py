"""In which shape the optimizer and further objects are restored: that in which they were saved, whatever those of
a process that begins happen to show.

An optimizer that never stepped holds nothing, and so does an average that is made at its first update. What they
consist of is read off the checkpoint. A tensor that is held already, of the same dtype and shape, is read into;
another one is made like a parameter of that name or number where it has its shape, sharded as that is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, zeros

from holdfast.checkpoint.capture import groups
from holdfast.checkpoint.capture.optimizerstate import STATE
from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.format.nested import Keys, NamePath, flatten, joined, nest
from holdfast.checkpoint.format.wrappers import unwrapped
from holdfast.checkpoint.restore.stored import StoredCheckpoint

OPTIMIZER, EXTRA = "optimizer", "extra"


class Shapes:
    """Nested state as `checkpoint` has it, of tensors of this rank; objects are None until they are read."""

    def __init__(
        self,
        checkpoint: StoredCheckpoint,
        keys: Keys,
        parameters: Mapping[str, torch.Tensor],
        *,
        world_size: int | None = None,
    ) -> None:
        """`keys` are those that were saved. `parameters` are the model's on this rank of a world of that size
        (None: the saved one), by name.
        """
        saved = checkpoint.manifest.world_size
        self._is_same_world = world_size in (None, saved)
        self._checkpoint = checkpoint
        self._keys = keys
        self._parameters = parameters
        first = next(iter(parameters.values()), None)
        self._device = first.device if first is not None else torch.device("cpu")

    def optimizer(self, held: Mapping[str, Any], numbered: Sequence[torch.Tensor]) -> dict[str, Any]:
        """Of the parameters that are `numbered`. But for the settings of its groups, which are as `held`: those
        have a way of their own.
        """
        names = [each for each in self._names(OPTIMIZER) if not each.startswith(groups.PREFIX)]
        # Of parameters of another stage of a pipeline this rank has nothing.
        own = [name for name in names if self._is_own(self._path(name))]
        settings = {key: value for key, value in held.items() if key != STATE}
        return {**settings, **self._nested(OPTIMIZER, held, own, numbered)}

    def has(self, root: str) -> bool:
        """Whether anything was saved of what has this name, or begins with it."""
        return bool(self._names(root))

    def whole(self, root: str, held: object, numbered: Sequence[torch.Tensor] = ()) -> Any:
        """Of what was saved under this name: a further object, which may be an optimizer of parameters that are
        `numbered`, or what a module keeps beside its tensors.
        """
        return self._nested(root, held, self._names(root), numbered)

    def _names(self, root: str) -> list[str]:
        return [each for each in self._checkpoint.names(root) if each == root or each.startswith(f"{root}.")]

    def _path(self, name: str) -> NamePath:
        """One without a path is of a checkpoint that something else wrote."""
        return self._checkpoint.index.paths.get(name, tuple(name.split(".")))

    def _is_own(self, path: NamePath) -> bool:
        return len(path) < 3 or path[1] != STATE or not isinstance(path[2], str) or path[2] in self._parameters

    def _nested(self, root: str, held: object, names: Sequence[str], numbered: Sequence[torch.Tensor]) -> Any:
        way = tuple(root.split(".", 1))
        there = flatten(held).values if isinstance(held, Mapping) else {}
        values: dict[str, object] = {}
        paths: dict[str, NamePath] = {}
        for name in _in_order({name: self._path(name) for name in names}):
            path = self._path(name)[len(way) :]
            if not path:  # it is one tensor, or one object
                return self._room(name, held, None) if self._checkpoint.has_tensor(name) else None
            below = joined(path)
            paths[below] = path
            values[below] = None
            if root != OPTIMIZER and isinstance(there.get(below), DTensor):
                values[below] = there[below]  # how it is sharded is known; whether it fits is for others to say
            elif self._checkpoint.has_tensor(name):
                values[below] = self._room(name, there.get(below), self._like(path, numbered))
        below_way = [(path[len(way) :], each) for path, each in self._keys if path[: len(way)] == way]
        there_now = {path[:length] for path in paths.values() for length in range(len(path))}
        return nest(values, paths, [(path, each) for path, each in below_way if path in there_now])

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
