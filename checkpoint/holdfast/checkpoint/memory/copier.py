"""Copies a node's newest snapshots to their keepers, in the background and no faster than needed."""

import asyncio
import logging
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial

from holdfast.checkpoint.manifest import hash_block
from holdfast.checkpoint.memory import channel, protocol
from holdfast.checkpoint.memory.arena import Arena, Held, block_count
from holdfast.checkpoint.memory.channel import Channel, Misspoken
from holdfast.checkpoint.memory.holdings import Holding, Holdings, block_of
from holdfast.checkpoint.memory.protocol import Kept, Put, Ready, Refused, Sealed

MIB = 1 << 20
# A copy is done when half the time to the next snapshot is over, which leaves room for a slow peer.
_SHARE_OF_INTERVAL = 0.5
_SLOWEST_BYTES_S = 64 * MIB
# How far a bucket may run ahead after a pause: sending waits for whole blocks, not for single bytes.
_BURST_S = 0.05

# How fast copies leave a node: so that they are done in time, and disturb training as little as they can.


def rate_for(image_bytes: int, interval_s: float | None, ceiling_bytes_s: float) -> float:
    """Bytes a second for one rank's snapshot, when one comes every `interval_s` (None: not known yet)."""
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


_LOG = logging.getLogger(__name__)

HOLD_S = 5.0
"""For how long the rank leaves an arena alone after the last block that was read of it."""

_CLEARING_BYTES_S = 200e6


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


