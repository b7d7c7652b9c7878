"""Making one snapshot of all ranks durable and committed.

Every rank writes its share as one file, then tells rank 0 what is in it. Rank 0 adds the index, stock torch's
`.metadata` and, last of all, the manifest, and commits. A failure of any rank is told in place of its part, so
that every rank hears the same outcome and nothing is committed.
"""

import logging
from collections.abc import Callable, Mapping, Sequence
from enum import StrEnum

import msgspec

from holdfast.api.checkpoint import all_finite
from holdfast.checkpoint.capture.image import Snapshot
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.commit.discovery import Found
from holdfast.checkpoint.commit.retention import Retention, Writer
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.errors import SaveFailed
from holdfast.checkpoint.format import archive, index, manifest
from holdfast.checkpoint.format.index import Listing, merge
from holdfast.checkpoint.format.manifest import FileRecord, Manifest
from holdfast.checkpoint.save.tidying import Tidying
from holdfast.checkpoint.save.verdict import decide, explained

_LOG = logging.getLogger(__name__)


class SavePoint(StrEnum):
    """The places of a save where a death makes a difference."""

    STAGED = "staged"
    FILE_WRITTEN = "file-written"
    MANIFEST_WRITTEN = "manifest-written"
    BEFORE_RENAME = "before-rename"
    AFTER_RENAME = "after-rename"


Reached = Callable[[SavePoint], object]


class Part(msgspec.Struct, frozen=True, tag="part"):
    """What one rank wrote. `listing` is its `Listing`, packed: from save to save it is nearly always the same.
    `healthy` is as in `Snapshot`.
    """

    file: str
    record: FileRecord
    listing: bytes
    healthy: bool | None = None


class _Failure(msgspec.Struct, frozen=True, tag="failure"):
    """Said in place of a `Part`."""

    reason: str


class Persister:
    """Saves one snapshot after the other. All ranks call `save` alike, each from one thread.

    `retention` is asked before each tidying, since what is verified changes. `stored` is called on rank 0 after
    each with what stays of the history that goes on, newest first, and the newest step saved so far (None: none).
    """

    def __init__(
        self,
        storage: Storage,
        group: SaveGroup,
        writer: Writer,
        *,
        retention: Callable[[], Retention],
        reached: Reached,
        stored: Callable[[Sequence[Found], int | None], object] = lambda line, saved: None,
    ) -> None:
        self._storage = storage
        self._group = group
        self._writer = writer
        self._tidying = Tidying(storage, writer, retention=retention, stored=stored)
        self._reached = reached
        self._attempts = 0
        self._description = Description()

    def save(self, snapshot: Snapshot, enclosures: Mapping[str, bytes] | None = None) -> str:
        """Returns when the snapshot of every rank is committed, with the checkpoint's name. `enclosures` are files
        that rank 0 puts beside it.

        Raises SaveFailed, or Fenced when a newer round has taken over, on every rank alike; RuntimeError when
        the ranks cannot talk to each other any more.
        """
        self._attempts += 1
        folder = self._storage.commits.folder(
            snapshot.step, round=self._writer.round, token=self._writer.token, attempt=self._attempts
        )
        # The files of all ranks must fit, before the first of them is begun.
        sizes = self._group.gather(msgspec.msgpack.encode(snapshot.image.nbytes))
        decide(self._group, self._storage, lambda: self._make_room(sum(map(msgspec.msgpack.decode, sizes))))
        try:  # This rank's file, durable.
            self._storage.make(folder)
            record = self._storage.write(f"{folder}/{snapshot.file}", [snapshot.image])
            listing = Listing(entries=dict(snapshot.entries), paths=dict(snapshot.paths))
            said: Part | _Failure = Part(snapshot.file, record, msgspec.msgpack.encode(listing), snapshot.healthy)
            self._reached(SavePoint.FILE_WRITTEN)
        except Exception as error:  # Whatever it is, the other ranks wait to be told.
            said = _Failure(reason=f"rank {self._group.rank}: {explained(error, self._storage)}")
        parts = self._group.gather(msgspec.msgpack.encode(said))
        return decide(self._group, self._storage, lambda: self._commit(folder, snapshot, parts, enclosures or {}))

    def tidy(self) -> None:
        """As `Tidying.tidy`. For rank 0, after a save."""
        self._tidying.tidy()

    def _make_room(self, needed_bytes: int) -> str:
        if self._storage.free_bytes() < needed_bytes:
            self._tidying.clear()
        free_bytes = self._storage.free_bytes()
        if free_bytes < needed_bytes:
            raise SaveFailed(
                f"the disk is full at {self._storage.uri} ({needed_bytes} bytes needed, {free_bytes} free)"
            )
        return ""

    def _commit(
        self, folder: str, snapshot: Snapshot, said: Sequence[bytes], enclosures: Mapping[str, bytes]
    ) -> str:
        """What every rank has written becomes a checkpoint, whose name is returned; or nothing of it is left."""
        try:
            heard = [msgspec.msgpack.decode(each, type=Part | _Failure) for each in said]
            parts = [each for each in heard if isinstance(each, Part)]
            if len(parts) < len(heard):
                raise SaveFailed("; ".join(each.reason for each in heard if isinstance(each, _Failure)))
            described = self._description.files(parts)
            files = {part.file: part.record for part in parts}
            # What the other ranks wrote must be here as well, or the directory is not shared.
            for name, record in files.items():
                size = self._storage.size_bytes(f"{folder}/{name}")
                if size != record.size_bytes:
                    raise SaveFailed(f"{folder}/{name} has {size} bytes instead of {record.size_bytes}")
            for name, content in {**enclosures, **described}.items():
                files[name] = self._storage.write(f"{folder}/{name}", [memoryview(content)])
            whole = Manifest(
                format=manifest.FORMAT,
                step=snapshot.step,
                round=self._writer.round,
                parent=self._writer.parent,
                world_size=self._group.world_size,
                batches=snapshot.batches,
                files=files,
                healthy=all_finite(part.healthy for part in parts),
            )
            document = manifest.encode(whole, self._storage.keys)
            self._storage.write(f"{folder}/{manifest.FILE_NAME}", [memoryview(document)])
            self._storage.sync(folder)
            self._reached(SavePoint.MANIFEST_WRITTEN)
            self._reached(SavePoint.BEFORE_RENAME)
            committed = self._storage.commits.publish(folder, step=snapshot.step, round=self._writer.round)
            self._tidying.saved = snapshot.step
            self._reached(SavePoint.AFTER_RENAME)
        except Exception:
            try:
                self._storage.remove(folder)
            except OSError as error:
                _LOG.warning("unfinished checkpoint not deleted folder=%s reason=%s", folder, error)
            raise
        return committed


class Description:
    """The files that say what a checkpoint holds: the index, and stock torch's `.metadata`.

    Made anew only where they would differ from those of the save before: of many tensors it is a million small
    objects, and Python looks through all that a process holds while they are made.
    """

    def __init__(self) -> None:
        self._listings: tuple[bytes, ...] = ()
        self._files: Mapping[str, bytes] = {}

    def files(self, parts: Sequence[Part]) -> Mapping[str, bytes]:
        """Their content by name. Raises SaveFailed as `merge` does."""
        listings = tuple(part.listing for part in parts)
        if listings != self._listings:
            whole = merge(msgspec.msgpack.decode(each, type=Listing) for each in listings)
            self._files = {
                archive.METADATA_FILE: archive.encode_metadata(whole),
                index.FILE_NAME: index.encode(whole),
            }
            self._listings = listings
        return self._files
