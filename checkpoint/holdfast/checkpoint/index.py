"""The index: where in a checkpoint's files every piece of state lies.

It says the same as the `.metadata` of torch.distributed.checkpoint, in JSON: restoring needs no pickle.
A tensor is a set of chunks, each a box of it; its payload is the raw, contiguous, little-endian content.
"""

from math import prod
from typing import Annotated

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.manifest import Count, FileName

FILE_NAME = "index.json"
BYTES_MAX = 1 << 32  # Some ten million chunks.
_NESTED_MAX = 64
_DIMENSIONS_MAX = 64  # NumPy and torch take as many. Source: NPY_MAXDIMS, numpy/core/include/numpy/ndarraytypes.h

_Sizes = Annotated[tuple[Count, ...], msgspec.Meta(max_length=_DIMENSIONS_MAX)]
Path = Annotated[tuple[str | Count, ...], msgspec.Meta(min_length=1, max_length=_NESTED_MAX)]


class Box(msgspec.Struct, frozen=True):
    """A block of a tensor: where it starts and how far it reaches, per dimension."""

    offsets: _Sizes
    sizes: _Sizes

    @property
    def volume(self) -> int:
        return prod(self.sizes)

    def overlap(self, other: "Box") -> "Box | None":
        """The box both have in common, None when they have nothing in common."""
        starts = tuple(map(max, self.offsets, other.offsets))
        ends = tuple(map(min, self.ends, other.ends))
        sizes = tuple(end - start for start, end in zip(starts, ends, strict=True))
        return None if any(size <= 0 for size in sizes) else Box(offsets=starts, sizes=sizes)

    def within(self, other: "Box") -> tuple[slice, ...]:
        """The slices that cut this box out of `other`, which contains it."""
        starts = [mine - its for mine, its in zip(self.offsets, other.offsets, strict=True)]
        return tuple(slice(start, start + size) for start, size in zip(starts, self.sizes, strict=True))

    def rows_of(self, other: "Box") -> "Box":
        """The part of `other`, which contains this box, that has the same extent in the first dimension."""
        return Box(offsets=self.offsets[:1] + other.offsets[1:], sizes=self.sizes[:1] + other.sizes[1:])

    @property
    def first(self) -> int:
        """Where it starts in the first dimension; a scalar starts at 0."""
        return self.offsets[0] if self.offsets else 0

    @property
    def rows(self) -> int:
        """How far it reaches in the first dimension; a scalar is one row."""
        return self.sizes[0] if self.sizes else 1

    @property
    def ends(self) -> tuple[int, ...]:
        return tuple(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))


class StoredChunk(msgspec.Struct, frozen=True):
    """One box of a tensor in a file: a torch archive from `start`, whose payload begins at `payload`."""

    file: FileName
    start: Count
    length_bytes: Count
    payload: Count
    box: Box


class StoredTensor(msgspec.Struct, frozen=True, tag="tensor"):
    """A tensor of the checkpoint. `dtype` is torch's name for it, without `torch.`."""

    dtype: str
    shape: _Sizes
    chunks: tuple[StoredChunk, ...]


class StoredObject(msgspec.Struct, frozen=True, tag="object"):
    """Anything else, as a torch archive that loads with `weights_only`."""

    file: FileName
    start: Count
    length_bytes: Count


Stored = StoredTensor | StoredObject


class Index(msgspec.Struct, frozen=True):
    """All of it. `paths` says how each flat name is nested, as torch.distributed.checkpoint wants to know."""

    entries: dict[str, Stored]
    paths: dict[str, Path]


def encode(index: Index) -> bytes:
    return msgspec.json.encode(index)


def decode(document: bytes) -> Index:
    """Raises Damaged when the bytes are no index."""
    try:
        return decode_json(document, Index)
    except Malformed as error:
        raise Damaged(f"the index cannot be read: {error}") from error
