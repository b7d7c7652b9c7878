"""The state that is saved: parameters and AdamW's moments, sharded, with values that can be told in any layout."""

import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import torch
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset

ROWS_AT_ONCE: Final = 256  # Of a width of 768 that is under a megabyte, and stays in the cache.
MOMENTS: Final = ("exp_avg", "exp_avg_sq")


@dataclass(frozen=True)
class Size:
    """A GPT-2's: 12 parameters a layer and 4 around them, each with two moments and a step."""

    layers: int
    width: int
    vocabulary: int
    positions: int = 1024

    def shapes(self) -> Iterator[tuple[str, tuple[int, ...]]]:
        """Each parameter's name and shape."""
        width = self.width
        yield "wte", (self.vocabulary, width)
        yield "wpe", (self.positions, width)
        for layer in range(self.layers):
            for name, rows in (("qkv", 3 * width), ("proj", width), ("fc", 4 * width)):
                yield f"h{layer}_{name}_weight", (rows, width)
                yield f"h{layer}_{name}_bias", (rows,)
            yield f"h{layer}_out_weight", (width, 4 * width)
            for name in ("out_bias", "ln1_weight", "ln1_bias", "ln2_weight", "ln2_bias"):
                yield f"h{layer}_{name}", (width,)
        yield "lnf_weight", (width,)
        yield "lnf_bias", (width,)

    @property
    def size_bytes(self) -> int:
        """Of all ranks together."""
        return sum(torch.Size(shape).numel() for _, shape in self.shapes()) * 4 * (1 + len(MOMENTS))


GPT2_SMALL: Final = Size(layers=12, width=768, vocabulary=50257)  # 124M parameters, 592 tensors, 1.49 GB
MANY_TINY: Final = Size(layers=83, width=8, vocabulary=8, positions=8)  # 1000 parameters, 4000 tensors
SMALLEST: Final = Size(layers=1, width=64, vocabulary=128, positions=64)


class Subject:
    """One rank's part of it. `dim` is what everything of two dimensions is sharded over; all else by rows. None:
    every rank holds all of it.
    """

    def __init__(self, size: Size, *, ranks: int, dim: int | None = 0) -> None:
        mesh = init_device_mesh("cpu", (ranks,))
        self.model = nn.Module()
        for name, shape in size.shapes():
            placement = Replicate() if dim is None else Shard(dim if len(shape) > dim else 0)
            local, _ = compute_local_shape_and_global_offset(torch.Size(shape), mesh, [placement])
            tensor = DTensor.from_local(
                torch.zeros(local), mesh, [placement], shape=torch.Size(shape), stride=_stride(shape)
            )
            self.model.register_parameter(name, nn.Parameter(tensor))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-4)
        for parameter in self.model.parameters():
            moments = {name: torch.zeros_like(parameter, requires_grad=False) for name in MOMENTS}
            self.optimizer.state[parameter] = {"step": torch.tensor(1.0), **moments}

    def tensors(self) -> Iterator[tuple[str, DTensor]]:
        for name, parameter in self.model.named_parameters():
            assert isinstance(parameter, DTensor)
            tensor = parameter.detach()
            assert isinstance(tensor, DTensor)
            yield name, tensor
            for moment in MOMENTS:
                yield f"{name}.{moment}", self.optimizer.state[parameter][moment]

    @property
    def count(self) -> int:
        """Tensors, AdamW's steps among them."""
        return len(self.optimizer.state) * (2 + len(MOMENTS))

    @property
    def held_bytes(self) -> int:
        """What this rank holds of it."""
        return sum(tensor.to_local().nbytes for _, tensor in self.tensors())

    def fill(self, version: int) -> None:
        """Give every element a value that follows from its name, its place in the whole and `version`."""
        for name, tensor in self.tensors():
            for part, expected in _expected(name, tensor, version):
                part.copy_(expected)

    def spoil(self) -> None:
        """Leave nothing that a load could be mistaken for having brought."""
        for _, tensor in self.tensors():
            tensor.to_local().fill_(-1.0)

    def holds(self, version: int) -> bool:
        """Whether every element of this rank is that of `version`."""
        return all(
            torch.equal(part, expected)
            for name, tensor in self.tensors()
            for part, expected in _expected(name, tensor, version)
        )


def _expected(name: str, tensor: DTensor, version: int) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    """This rank's part of the tensor, some rows at a time, and what belongs there."""
    local = tensor.to_local()
    _, offsets = compute_local_shape_and_global_offset(tensor.shape, tensor.device_mesh, tensor.placements)
    seed = zlib.crc32(f"{name} {version}".encode()) % 1000
    columns = torch.zeros(())
    if local.dim() > 1:
        columns = torch.arange(offsets[1], offsets[1] + local.shape[1], dtype=torch.float32) / 4096
    for first in range(0, local.shape[0], ROWS_AT_ONCE):
        part = local[first : first + ROWS_AT_ONCE]
        rows = torch.arange(len(part), dtype=torch.float32) + (offsets[0] + first + seed)
        yield part, rows.unsqueeze(1) + columns if local.dim() > 1 else rows


def _stride(shape: tuple[int, ...]) -> tuple[int, ...]:
    return (*shape[1:], 1)
