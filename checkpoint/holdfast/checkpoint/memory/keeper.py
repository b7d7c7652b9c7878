"""Keeps copies for ranks of other nodes: two arenas a rank, so that the newest whole one is never overwritten."""

import asyncio
import shutil

from holdfast.api.errors import InvalidInput
from holdfast.checkpoint.manifest import hash_block
from holdfast.checkpoint.memory import protocol
from holdfast.checkpoint.memory.arena import Arena, block_count, capacity_for
from holdfast.checkpoint.memory.channel import Channel
from holdfast.checkpoint.memory.holdings import Holdings, block_of, copy_name
from holdfast.checkpoint.memory.protocol import Kept, Put, Ready, Refused, Which
from holdfast.checkpoint.memory.record import SnapshotRecord

COPIES = 2
_RANKS_MAX = 10**9 - 1  # As many digits as a copy's file name has.
_IMAGE_BYTES_MAX = 1 << 46
# The node's own workers need memory as well, not only for snapshots.
_SPARED_BYTES = 64 << 20

SENDING_S = 30.0
"""How much longer a sender may be silent: it paces itself, and may wait for another keeper that hangs."""


class Keeper:
    """The receiving side of `copier`."""

    def __init__(self, holdings: Holdings) -> None:
        self._holdings = holdings
        self._receiving: set[int] = set()

    async def keep(self, peer: Channel, put: Put) -> Kept | Refused:
        """Take a copy over `peer`. Raises OSError when that ends early; what was there before still counts."""
        record = put.record
        word = self._judge(record)
        if word is not None:
            return word
        self._receiving.add(record.rank)
        try:
            arena = await self._room_for(record)
            if isinstance(arena, Refused):
                return arena
            await peer.say(Ready())
            return await _receive(peer, arena, record)
        finally:
            self._receiving.discard(record.rank)

    def _judge(self, record: SnapshotRecord) -> Kept | Refused | None:
        """None: it is welcome."""
        if record.owner != self._holdings.owner:
            return Refused("the snapshot is of another life of the job")
        if (
            not 0 <= record.rank < record.world_size <= _RANKS_MAX
            or not 0 <= record.image_bytes <= _IMAGE_BYTES_MAX
        ):
            return Refused("the record makes no sense")
        if self._holdings.find(Which(record.rank, record.round, record.step)) is not None:
            return Kept()
        held = [held for each in self._holdings.copies_of(record.rank) if (held := each.held()) is not None]
        if any(each.record.age > record.age for each in held):
            return Refused("a newer snapshot of that rank is kept here")
        if record.rank in self._receiving:
            return Refused("another copy of that rank is under way")
        return None

    async def _room_for(self, record: SnapshotRecord) -> Arena | Refused:
        """An arena that may be overwritten, made or made larger when there is none."""
        known = {each.arena.path.name: each for each in self._holdings.copies_of(record.rank)}
        whole = [each for each in known.values() if each.held() is not None]
        newest = max(whole, key=lambda each: each.held().record.age, default=None)  # type: ignore[union-attr]
        names = [copy_name(record.rank, number) for number in range(COPIES)]
        name = next(name for name in names if known.get(name) is not newest or newest is None)
        there = known.get(name)
        record_bytes = 2 * len(protocol.frame(record))
        if there is not None:
            if there.arena.capacity_bytes >= record.image_bytes and there.arena.record_room_bytes >= record_bytes:
                return there.arena
            self._holdings.drop([there])
        capacity = capacity_for(record.image_bytes)
        needed = capacity + record_bytes + _SPARED_BYTES
        if self._free_bytes() < needed:  # Else what nobody may ever want again would keep the new out for good.
            self._holdings.drop(
                each for each, held in self._holdings.all() if each.is_copy and held.record.round < record.round
            )
        if (free := self._free_bytes()) < needed:
            return Refused(f"a copy needs {capacity} bytes of memory and {free} are free")
        try:
            arena = await asyncio.to_thread(Arena.create, self._holdings.folder / name, capacity, record_bytes)
        except OSError as error:
            return Refused(f"there is no memory for a copy: {error}")
        self._holdings.add(arena)
        return arena

    def _free_bytes(self) -> int:
        return shutil.disk_usage(self._holdings.folder).free


async def _receive(peer: Channel, arena: Arena, record: SnapshotRecord) -> Kept | Refused:
    arena.begin()
    blocks = []
    for number in range(block_count(record.image_bytes)):
        block = block_of(arena, number, record.image_bytes)
        await peer.receive(block, idle_s=SENDING_S)
        blocks.append(hash_block(block))
    sealed = await peer.hear(protocol.SEALS, limit=protocol.REQUEST_BYTES_MAX, idle_s=SENDING_S)
    if sealed.blocks != tuple(blocks):
        return Refused("what arrived is not what was sent")
    try:
        arena.complete(record)
    except InvalidInput as error:
        return Refused(str(error))
    arena.seal(arena.generation, blocks)
    return Kept()
