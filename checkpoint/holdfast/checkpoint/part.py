"""One rank's file of a checkpoint, and how the parts of all ranks become one index."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from holdfast.checkpoint.coverage import find_gap
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.index import Index, Stored, StoredTensor
from holdfast.checkpoint.manifest import FileRecord
from holdfast.checkpoint.snapshot import Snapshot
from holdfast.checkpoint.storage import Storage


class Listing(msgspec.Struct, frozen=True):
    """What lies where in one rank's file, by name, and how the names are nested."""

    entries: dict[str, Stored]
    paths: dict[str, tuple[str | int, ...]]


class Part(msgspec.Struct, frozen=True, tag="part"):
    """What one rank wrote. `listing` is its `Listing`, packed: from save to save it is nearly always the same.
    `healthy` is as in `Snapshot`.
    """

    file: str
    record: FileRecord
    listing: bytes
    healthy: bool | None = None


_LISTINGS = msgspec.msgpack.Decoder(Listing)


def write_part(storage: Storage, folder: str, snapshot: Snapshot) -> Part:
    """Write the snapshot's file, durably. Raises OSError."""
    storage.make(folder)
    record = storage.write(f"{folder}/{snapshot.file}", [snapshot.image])
    listing = Listing(entries=dict(snapshot.entries), paths=dict(snapshot.paths))
    return Part(file=snapshot.file, record=record, listing=pack(listing), healthy=snapshot.healthy)


def pack(listing: Listing) -> bytes:
    return msgspec.msgpack.encode(listing)


def unpack(listing: bytes) -> Listing:
    return _LISTINGS.decode(listing)


def merge(listings: Iterable[Listing]) -> Index:
    """One index of all parts. Raises SaveFailed when ranks disagree on a tensor or miss some of it."""
    entries: dict[str, Stored] = {}
    paths: dict[str, tuple[str | int, ...]] = {}
    for listing in listings:
        paths.update(listing.paths)
        for name, stored in listing.entries.items():
            entries[name] = _join(name, entries.get(name), stored)
    missing = find_gap(entries)
    if missing is not None:
        raise SaveFailed(f"the chunks that the ranks hold of {missing} do not add up to the whole tensor")
    return Index(entries=entries, paths=paths)


def are_finite(parts: Sequence[Part]) -> bool | None:
    """Whether every rank that could tell was finite, None when none could. Of a pipeline only the last stage has a
    loss.
    """
    said = {part.healthy for part in parts} - {None}
    return all(said) if said else None


def records(parts: Sequence[Part]) -> Mapping[str, FileRecord]:
    return {part.file: part.record for part in parts}


def _join(name: str, known: Stored | None, added: Stored) -> Stored:
    if known is None:
        return added
    if not isinstance(known, StoredTensor) or not isinstance(added, StoredTensor):
        raise SaveFailed(f"{name} is a tensor on one rank and something else on another")
    if (known.dtype, known.shape) != (added.dtype, added.shape):
        theirs, ours = f"{known.dtype}{list(known.shape)}", f"{added.dtype}{list(added.shape)}"
        raise SaveFailed(f"{name} is {theirs} on one rank and {ours} on another")
    return msgspec.structs.replace(known, chunks=known.chunks + added.chunks)
