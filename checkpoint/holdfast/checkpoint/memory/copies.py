"""Copies of a node's newest snapshots: sent to their keepers in the background, no faster than needed, and
received.
"""

import asyncio
import logging
import shutil
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint.format.manifest import hash_block
from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.nodesnapshots import BufferFile, NodeSnapshots, copy_name
from holdfast.checkpoint.memory.protocol import Channel, Kept, Put, Ready, Refused, Sealed, Which
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer, block_count, capacity_for

_LOG = logging.getLogger(__name__)

HOLD_S = 5.0
"""For how long the rank leaves a buffer alone after the last block that was read of it."""

SENDING_S = 30.0
"""How much longer a sender may be silent: it paces itself, and may wait for another keeper that hangs."""

COPIES_MAX = 2
"""Buffers for each rank that copies are kept of, so that the newest whole one is never overwritten."""

MIB = 1 << 20
# A copy is done when half the time to the next snapshot is over, which leaves room for a slow peer.
_SHARE_OF_INTERVAL = 0.5
_SLOWEST_BYTES_S = 64 * MIB
# How far a bucket may run ahead after a pause: sending waits for whole blocks, not for single bytes.
_BURST_S = 0.05
_CLEARING_BYTES_S = 200e6  # A keeper makes room first: memory is cleared at 1 GB/s, more slowly on a busy node.
_RANKS_MAX = 10**9 - 1  # As many digits as a copy's file name has.
_IMAGE_BYTES_MAX = 1 << 46
_SPARED_BYTES = 64 << 20  # The node's own workers need memory as well, not only for snapshots.


def rate_for(image_bytes: int, interval_s: float | None, ceiling_bytes_s: float) -> float:
    """Bytes a second for one rank's snapshot, when one comes every `interval_s` (None: not known yet), so that
    copies are done in time, and disturb training as little as they can.
    """
    if interval_s is None:
        return ceiling_bytes_s / 4
    wanted = image_bytes / max(interval_s * _SHARE_OF_INTERVAL, 1e-3)
    return min(max(wanted, _SLOWEST_BYTES_S), ceiling_bytes_s)


@dataclass(slots=True)
class Pace:
    """Says how long to wait before the next bytes. `now_s` never goes back."""

    bytes_s: float
    _ready_s: float = 0.0

    def delay_s(self, size_bytes: int, now_s: float) -> float:
        """Account for bytes that are about to be sent; how long to wait before that."""
        start = max(self._ready_s, now_s - _BURST_S)
        self._ready_s = start + size_bytes / self.bytes_s
        return max(start - now_s, 0.0)


@dataclass(slots=True)
class _Newest:
    """A worker's newest snapshot: since when it is known, how long after the one before it came, and who has it.
    `interval_s` None: not known, as of a round's first, which came after whatever kept the job from training.
    `is_doubtful`: it does not match its hashes, and goes to nobody.
    """

    age: tuple[int, int]
    seen_s: float
    interval_s: float | None
    kept_by: set[str] = field(default_factory=set)
    is_doubtful: bool = False


