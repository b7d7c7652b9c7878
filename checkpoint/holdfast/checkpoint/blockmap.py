"""The blocks of all files of a checkpoint, numbered through, and the small entries in them."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from holdfast.checkpoint import index
from holdfast.checkpoint.index import Stored, StoredTensor
from holdfast.checkpoint.manifest import BLOCK_BYTES, Manifest

SMALL_BYTES = 64 << 10  # Larger than a step counter or a learning rate by far, and not worth a block of its own.


class Small(NamedTuple):
    """A small entry's bytes."""

    file: str
    start: int
    length_bytes: int


class BlockMap:
    """Numbers are the same on every rank that has the same manifest and index. The index itself is not among them:
    every rank has read it already.
    """

    def __init__(self, manifest: Manifest, entries: Mapping[str, Stored]) -> None:
        self._files = sorted(file for file in manifest.files if file != index.FILE_NAME)
        counts = [len(manifest.files[file].blocks) for file in self._files]
        self._firsts = [0, *accumulate(counts)]
        self._first_of = dict(zip(self._files, self._firsts, strict=False))
        self.smalls = sorted(
            each for stored in entries.values() for each in _smalls(stored) if each.file in self._first_of
        )
        self.small_numbers = {small: number for number, small in enumerate(self.smalls)}

    @property
    def count(self) -> int:
        return self._firsts[-1]

    def locate(self, block: int) -> tuple[str, int]:
        """The file, and which of its blocks it is."""
        place = bisect_right(self._firsts, block) - 1
        while self._firsts[place + 1] == block:  # A file of no blocks.
            place += 1
        return self._files[place], block - self._firsts[place]

    def span(self, file: str, start: int, end: int) -> range:
        """The blocks in which these bytes of the file lie."""
        first = self._first_of[file]
        return range(first + start // BLOCK_BYTES, first + -(-end // BLOCK_BYTES))

    def blocks_of(self, small: Small) -> range:
        return self.span(small.file, small.start, small.start + small.length_bytes)

    def bounds(self, block: int) -> tuple[int, int]:
        """The bytes of its file that it may hold."""
        _, number = self.locate(block)
        return number * BLOCK_BYTES, (number + 1) * BLOCK_BYTES


def _smalls(stored: Stored) -> Iterator[Small]:
    if not isinstance(stored, StoredTensor):
        if stored.length_bytes <= SMALL_BYTES:
            yield Small(stored.file, stored.start, stored.length_bytes)
        return
    dtype = getattr(torch, stored.dtype, None)
    for chunk in stored.chunks:
        size = prod(chunk.box.sizes) * dtype.itemsize if isinstance(dtype, torch.dtype) else 0
        if 0 < size <= SMALL_BYTES:
            yield Small(chunk.file, chunk.payload, size)
