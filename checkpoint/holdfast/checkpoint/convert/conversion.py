"""From one format to another, one tensor at a time: no more memory is taken than twice the largest tensor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.catalogue import catalogue, choose
from holdfast.checkpoint.commit.discovery import committed_step
from holdfast.checkpoint.convert.content import Contents, Origin, Shape, Source
from holdfast.checkpoint.convert.dcp import DcpSource
from holdfast.checkpoint.convert.folder import write_dcp, write_holdfast
from holdfast.checkpoint.convert.safetensorsfile import SafetensorsSource, write_safetensors
from holdfast.checkpoint.convert.torchfile import TorchSource, write_torch
from holdfast.checkpoint.format.archive import METADATA_FILE
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.storage.address import is_local, read_address
from holdfast.checkpoint.storage.local import parse_uri

_SAFETENSORS = ".safetensors"


class HoldfastSource:
    """A checkpoint of ours, every block verified before it is used. Raises Damaged when it cannot be opened."""

    def __init__(self, files: Files, name: str) -> None:
        self.stored = stored = StoredCheckpoint.open(files, name)
        names, manifest = stored.names(), stored.manifest
        self.contents = Contents(
            tensors={name: Shape(*stored.shape_of(name)) for name in names if stored.has_tensor(name)},
            objects=tuple(name for name in names if stored.has_object(name)),
            paths=stored.index.paths,
            origin=Origin(step=manifest.step, world_size=manifest.world_size, batches=manifest.batches),
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self.stored.read_tensor(name)

    def value(self, name: str) -> object:
        return self.stored.read_object(name)


def open_source(uri: str, step: int | None = None) -> Source:
    """A Holdfast directory or object store (its newest checkpoint, or that of `step`) or one `step-…` in it, a
    directory of torch.distributed.checkpoint, a safetensors file or a directory of them, or a file of torch.save.

    Raises InvalidInput when it is none of these, or has no steps to choose from.
    """
    path = parse_uri(uri) if is_local(uri) else None
    names = {each.name for each in path.iterdir()} if path is not None and path.is_dir() else set()
    if path is None or (path.is_dir() and any(committed_step(name) is not None for name in (path.name, *names))):
        address = read_address(uri)
        chosen = choose(catalogue(address.storage).entries, address.narrowed(step))
        return HoldfastSource(address.storage, chosen.name)
    if step is not None:
        fix = f"{uri} is no directory of checkpoints: leave the step out"
        raise InvalidInput(Problem(field="--step", value=step, fix=fix))
    if path.is_file():
        return SafetensorsSource([path]) if path.suffix == _SAFETENSORS else TorchSource(path)
    if not path.is_dir():
        raise InvalidInput(Problem(field="source", value=uri, fix="name a file or directory that exists"))
    if METADATA_FILE in names:
        return DcpSource(path)
    parts = sorted(path / name for name in names if Path(name).suffix == _SAFETENSORS)
    if parts:
        return SafetensorsSource(parts)
    fix = "name a checkpoint of Holdfast or torch.distributed.checkpoint, safetensors, or a file of torch.save"
    raise InvalidInput(Problem(field="source", value=uri, fix=fix))


class Kind(StrEnum):
    """What a checkpoint is converted to."""

    HOLDFAST = "holdfast"
    DCP = "dcp"
    TORCH = "torch"
    SAFETENSORS = "safetensors"


@dataclass(frozen=True, slots=True)
class Converted:
    """What was written; `left_out` are the objects that were to be left out, `remarks` one sentence each."""

    tensors: int
    objects: int
    size_bytes: int
    left_out: tuple[str, ...]
    remarks: tuple[str, ...]


_WRITERS: Mapping[Kind, Callable[[Source, Path], None]] = {
    Kind.HOLDFAST: write_holdfast,
    Kind.DCP: write_dcp,
    Kind.TORCH: write_torch,
    Kind.SAFETENSORS: write_safetensors,
}


def convert(
    source: Source, target: Path, kind: Kind, *, prefix: str = "", tensors_only: bool = False
) -> Converted:
    """Write `source`, or what of it begins with `prefix`, to `target`, which must not exist.

    Nothing is there unless all of it is. Raises InvalidInput when `target` exists, Unfit when the format cannot
    hold it, Damaged when the source is not whole, OSError when a disk fails.
    """
    chosen = Selection(source, prefix=prefix, tensors_only=tensors_only)
    contents = chosen.contents
    _WRITERS[kind](chosen, target)
    return Converted(
        tensors=len(contents.tensors),
        objects=len(contents.objects),
        size_bytes=sum(shape.size_bytes for shape in contents.tensors.values()),
        left_out=chosen.left_out,
        remarks=contents.remarks,
    )


class Selection:
    """What of `source` begins with `prefix`, under names without it, and without objects if `tensors_only`.

    `left_out` are the objects that went for that. Raises InvalidInput when nothing has the prefix.
    """

    def __init__(self, source: Source, *, prefix: str = "", tensors_only: bool = False) -> None:
        self._source = source
        whole = source.contents
        self._names = {
            name.removeprefix(prefix): name for name in (*whole.tensors, *whole.objects) if name.startswith(prefix)
        }
        if not self._names and prefix:
            fix = "nothing begins with that; `holdfast checkpoint show` lists the names"
            raise InvalidInput(Problem(field="--select", value=prefix, fix=fix))
        objects = tuple(name for name, old in self._names.items() if old in set(whole.objects))
        self.left_out = objects if tensors_only else ()
        self.contents: Contents = replace(
            whole,
            tensors={name: whole.tensors[old] for name, old in self._names.items() if old in whole.tensors},
            objects=() if tensors_only else objects,
            paths={name: _without(prefix, old, whole) for name, old in self._names.items()},
        )

    def tensor(self, name: str) -> torch.Tensor:
        return self._source.tensor(self._names[name])

    def value(self, name: str) -> object:
        return self._source.value(self._names[name])


def _without(prefix: str, name: str, contents: Contents) -> tuple[str | int, ...]:
    """The path of `name` below the prefix; flat where the prefix ends within a part of it."""
    path = contents.path_of(name)
    for depth in range(len(path)):
        if "".join(f"{part}." for part in path[:depth]) == prefix and isinstance(path[depth], str):
            return path[depth:]
    return (name.removeprefix(prefix),)
