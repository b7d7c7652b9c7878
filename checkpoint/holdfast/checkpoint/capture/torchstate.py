"""Looking into the state that torch keeps of a model, beyond what is public: which names its parameters go by, and
which part of a sharded tensor is here.

What `nn.Module` and `Optimizer` keep of themselves (`_parameters`, `_buffers`) is part of their pickles since
torch 1.0, and is read where it is needed.
"""

from collections.abc import Iterable
from typing import Final

import torch
from torch.distributed.checkpoint.state_dict import _get_fqns
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.nn import Module
from torch.utils._pytree import tree_leaves, tree_map

from holdfast.api.torchnames import TorchName
from holdfast.checkpoint.format.wrappers import unwrapped

__all__ = [
    "NAMES",
    "compute_local_shape_and_global_offset",
    "local_of",
    "names_of",
    "sharding_of",
    "tree_leaves",
    "tree_map",
]

_IMPORTED: Final = "`import holdfast.checkpoint` fails: this torch is not supported"
NAMES: Final = (
    TorchName("torch.distributed.checkpoint.state_dict", "_get_fqns", _IMPORTED),
    TorchName("torch.distributed.tensor._utils", "compute_local_shape_and_global_offset", _IMPORTED),
    TorchName("torch.distributed.tensor", "DTensor._local_tensor", "to_local() is called, which takes longer"),
    TorchName("torch.distributed.tensor", "DTensor._spec", "mesh, placements and shape are compared one by one"),
    TorchName("torch.utils._pytree", "tree_leaves", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_map", _IMPORTED),
)


def names_of(model: Module, name: str) -> set[str]:
    """As what the parameter `name` of `model` is saved: several where it is several in one."""
    return set(map(unwrapped, _get_fqns(model, name)))


def local_of(value: torch.Tensor) -> torch.Tensor:
    """What is in this process's memory of a tensor, sharing it."""
    if not isinstance(value, DTensor):
        return value
    local: torch.Tensor | None = getattr(value, "_local_tensor", None)
    return value.to_local() if local is None else local


def sharding_of(values: Iterable[object]) -> list[object]:
    """How each that is sharded is: equal where all are sharded alike."""
    return [_sharding(value) for value in values if isinstance(value, DTensor)]


def _sharding(value: DTensor) -> object:
    told: object = getattr(value, "_spec", None)
    if told is not None:
        return told
    return (value.device_mesh, value.placements, value.shape, value.stride(), value.dtype)
