"""Reading an object piece by piece, several pieces at once: a store answers late, and many requests at a time."""

from concurrent.futures import Executor, Future

from holdfast.checkpoint.manifest import BLOCK_BYTES
from holdfast.checkpoint.objects.bucket import Bucket


class ObjectFile:
    """An `OpenFile`. What is expected is fetched by `readers`, a block at a time, and kept until it is read."""

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
