"""Files that are read piece by piece into memory that is there already.

Fresh memory for every piece would cost more than reading it from the page cache.
"""

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol, runtime_checkable

from holdfast.checkpoint.files import Files

PARTS_MAX = 1024  # Source: UIO_MAXIOV, linux/include/uapi/linux/uio.h


class OpenFile(Protocol):
    """One file, for one thread. Every method raises OSError when the storage fails."""

    def read_into(self, offset: int, memory: memoryview) -> int:
        """Fill `memory` from there; how many bytes there were: fewer than asked for at the end of the file."""

    def expect(self, offset: int, length_bytes: int) -> None:
        """That part is read soon: it may be fetched meanwhile."""

    def close(self) -> None:
        """Nothing more is read."""


@runtime_checkable
class Scattering(Protocol):
    """What an `OpenFile` may offer besides: reading one run of bytes into several pieces of memory at once."""

    def read_across(self, offset: int, parts: Sequence[memoryview]) -> int:
        """Fill `parts`, `PARTS_MAX` at the most, one after the other; returns and raises as `read_into`."""


@runtime_checkable
class Opening(Protocol):
    """What `Files` may offer besides: reading without a copy."""

    def open(self, name: str) -> OpenFile:
        """Raises FileNotFoundError when there is none."""


def open_file(files: Files, name: str) -> OpenFile:
    """Raises FileNotFoundError when there is none, at the latest when it is read."""
    return files.open(name) if isinstance(files, Opening) else _Copied(files, name)


class LocalFile:
    """A file of a file system, read through the page cache."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_into(self, offset: int, memory: memoryview) -> int:
        done = 0
        while done < memory.nbytes:
            count = os.preadv(self._descriptor, [memory[done:]], offset + done)
            if count == 0:
                break
            done += count
        return done

    def read_across(self, offset: int, parts: Sequence[memoryview]) -> int:
        wanted = sum(part.nbytes for part in parts)
        done = os.preadv(self._descriptor, parts, offset)
        while 0 < done < wanted:  # The kernel may stop early, also in the middle of a part.
            count = os.preadv(self._descriptor, _behind(parts, done), offset + done)
            if count == 0:
                break
            done += count
        return done

    def expect(self, offset: int, length_bytes: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        os.close(self._descriptor)


def _behind(parts: Sequence[memoryview], done: int) -> list[memoryview]:
    """What of `parts` lies behind the first `done` bytes."""
    left = []
    for part in parts:
        if done < part.nbytes:
            left.append(part[done:])
        done = max(0, done - part.nbytes)
    return left


class _Copied:
    """For storage that only hands out bytes."""

    def __init__(self, files: Files, name: str) -> None:
        self._files = files
        self._name = name

    def read_into(self, offset: int, memory: memoryview) -> int:
        found = self._files.read(self._name, offset, memory.nbytes)
        memory[: len(found)] = found
        return len(found)

    def expect(self, offset: int, length_bytes: int) -> None:
        """Such storage fetches nothing ahead."""

    def close(self) -> None:
        """Nothing is open."""
