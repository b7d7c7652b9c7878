"""Which part of a tensor this rank holds."""

from dataclasses import dataclass
from typing import TypeGuard

import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.tensor import DTensor, Placement

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.capture.torchstate import compute_local_shape_and_global_offset, local_of
from holdfast.checkpoint.format.index import Box


def is_in_chunks(value: object) -> TypeGuard[torch.Tensor]:
    """Whether it is stored as boxes of its content. All else is an object, also a tensor that is sparse, quantized
    or of rows of several lengths.
    """
    if not isinstance(value, torch.Tensor):
        return False
    is_dense = value.layout is torch.strided and not (value.is_quantized or value.is_nested)
    return is_dense or isinstance(value, DTensor)


@dataclass(frozen=True, slots=True)
class Shard:
    """`local` is the memory of `box`, of a tensor that is `shape` over all ranks. Not a copy. `is_plain`: nothing
    says that other ranks hold other parts of it.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    box: Box
    is_plain: bool = True


Boxes = dict[tuple[torch.Size, DeviceMesh, tuple[Placement, ...]], Box]
"""Of tensors sharded alike. To be forgotten with the process groups: meshes of two worlds may compare equal."""


def shard_of(name: str, tensor: torch.Tensor, boxes: Boxes | None = None) -> Shard | None:
    """This rank's part; None when it holds nothing of the tensor. Plain tensors are held whole. What is worked out
    for sharded ones is looked up in `boxes`, and added.

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
    key = tensor.shape, tensor.device_mesh, tensor.placements
    box = boxes.get(key) if boxes is not None else None
    if box is None:
        sizes, offsets = compute_local_shape_and_global_offset(*key)
        box = Box(offsets=tuple(offsets), sizes=tuple(sizes))
    if boxes is not None:
        boxes[key] = box
    # A tensor that is empty as a whole still has a name, which somebody has to save.
    if 0 in box.sizes and 0 not in tensor.shape:
        return None
    # What `to_local` gives, without its autograd node.
    return Shard(local=local_of(tensor).detach(), shape=tuple(tensor.shape), box=box, is_plain=False)
