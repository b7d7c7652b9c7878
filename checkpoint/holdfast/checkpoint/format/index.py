"""The index: where in a checkpoint's files every piece of state lies.

It says the same as the `.metadata` of torch.distributed.checkpoint, in JSON: restoring needs no pickle.
A tensor is a set of chunks, each a box of it; its payload is the raw, contiguous, little-endian content.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import product
from math import prod
from typing import Annotated

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Damaged, Malformed
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.format.manifest import Count, FileName, Manifest

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


class Listing(msgspec.Struct, frozen=True):
    """What lies where in one rank's file, by name, and how the names are nested."""

    entries: dict[str, Stored]
    paths: dict[str, tuple[str | int, ...]]


def merge(listings: Iterable[Listing]) -> Index:
    """One index of all parts. Raises SaveFailed when ranks disagree on a tensor or miss some of it."""
    entries: dict[str, Stored] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for listing in listings:
        paths.update(listing.paths)
        for name, added in listing.entries.items():
            known = entries.get(name)
            if known is None:
                entries[name] = added
                continue
            if not isinstance(known, StoredTensor) or not isinstance(added, StoredTensor):
                raise SaveFailed(f"{name} is a tensor on one rank and something else on another")
            if (known.dtype, known.shape) != (added.dtype, added.shape):
                theirs, ours = f"{known.dtype}{list(known.shape)}", f"{added.dtype}{list(added.shape)}"
                raise SaveFailed(f"{name} is {theirs} on one rank and {ours} on another")
            entries[name] = msgspec.structs.replace(known, chunks=known.chunks + added.chunks)
    missing = find_gap(entries)
    if missing is not None:
        raise SaveFailed(f"the chunks that the ranks hold of {missing} do not add up to the whole tensor")
    return Index(entries=entries, paths=paths)


# Whether an index says of a checkpoint's files what they can hold.
#
# Every element of a tensor is in one chunk, every byte of a file in one archive at most, and every payload in its
# archive. So nothing is made up, nothing is read twice, and what a restore takes is bounded by what was stored.


ITEM_BYTES: Mapping[str, int] = {
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 8),
    **dict.fromkeys(("float32", "int32", "uint32", "complex32", "qint32"), 4),
    **dict.fromkeys(("bfloat16", "float16", "int16", "uint16"), 2),
    "complex128": 16,
}
"""By torch's name. Of any other dtype an element has one byte at the least."""

_SPLIT_MAX = 8  # In so many dimensions may a tensor be split: no mesh of devices has as many.


def require_whole(found: Index, manifest: Manifest) -> None:
    """Raises Damaged when the index contradicts itself or the files, with the name of an entry."""
    gap = find_gap(found.entries)
    if gap is not None:
        raise Damaged(f"the chunks of {gap} are not the whole tensor, each element once")
    spans: dict[str, list[tuple[int, int, str]]] = {}
    for name, stored in found.entries.items():
        for each in stored.chunks if isinstance(stored, StoredTensor) else (stored,):
            end = each.start + each.length_bytes
            record = manifest.files.get(each.file)
            if record is None or each.file == FILE_NAME:
                raise Damaged(
                    f"{name} is said to be in {each.file}, which is no file of the checkpoint that holds state"
                )
            if end > record.size_bytes:
                raise Damaged(f"{name} would end at {end}, beyond the end of {each.file}")
            if isinstance(stored, StoredTensor) and isinstance(each, StoredChunk):
                size = each.box.volume * ITEM_BYTES.get(stored.dtype, 1)
                if not each.start <= each.payload <= end - size:
                    raise Damaged(
                        f"{name} has a payload of {size} bytes at {each.payload}, which is not in its archive"
                    )
            spans.setdefault(each.file, []).append((each.start, end, name))
    for file, those in spans.items():
        reached, before = 0, ""
        for start, end, name in sorted(those):
            if start < reached:
                raise Damaged(f"{before} and {name} lie in the same bytes of {file}")
            reached, before = end, name


def find_gap(entries: Mapping[str, Stored]) -> str | None:
    """The name of a tensor whose chunks are not the whole of it, each element once; None when all are."""
    for name, stored in entries.items():
        if isinstance(stored, StoredTensor) and not _is_tiled(stored.shape, [each.box for each in stored.chunks]):
            return name
    return None


def _is_tiled(shape: Sequence[int], boxes: Sequence[Box]) -> bool:
    """Whether every element is in exactly one box."""
    dimensions = range(len(shape))
    for box in boxes:
        if len(box.offsets) != len(shape) or len(box.sizes) != len(shape):
            return False
        if any(end > size for end, size in zip(box.ends, shape, strict=True)):
            return False
    filled = [box for box in boxes if box.volume]
    if not prod(shape) or len(filled) == 1:
        return len(filled) == bool(prod(shape)) and all(box.sizes == tuple(shape) for box in filled)
    split = [each for each in dimensions if any(box.sizes[each] != shape[each] for box in filled)]
    if len(split) > _SPLIT_MAX:
        return False
    # Boxes fill a box once when their corners, those of an end counted against those of a start, are its corners:
    # the mixed derivative of "how often is this element filled" is then that of 1 inside and 0 outside.
    corners: Counter[tuple[int, ...]] = Counter()
    for box in filled:
        for corner, sign in _corners([box.offsets[each] for each in split], [box.ends[each] for each in split]):
            corners[corner] += sign
    for corner, sign in _corners([0] * len(split), [shape[each] for each in split]):
        corners[corner] -= sign
    return not any(corners.values())


def _corners(starts: Sequence[int], ends: Sequence[int]) -> Iterator[tuple[tuple[int, ...], int]]:
    """Each corner, and 1 or -1 by the number of ends in it."""
    edges = [((start, 1), (end, -1)) for start, end in zip(starts, ends, strict=True)]
    for corner in product(*edges):
        yield tuple(place for place, _ in corner), prod(sign for _, sign in corner)
