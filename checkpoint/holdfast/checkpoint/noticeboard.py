"""What is small and needed by several ranks: whoever reads the block it lies in tells all others."""

from collections.abc import Iterator

import numpy as np

from holdfast.checkpoint.blockmap import BlockMap
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.duties import Duties
from holdfast.checkpoint.target import Bytes

_SAID_BYTES = 1 << 20  # By each rank at a time, so that what is heard at once stays small.


class Noticeboard:
    """Filled with `pin` as blocks are read, told with `exchange` once all are."""

    def __init__(self, map: BlockMap, duties: Duties, rank: int) -> None:
        self._map = map
        self._common = duties.common
        self._readers = duties.readers
        self._rank = rank
        self._by_block: dict[int, list[int]] = {}
        for number in duties.common:
            for block in map.blocks_of(map.smalls[number]):
                if duties.readers[block] == rank:
                    self._by_block.setdefault(block, []).append(number)
        self._pinned: dict[tuple[int, int], Bytes] = {}

    def pin(self, block: int, content: Bytes) -> None:
        """The block is there and verified. What others read is theirs to pin."""
        base, _ = self._map.bounds(block)
        for number in self._by_block.get(block, ()):
            start, end = self._extent(number, block)
            self._pinned[number, block] = content[start - base : end - base].copy()

    def exchange(self, council: Council) -> Iterator[tuple[int, Bytes]]:
        """Every common small entry, once all ranks have pinned theirs. Collective."""
        if not self._common:
            return
        pinned = [self._pinned[place] for place in sorted(self._pinned)]
        heard = _exchange(council, np.concatenate(pinned).tobytes() if pinned else b"")
        done = [0] * len(heard)
        for number in self._common:
            parts = []
            for block in self._map.blocks_of(self._map.smalls[number]):
                reader, (start, end) = self._readers[block], self._extent(number, block)
                parts.append(heard[reader][done[reader] : done[reader] + end - start])
                done[reader] += end - start
            yield number, np.frombuffer(b"".join(parts), dtype=np.uint8)

    def _extent(self, number: int, block: int) -> tuple[int, int]:
        """The bytes of its file that a small entry has in a block."""
        small, (begin, end) = self._map.smalls[number], self._map.bounds(block)
        return max(small.start, begin), min(small.start + small.length_bytes, end)


def _exchange(council: Council, words: bytes) -> list[bytes]:
    """What every rank says, however much, heard bit by bit."""
    heard = [bytearray() for _ in range(council.world_size)]
    start = 0
    while council.any(start < len(words)):
        for whole, part in zip(heard, council.exchange(words[start : start + _SAID_BYTES]), strict=True):
            whole += part
        start += _SAID_BYTES
    return [bytes(each) for each in heard]
