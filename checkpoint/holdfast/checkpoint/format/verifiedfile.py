"""Reading stored files so that no byte is used before the block it lies in matched its hash."""

import logging
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Protocol

from holdfast.api.errors import Damaged
from holdfast.checkpoint.format.files import OpenFile, Readable, Scattering
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, FileRecord, is_hash_of

_LOG = logging.getLogger(__name__)


class BlockSource(Protocol):
    """Another place that may hold a block: snapshots in the memory of some node."""

    def fetch(self, block_hash: str) -> bytes | None:
        """The block of that hash, None when nobody has it or can tell now. Never raises, and takes no longer than
        a few seconds. What it gives is verified by the asker.
        """


class NoSource:
    """There is no other place."""

    def fetch(self, block_hash: str) -> None:
        """Nobody has it."""


@dataclass(slots=True)
class Tally:
    """What a restore cost one rank, in bytes: `needed` of its state, `read` from storage, `received` from other
    ranks (over the network, not through memory they share). `healed` names the blocks that came from elsewhere.
    """

    needed: int = 0
    read: int = 0
    received: int = 0
    healed: list[str] = field(default_factory=list)

    def add(self, other: "Tally") -> None:
        self.needed += other.needed
        self.read += other.read
        self.received += other.received
        self.healed += other.healed


class VerifiedFile:
    """One file of a checkpoint."""

    def __init__(self, files: Readable, name: str, record: FileRecord) -> None:
        self._files = files
        self.name = name
        self.record = record
        self._kept: tuple[int, memoryview] | None = None  # neighbours are read one after the other

    @contextmanager
    def opened(self) -> Iterator[OpenFile]:
        """For `load`. Raises Damaged when there is no such file."""
        try:
            file = self._files.open(self.name)
        except FileNotFoundError as error:
            raise Damaged(f"{self.name} is missing") from error
        try:
            yield file
        finally:
            file.close()

    def read(self, offset: int, length_bytes: int, blocks: BlockSource | None = None) -> bytearray:
        """A damaged block is had from `blocks`, where they have it. Raises Damaged when the bytes are not those
        that were written, or beyond the end of the file, and OSError when they cannot be read now.
        """
        end = offset + length_bytes
        if offset < 0 or end > self.record.size_bytes:
            raise Damaged(f"{self.name} ends at {self.record.size_bytes}, bytes up to {end} are asked for")
        found = bytearray()
        for number in range(offset // BLOCK_BYTES, -(-end // BLOCK_BYTES)):
            start = number * BLOCK_BYTES
            if self._kept is None or self._kept[0] != number:
                memory = memoryview(bytearray(self.size_of(number)))
                with self.opened() as file:
                    self.load(file, number, memory, blocks or NoSource(), Tally())
                self._kept = (number, memory)
            found += self._kept[1][max(offset - start, 0) : end - start]
        return found

    def size_of(self, number: int) -> int:
        """How long the block is, in bytes."""
        return min(BLOCK_BYTES, self.record.size_bytes - number * BLOCK_BYTES)

    def load(self, file: OpenFile, number: int, memory: memoryview, blocks: BlockSource, tally: Tally) -> None:
        """Fill `memory`, which is as long as the block, with the verified block. Raises as `read` does."""
        tally.read += file.read_into(number * BLOCK_BYTES, memory)
        self.verify(number, [memory], blocks, tally)

    def load_across(
        self, file: Scattering, number: int, parts: Sequence[memoryview], blocks: BlockSource, tally: Tally
    ) -> None:
        """As `load`, into memory in several pieces, which are as long together."""
        tally.read += file.read_across(number * BLOCK_BYTES, parts)
        self.verify(number, parts, blocks, tally)

    def verify(self, number: int, parts: Sequence[memoryview], blocks: BlockSource, tally: Tally) -> None:
        """See that `parts` hold the block; when they do not, have the block from elsewhere. The file itself
        stays as it is. Raises Damaged when nobody has it.
        """
        wanted = self.record.blocks[number]
        if is_hash_of(wanted, parts):
            return
        found = blocks.fetch(wanted)
        if found is None or not is_hash_of(wanted, [memoryview(found)]):
            raise Damaged(f"{self.name} differs from what was written, in the block at {number * BLOCK_BYTES}")
        for part in parts:
            part[:], found = found[: part.nbytes], found[part.nbytes :]
        tally.healed.append(f"{self.name} at {number * BLOCK_BYTES}")
        _LOG.warning("damaged block had from elsewhere file=%s offset=%d", self.name, number * BLOCK_BYTES)
