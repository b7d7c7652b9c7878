"""From one format to another, one tensor at a time: no more memory is taken than twice the largest tensor."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

from holdfast.checkpoint.convert.content import Source
from holdfast.checkpoint.convert.dcptarget import write_dcp, write_holdfast
from holdfast.checkpoint.convert.safetensorstarget import write_safetensors
from holdfast.checkpoint.convert.selection import Selection
from holdfast.checkpoint.convert.torchtarget import write_torch


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
