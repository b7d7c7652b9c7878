"""A peer's WebSocket: its frames, bounded and decoded into types; what the peer is still to be shown; who it is.

Of each thing that is shown only the newest waits, so that a slow reader delays nobody.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import msgspec
from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web

from holdfast.api import ledger
from holdfast.api.decoding import Decoder, decode
from holdfast.api.errors import HoldfastError, Malformed
from holdfast.api.ledger import LedgerReport
from holdfast.api.membership import LedgerTold
from holdfast.watchdog.metrics.counts import Count, Tally
from holdfast.watchdog.server.websocket import Broken, Message, Socket

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_MESSAGE_S = 5.0
LEDGER_EVERY_S = 60.0


class Slot(Enum):
    """The things a connection can be shown. A newer one takes the place of an older one not yet sent."""

    DESIRED = "desired"
    PLAN = "plan"
    REPORT = "report"
    SAVE = "save"
    VERIFIED = "verified"
    LEDGER = "ledger"
    TEST = "test"
    STACKS = "stacks"
    PROFILE = "profile"
    PACE = "pace"
    TAKEN = "taken"


@dataclass(frozen=True)
class Farewell:
    """How a connection is ended: a WebSocket close code and words for a human.

    `waits`: for the peer to read it and to hang up, a moment long.
    """

    code: int
    reason: str
    waits: bool = True


class Outbox:
    """Filled without waiting, emptied by its own task: memory is bounded by one frame per slot.

    `at_once` is asked first: it sends a frame at once and says so, or says that the peer is still busy with those
    before. Waking 12,500 tasks to show a round takes ten times as long as writing it.
    """

    def __init__(self, at_once: Callable[[bytes], bool] | None = None) -> None:
        self._at_once = at_once
        self._frames: dict[Hashable, bytes] = {}
        self._filled = asyncio.Event()
        self.farewell: Farewell | None = None

    def put(self, slot: Hashable, frame: bytes) -> None:
        """Show this instead of whatever was in the slot."""
        if not self._frames and self._at_once is not None and self._at_once(frame):
            return
        self._frames.pop(slot, None)  # the newest goes to the end: slots are sent in the order they were filled
        self._frames[slot] = frame
        self._filled.set()

    def finish(self, farewell: Farewell) -> None:
        """Let the connection end once everything is sent."""
        self.farewell = farewell
        self._filled.set()

    async def drain(self, send: Callable[[bytes], Awaitable[None]]) -> None:
        """Send until `finish`, and all that is left. Raises what `send` raises: the connection is gone."""
        while self.farewell is None or self._frames:
            await self._filled.wait()
            while self._frames:
                slot = next(iter(self._frames))
                await send(self._frames.pop(slot))
            self._filled.clear()


@dataclass(eq=False)
class Connection:
    """A peer and what it is still to be shown."""

    socket: Socket
    outbox: Outbox = field(default_factory=Outbox)

    def show(self, slot: Slot, message: object) -> None:
        """Show this instead of whatever was in the slot."""
        self.outbox.put(slot, msgspec.msgpack.encode(message))


@dataclass(eq=False, kw_only=True)
class LauncherConnection(Connection):
    """A member's connection. `left`: it went on purpose; the others are as in `membership.Join`."""

    member: str
    node: str
    boot: str
    tells_stacks: bool = False
    takes_profiles: bool = False
    takes_ledgers: bool = False
    left: bool = False
    ledger_shown: tuple[int, float] = (-1, 0.0)  # of which round, and when

    def show_ledger(self, round: int, report: Callable[[], LedgerReport], now: float) -> None:
        """For the checkpoints of who has rank 0, once in LEDGER_EVERY_S of a round: a script may save at every
        step. One that is too large for a frame stays in the store alone.
        """
        shown_in, shown_at = self.ledger_shown
        if not self.takes_ledgers or (shown_in == round and now < shown_at + LEDGER_EVERY_S):
            return
        self.ledger_shown = round, now
        if len(document := msgspec.json.encode(report())) <= ledger.BYTES_MAX:
            self.show(Slot.LEDGER, LedgerTold(round, document))


@dataclass(eq=False, kw_only=True)
class AgentConnection(Connection):
    """A node's connection. `boot` as in `telemetry.AgentHello`."""

    node: str
    boot: str


class BadMessage(HoldfastError):
    """A peer said something it may not. Its connection is closed with the text; nothing else changes."""

    code = WSCloseCode.POLICY_VIOLATION


class Undecodable(BadMessage):
    """The frame is not of the wire format."""

    code = WSCloseCode.INVALID_TEXT  # 1007: data not consistent with the message's type


def decoded(message: Message, decoder: Decoder[T]) -> T:
    """What the peer says. Raises Undecodable."""
    if message.type is not WSMsgType.BINARY:
        raise Undecodable("send binary frames of msgpack")
    try:
        return decode(decoder, message.data)
    except Malformed as error:
        raise Undecodable(f"not a message of this connection: {error}") from error


async def first(socket: Socket, decoder: Decoder[T]) -> T:
    """The first message. Raises BadMessage when none comes in time or the peer goes."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            message = await socket.first()
    except TimeoutError:
        raise BadMessage(f"nothing was said within {FIRST_MESSAGE_S:.0f} s") from None
    if message is None:
        raise BadMessage("closed before the first message")
    return decoded(message, decoder)


async def listen(socket: Socket, decoder: Decoder[T], take: Callable[[T], None]) -> None:
    """Hand the peer's messages to `take` until the connection ends. Raises Undecodable, and what `take` raises."""

    await socket.listen(lambda message: take(decoded(message, decoder)))


async def serve(
    request: web.Request,
    tally: Tally,
    talk: Callable[[web.Request, Socket, Outbox], Awaitable[None]],
    bytes_max: int,
) -> web.StreamResponse:
    """Accept a peer, run `talk` and empty the outbox beside it until either ends.

    A longer frame than `bytes_max` closes the connection with 1009, a bad message with its reason. A peer that
    goes while it is answered is no error of ours.
    """
    socket = Socket(request, bytes_max)
    try:
        await socket.accept()
    except ClientConnectionResetError:
        return socket.response
    outbox = Outbox(socket.send_now)

    async def drain() -> None:
        with suppress(ConnectionError):
            await outbox.drain(socket.send)
        socket.stop()

    sending = asyncio.create_task(drain())
    farewell = None
    try:
        with suppress(ClientConnectionResetError):
            await talk(request, socket, outbox)
        farewell = outbox.farewell
    except (BadMessage, Broken) as error:
        tally.add(Count.BAD_MESSAGES)
        logger.warning("bad message reason=%s", error)
        farewell = Farewell(error.code, str(error))
    except HoldfastError as error:
        farewell = Farewell(WSCloseCode.INTERNAL_ERROR, str(error))
    finally:
        sending.cancel()
        (ended,) = await asyncio.gather(sending, return_exceptions=True)
        if farewell is not None:
            await socket.close(farewell.code, farewell.reason, wait=farewell.waits)
        socket.finish()
    if isinstance(ended, Exception):
        raise ended
    return socket.response
