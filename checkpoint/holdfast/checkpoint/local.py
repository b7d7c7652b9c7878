"""Checkpoints in a folder of a file system, shared by all ranks."""

import errno
import fcntl
import os
import shutil
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from urllib.parse import unquote, urlsplit

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.commit import FolderCommits
from holdfast.checkpoint.filewriter import write_file
from holdfast.checkpoint.manifest import FileRecord, hashing_with
from holdfast.checkpoint.openfile import LocalFile
from holdfast.checkpoint.signing import NO_KEYS, Keyring

_LOCK_NAME = "fence.lock"
_REMOVALS = 20  # Of one folder: a rank of a round that is over may still put its last few files there.


def parse_uri(uri: str) -> Path:
    """The folder that `file:///absolute/path` or a plain path names.

    Raises InvalidInput for every other kind of uri.
    """
    if "://" not in uri:
        return Path(uri).absolute()
    parts = urlsplit(uri)
    if parts.scheme == "file" and parts.netloc in ("", "localhost") and parts.path.startswith("/"):
        return Path(unquote(parts.path))
    fix = "write file:///absolute/path or a plain path on a volume that every rank sees"
    raise InvalidInput(Problem(field="checkpoint.uri", value=uri, fix=fix))


class LocalStorage:
    """A `Storage` below one folder. The folder is created with the first `make`."""

    def __init__(self, root: Path, keys: Keyring = NO_KEYS) -> None:
        self._root = root
        self.keys = keys

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    @property
    def commits(self) -> FolderCommits:
        return FolderCommits(self)

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        return write_file(self._root / name, parts, hashing_with(self.keys))

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        descriptor = os.open(self._root / name, os.O_RDONLY)
        try:
            found = os.pread(descriptor, length_bytes, offset)
            while len(found) < length_bytes:
                more = os.pread(descriptor, length_bytes - len(found), offset + len(found))
                if not more:
                    break
                found += more
            return found
        finally:
            os.close(descriptor)

    def open(self, name: str) -> LocalFile:
        return LocalFile(self._root / name)

    def size_bytes(self, name: str) -> int:
        return (self._root / name).stat().st_size

    def modified_at(self, name: str) -> float:
        return (self._root / name).stat().st_mtime

    def names(self, folder: str = "") -> list[str]:
        try:
            return sorted(os.listdir(self._root / folder))
        except FileNotFoundError:
            return []

    def free_bytes(self) -> int:
        return shutil.disk_usage(self._root).free

    def make(self, folder: str = "") -> None:
        """Above the root it is durable at once; below, `sync` and `rename` see to it."""
        missing = [each for each in (self._root, *self._root.parents) if not each.exists()]
        os.makedirs(self._root / folder, exist_ok=True)
        for made in missing:
            _sync(made.parent)

    def rename(self, source: str, target: str) -> None:
        os.rename(self._root / source, self._root / target)

    def remove(self, folder: str) -> None:
        for tries_left in reversed(range(_REMOVALS)):
            try:
                shutil.rmtree(self._root / folder)
            except FileNotFoundError:
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise
            else:
                return

    def sync(self, folder: str = "") -> None:
        _sync(self._root / folder)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        descriptor = os.open(self._root / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # Closing gives the lock back, also when the process dies.


def _sync(folder: Path) -> None:
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
