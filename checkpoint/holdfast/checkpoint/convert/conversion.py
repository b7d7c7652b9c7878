"""From one format to another, one tensor at a time: no more memory is taken than twice the largest tensor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from enum import StrEnum
from pathlib import Path

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.convert.content import Contents, Source
from holdfast.checkpoint.convert.folder import write_dcp, write_holdfast
from holdfast.checkpoint.convert.safetensorsfile import write_safetensors
from holdfast.checkpoint.convert.torchfile import write_torch


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
