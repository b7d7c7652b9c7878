"""One rank's file of a checkpoint, and how the parts of all ranks become one index."""

import errno
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from enum import StrEnum

import msgspec

from holdfast.api.errors import Damaged, Fenced
from holdfast.checkpoint.capture.image import Snapshot
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import Found, discover
from holdfast.checkpoint.commit.retention import Retention, Writer, descent
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.format import archive, index, manifest
from holdfast.checkpoint.format.files import keys_of
from holdfast.checkpoint.format.index import Index, Stored, StoredTensor, find_gap
from holdfast.checkpoint.format.manifest import FileRecord, Manifest


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


def all_finite(parts: Sequence[Part]) -> bool | None:
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


# Making one snapshot of all ranks durable and committed.
#
# Every rank writes its share as one file, then tells rank 0 what is in it. Rank
# 0 adds the index, stock torch's `.metadata` and, last of all, the manifest, and commits. A failure of any rank
# is told in place of its part, so that every rank hears the same outcome and nothing is committed.


_LOG = logging.getLogger(__name__)


class SavePoint(StrEnum):
    """The places of a save where a death makes a difference."""

    STAGED = "staged"
    FILE_WRITTEN = "file-written"
    MANIFEST_WRITTEN = "manifest-written"
    BEFORE_RENAME = "before-rename"
    AFTER_RENAME = "after-rename"


Reached = Callable[[SavePoint], object]


class Outcome(StrEnum):
    GRANTED = "Granted"
    COMMITTED = "Committed"
    FAILED = "Failed"
    FENCED = "Fenced"


class Lineage(msgspec.Struct, frozen=True):
    """Whose checkpoints these are: the round, the step it had restored, and a token no other process has."""

    round: int
    parent: int | None
    token: str


class _Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Said in place of a `Part`."""

    reason: str


class _Verdict(msgspec.Struct, frozen=True):
    """Rank 0's last word on a save."""

    outcome: Outcome
    reason: str = ""
    name: str = ""


_PARTS = msgspec.msgpack.Decoder(Part | _Failure)
_VERDICTS = msgspec.msgpack.Decoder(_Verdict)
_SIZES = msgspec.msgpack.Decoder(int)


