"""What one rank wants of a checkpoint: which bytes of which blocks belong where."""

from collections.abc import Iterable

from holdfast.checkpoint.blockmap import BlockMap, Small
from holdfast.checkpoint.duties import Demand, runs
from holdfast.checkpoint.manifest import BLOCK_BYTES
from holdfast.checkpoint.openfile import PARTS_MAX
from holdfast.checkpoint.strip import Strip, cut
from holdfast.checkpoint.target import Bytes, Target


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
