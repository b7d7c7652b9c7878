"""Checkpoints in a bucket, as a `Storage`."""

import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from holdfast.checkpoint.manifest import FileRecord, hashing_with, record_of
from holdfast.checkpoint.objects.bucket import Bucket, read
from holdfast.checkpoint.objects.journalcommits import JournalCommits
from holdfast.checkpoint.objects.objectfile import ObjectFile
from holdfast.checkpoint.signing import NO_KEYS, Keyring

_PARTS_AT_ONCE = 16  # The answer to each comes some tens of milliseconds after its request.


class ObjectStorage:
    """A file is an object; at the root only those folders show that are checkpoints."""

    def __init__(self, bucket: Bucket, keys: Keyring = NO_KEYS) -> None:
        self._bucket = bucket
        self.keys = keys
        self._readers = ThreadPoolExecutor(_PARTS_AT_ONCE, thread_name_prefix="holdfast-objects")
        self.commits = JournalCommits(bucket, self)

    @property
    def uri(self) -> str:
        return self._bucket.uri

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
