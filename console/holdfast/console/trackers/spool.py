"""What is to be published of one job, on disk: records in order, kept until every outlet has taken them.

One process appends, others read; nothing is locked. A folder holds segments, each named by the number of its first
record. Beyond `bytes_max` the oldest segment goes, whether or not it was taken: who reads then learns how many
records are lost. A record is a frame with a checksum; a torn one at the end, of a machine that died, is cut off.
"""

import itertools
import os
import zlib
from collections.abc import Iterator
from pathlib import Path
from struct import Struct
from typing import Final

import msgspec

from holdfast.console.trackers.records import Ended, Mark, Note, Record, Row

SEGMENT_BYTES: Final = 4 << 20
_HEAD: Final = Struct("<II")  # length and CRC-32 of the body
_SUFFIX: Final = ".spool"
_BODY_BYTES_MAX: Final = 16 << 20


_ENCODE = msgspec.msgpack.Encoder().encode
_DECODER: msgspec.msgpack.Decoder[Record] = msgspec.msgpack.Decoder(Record)


def _segments(folder: Path) -> list[tuple[int, Path]]:
    found = [(int(path.stem), path) for path in folder.glob(f"*{_SUFFIX}") if path.stem.isdigit()]
    return sorted(found)


def first_record(folder: Path) -> int:
    """The number of the oldest record that is still there; 0 of an empty spool."""
    return next((first for first, _ in _segments(folder)), 0)


def _frames(data: bytes, offset: int = 0) -> Iterator[tuple[Record, int]]:
    """Whole records from `offset` on, each with where it ends; stops at the first that is torn, or not there."""
    while offset + _HEAD.size <= len(data):
        length, checksum = _HEAD.unpack_from(data, offset)
        end = offset + _HEAD.size + length
        if length > _BODY_BYTES_MAX or end > len(data):
            return
        body = data[offset + _HEAD.size : end]
        if zlib.crc32(body) != checksum:
            return
        try:
            record = _DECODER.decode(body)
        except msgspec.DecodeError:
            return
        yield record, end
        offset = end


class SpoolWriter:
    """The one that appends. Opening it cuts off what is torn, and finds the newest `Mark` (`mark`; None: none)."""

    def __init__(self, folder: Path, *, bytes_max: int, segment_bytes: int = SEGMENT_BYTES) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._folder = folder
        self._bytes_max = bytes_max
        self._segment_bytes = min(segment_bytes, max(1, bytes_max // 4))
        self.mark: Mark | None = None
        self.next = 0
        segments = _segments(folder)
        for first, path in segments[-2:]:  # the newest may have been begun and never filled
            data, whole, count = path.read_bytes(), 0, 0
            for record, end in _frames(data):
                whole, count = end, count + 1
                if isinstance(record, Mark):
                    self.mark = record
            if whole < len(data):
                os.truncate(path, whole)
            self.next = first + count
        self._path = segments[-1][1] if segments else self._named(0)
        self._sizes = {path: path.stat().st_size for _, path in segments}

    def _named(self, number: int) -> Path:
        return self._folder / f"{number:016d}{_SUFFIX}"

    def append(self, records: tuple[Row | Note | Ended, ...], mark: Mark) -> None:
        """Add them at once, `mark` last. Raises OSError when the disk takes nothing; nothing is added then."""
        written = bytearray()
        for record in (*records, mark):
            body = _ENCODE(record)
            written += _HEAD.pack(len(body), zlib.crc32(body)) + body
        if self._sizes.get(self._path, 0) >= self._segment_bytes:
            self._path = self._named(self.next)
        self._make_room(len(written))
        before = self._sizes.get(self._path, 0)
        try:
            with self._path.open("ab") as file:
                file.write(written)
                file.flush()
                os.fdatasync(file.fileno())
        except OSError:
            if self._path.exists():
                os.truncate(self._path, before)
            raise
        self._sizes[self._path] = before + len(written)
        self.next += len(records) + 1
        self.mark = mark

    def trim(self, taken: int) -> None:
        """Records before `taken` were taken by everybody: whole segments of them go, never the newest."""
        segments = _segments(self._folder)
        for (_, path), (following, _) in itertools.pairwise(segments):
            if following > taken:
                return
            self._remove(path)

    def _make_room(self, more: int) -> None:
        for _, path in _segments(self._folder):
            if sum(self._sizes.values()) + more <= self._bytes_max or path == self._path:
                return
            self._remove(path)

    def _remove(self, path: Path) -> None:
        path.unlink(missing_ok=True)
        self._sizes.pop(path, None)


class SpoolReader:
    """Reads on from record `number`; `lost` counts those that were gone before they were read."""

    def __init__(self, folder: Path, number: int) -> None:
        self._folder = folder
        self._segment: Path | None = None
        self._offset = 0
        self.next = number
        self.lost = 0

    def read(self, bytes_max: int = SEGMENT_BYTES) -> list[tuple[int, Record]]:
        """Records that are there by now, with their numbers; some of them, where they are many."""
        found: list[tuple[int, Record]] = []
        segments = _segments(self._folder)
        for place, (first, path) in enumerate(segments):
            if place + 1 < len(segments) and segments[place + 1][0] <= self.next:
                continue
            if first > self.next:
                self.lost += first - self.next
                self.next = first
            try:
                data = path.read_bytes()
            except FileNotFoundError:  # it went meanwhile
                return found
            number, offset = (self.next, self._offset) if path == self._segment else (first, 0)
            for record, end in _frames(data, offset):
                if number >= self.next:
                    found.append((number, record))
                    self.next = number + 1
                number, offset = number + 1, end
            self._segment, self._offset = path, offset
            if len(found) and offset >= bytes_max:
                return found
        return found
