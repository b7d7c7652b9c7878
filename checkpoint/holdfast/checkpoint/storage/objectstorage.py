"""Checkpoints in a bucket, as a `Storage`."""

import sys
from collections.abc import Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor

from holdfast.checkpoint.format.manifest import BLOCK_BYTES, NO_KEYS, FileRecord, Keyring, hashing_with, record_of
from holdfast.checkpoint.storage.bucket import Bucket, read
from holdfast.checkpoint.storage.journal import JournalCommits


class ObjectFile:
    """An `OpenFile`: a store answers late, and many requests at a time. What is expected is fetched by `readers`,
    a block at a time, and kept until it is read.
    """

    def __init__(self, bucket: Bucket, name: str, readers: Executor) -> None:
        """Raises FileNotFoundError when there is no such object."""
        self._bucket = bucket
        self._name = name
        self._readers = readers
        self._size = bucket.size_bytes(name)
        self._ahead: dict[tuple[int, int], Future[bytes]] = {}

    def read_into(self, offset: int, memory: memoryview) -> int:
        end = min(offset + memory.nbytes, self._size)
        if offset >= end:
            return 0
        under_way = self._ahead.pop((offset, end), None)
        found = under_way.result() if under_way is not None else self._bucket.part(self._name, offset, end)
        memory[: len(found)] = found
        return len(found)

    def expect(self, offset: int, length_bytes: int) -> None:
        last = min(offset + length_bytes, self._size)
        for start in range(offset, last, BLOCK_BYTES):
            piece = start, min(start + BLOCK_BYTES, last)
            if piece not in self._ahead:
                self._ahead[piece] = self._readers.submit(self._bucket.part, self._name, *piece)

    def close(self) -> None:
        for under_way in self._ahead.values():
            under_way.cancel()
        self._ahead.clear()


_PARTS_AT_ONCE = 16  # The answer to each comes some tens of milliseconds after its request.


class ObjectStorage:
    """A file is an object; at the root only those folders show that are checkpoints."""

    def __init__(self, bucket: Bucket, keys: Keyring = NO_KEYS) -> None:
        self._bucket = bucket
        self.uri = bucket.uri
        self.keys = keys
        self._readers = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="holdfast-objects")
        self.commits = JournalCommits(bucket, self)

    def write(self, name: str, parts: Sequence[memoryview]) -> FileRecord:
        self._bucket.put(name, parts)
        return record_of(parts, hashing_with(self.keys))

    def read(self, name: str, offset: int, length_bytes: int) -> bytes:
        return read(self._bucket, name, offset, length_bytes)

    def open(self, name: str) -> ObjectFile:
        return ObjectFile(self._bucket, name, self._readers)

    def size_bytes(self, name: str) -> int:
        return self._bucket.size_bytes(name)

    def modified_at(self, name: str) -> float:
        return self._bucket.modified_at(name)

    def names(self, folder: str = "") -> list[str]:
        return self._bucket.names(folder) if folder else self.commits.names()

    def free_bytes(self) -> int:
        """A store takes what is paid for."""
        return sys.maxsize

    def make(self, folder: str = "") -> None:
        """A folder is there as soon as something is in it."""

    def remove(self, folder: str) -> None:
        self.commits.discard(folder)

    def sync(self, folder: str = "") -> None:
        """What was put is durable, and its name as well."""