class CopySender:
    """Level-triggered: `poll` starts what is missing now, whatever happened before."""

    def __init__(self, snapshots: NodeSnapshots, *, ceiling_bytes_s: float, patience_s: float) -> None:
        self._snapshots = snapshots
        self._ceiling_bytes_s = ceiling_bytes_s
        self._patience_s = patience_s
        self._running: dict[int, asyncio.Task[None]] = {}
        self._newest: dict[int, _Newest] = {}
        self._paused_until_s: dict[str, float] = {}  # A keeper that failed is left alone for a while.

    def poll(self, now_s: float) -> None:
        """Start on what each worker's newest lacks of hashes and copies, unless it is under way."""
        # Each worker's newest snapshot of those that are to be copied; where none is, its newest.
        found: dict[int, tuple[BufferFile, HeldSnapshot]] = {}
        for file, held in self._snapshots.all():
            if file.slot is not None:
                known = found.setdefault(file.slot, (file, held))
                if held.record.keepers and not known[1].record.keepers:
                    found[file.slot] = (file, held)
        for slot, (file, held) in found.items():
            newest = self._newest.get(slot)
            if newest is None or newest.age != held.record.age:
                is_same_round = newest is not None and newest.age[0] == held.record.round
                interval_s = now_s - newest.seen_s if newest is not None and is_same_round else None
                newest = self._newest[slot] = _Newest(held.record.age, now_s, interval_s)
            keepers = [
                each
                for each in held.record.keepers
                if held.copies < len(held.record.keepers)
                and each not in newest.kept_by
                and self._paused_until_s.get(each, 0) <= now_s
            ]
            if slot in self._running or newest.is_doubtful or (held.blocks is not None and not keepers):
                continue
            sending_bytes = held.record.image_bytes * max(len(keepers), 1)
            rate = rate_for(sending_bytes, newest.interval_s, self._ceiling_bytes_s / len(found))
            task = asyncio.create_task(self._copy(file, held, newest, keepers, Pace(rate)))
            self._running[slot] = task
            task.add_done_callback(partial(self._ended, slot))

    async def stop(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, slot: int, task: asyncio.Task[None]) -> None:
        del self._running[slot]
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a copy failed slot=%d", slot, exc_info=task.exception())

    async def _copy(
        self, file: BufferFile, held: HeldSnapshot, newest: _Newest, keepers: Sequence[str], pace: Pace
    ) -> None:
        buffer, began_s = file.buffer, time.monotonic()
        self._hold(buffer, held)
        answers = await asyncio.gather(*(self._open(each, held) for each in keepers))
        opened = dict(zip(keepers, answers, strict=True))
        newest.kept_by |= {keeper for keeper, peer in opened.items() if isinstance(peer, Kept)}
        sending = {keeper: peer for keeper, peer in opened.items() if isinstance(peer, Channel)}
        peers = list(sending.values())
        try:
            blocks = await self._send(buffer, held, sending, pace)
            if buffer.generation != held.generation:
                return
            if held.blocks is not None and held.blocks != blocks:
                newest.is_doubtful = True
                _LOG.error("a snapshot differs from its hashes and is not copied file=%s", buffer.path)
                return
            buffer.seal(held.generation, blocks)
            ends = [self._end(keeper, peer, blocks) for keeper, peer in sending.items()]
            newest.kept_by |= {keeper for keeper in await asyncio.gather(*ends) if keeper}
        finally:
            for peer in peers:
                peer.close()
            buffer.hold(held.generation, 0.0)
        took_s = time.monotonic() - began_s if sending else 0.0
        buffer.mark_copied(held.generation, len(newest.kept_by), took_s)

    def _hold(self, buffer: SharedBuffer, held: HeldSnapshot) -> None:
        buffer.hold(held.generation, time.monotonic() + HOLD_S + self._patience_s)

    async def _open(self, keeper: str, held: HeldSnapshot) -> Channel | Kept | None:
        """A connection over which `keeper` waits for the image, Kept when it has it, None when it will not."""
        try:
            peer = await protocol.call(keeper, self._snapshots.owner, patience_s=self._patience_s)
            with ExitStack() as closing:
                closing.callback(peer.close)
                await peer.say(Put(held.record))
                idle_s = held.record.image_bytes / _CLEARING_BYTES_S
                answer = await peer.hear(protocol.ANSWERS, limit=protocol.GREETING_BYTES_MAX, idle_s=idle_s)
                if not isinstance(answer, Ready):
                    return protocol.require(answer, Kept)
                closing.pop_all()  # It stays open for the image.
                return peer
        except OSError as error:
            self._pause(keeper, error)
            return None

    async def _send(
        self, buffer: SharedBuffer, held: HeldSnapshot, sending: dict[str, Channel], pace: Pace
    ) -> tuple[str, ...]:
        """Read the image once, for its hashes and for everybody; who fails is taken out of `sending`."""
        blocks: list[str] = []
        for number in range(block_count(held.record.image_bytes)):
            block = buffer.block(number, held.record.image_bytes)
            await asyncio.sleep(pace.delay_s(block.nbytes * max(len(sending), 1), time.monotonic()))
            self._hold(buffer, held)
            blocks.append(hash_block(block))
            sent = [peer.send(block) for peer in sending.values()]
            results = await asyncio.gather(*sent, return_exceptions=True)
            for keeper, result in zip(tuple(sending), results, strict=True):
                if isinstance(result, OSError):
                    self._pause(keeper, result)
                    del sending[keeper]
                elif result is not None:
                    raise result
            if buffer.generation != held.generation:
                break
        return tuple(blocks)

    async def _end(self, keeper: str, peer: Channel, blocks: tuple[str, ...]) -> str | None:
        """The keeper's name when it has verified its copy."""
        try:
            await peer.say(Sealed(blocks))
            answer = await peer.hear(protocol.ANSWERS, limit=protocol.GREETING_BYTES_MAX)
            protocol.require(answer, Kept)
        except OSError as error:
            self._pause(keeper, error)
            return None
        if self._paused_until_s.pop(keeper, None) is not None:
            _LOG.info("copies of snapshots again keeper=%s", keeper)
        return keeper

    def _pause(self, keeper: str, error: OSError) -> None:
        if keeper not in self._paused_until_s:  # Said once, until it works again.
            _LOG.warning("no copies of snapshots keeper=%s reason=%s", keeper, error or type(error).__name__)
        self._paused_until_s[keeper] = time.monotonic() + self._patience_s / 2


