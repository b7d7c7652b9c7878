"""Which part of a tensor this rank holds."""

from dataclasses import dataclass

import torch
from torch.distributed.tensor import DTensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.index import Box


@dataclass(frozen=True, slots=True)
class Shard:
    """`local` is the memory of `box`, of a tensor that is `shape` over all ranks. Not a copy."""

    local: torch.Tensor
    shape: tuple[int, ...]
    box: Box


def shard_of(name: str, tensor: torch.Tensor) -> Shard | None:
    """This rank's part; None when it holds nothing of the tensor. Plain tensors are held whole.

    Raises InvalidInput for a DTensor that still has a reduction pending.
    """
    if not isinstance(tensor, DTensor):
        plain = tensor.detach()
        return Shard(local=plain, shape=tuple(plain.shape), box=Box((0,) * plain.dim(), tuple(plain.shape)))
    if any(placement.is_partial() for placement in tensor.placements):
        fix = "reduce it before it is checkpointed"
        raise InvalidInput(Problem(field=name, value=tensor.placements, fix=fix))
    if tensor.device_mesh.get_coordinate() is None:
        return None
    sizes, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    # A tensor that is empty as a whole still has a name, which somebody has to save.
    if 0 in sizes and 0 not in tensor.shape:
        return None
    return Shard(
        local=tensor._local_tensor.detach(),  # What `to_local` gives, without its autograd node.
        shape=tuple(tensor.shape),
        box=Box(offsets=tuple(offsets), sizes=tuple(sizes)),
    )