class Copier:
    """Level-triggered: `look` starts what is missing now, whatever happened before."""

    def __init__(self, holdings: Holdings, *, ceiling_bytes_s: float, patience_s: float) -> None:
        self._holdings = holdings
        self._ceiling_bytes_s = ceiling_bytes_s
        self._patience_s = patience_s
        self._running: dict[int, asyncio.Task[None]] = {}
        self._newest: dict[int, _Newest] = {}
        self._paused_until_s: dict[str, float] = {}  # A keeper that failed is left alone for a while.

    def look(self, now_s: float) -> None:
        """Start on what each worker's newest lacks of hashes and copies, unless it is under way."""
        found = self._found()
        for slot, (holding, held) in found.items():
            newest = self._notice(slot, held, now_s)
            keepers = self._missing(newest, held, now_s)
            if slot in self._running or newest.is_doubtful or (held.blocks is not None and not keepers):
                continue
            sending_bytes = held.record.image_bytes * max(len(keepers), 1)
            rate = rate_for(sending_bytes, newest.interval_s, self._ceiling_bytes_s / len(found))
            task = asyncio.create_task(self._copy(holding, held, newest, keepers, Pace(rate)))
            self._running[slot] = task
            task.add_done_callback(partial(self._ended, slot))

    def _found(self) -> dict[int, tuple[Holding, Held]]:
        """Each worker's newest snapshot of those that are to be copied; where none is, its newest."""
        found: dict[int, tuple[Holding, Held]] = {}
        for holding, held in self._holdings.all():
            if holding.slot is None:
                continue
            known = found.setdefault(holding.slot, (holding, held))
            if held.record.keepers and not known[1].record.keepers:
                found[holding.slot] = (holding, held)
        return found

    async def stop(self) -> None:
        tasks = list(self._running.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _ended(self, slot: int, task: asyncio.Task[None]) -> None:
        del self._running[slot]
        if not task.cancelled() and task.exception() is not None:
            _LOG.error("a copy failed slot=%d", slot, exc_info=task.exception())

    def _notice(self, slot: int, held: Held, now_s: float) -> _Newest:
        known = self._newest.get(slot)
        if known is None or known.age != held.record.age:
            interval_s = None
            if known is not None and known.age[0] == held.record.round:
                interval_s = now_s - known.seen_s
            known = self._newest[slot] = _Newest(held.record.age, now_s, interval_s)
        return known

    def _missing(self, newest: _Newest, held: Held, now_s: float) -> list[str]:
        """The keepers that are to be tried now."""
        wanted = held.record.keepers
        if held.copies >= len(wanted):
            return []
        return [
            each for each in wanted if each not in newest.kept_by and self._paused_until_s.get(each, 0) <= now_s
        ]

    async def _copy(
        self, holding: Holding, held: Held, newest: _Newest, keepers: Sequence[str], pace: Pace
    ) -> None:
        arena, began_s = holding.arena, time.monotonic()
        self._hold(arena, held)
        opened = dict(
            zip(keepers, await asyncio.gather(*(self._open(each, held) for each in keepers)), strict=True)
        )
        newest.kept_by |= {keeper for keeper, peer in opened.items() if isinstance(peer, Kept)}
        sending = {keeper: peer for keeper, peer in opened.items() if isinstance(peer, Channel)}
        peers = list(sending.values())
        try:
            blocks = await self._send(arena, held, sending, pace)
            if arena.generation != held.generation:
                return
            if held.blocks is not None and held.blocks != blocks:
                newest.is_doubtful = True
                _LOG.error("a snapshot differs from its hashes and is not copied file=%s", arena.path)
                return
            arena.seal(held.generation, blocks)
            ends = [self._end(keeper, peer, blocks) for keeper, peer in sending.items()]
            newest.kept_by |= {keeper for keeper in await asyncio.gather(*ends) if keeper}
        finally:
            for peer in peers:
                peer.close()
            arena.hold(held.generation, 0.0)
        took_s = time.monotonic() - began_s if sending else 0.0
        arena.mark_copied(held.generation, len(newest.kept_by), took_s)

    def _hold(self, arena: Arena, held: Held) -> None:
        arena.hold(held.generation, time.monotonic() + HOLD_S + self._patience_s)

    async def _open(self, keeper: str, held: Held) -> Channel | Kept | None:
        """A connection over which `keeper` waits for the image, Kept when it has it, None when it will not."""
        try:
            peer = await channel.call(keeper, self._holdings.owner, patience_s=self._patience_s)
        except OSError as error:
            self._pause(keeper, error)
            return None
        try:
            await peer.say(Put(held.record))
            answer = await peer.hear(protocol.ANSWERS, limit=protocol.GREETING_BYTES_MAX, idle_s=_making_s(held))
            if isinstance(answer, Ready):
                return peer
            if not isinstance(answer, Kept):
                raise Misspoken(answer.reason if isinstance(answer, Refused) else "it said what was not asked")
        except OSError as error:
            peer.close()
            self._pause(keeper, error)
            return None
        except BaseException:
            peer.close()
            raise
        peer.close()
        return answer

    async def _send(self, arena: Arena, held: Held, sending: dict[str, Channel], pace: Pace) -> tuple[str, ...]:
        """Read the image once, for its hashes and for everybody; who fails is taken out of `sending`."""
        blocks: list[str] = []
        for number in range(block_count(held.record.image_bytes)):
            block = block_of(arena, number, held.record.image_bytes)
            await asyncio.sleep(pace.delay_s(block.nbytes * max(len(sending), 1), time.monotonic()))
            self._hold(arena, held)
            blocks.append(hash_block(block))
            failed = await asyncio.gather(*(self._pass(keeper, peer, block) for keeper, peer in sending.items()))
            for keeper in filter(None, failed):
                del sending[keeper]
            if arena.generation != held.generation:
                break
        return tuple(blocks)

    async def _pass(self, keeper: str, peer: Channel, block: memoryview) -> str | None:
        """The keeper's name when it failed."""
        try:
            await peer.send(block)
        except OSError as error:
            self._pause(keeper, error)
            return keeper
        return None

    async def _end(self, keeper: str, peer: Channel, blocks: tuple[str, ...]) -> str | None:
        """The keeper's name when it has verified its copy."""
        try:
            await peer.say(Sealed(blocks))
            answer = await peer.hear(protocol.ANSWERS, limit=protocol.GREETING_BYTES_MAX)
            if not isinstance(answer, Kept):
                raise Misspoken(answer.reason if isinstance(answer, Refused) else "it said what was not asked")
        except OSError as error:
            self._pause(keeper, error)
            return None
        self._praise(keeper)
        return keeper

    def _pause(self, keeper: str, error: OSError) -> None:
        if keeper not in self._paused_until_s:  # Said once, until it works again.
            _LOG.warning("no copies of snapshots keeper=%s reason=%s", keeper, error or type(error).__name__)
        self._paused_until_s[keeper] = time.monotonic() + self._patience_s / 2

    def _praise(self, keeper: str) -> None:
        if self._paused_until_s.pop(keeper, None) is not None:
            _LOG.info("copies of snapshots again keeper=%s", keeper)


def _making_s(held: Held) -> float:
    """How long a keeper may take to make room: memory is cleared at about 1 GB/s, more slowly on a busy node."""
    return held.record.image_bytes / _CLEARING_BYTES_S
