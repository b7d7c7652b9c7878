"""The blocks of all files of a checkpoint, numbered through, and which bytes of which a rank wants where."""

from bisect import bisect_right
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from math import prod
from typing import NamedTuple

import torch

from holdfast.checkpoint.format import index
from holdfast.checkpoint.format.files import PARTS_MAX
from holdfast.checkpoint.format.index import Stored, StoredTensor
from holdfast.checkpoint.format.manifest import BLOCK_BYTES, Manifest
from holdfast.checkpoint.restore.duties import Demand, runs
from holdfast.checkpoint.restore.strip import Bytes, Strip, Target, cut

SMALL_BYTES = 64 << 10  # Larger than a step counter or a learning rate by far, and not worth a block of its own.


class Small(NamedTuple):
    """A small entry's bytes."""

    file: str
    start: int
    length_bytes: int


class BlockMap:
    """The blocks, and the small entries in them. Numbers are the same on every rank that has the same manifest and
    index. The index itself is not among them: every rank has read it already.
    """

    def __init__(self, manifest: Manifest, entries: Mapping[str, Stored]) -> None:
        self._files = sorted(file for file in manifest.files if file != index.FILE_NAME)
        counts = [len(manifest.files[file].blocks) for file in self._files]
        self._firsts = [0, *accumulate(counts)]
        self.count = self._firsts[-1]
        self._first_of = dict(zip(self._files, self._firsts, strict=False))
        self.smalls = sorted(
            each for stored in entries.values() for each in _smalls(stored) if each.file in self._first_of
        )
        self.small_numbers = {small: number for number, small in enumerate(self.smalls)}

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


class Wants:
    """Collected with `add`, then put to use block by block."""

    def __init__(self, map: BlockMap) -> None:
        self._map = map
        self._pieces: dict[int, list[tuple[Target, Strip]]] = {}
        self._sizes: dict[int, int] = {}
        self._small: dict[int, list[tuple[Target, Strip]]] = {}
        self._targets: list[Target] = []
        self.needed_bytes = 0

    def add(self, target: Target, strips: Iterable[tuple[str, Strip]]) -> None:
        """Each strip with its file."""
        self._targets.append(target)
        for file, strip in strips:
            self.needed_bytes += strip.size_bytes
            key = Small(file, strip.start, strip.row_bytes)
            small = self._map.small_numbers.get(key) if strip.rows == 1 else None
            if small is None:
                self._cut(target, file, strip)
            else:
                self._small.setdefault(small, []).append((target, strip))

    def demand(self, host: str) -> Demand:
        """What the other ranks have to know of it."""
        bulk = (block for block, size in self._sizes.items() if 2 * size >= BLOCK_BYTES)
        return Demand(host=host, blocks=runs(self._sizes), bulk=runs(bulk), smalls=runs(self._small))

    def settle(self, common: Iterable[int]) -> None:
        """All small entries but the `common` ones come with their blocks."""
        is_common = frozenset(common)
        for number in [number for number in self._small if number not in is_common]:
            for target, strip in self._small.pop(number):
                self._cut(target, self._map.smalls[number].file, strip)

    def put(self, block: int, content: Bytes) -> None:
        """The block is there, and verified."""
        base, _ = self._map.bounds(block)
        for target, strip in self._pieces.get(block, ()):
            target.put(strip, content, base)

    def landing(self, block: int, beside: memoryview) -> list[memoryview] | None:
        """Where each byte of the block belongs, in order, so that it can be read in place; None where that takes
        more than it saves. `beside` is as long as the block: what belongs nowhere, or is common, goes to its own
        place there.
        """
        pieces = sorted(self._pieces.get(block, ()), key=lambda piece: piece[1].start)
        if len(pieces) >= PARTS_MAX // 2 or 2 * self._sizes.get(block, 0) < beside.nbytes:
            return None
        done, _ = base, _ = self._map.bounds(block)
        found = []
        for target, strip in pieces:
            memory = target.memory(strip)
            if memory is None or strip.start < done:
                return None
            found += [beside[done - base : strip.start - base], memory]
            done = strip.end
        return [part for part in (*found, beside[done - base :]) if part.nbytes]

    def put_small(self, number: int, content: Bytes) -> None:
        """A common small entry is there."""
        for target, strip in self._small.get(number, ()):
            target.put(strip, content, strip.start)

    def finish(self) -> None:
        """Everything was put."""
        for target in self._targets:
            target.finish()

    def _cut(self, target: Target, file: str, strip: Strip) -> None:
        for block in self._map.span(file, strip.start, strip.end):
            for piece in cut(strip, *self._map.bounds(block)):
                self._pieces.setdefault(block, []).append((target, piece))
                self._sizes[block] = self._sizes.get(block, 0) + piece.size_bytes
