"""The bytes of checkpoints, as the rest of the library sees them: files by name, below one root.

Names are relative, with `/` between a folder and a file. Every method raises OSError when the storage fails.
"""

from collections.abc import Sequence
from contextlib import AbstractContextManager
from typing import Protocol, runtime_checkable

from holdfast.checkpoint.format.manifest import FileRecord, Keyring

PARTS_MAX = 1024  # Source: UIO_MAXIOV, linux/include/uapi/linux/uio.h


class Readable(Protocol):
    """What a checkpoint can be restored from."""

    def open(self, name: str) -> "OpenFile":
        """The file, to be read piece by piece into memory that is there already: fresh memory for every piece
        would cost more than reading it from the page cache. Raises FileNotFoundError when there is none, at the
        latest when it is read.
        """


class Files(Readable, Protocol):
    """The bytes. Object stores can do all of it."""

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        """Store `parts` one after the other, replacing what was there; durable on return, but for the name until
        its folder is synced. The record is of the bytes that were given to the storage.
        """

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        """What is stored there; shorter than asked for at the end of the file."""

    def size_bytes(self, name: str) -> int:
        """The file's size. Raises FileNotFoundError when there is none."""

    def names(self, folder: str = "") -> list[str]:
        """What the folder holds, sorted. Empty when there is no such folder."""

    def free_bytes(self) -> int:
        """How much can still be written."""

    def modified_at(self, name: str) -> float:
        """When it was stored: Unix time in seconds, by the clock of the storage."""

    @property
    def keys(self) -> Keyring:
        """What its manifests are signed with. The records of `write` have the hashes that go with them."""


class Folders(Protocol):
    """Files by folder. Where there are no folders, most of this is nothing."""

    def make(self, folder: str = "") -> None:
        """Create the folder unless it exists; several ranks may at once."""

    def remove(self, folder: str) -> None:
        """Delete a folder with its files; one that is gone already is fine."""

    def sync(self, folder: str = "") -> None:
        """Make the folder's list of names durable."""


class Tree(Files, Folders, Protocol):
    """A file system: what makes a change of folders atomic."""

    @property
    def uri(self) -> str: ...

    def rename(self, source: str, target: str) -> None:
        """Atomic for readers; durable after `sync`. Raises FileExistsError or OSError on a full target."""

    def exclusive(self) -> AbstractContextManager[None]:
        """Hold the root against every other process that asks for the same."""


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
