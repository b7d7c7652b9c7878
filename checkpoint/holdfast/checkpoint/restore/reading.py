"""Reading what all ranks want of one checkpoint, each block once, and putting it where it belongs.

Memory stays bounded: two blocks for what a rank reads alone, and the slots of the `blockpool`.
"""

import logging
import mmap
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np

from holdfast.api.errors import Damaged
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format.files import OpenFile, Scattering
from holdfast.checkpoint.format.manifest import BLOCK_BYTES
from holdfast.checkpoint.format.verifiedfile import BlockSource, Tally
from holdfast.checkpoint.restore.blockpool import SLOTS, BlockPool
from holdfast.checkpoint.restore.blocks import BlockMap, Wants
from holdfast.checkpoint.restore.duties import Demand, Duties, Wave, share_out
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.restore.strip import Bytes

_SAID_BYTES = 1 << 20  # By each rank at a time, so that what is heard at once stays small.


class SmallEntries:
    """What is small and needed by several ranks: whoever reads the block it lies in tells all others. Filled with
    `pin` as blocks are read, told with `exchange` once all are.
    """

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

    def exchange(self, group: SaveGroup) -> Iterator[tuple[int, Bytes]]:
        """Every common small entry, once all ranks have pinned theirs. Collective."""
        if not self._common:
            return
        pinned = [self._pinned[place] for place in sorted(self._pinned)]
        heard = _exchange_all(group, np.concatenate(pinned).tobytes() if pinned else b"")
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


def _exchange_all(group: SaveGroup, words: bytes) -> list[bytes]:
    """What every rank says, however much, heard bit by bit."""
    heard = [bytearray() for _ in range(group.world_size)]
    start = 0
    while group.any(start < len(words)):
        for whole, part in zip(heard, group.exchange(words[start : start + _SAID_BYTES]), strict=True):
            whole += part
        start += _SAID_BYTES
    return [bytes(each) for each in heard]


_LOG = logging.getLogger(__name__)

_THREADS = 2  # One hashes and copies while the other waits for the storage.
_RUN_BLOCKS = 8  # So many are read with one open file, and fetched ahead.


class FailedElsewhere(Exception):
    """Another rank could not read what it was to read, and says why."""


def read_together(
    checkpoint: StoredCheckpoint, group: SaveGroup, wants: Wants, demands: Sequence[Demand], blocks: BlockSource
) -> tuple[Tally, Exception | None]:
    """Fill the targets of `wants`. Collective; `demands` are those of all ranks. Returns what it cost, and None
    when the targets are filled on all ranks, otherwise why not: Damaged, an OSError or FailedElsewhere.
    """
    duties, pool = _open_pool(checkpoint, group, demands)
    wants.settle(duties.common)
    reading = _Reading(checkpoint, group, wants, duties, blocks)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-restore") as threads:
        reading.read(pool, threads)
    return reading.tally, reading.error


def _open_pool(
    checkpoint: StoredCheckpoint, group: SaveGroup, demands: Sequence[Demand]
) -> tuple[Duties, BlockPool | None]:
    smalls = [checkpoint.map.blocks_of(small) for small in checkpoint.map.smalls]
    hosts = [demand.host for demand in demands]
    duties = share_out(demands, blocks=checkpoint.map.count, smalls=smalls, slots=SLOTS)
    if not duties.waves:
        return duties, None
    try:
        return duties, BlockPool.open(group, hosts)
    except OSError as error:  # On every rank alike: then each is a host of its own.
        _LOG.warning("every rank restores in memory of its own, which takes longer reason=%s", error)
        hosts = [str(rank) for rank in range(len(demands))]
        apart = [
            Demand(host, each.blocks, each.bulk, each.smalls) for host, each in zip(hosts, demands, strict=True)
        ]
        duties = share_out(apart, blocks=checkpoint.map.count, smalls=smalls, slots=SLOTS)
        return duties, BlockPool.open(group, hosts)


