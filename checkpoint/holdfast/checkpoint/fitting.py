"""Whether a checkpoint holds what a model asks for, and everything that is in the way, said at once."""

from collections.abc import Iterable, Sequence

import torch

from holdfast.checkpoint.errors import Unfit
from holdfast.checkpoint.shard import Shard
from holdfast.checkpoint.stored import StoredCheckpoint

_SHOWN = 5  # Names of a kind: enough to see what they have in common.
_ROOTS = ("model.", "optimizer.state.", "extra.")


class Fitting:
    """Looks at one name after the other; `finish` raises when one did not fit."""

    def __init__(self, checkpoint: StoredCheckpoint) -> None:
        self._checkpoint = checkpoint
        self._missing: list[str] = []
        self._misfits: list[str] = []
        self._seen: set[str] = set()

    def tensor(self, name: str, shard: Shard) -> bool:
        """Whether there is such a tensor, of that dtype and whole shape."""
        self._seen.add(name)
        if not self._checkpoint.has_tensor(name):
            self._misfits_or_missing(name, "a tensor")
            return False
        dtype, shape = self._checkpoint.shape_of(name)
        if (dtype, shape) == (shard.local.dtype, shard.shape):
            return True
        theirs, ours = _describe(dtype, shape), _describe(shard.local.dtype, shard.shape)
        which = _differences(dtype, shape, shard)
        self._misfits.append(f"{name}: the checkpoint has {theirs}, the model wants {ours} ({which})")
        return False

    def object(self, name: str) -> bool:
        """Whether there is such an object."""
        self._seen.add(name)
        if not self._checkpoint.has_object(name):
            self._misfits_or_missing(name, "an object")
            return False
        return True

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

    def _misfits_or_missing(self, name: str, wanted: str) -> None:
        if self._checkpoint.has_tensor(name) or self._checkpoint.has_object(name):
            self._misfits.append(f"{name}: the model wants {wanted}, the checkpoint has none of that name")
        else:
            self._missing.append(name)


def _describe(dtype: torch.dtype, shape: Iterable[int]) -> str:
    return f"{list(shape)} {str(dtype).removeprefix('torch.')}"


def _differences(dtype: torch.dtype, shape: Sequence[int], shard: Shard) -> str:
    if len(shape) != len(shard.shape):
        return "number of dims"
    dims = [str(dim) for dim, sizes in enumerate(zip(shape, shard.shape, strict=True)) if sizes[0] != sizes[1]]
    named = [f"dim {', '.join(dims)}"] if dims else []
    return " and ".join(named + (["dtype"] if dtype != shard.local.dtype else []))


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:_SHOWN])
    return f"{len(names)} names: {shown}" + (", …" if len(names) > _SHOWN else "")
