"""What the machine itself can do, by all ranks at once: the limits that saves and loads are held against."""

import ctypes
import mmap
import os
import time
from pathlib import Path
from typing import Final

from saves.ranks import Crew
from saves.subject import Subject

CHUNK_BYTES: Final = 8 << 20
_PAGE_BYTES: Final = 4096


class Limits:
    """One rank's part: a warm segment of shared memory and a file as large as what the rank holds."""

    def __init__(self, crew: Crew, subject: Subject, folder: Path) -> None:
        self._crew = crew
        self._sources = [(each.to_local().data_ptr(), each.to_local().nbytes) for _, each in subject.tensors()]
        self._tensors = [each for _, each in subject.tensors()]  # Keeps what is pointed to.
        self._size = -(-subject.held_bytes // _PAGE_BYTES) * _PAGE_BYTES
        segment = Path(f"/dev/shm/holdfast-bench-{os.getpid()}")
        descriptor = os.open(segment, os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600)
        try:
            os.ftruncate(descriptor, self._size)
            self._memory = mmap.mmap(descriptor, self._size)
        finally:
            os.close(descriptor)
            segment.unlink()
        self._view = memoryview(self._memory)
        self._address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        self._file = folder / f"raw-{crew.rank}"

    def copy(self) -> float:
        """Seconds for everything into warm shared memory."""
        self._copy()  # Touches the pages, and warms what the measured one reads.
        self._crew.meet()
        began = time.perf_counter()
        self._copy()
        return self._crew.worst(time.perf_counter() - began)

    def write(self) -> float:
        """Seconds for everything to disk past the page cache, durable."""
        self._file.unlink(missing_ok=True)
        self._crew.meet()
        began = time.perf_counter()
        descriptor = os.open(self._file, os.O_WRONLY | os.O_CREAT | os.O_DIRECT, 0o600)
        try:
            os.posix_fallocate(descriptor, 0, self._size)
            for start in range(0, self._size, CHUNK_BYTES):
                os.pwrite(descriptor, self._view[start : start + CHUNK_BYTES], start)
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        return self._crew.worst(time.perf_counter() - began)

    def read_warm(self) -> float:
        """Seconds for everything from the page cache into warm memory. `write` comes first."""
        warm([self._file])
        return self._read(os.O_RDONLY)

    def read_cold(self) -> float:
        """Seconds for everything from the disk. `write` comes first."""
        chill([self._file])
        return self._read(os.O_RDONLY | os.O_DIRECT)

    def _copy(self) -> None:
        target = self._address
        for source, length in self._sources:
            ctypes.memmove(target, source, length)
            target += length

    def _read(self, flags: int) -> float:
        self._crew.meet()
        began = time.perf_counter()
        descriptor = os.open(self._file, flags)
        try:
            for start in range(0, self._size, CHUNK_BYTES):
                os.preadv(descriptor, [self._view[start : start + CHUNK_BYTES]], start)
        finally:
            os.close(descriptor)
        return self._crew.worst(time.perf_counter() - began)


def warm(files: list[Path]) -> None:
    """Bring files into the page cache."""
    buffer = bytearray(CHUNK_BYTES)
    for file in files:
        with file.open("rb", buffering=0) as opened:
            while opened.readinto(buffer):
                pass


def chill(files: list[Path]) -> None:
    """Have files dropped from the page cache; they must be durable."""
    for file in files:
        descriptor = os.open(file, os.O_RDONLY)
        try:
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)
