"""Checkpoints in a folder of a file system, shared by all ranks."""

import errno
import fcntl
import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TypeVar
from urllib.parse import unquote, urlsplit

from holdfast.api.errors import InvalidInput, Problem
from holdfast.checkpoint.commit.folder import FolderCommits
from holdfast.checkpoint.format.manifest import NO_KEYS, FileRecord, Keyring, hashing_with
from holdfast.checkpoint.storage.filewriter import write_file

T = TypeVar("T")

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


class LocalFile:
    """A file of a file system, read through the page cache."""

    def __init__(self, path: Path) -> None:
        self._descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)

    def read_into(self, offset: int, memory: memoryview) -> int:
        return self.read_across(offset, [memory])

    def read_across(self, offset: int, parts: Sequence[memoryview]) -> int:
        left, done, wanted = list(parts), 0, sum(part.nbytes for part in parts)
        while done < wanted:
            count = os.preadv(self._descriptor, left, offset + done)
            if count == 0:
                break
            done += count
            if done < wanted:  # The kernel may stop early, also in the middle of a part.
                while count >= left[0].nbytes:
                    count -= left.pop(0).nbytes
                left[0] = left[0][count:]
        return done

    def expect(self, offset: int, length_bytes: int) -> None:
        os.posix_fadvise(self._descriptor, offset, length_bytes, os.POSIX_FADV_WILLNEED)

    def close(self) -> None:
        os.close(self._descriptor)


class LocalStorage:
    """A `Storage` below one folder. The folder is created with the first `make`."""

    def __init__(self, root: Path, keys: Keyring = NO_KEYS) -> None:
        self._root = root
        self.keys = keys
        self.commits = FolderCommits(self)

    @property
    def uri(self) -> str:
        return self._root.as_uri()

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        return write_file(self._root / name, parts, hashing_with(self.keys))

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        with _looked_for(self._root / name, lambda path: open(path, "rb")) as file:
            file.seek(offset)
            return file.read(length_bytes)

    def open(self, name: str) -> LocalFile:
        return _looked_for(self._root / name, LocalFile)

    def size_bytes(self, name: str) -> int:
        return _looked_for(self._root / name, os.stat).st_size

    def modified_at(self, name: str) -> float:
        return _looked_for(self._root / name, os.stat).st_mtime

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
            sync_folder(made.parent)

    def rename(self, source: str, target: str) -> None:
        os.rename(self._root / source, self._root / target)

    def remove(self, folder: str) -> None:
        for tries_left in reversed(range(_REMOVALS)):
            try:
                with suppress(FileNotFoundError):
                    shutil.rmtree(self._root / folder)
                return
            except OSError as error:
                if error.errno != errno.ENOTEMPTY or not tries_left:
                    raise

    def sync(self, folder: str = "") -> None:
        sync_folder(self._root / folder)

    @contextmanager
    def exclusive(self) -> Iterator[None]:
        descriptor = os.open(self._root / _LOCK_NAME, os.O_RDWR | os.O_CREAT, 0o666)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)  # Closing gives the lock back, also when the process dies.


def _looked_for(path: Path, look: Callable[[Path], T]) -> T:
    """What `look` finds there. Raises FileNotFoundError when there is none.

    A network file system remembers for half a minute that a file was not there, though another machine has written
    it since. Once its folder was listed it looks again.
    Source: https://man7.org/linux/man-pages/man5/nfs.5.html (acdirmin, lookupcache)
    """
    try:
        return look(path)
    except FileNotFoundError:
        with suppress(OSError):
            if path.name in os.listdir(path.parent):
                return look(path)
        raise


def sync_folder(folder: Path) -> None:
    """Make the folder's list of names durable. Raises OSError."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
