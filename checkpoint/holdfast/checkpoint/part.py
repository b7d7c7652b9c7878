"""One rank's file of a checkpoint, and how the parts of all ranks become one index."""

from collections.abc import Mapping, Sequence, Set

import msgspec

from holdfast.checkpoint.claims import ChunkKey
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.index import Index, Stored, StoredChunk, StoredObject, StoredTensor, find_gap
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.snapshot import Slot, Snapshot, cut, padded_bytes
from holdfast.checkpoint.storage import Storage


class Part(msgspec.Struct, frozen=True, tag="part"):
    """What one rank wrote, and where in its file."""

    file: str
    record: FileRecord
    entries: dict[str, Stored]
    paths: dict[str, tuple[str | int, ...]]


def write_part(storage: Storage, folder: str, snapshot: Snapshot, *, rank: int, share: Set[ChunkKey]) -> Part:
    """Write those of the snapshot's chunks that are in `share`, durably. Raises OSError."""
    file = f"__{rank}_0.distcp"
    slots = [slot for slot in snapshot.slots if (slot.name, slot.box.offsets) in share]
    objects = {name: packed for name, packed in snapshot.objects.items() if (name, ()) in share}
    entries, end = _place_tensors(file, slots)
    for name, packed in objects.items():
        entries[name] = StoredObject(file=file, start=end, length_bytes=len(packed))
        end += len(packed)
    content = cut(snapshot, slots) + [memoryview(packed) for packed in objects.values()]
    storage.make(folder)
    record = storage.write(f"{folder}/{file}", content)
    return Part(file=file, record=record, entries=entries, paths=dict(snapshot.paths))


def merge(parts: Sequence[Part]) -> Index:
    """One index of all parts. Raises SaveFailed when ranks disagree on a tensor or miss some of it."""
    entries: dict[str, Stored] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for part in parts:
        paths.update(part.paths)
        for name, stored in part.entries.items():
            entries[name] = _join(name, entries.get(name), stored)
    missing = find_gap(entries)
    if missing is not None:
        raise SaveFailed(f"the chunks that the ranks hold of {missing} do not add up to the whole tensor")
    return Index(entries=entries, paths=paths)


def records(parts: Sequence[Part]) -> Mapping[str, FileRecord]:
    return {part.file: part.record for part in parts}


def _place_tensors(file: str, slots: Sequence[Slot]) -> tuple[dict[str, Stored], int]:
    entries: dict[str, Stored] = {}
    start = 0
    for slot in slots:
        chunk = StoredChunk(
            file=file,
            start=start,
            length_bytes=slot.length_bytes,
            payload=start + slot.payload - slot.start,
            box=slot.box,
        )
        dtype = str(slot.dtype).removeprefix("torch.")
        entries[slot.name] = StoredTensor(dtype=dtype, shape=slot.shape, chunks=(chunk,))
        start += padded_bytes(slot.length_bytes)
    return entries, start


def _join(name: str, known: Stored | None, added: Stored) -> Stored:
    if known is None:
        return added
    if not isinstance(known, StoredTensor) or not isinstance(added, StoredTensor):
        raise SaveFailed(f"{name} is a tensor on one rank and something else on another")
    if (known.dtype, known.shape) != (added.dtype, added.shape):
        theirs, ours = f"{known.dtype}{list(known.shape)}", f"{added.dtype}{list(added.shape)}"
        raise SaveFailed(f"{name} is {theirs} on one rank and {ours} on another")
    return msgspec.structs.replace(known, chunks=known.chunks + added.chunks)