class _Reading:
    """One rank's part in it. What goes wrong is noted and told to the others at the next agreement: a rank that
    just left would have them wait.
    """

    def __init__(
        self, checkpoint: StoredCheckpoint, group: SaveGroup, wants: Wants, duties: Duties, blocks: BlockSource
    ) -> None:
        self._checkpoint = checkpoint
        self._group = group
        self._wants = wants
        self._duties = duties
        self._blocks = blocks
        self._small = SmallEntries(checkpoint.map, duties, group.rank)
        self._tallies: list[Tally] = []
        self.error: Exception | None = None

    @property
    def tally(self) -> Tally:
        """What all threads have read."""
        total = Tally(needed=self._wants.needed_bytes)
        for each in self._tallies:
            total.add(each)
        return total

    def read(self, pool: BlockPool | None, threads: ThreadPoolExecutor) -> None:
        self._read_alone(threads)
        if self._has_failed():
            return
        if pool is not None and not self._read_waves(pool, threads):
            return
        for number, content in self._small.exchange(self._group):
            self._wants.put_small(number, content)
        self._wants.finish()

    def _has_failed(self) -> bool:
        """Whether on any rank. Collective."""
        has_failed = self._group.any(self.error is not None)
        if has_failed and self.error is None:
            self.error = FailedElsewhere()
        return has_failed

    def _read_alone(self, threads: ThreadPoolExecutor) -> None:
        left = deque(self._runs(self._duties.alone(self._group.rank)))

        def work(tally: Tally) -> None:
            memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
            while self.error is None and left:
                try:
                    run = left.popleft()
                except IndexError:  # The other thread was faster.
                    return
                self._load(run, [memory] * len(run), tally, is_put=True)

        for each in [threads.submit(work, self._open_tally()) for _ in range(_THREADS)]:
            each.result()

    def _read_waves(self, pool: BlockPool, threads: ThreadPoolExecutor) -> bool:
        """False when it failed on any rank."""
        waves = self._duties.waves
        ahead = self._read_wave(pool, threads, 0)
        for number, wave in enumerate(waves):
            ahead.result()
            slots = _WaveSlots(pool, wave, number % 2)
            self._transfer(slots)
            if self._has_failed():
                return False
            # All ranks have put the wave before this one to use: its half may be filled again.
            if number + 1 < len(waves):
                ahead = self._read_wave(pool, threads, number + 1)
            for each in wave:
                for carrier in filter(pool.is_near, each.carriers):  # None where nobody on this host needs it.
                    array = np.frombuffer(self._seen(slots, each.block, carrier), dtype=np.uint8)
                    self._wants.put(each.block, array)
                    self._small.pin(each.block, array)
        return True

    def _read_wave(self, pool: BlockPool, threads: ThreadPoolExecutor, number: int) -> "Future[None]":
        """Begin to read this rank's blocks of the wave."""
        slots = _WaveSlots(pool, self._duties.waves[number], number % 2)
        rank = self._group.rank
        own = [each.block for each in slots.wave if rank == each.reader or rank in each.rereaders]

        def work(tally: Tally) -> None:
            for run in self._runs(own):
                memories = [slots.memory(block, rank) for block in run]
                self._load(run, memories, tally, is_put=False)

        return threads.submit(work, self._open_tally())

    def _load(self, run: Sequence[int], memories: Sequence[memoryview], tally: Tally, *, is_put: bool) -> None:
        """Read adjacent blocks of one file, and put them to use or leave them in memory."""
        file, first = self._checkpoint.locate(run[0])
        try:
            with file.opened() as source:
                source.expect(first * BLOCK_BYTES, len(run) * BLOCK_BYTES)
                for offset, (block, memory) in enumerate(zip(run, memories, strict=True)):
                    content = memory[: file.size_of(first + offset)]
                    if is_put:
                        self._land(source, block, content, tally)
                    else:
                        file.load(source, first + offset, content, self._blocks, tally)
        except (Damaged, OSError) as error:
            # Its frames would keep the blocks' memory, while the next candidate needs as much again.
            self.error = error.with_traceback(None)

    def _land(self, source: OpenFile, block: int, beside: memoryview, tally: Tally) -> None:
        """Read a block to where it belongs, at once where that is possible, else from `beside`."""
        file, number = self._checkpoint.locate(block)
        landing = self._wants.landing(block, beside)
        if landing is not None and isinstance(source, Scattering):
            file.load_across(source, number, landing, self._blocks, tally)
        else:
            file.load(source, number, beside, self._blocks, tally)
            self._wants.put(block, np.frombuffer(beside, dtype=np.uint8))
        self._small.pin(block, np.frombuffer(beside, dtype=np.uint8))

    def _transfer(self, slots: "_WaveSlots") -> None:
        """Send and receive what goes from host to host."""
        group, tally = self._group, self._open_tally()
        received = [each for each in slots.wave if group.rank in each.receivers]
        works = [
            group.receive(self._seen(slots, each.block, group.rank), source=each.reader, tag=each.block)
            for each in received
        ]
        for each in slots.wave:
            if each.reader == group.rank:
                content = self._seen(slots, each.block, group.rank)
                works += [group.send(content, to=rank, tag=each.block) for rank in each.receivers]
        for work in works:
            work.wait()
        for each in received:
            content = self._seen(slots, each.block, group.rank)
            file, number = self._checkpoint.locate(each.block)
            tally.received += content.nbytes
            try:
                file.verify(number, [content], self._blocks, tally)
            except Damaged as damage:
                self.error = damage.with_traceback(None)

    def _seen(self, slots: "_WaveSlots", block: int, carrier: int) -> memoryview:
        """The block where its carrier has it."""
        file, number = self._checkpoint.locate(block)
        return slots.memory(block, carrier)[: file.size_of(number)]

    def _runs(self, blocks: Iterable[int]) -> Iterator[list[int]]:
        """Adjacent blocks of one file together, `_RUN_BLOCKS` at the most."""
        run: list[int] = []
        for block in blocks:
            is_next = run and block == run[-1] + 1 and self._checkpoint.locate(block)[1] > 0
            if run and (not is_next or len(run) == _RUN_BLOCKS):
                yield run
                run = []
            run.append(block)
        if run:
            yield run

    def _open_tally(self) -> Tally:
        """One for each thread: they do not add up to each other's."""
        self._tallies.append(Tally())
        return self._tallies[-1]


class _WaveSlots:
    """Where the blocks of a wave are."""

    def __init__(self, pool: BlockPool, wave: Wave, half: int) -> None:
        self.wave = wave
        self._pool = pool
        self._half = half
        self._numbers: dict[tuple[int, int], int] = {}
        taken: dict[int, int] = {}
        for each in wave:
            for rank in each.carriers:
                self._numbers[each.block, rank] = taken.get(rank, 0)
                taken[rank] = taken.get(rank, 0) + 1

    def memory(self, block: int, rank: int) -> memoryview:
        """The slot of the block at a rank of this host."""
        return self._pool.slot(rank, self._half, self._numbers[block, rank])
