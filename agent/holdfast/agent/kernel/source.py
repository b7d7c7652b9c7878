r"""Where the kernel's messages are read from: its device, or a file that a syslog daemon writes.

The device gives one record a read: `6,339,5140900,-;NVRM: ...`, that is facility and level, sequence,
microseconds on the log's clock, flags; lines after the first are fields of the device model; what is not printable
is written as \xNN. Source: https://docs.kernel.org/admin-guide/abi-testing.html#abi-dev-kmsg

A log file has a line a message, with the stamp of `dmesg` or the head of a syslog daemon, or both.

Whatever a program wrote is left out: into the device it gets the facility of programs, into a syslog the
program's name where the kernel's stands. A line that merely quotes an error is nobody's fault.
"""

import contextlib
import errno
import os
import re
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

# The kernel cuts a record at 1 KiB (8 KiB with fields), and gives none to a smaller buffer than it needs; a longer
# line of a file is no message of the kernel's.
TEXT_CHARACTERS_MAX: Final = 2048
_RECORD_BYTES_MAX: Final = 16384

_HEAD: Final = re.compile(rb"(\d{1,6}),(\d{1,20}),(\d{1,20}),([^,;]{0,8})[^;]{0,200};")
_ESCAPED: Final = re.compile(rb"\\x([0-9a-f]{2})")
_STAMP: Final = r"\[ *(?P<seconds>\d{1,12}\.\d{1,9})\](?:\[ *[TC]\d+\])? "
_DMESG: Final = re.compile(_STAMP + r"(?P<text>.*)")
_DATED: Final = re.compile(r"\[[A-Z][a-z]{2} [A-Z][a-z]{2} +\d{1,2} [\d:]{8} \d{4}\] (?P<text>.*)")
_SYSLOG: Final = re.compile(
    r"(?:<\d{1,3}>)?(?:[A-Z][a-z]{2} +\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT\S{8,30}) \S{1,255} kernel: "
    rf"(?:{_STAMP})?(?P<text>.*)"
)
DEVICE: Final = "/dev/kmsg"
_FILE_BYTES: Final = 1 << 14  # per look: 160 KB a second
_LINE_BYTES_MAX: Final = 1 << 16


@dataclass(frozen=True, slots=True)
class KernelRecord:
    """One message. `said_at_s` is on the kernel log's clock, seconds since boot; None: Unknown.

    `text` is empty where a program, not the kernel, speaks, and where a record only continues another one.
    """

    text: str
    sequence: int | None = None
    said_at_s: float | None = None


def parse_record(record: bytes) -> KernelRecord | None:
    """One read of the device; None when it has not the device's form."""
    head = _HEAD.match(record[:_RECORD_BYTES_MAX])
    if head is None:
        return None
    sequence, said_at_s = int(head[2]), int(head[3]) / 1e6
    of_the_kernel = int(head[1]) >> 3 == 0
    if not of_the_kernel or head[4] == b"+":
        return KernelRecord("", sequence, said_at_s)
    line, _, _fields = record[head.end() :].partition(b"\n")
    whole = _ESCAPED.sub(lambda found: bytes((int(found[1], 16),)), line)[: 4 * TEXT_CHARACTERS_MAX]
    return KernelRecord(whole.decode("utf-8", "replace")[:TEXT_CHARACTERS_MAX], sequence, said_at_s)


def parse_line(line: bytes) -> KernelRecord | None:
    """One line of a log file; None when the kernel did not say it, or too much at once."""
    if len(line) > _RECORD_BYTES_MAX:
        return None
    text = line.rstrip(b"\r\n").decode("utf-8", "replace")
    match = _SYSLOG.fullmatch(text) or _DMESG.fullmatch(text) or _DATED.fullmatch(text)
    if match is None:
        return None
    seconds = match.groupdict().get("seconds")
    said_at_s = None if seconds is None else float(seconds)
    return KernelRecord(match["text"][:TEXT_CHARACTERS_MAX], said_at_s=said_at_s)


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


class KernelDevice:
    """The kernel's own device: holds what its ring buffer holds, from the boot on.

    `place` is how far it has been read, as of a log file; set before the first look, that look goes on from there.
    A look never waits. It raises OSError, and the next one tries anew.
    """

    def __init__(self, path: str = DEVICE, *, read: Callable[[int, int], bytes] = os.read) -> None:
        self.path = path
        self.place: Place | None = None
        self._read = read
        self._descriptor: int | None = None

    def look(self, most: int) -> Found:
        """What came since the last look, `most` records at most; without a place, everything there is."""
        if self._descriptor is None:
            self._descriptor = os.open(self.path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        records: list[KernelRecord] = []
        lost, ended = 0, False
        for _ in range(most):
            try:
                raw = self._read(self._descriptor, _RECORD_BYTES_MAX)
            except BlockingIOError:
                raw = b""
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # how many were overwritten is told by the next one's sequence
                self.close()
                raise
            if not raw:
                ended = True
                break
            record = parse_record(raw)
            if record is None or record.sequence is None:
                continue
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
        assert self._descriptor is not None
        try:
            found = os.read(self._descriptor, _FILE_BYTES)
        except OSError:
            self.close()
            raise
        if not found:
            with contextlib.suppress(FileNotFoundError):  # between the two steps of a rotation
                status = os.stat(self.path)
                if status.st_ino != self._inode or status.st_size < self._offset:
                    self.close()
                    self.place = Place(0, status.st_ino)
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


KernelSource = KernelDevice | LogFile


def source_at(path: str) -> KernelSource:
    """The device where `path` is one, else a log file."""
    try:
        is_device = stat.S_ISCHR(os.stat(path).st_mode)
    except OSError:
        is_device = path == DEVICE
    return KernelDevice(path) if is_device else LogFile(path)
