"""Random tensors in random layouts: what is saved under one is loaded under another."""

import itertools
import math
import random
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, Placement, Replicate, Shard, distribute_tensor

from holdfast.checkpoint import Checkpointer, Standalone

DTYPES = (
    "float32",
    "bfloat16",
    "float16",
    "float64",
    "int64",
    "uint8",
    "bool",
    "complex64",
    "float8_e4m3fn",
    "float8_e5m2",
)
LARGE = (2053, 1501)
MESHES = {
    1: [(1,)],
    2: [(2,), (1, 2)],
    3: [(3,)],
    4: [(4,), (2, 2), (4, 1)],
    6: [(2, 3), (6,), (3, 1, 2)],
    8: [(2, 2, 2), (2, 4), (8,)],
}


@dataclass(frozen=True)
class Specimen:
    """A tensor as it is over all ranks. A strided one is the transpose of what lies in memory."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    is_strided: bool

    def whole(self) -> torch.Tensor:
        """The same on every rank and in every layout: every bit of it follows from the name."""
        dtype: torch.dtype = getattr(torch, self.dtype)
        generator = torch.Generator().manual_seed(zlib.crc32(self.name.encode()))
        shape = self.shape[::-1] if self.is_strided else self.shape
        if dtype is torch.bool:
            drawn = torch.randint(0, 2, shape, generator=generator, dtype=torch.uint8).bool()
        else:
            count = math.prod(shape) * dtype.itemsize
            drawn = torch.randint(0, 256, (count,), generator=generator, dtype=torch.uint8).view(dtype).view(shape)
        return drawn.permute(*reversed(range(drawn.dim()))) if self.is_strided else drawn


@dataclass(frozen=True)
class Layout:
    """Where each specimen lies on a world: a mesh, and a placement for each of its dimensions.

    No placements: a plain tensor, whole on every rank. With stages the mesh's first dimension is a pipeline: each
    specimen is on one stage only, and the placements are for the other dimensions.
    """

    mesh: tuple[int, ...]
    has_stages: bool
    placements: dict[str, tuple[int | None, ...] | None]

    @property
    def ranks(self) -> int:
        return math.prod(self.mesh)


@dataclass(frozen=True)
class Case:
    """What is saved in `folder`, under which layout, and under which others it is loaded."""

    folder: Path
    specimens: tuple[Specimen, ...]
    saved: Layout
    loaded: tuple[Layout, ...]

    def __str__(self) -> str:
        return f"{self.folder.name}: {self.saved.mesh} to {[each.mesh for each in self.loaded]}"


def draw(seed: int, folder: Path, *, loads: int) -> Case:
    chance = random.Random(seed)
    specimens = [_draw_specimen(chance, f"{seed}.{number}") for number in range(chance.randint(4, 12))]
    if seed % 4 == 0:
        specimens.append(_draw_large(chance, f"{seed}.large"))
    layouts = [_draw_layout(chance, specimens, large_dim=min(number, 1)) for number in range(1 + loads)]
    return Case(folder / f"case-{seed}", tuple(specimens), layouts[0], tuple(layouts[1:]))


def _draw_specimen(chance: random.Random, name: str) -> Specimen:
    shape = tuple(chance.choice((1, 2, 3, 5, 7, 8, 13, 16)) for _ in range(chance.choice((0, 1, 1, 2, 2, 2, 3))))
    if shape and chance.random() < 0.05:
        shape = (0, *shape[1:])
    return Specimen(name, chance.choice(DTYPES), shape, is_strided=len(shape) > 1 and chance.random() < 0.3)


def _draw_large(chance: random.Random, name: str) -> Specimen:
    """Of several of the blocks that are hashed, none of which ends where a row or a part of one does."""
    return Specimen(name, chance.choice(("float32", "bfloat16", "float64")), LARGE, is_strided=False)


def _draw_layout(chance: random.Random, specimens: list[Specimen], *, large_dim: int) -> Layout:
    """`large_dim` is what large ones are sharded over."""
    mesh = chance.choice(MESHES[chance.choice(tuple(MESHES))])
    has_stages = len(mesh) > 1 and chance.random() < 0.4
    placements: dict[str, tuple[int | None, ...] | None] = {}
    for specimen in specimens:
        places = len(mesh) - has_stages
        dims: list[int | None] = [None, *range(len(specimen.shape))]
        drawn = tuple(chance.choice(dims) for _ in range(places))
        if specimen.shape == LARGE:
            placements[specimen.name] = (None,) * (places - 1) + (large_dim,)
        else:
            placements[specimen.name] = drawn if has_stages or chance.random() < 0.85 else None
    return Layout(mesh, has_stages, placements)


class Cage:
    """The specimens as this rank holds them, as an `extra` of a Checkpointer."""

    def __init__(self, case: Case, layout: Layout) -> None:
        names = tuple(f"d{number}" for number in range(len(layout.mesh)))
        mesh = init_device_mesh("cpu", layout.mesh, mesh_dim_names=names)
        stage = mesh.get_local_rank(names[0]) if layout.has_stages else None
        own = mesh[names[1:]] if layout.has_stages else mesh
        self.held = {
            specimen.name: _place(specimen.whole(), own, layout.placements[specimen.name])
            for number, specimen in enumerate(case.specimens)
            if stage is None or number % layout.mesh[0] == stage
        }

    def bits(self) -> dict[str, tuple[tuple[int, ...], bytes]]:
        return {name: _bits(tensor) for name, tensor in self.held.items()}

    def spoil(self) -> None:
        for tensor in self.held.values():
            local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
            local.zero_()

    def state_dict(self) -> dict[str, Any]:
        return dict(self.held)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self.held = dict(state)


def _place(whole: torch.Tensor, mesh: DeviceMesh, placements: tuple[int | None, ...] | None) -> torch.Tensor:
    if placements is None:
        return whole
    parts: list[Placement] = [Replicate() if dim is None else Shard(dim) for dim in placements]
    return distribute_tensor(whole, mesh, parts, src_data_rank=None)


def _bits(tensor: torch.Tensor) -> tuple[tuple[int, ...], bytes]:
    local = tensor._local_tensor if isinstance(tensor, DTensor) else tensor
    raw = local.contiguous().view(-1).view(torch.uint8) if local.numel() else local.new_empty(0, dtype=torch.uint8)
    return tuple(local.shape), raw.numpy().tobytes()


def checkpointer(folder: Path, **extra: Any) -> Checkpointer:
    model = nn.Linear(1, 1)
    with torch.no_grad():
        model.weight.fill_(1.0)
        model.bias.fill_(1.0)
    optimizer = torch.optim.SGD(model.parameters())
    return Checkpointer(Standalone(str(folder)), model=model, optimizer=optimizer, extra=extra)


def save_all(cases: list[Case]) -> None:
    """Act: save those of the cases that are saved by a world of this size."""
    for case in cases:
        if case.saved.ranks == dist.get_world_size():
            saver = checkpointer(case.folder, zoo=Cage(case, case.saved))
            assert len(list(saver.steps("xx", until=1))) == 1
            saver.close()


def load_all(cases: list[Case]) -> list[str]:
    """Act: load all that a world of this size loads; what came back wrong on this rank."""
    wrong = []
    for case in cases:
        for layout in case.loaded:
            if layout.ranks == dist.get_world_size():
                wrong += _load(case, layout)
    return wrong


def _load(case: Case, layout: Layout) -> list[str]:
    cage = Cage(case, layout)
    expected = cage.bits()
    cage.spoil()
    loader = checkpointer(case.folder, zoo=cage)
    assert next(iter(loader.steps(itertools.count())))[0] == 2, "the step after the one that was saved"
    loader.close()
    found = cage.bits()
    return [f"{case}: {name} under {layout}" for name in expected if found.get(name) != expected[name]]