class CopyReceiver:
    """The receiving side of `CopySender`."""

    def __init__(self, snapshots: NodeSnapshots) -> None:
        self._snapshots = snapshots
        self._receiving: set[int] = set()

    async def keep(self, peer: Channel, put: Put) -> Kept | Refused:
        """Take a copy over `peer`. Raises OSError when that ends early; what was there before still counts."""
        record = put.record
        word = self._judge(record)
        if word is not None:
            return word
        self._receiving.add(record.rank)
        try:
            buffer = await self._room_for(record)
            if isinstance(buffer, Refused):
                return buffer
            await peer.say(Ready())
            return await _receive(peer, buffer, record)
        finally:
            self._receiving.discard(record.rank)

    def _judge(self, record: SnapshotRecord) -> Kept | Refused | None:
        """None: it is welcome."""
        if record.owner != self._snapshots.owner:
            return Refused("the snapshot is of another life of the job")
        if (
            not 0 <= record.rank < record.world_size <= _RANKS_MAX
            or not 0 <= record.image_bytes <= _IMAGE_BYTES_MAX
        ):
            return Refused("the record makes no sense")
        if self._snapshots.find(Which(record.rank, record.round, record.step)) is not None:
            return Kept()
        held = [held for each in self._snapshots.copies_of(record.rank) if (held := each.held()) is not None]
        if any(each.record.age > record.age for each in held):
            return Refused("a newer snapshot of that rank is kept here")
        if record.rank in self._receiving:
            return Refused("another copy of that rank is under way")
        return None

    async def _room_for(self, record: SnapshotRecord) -> SharedBuffer | Refused:
        """A buffer that may be overwritten, made or made larger when there is none."""
        known = {each.buffer.path.name: each for each in self._snapshots.copies_of(record.rank)}
        whole = [each for each in known.values() if each.held() is not None]
        newest = max(whole, key=lambda each: each.held().record.age, default=None)  # type: ignore[union-attr]
        names = [copy_name(record.rank, number) for number in range(COPIES_MAX)]
        name = next(name for name in names if known.get(name) is not newest or newest is None)
        there = known.get(name)
        record_bytes = 2 * len(protocol.frame(record))
        if there is not None:
            if (
                there.buffer.capacity_bytes >= record.image_bytes
                and there.buffer.record_room_bytes >= record_bytes
            ):
                return there.buffer
            self._snapshots.drop([there])
        capacity = capacity_for(record.image_bytes)
        needed = capacity + record_bytes + _SPARED_BYTES
        if self._free_bytes() < needed:  # Else what nobody may ever want again would keep the new out for good.
            self._snapshots.drop(
                each for each, held in self._snapshots.all() if each.is_copy and held.record.round < record.round
            )
        if (free := self._free_bytes()) < needed:
            return Refused(f"a copy needs {capacity} bytes of memory and {free} are free")
        try:
            buffer = await asyncio.to_thread(
                SharedBuffer.create, self._snapshots.folder / name, capacity, record_bytes
            )
        except OSError as error:
            return Refused(f"there is no memory for a copy: {error}")
        self._snapshots.add(buffer)
        return buffer

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._snapshots.folder).free


async def _receive(peer: Channel, buffer: SharedBuffer, record: SnapshotRecord) -> Kept | Refused:
    buffer.begin()
    blocks = []
    for number in range(block_count(record.image_bytes)):
        block = buffer.block(number, record.image_bytes)
        await peer.receive(block, idle_s=SENDING_S)
        blocks.append(hash_block(block))
    sealed = await peer.hear(protocol.SEALS, limit=protocol.REQUEST_BYTES_MAX, idle_s=SENDING_S)
    if sealed.blocks != tuple(blocks):
        return Refused("what arrived is not what was sent")
    try:
        buffer.complete(record)
    except InvalidInput as error:
        return Refused(str(error))
    buffer.seal(buffer.generation, blocks)
    return Kept()
