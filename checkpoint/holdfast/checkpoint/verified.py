"""Reading stored files so that no byte is used before the block it lies in matched its hash."""

from holdfast.api.errors import Damaged
from holdfast.checkpoint.manifest import BLOCK_BYTES, FileRecord, hash_block
from holdfast.checkpoint.storage import Files


class VerifiedFile:
    """One file of a checkpoint. The last block is kept, since neighbours are read one after the other."""

    def __init__(self, files: Files, name: str, record: FileRecord) -> None:
        self._files = files
        self._name = name
        self._record = record
        self._verified: set[int] = set()
        self._block: tuple[int, bytes] = (-1, b"")

    def read(self, offset: int, length_bytes: int) -> bytearray:
        """Raises Damaged when the bytes are not those that were written, or beyond the end of the file, and
        OSError when they cannot be read now.
        """
        end = offset + length_bytes
        if offset < 0 or end > self._record.size_bytes:
            raise Damaged(f"{self._name} ends at {self._record.size_bytes}, bytes up to {end} are asked for")
        found = bytearray()
        for number in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            found += memoryview(self._verify(number))[max(offset - start, 0) : end - start]
        return found

    def verify_rest(self) -> None:
        """Look at every block that was not read yet. Raises as `read` does."""
        for number in range(len(self._record.blocks)):
            if number not in self._verified:
                self._verify(number)

    def _verify(self, number: int) -> bytes:
        if self._block[0] == number:
            return self._block[1]
        try:
            block = self._files.read(self._name, number * BLOCK_BYTES, BLOCK_BYTES)
        except FileNotFoundError as error:
            raise Damaged(f"{self._name} is missing") from error
        if hash_block(block) != self._record.blocks[number]:
            raise Damaged(f"{self._name} differs from what was written, in the block at {number * BLOCK_BYTES}")
        self._verified.add(number)
        self._block = (number, block)
        return block
