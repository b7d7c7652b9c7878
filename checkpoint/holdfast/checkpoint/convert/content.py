"""What a checkpoint of whatever format holds, and the new file or folder that it is written to."""

import os
import secrets
import shutil
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.format.nested import NamePath
from holdfast.checkpoint.storage.local import sync_folder


@dataclass(frozen=True, slots=True)
class Shape:
    """A tensor without its numbers."""

    dtype: torch.dtype
    sizes: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        return self.dtype.itemsize * torch.Size(self.sizes).numel()

    def __str__(self) -> str:
        return f"{str(self.dtype).removeprefix('torch.')}{list(self.sizes)}"


@dataclass(frozen=True, slots=True)
class Origin:
    """How far the training was that the state is of."""

    step: int = 0
    world_size: int = 1
    batches: int = 0


@dataclass(frozen=True, slots=True)
class Contents:
    """Names in their order: `tensors` are dense ones, `objects` all else. `paths` says how names are nested;
    a name that is not in it is not. `remarks` are what a reader should know, one sentence each.
    """

    tensors: Mapping[str, Shape]
    objects: tuple[str, ...] = ()
    paths: Mapping[str, NamePath] = field(default_factory=dict)
    origin: Origin = Origin()
    remarks: tuple[str, ...] = ()

    def path_of(self, name: str) -> NamePath:
        return self.paths.get(name, (name,))


class Source(Protocol):
    """A checkpoint that is read. Its methods raise Damaged when what is stored is not whole, Unfit when an object
    needs code to be loaded, and OSError when it cannot be read now.
    """

    @property
    def contents(self) -> Contents: ...

    def tensor(self, name: str) -> torch.Tensor:
        """The whole tensor, contiguous, in memory that is the caller's only for reading."""

    def value(self, name: str) -> object:
        """Made of plain values and tensors."""


def bytes_of(tensor: torch.Tensor) -> memoryview:
    """The content of a contiguous tensor on the CPU, not copied."""
    if tensor.numel() == 0:
        return memoryview(b"")
    content: Any = tensor.detach().reshape(-1).view(torch.uint8).numpy()  # numpy's stubs do not call it a buffer
    return memoryview(content)


@contextmanager
def fresh(target: Path) -> Iterator[Path]:
    """A path beside `target`, which becomes it when the block ends well and is deleted when it does not.

    A file is to be made durable within the block; its name is on return. Raises InvalidInput when `target` exists,
    before and after the block.
    """
    _refuse(target)
    target.parent.mkdir(parents=True, exist_ok=True)
    unfinished = target.with_name(f".{target.name}.{secrets.token_hex(4)}.new")
    try:
        yield unfinished
        if unfinished.is_dir():
            _refuse(target)
            os.rename(unfinished, target)
        else:
            try:
                os.link(unfinished, target)
            except FileExistsError:
                _refuse(target)
        sync_folder(target.parent)
    finally:
        if unfinished.is_dir():
            shutil.rmtree(unfinished)
        unfinished.unlink(missing_ok=True)


def write_whole(path: Path, content: bytes) -> None:
    """A new file, durable but for its name. Raises OSError."""
    with open(path, "xb") as file:
        file.write(content)
        file.flush()
        os.fsync(file.fileno())


def _refuse(target: Path) -> None:
    if target.exists():
        fix = "it exists and is not overwritten: name another, or delete it first"
        raise InvalidInput(Problem(field="destination", value=str(target), fix=fix))
