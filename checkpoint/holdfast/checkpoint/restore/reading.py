"""Reading what all ranks want of one checkpoint, each block once, and putting it where it belongs.

Memory stays bounded: two blocks for what a rank reads alone, and the slots of the `blockpool`.
"""

import logging
import mmap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

import numpy as np
from msgspec.structs import replace

from holdfast.api.errors import Damaged
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.format.files import Scattering
from holdfast.checkpoint.format.manifest import BLOCK_BYTES
from holdfast.checkpoint.format.verifiedfile import BlockSource, Tally
from holdfast.checkpoint.restore.blockpool import SLOTS, BlockPool
from holdfast.checkpoint.restore.blocks import BlockMap, Wants
from holdfast.checkpoint.restore.duties import Demand, Duties, Wave, share_out
from holdfast.checkpoint.restore.stored import StoredCheckpoint
from holdfast.checkpoint.restore.strip import Bytes

_LOG = logging.getLogger(__name__)

_THREADS = 2  # One hashes and copies while the other waits for the storage.
_RUN_BLOCKS = 8  # So many are read with one open file, and fetched ahead.
_SAID_BYTES = 1 << 20  # By each rank at a time, so that what is heard at once stays small.

_Slots = dict[tuple[int, int], memoryview]  # By block and rank.


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
        words = np.concatenate(pinned).tobytes() if pinned else b""
        heard = [bytearray() for _ in range(group.world_size)]
        start = 0
        while group.any(start < len(words)):
            for whole, part in zip(heard, group.exchange(words[start : start + _SAID_BYTES]), strict=True):
                whole += part
            start += _SAID_BYTES
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


class FailedElsewhere(Exception):
    """Another rank could not read what it was to read, and says why."""


def read_together(
    checkpoint: StoredCheckpoint, group: SaveGroup, wants: Wants, demands: Sequence[Demand], blocks: BlockSource
) -> tuple[Tally, Exception | None]:
    """Fill the targets of `wants`. Collective; `demands` are those of all ranks. Returns what it cost, and None
    when the targets are filled on all ranks, otherwise why not: Damaged, an OSError or FailedElsewhere.
    """
    smalls = [checkpoint.map.blocks_of(small) for small in checkpoint.map.smalls]
    share = partial(share_out, blocks=checkpoint.map.count, smalls=smalls, slots=SLOTS)
    duties, pool = share(demands), None
    if duties.waves:
        try:
            pool = BlockPool.open(group, [demand.host for demand in demands])
        except OSError as error:  # On every rank alike: then each is a host of its own.
            _LOG.warning("every rank restores in memory of its own, which takes longer reason=%s", error)
            hosts = [str(rank) for rank in range(len(demands))]
            duties = share([replace(demand, host=host) for demand, host in zip(demands, hosts, strict=True)])
            pool = BlockPool.open(group, hosts)
    wants.settle(duties.common)
    reading = _Reading(checkpoint, group, wants, duties, blocks)
    with ThreadPoolExecutor(_THREADS, thread_name_prefix="holdfast-restore") as threads:
        reading.read(pool, threads)
    total = Tally(needed=wants.needed_bytes)
    for tally in reading.tallies:
        total.add(tally)
    return total, reading.error


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
        self.tallies: list[Tally] = []
        self.error: Exception | None = None

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
        runs = iter(tuple(self._runs(self._duties.alone(self._group.rank))))  # Each thread takes what is next.

        def work(tally: Tally) -> None:
            memory = memoryview(mmap.mmap(-1, BLOCK_BYTES))
            for run in runs:
                if self.error is not None:
                    return
                self._load(run, [memory] * len(run), tally, is_put=True)

        for each in [threads.submit(work, self._open_tally()) for _ in range(_THREADS)]:
            each.result()

    def _read_waves(self, pool: BlockPool, threads: ThreadPoolExecutor) -> bool:
        """False when it failed on any rank."""
        waves = self._duties.waves
        slots = self._slots(pool, 0)
        ahead = self._read_wave(threads, waves[0], slots)
        for number, wave in enumerate(waves):
            ahead.result()
            self._transfer(wave, slots)
            if self._has_failed():
                return False
            there = slots
            # All ranks have put the wave before this one to use: its half may be filled again.
            if number + 1 < len(waves):
                slots = self._slots(pool, number + 1)
                ahead = self._read_wave(threads, waves[number + 1], slots)
            for (block, _), content in there.items():
                array = np.frombuffer(content, dtype=np.uint8)
                self._wants.put(block, array)
                self._small.pin(block, array)
        return True

    def _slots(self, pool: BlockPool, number: int) -> _Slots:
        """Where the blocks of a wave are on this host, if anybody here needs them, by block and carrier."""
        found: _Slots = {}
        taken: Counter[int] = Counter()
        for each in self._duties.waves[number]:
            file, place = self._checkpoint.locate(each.block)
            for rank in filter(pool.is_near, each.carriers):
                found[each.block, rank] = pool.slot(rank, number % 2, taken[rank])[: file.size_of(place)]
                taken[rank] += 1
        return found

    def _read_wave(self, threads: ThreadPoolExecutor, wave: Wave, slots: _Slots) -> "Future[None]":
        """Begin to read this rank's blocks of the wave."""
        rank = self._group.rank
        own = [each.block for each in wave if rank == each.reader or rank in each.rereaders]

        def work(tally: Tally) -> None:
            for run in self._runs(own):
                self._load(run, [slots[block, rank] for block in run], tally, is_put=False)

        return threads.submit(work, self._open_tally())

    def _load(self, run: Sequence[int], memories: Sequence[memoryview], tally: Tally, *, is_put: bool) -> None:
        """Read adjacent blocks of one file, and put them to use or leave them in memory."""
        file, first = self._checkpoint.locate(run[0])
        try:
            with file.opened() as source:
                scattering = source if isinstance(source, Scattering) else None
                source.expect(first * BLOCK_BYTES, len(run) * BLOCK_BYTES)
                for number, (block, memory) in enumerate(zip(run, memories, strict=True), start=first):
                    content = memory[: file.size_of(number)]
                    # Where it belongs, at once where that is possible.
                    landing = self._wants.landing(block, content) if is_put and scattering else None
                    if scattering is not None and landing is not None:
                        file.load_across(scattering, number, landing, self._blocks, tally)
                    else:
                        file.load(source, number, content, self._blocks, tally)
                    if is_put:
                        array = np.frombuffer(content, dtype=np.uint8)
                        if landing is None:
                            self._wants.put(block, array)
                        self._small.pin(block, array)
        except (Damaged, OSError) as error:
            # Its frames would keep the blocks' memory, while the next candidate needs as much again.
            self.error = error.with_traceback(None)

    def _transfer(self, wave: Wave, slots: _Slots) -> None:
        """Send and receive what goes from host to host."""
        group, tally = self._group, self._open_tally()
        received = [each for each in wave if group.rank in each.receivers]
        works = [
            group.receive(slots[each.block, group.rank], source=each.reader, tag=each.block) for each in received
        ]
        for each in wave:
            if each.reader == group.rank:
                content = slots[each.block, group.rank]
                works += [group.send(content, to=rank, tag=each.block) for rank in each.receivers]
        for work in works:
            work.wait()
        for each in received:
            content = slots[each.block, group.rank]
            file, number = self._checkpoint.locate(each.block)
            tally.received += content.nbytes
            try:
                file.verify(number, [content], self._blocks, tally)
            except Damaged as damage:
                self.error = damage.with_traceback(None)

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
        self.tallies.append(Tally())
        return self.tallies[-1]
