"""Where the kernel's messages are read from: its device, or a file that a syslog daemon writes."""

import errno
import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Protocol

from holdfast.agent.kernelrecord import KernelRecord, parse_line, parse_record

DEVICE: Final = "/dev/kmsg"
# The kernel refuses to give a record to a smaller buffer than it needs, which is 8 KiB at most.
_RECORD_BYTES: Final = 16384
_FILE_BYTES: Final = 1 << 14  # per look: 160 KB a second
_LINE_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class Place:
    """How far a source has been read: a record's sequence, or a file's inode and an offset in it."""

    position: int
    file: int = 0


@dataclass(frozen=True, slots=True)
class Found:
    """One look. `lost` records were overwritten unread; `ended`: there was nothing more to read."""

    records: tuple[KernelRecord, ...] = ()
    lost: int = 0
    ended: bool = True


class KernelSource(Protocol):
    """Never waits. Opened on the first look; after an OSError the next look tries anew."""

    place: Place | None
    """How far it has been read; set before the first look, that look goes on from there."""

    @property
    def path(self) -> str: ...

    def look(self, most: int) -> Found:
        """What came since the last look, `most` records at most. Raises OSError."""
        ...

    def close(self) -> None: ...


class KernelDevice:
    """The kernel's own device: holds what its ring buffer holds, from the boot on."""

    def __init__(self, path: str = DEVICE, *, read: Callable[[int, int], bytes] = os.read) -> None:
        self.path = path
        self.place: Place | None = None
        self._read = read
        self._descriptor: int | None = None

    def look(self, most: int) -> Found:
        """With a place from an earlier run, what came after it. Without, everything there is."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        records: list[KernelRecord] = []
        lost, ended = 0, False
        for _ in range(most):
            record = self._next(self._descriptor)
            if record is None:
                ended = True
                break
            if isinstance(record, _Overrun) or record.sequence is None:
                continue  # how many were overwritten is told by the next one's sequence
            if self.place is not None:
                if record.sequence <= self.place.position:
                    continue
                lost += record.sequence - self.place.position - 1
            self.place = Place(record.sequence)
            records.append(record)
        return Found(tuple(records), lost, ended)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _next(self, descriptor: int) -> "KernelRecord | _Overrun | None":
        try:
            raw = self._read(descriptor, _RECORD_BYTES)
        except BlockingIOError:
            return None
        except OSError as error:
            if error.errno == errno.EPIPE:
                return _Overrun()
            self.close()
            raise
        return (parse_record(raw) or KernelRecord("")) if raw else None


class _Overrun:
    """The kernel has overwritten the record that was to be read next."""


class LogFile:
    """A log file. What was in it before the first look of a boot is not told, as its age is Unknown."""

    def __init__(self, path: str) -> None:
        self.path = path
        self.place: Place | None = None
        self._descriptor: int | None = None
        self._offset = 0
        self._inode = 0
        self._partial = b""

    def look(self, most: int) -> Found:
        if self._descriptor is None:
            self._open()
        found = self._chunk()
        if not found and self._was_replaced():
            self.close()
            self.place = Place(0, os.stat(self.path).st_ino)
            return Found(ended=False)
        *lines, self._partial = (self._partial + found).split(b"\n")
        if len(self._partial) > _LINE_BYTES_MAX:
            self._partial = b"\0"  # no message is that long, and its rest is none either
        self._offset += len(found)
        self.place = Place(self._offset - len(self._partial), self._inode)
        records = (parse_line(line) for line in lines)
        return Found(tuple(record for record in records if record is not None), ended=len(found) < _FILE_BYTES)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None

    def _open(self) -> None:
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            at = status.st_size
            if self.place is not None:
                at = self.place.position if self.place.file == status.st_ino else 0
            self._offset = at if at <= status.st_size else 0
            os.lseek(descriptor, self._offset, os.SEEK_SET)
        except OSError:
            os.close(descriptor)
            raise
        self._descriptor, self._inode, self._partial = descriptor, status.st_ino, b""

    def _chunk(self) -> bytes:
        assert self._descriptor is not None
        try:
            return os.read(self._descriptor, _FILE_BYTES)
        except OSError:
            self.close()
            raise

    def _was_replaced(self) -> bool:
        """Whether another file has taken its place, or it was cut."""
        try:
            status = os.stat(self.path)
        except FileNotFoundError:
            return False  # between the two steps of a rotation
        return status.st_ino != self._inode or status.st_size < self._offset


def source_at(path: str) -> KernelSource:
    """The device where `path` is one, else a log file."""
    try:
        is_device = stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        is_device = path == DEVICE
    return KernelDevice(path) if is_device else LogFile(path)
