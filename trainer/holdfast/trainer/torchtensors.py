"""Looking into torch's tensors, into structures of them, and at what it computes, beyond what is public."""

from typing import Final

from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten_with_path, tree_leaves, tree_map, tree_map_with_path

from holdfast.api.torchnames import TorchName

__all__ = [
    "NAMES",
    "TorchDispatchMode",
    "local_of",
    "is_shared_out",
    "tree_flatten_with_path",
    "tree_leaves",
    "tree_map",
    "tree_map_with_path",
]

_IMPORTED: Final = "`import holdfast.trainer` fails: this torch is not supported"
NAMES: Final = (
    TorchName("torch.distributed.tensor", "DTensor._local_tensor", "to_local() is called, which takes longer"),
    TorchName("torch.utils._python_dispatch", "TorchDispatchMode", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_flatten_with_path", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_leaves", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_map", _IMPORTED),
    TorchName("torch.utils._pytree", "tree_map_with_path", _IMPORTED),
)


def local_of(values: Tensor) -> Tensor:
    """What is in this process's memory of a tensor, sharing it, without a gradient. DTensor's public way to it
    costs far more.
    """
    if not is_shared_out(values):
        return values.detach()
    local: Tensor | None = getattr(values, "_local_tensor", None)
    return (values.to_local() if local is None else local).detach()  # type: ignore[attr-defined]


def is_shared_out(values: Tensor) -> bool:
    """Whether it is a DTensor; nothing is imported for it."""
    return hasattr(values, "to_local")