class Persister:
    """Saves one snapshot after the other. All ranks call `save` alike, each from one thread.

    `retention` is asked before each tidying, since what is verified changes. `stored` is called on rank 0 after
    each with what stays of the history that goes on, newest first, and the newest step saved so far (None: none).
    """

    def __init__(
        self,
        storage: Storage,
        group: SaveGroup,
        lineage: Lineage,
        *,
        retention: Callable[[], Retention],
        reached: Reached,
        stored: Callable[[Sequence[Found], int | None], object] = lambda line, saved: None,
    ) -> None:
        self._storage = storage
        self._group = group
        self._lineage = lineage
        self._retention = retention
        self._reached = reached
        self._stored = stored
        self._saved: int | None = None
        self._attempts = 0
        self._description = Description()

    def save(self, snapshot: Snapshot) -> str:
        """Returns when the snapshot of every rank is committed, with the checkpoint's name.

        Raises SaveFailed, or Fenced when a newer round has taken over, on every rank alike; RuntimeError when
        the ranks cannot talk to each other any more.
        """
        self._attempts += 1
        folder = self._storage.commits.folder(
            snapshot.step, round=self._lineage.round, token=self._lineage.token, attempt=self._attempts
        )
        self._require_room(snapshot.image.nbytes)
        part = self._write(folder, snapshot)
        said = self._group.gather(msgspec.msgpack.encode(part))
        return self._hear(self._conclude(folder, snapshot, said) if self._group.rank == 0 else None).name

    def tidy(self) -> None:
        """Delete the checkpoints that need not be kept, and what failed saves have left. For rank 0, after a save.
        What fails is tried again after the next one.
        """
        try:
            self._clear()
        except (Fenced, Damaged) as error:
            _LOG.warning("old checkpoints not deleted uri=%s reason=%s", self._storage.uri, error)

    def _clear(self) -> None:
        """Raises Fenced, and Damaged when nobody can tell."""
        lineage = self._lineage
        writer = Writer(lineage.round, lineage.parent)
        retention = replace(self._retention(), writer=writer)
        try:
            line: Sequence[Found] = self._storage.commits.retire(
                retention, round=lineage.round, token=lineage.token, need=retention.need
            )
        except OSError as error:
            _LOG.warning("old checkpoints not deleted uri=%s reason=%s", self._storage.uri, error)
            try:
                line = descent(discover(self._storage)[0], writer)  # Some may be gone for all that.
            except OSError:
                return
        self._stored(line, self._saved)

    def _require_room(self, image_bytes: int) -> None:
        """See that the files of all ranks will fit, before the first of them is begun."""
        said = self._group.gather(msgspec.msgpack.encode(image_bytes))
        self._hear(self._find_room(sum(map(_SIZES.decode, said))) if self._group.rank == 0 else None)

    def _find_room(self, needed_bytes: int) -> _Verdict:
        try:
            if self._storage.free_bytes() < needed_bytes:
                self._clear()
            free_bytes = self._storage.free_bytes()
        except Exception as error:  # As in `_write`.
            return self._failed(error)
        if free_bytes < needed_bytes:
            reason = f"the disk is full at {self._storage.uri} ({needed_bytes} bytes needed, {free_bytes} free)"
            return _Verdict(outcome=Outcome.FAILED, reason=reason)
        return _Verdict(outcome=Outcome.GRANTED)

    def _hear(self, verdict: _Verdict | None) -> _Verdict:
        """What rank 0 has decided, raised on every rank where it is an error."""
        heard = _VERDICTS.decode(self._group.broadcast(msgspec.msgpack.encode(verdict)))
        if heard.outcome is Outcome.FENCED:
            raise Fenced(heard.reason)
        if heard.outcome is Outcome.FAILED:
            raise SaveFailed(heard.reason)
        return heard

    def _failed(self, error: Exception) -> _Verdict:
        outcome = Outcome.FENCED if isinstance(error, Fenced) else Outcome.FAILED
        return _Verdict(outcome=outcome, reason=self._explain(error))

    def _write(self, folder: str, snapshot: Snapshot) -> Part | _Failure:
        try:
            part = write_part(self._storage, folder, snapshot)
            self._reached(SavePoint.FILE_WRITTEN)
        except Exception as error:  # Whatever it is, the other ranks wait to be told.
            return _Failure(reason=f"rank {self._group.rank}: {self._explain(error)}")
        return part

    def _conclude(self, folder: str, snapshot: Snapshot, said: Sequence[bytes]) -> _Verdict:
        try:
            self._complete(folder, snapshot, _parts(said))
            self._reached(SavePoint.BEFORE_RENAME)
            name = self._storage.commits.publish(folder, step=snapshot.step, round=self._lineage.round)
            self._saved = snapshot.step
            self._reached(SavePoint.AFTER_RENAME)
        except Exception as error:  # As in `_write`.
            self._discard(folder)
            return self._failed(error)
        return _Verdict(outcome=Outcome.COMMITTED, name=name)

    def _complete(self, folder: str, snapshot: Snapshot, parts: Sequence[Part]) -> None:
        described, healthy = self._description.files(parts), all_finite(parts)
        files = dict(records(parts))
        self._check_sizes(folder, files)
        for name, content in described.items():
            files[name] = self._storage.write(f"{folder}/{name}", [memoryview(content)])
        document = manifest.encode(
            Manifest(
                format=manifest.FORMAT,
                step=snapshot.step,
                round=self._lineage.round,
                parent=self._lineage.parent,
                world_size=self._group.world_size,
                batches=snapshot.batches,
                files=files,
                healthy=healthy,
            ),
            keys_of(self._storage),
        )
        self._storage.write(f"{folder}/{manifest.FILE_NAME}", [memoryview(document)])
        self._storage.sync(folder)
        self._reached(SavePoint.MANIFEST_WRITTEN)

    def _check_sizes(self, folder: str, files: Mapping[str, FileRecord]) -> None:
        """What the other ranks wrote must be here as well, or the directory is not shared."""
        for name, record in files.items():
            size = self._storage.size_bytes(f"{folder}/{name}")
            if size != record.size_bytes:
                raise SaveFailed(f"{folder}/{name} has {size} bytes instead of {record.size_bytes}")

    def _discard(self, folder: str) -> None:
        try:
            self._storage.remove(folder)
        except OSError as error:
            _LOG.warning("unfinished checkpoint not deleted folder=%s reason=%s", folder, error)

    def _explain(self, error: Exception) -> str:
        if isinstance(error, OSError) and error.errno in (errno.ENOSPC, errno.EDQUOT):
            return f"the disk is full at {self._storage.uri} ({self._free()})"
        if isinstance(error, FileNotFoundError):
            return f"{error.filename} is missing; is {self._storage.uri} shared by all ranks?"
        return f"{type(error).__name__}: {error}" if not isinstance(error, SaveFailed | Fenced) else str(error)

    def _free(self) -> str:
        try:
            return f"{self._storage.free_bytes()} bytes free"
        except OSError:
            return "free space unknown"


def _parts(said: Sequence[bytes]) -> list[Part]:
    heard = [_PARTS.decode(each) for each in said]
    failures = [each.reason for each in heard if isinstance(each, _Failure)]
    if failures:
        raise SaveFailed("; ".join(failures))
    return [each for each in heard if isinstance(each, Part)]


# The files that say what a checkpoint holds: the index, and stock torch's `.metadata`.


class Description:
    """Made anew only where it would differ from that of the save before: of many tensors it is a million small
    objects, and Python looks through all that a process holds while they are made.
    """

    def __init__(self) -> None:
        self._listings: tuple[bytes, ...] = ()
        self._files: Mapping[str, bytes] = {}

    def files(self, parts: Sequence[Part]) -> Mapping[str, bytes]:
        """Their content by name. Raises SaveFailed as `merge` does."""
        listings = tuple(part.listing for part in parts)
        if listings != self._listings:
            whole = merge(map(unpack, listings))
            self._files = {
                archive.METADATA_FILE: archive.encode_metadata(whole),
                index.FILE_NAME: index.encode(whole),
            }
            self._listings = listings
        return self._files
