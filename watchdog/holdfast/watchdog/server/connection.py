"""A peer's WebSocket: its frames, bounded and decoded into types; what the peer is still to be shown; who it is.

Of each thing that is shown only the newest waits, so that a slow reader delays nobody.
"""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from dataclasses import dataclass, field
from enum import Enum
from typing import TypeVar

import msgspec
from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, web

from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Malformed
from holdfast.watchdog.metrics.counts import Count, Tally

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_MESSAGE_S = 5.0
# A ping and its answer prove the connection when nobody has anything to say; silence of a launcher is judged
# by its beats, much earlier.
PING_EVERY_S = 15.0
# A WebSocket control frame holds 125 bytes: two of code, the rest of reason. Source: RFC 6455, section 5.5
CLOSE_REASON_BYTES_MAX = 123


class Slot(Enum):
    """The things a connection can be shown. A newer one takes the place of an older one not yet sent."""

    DESIRED = "desired"
    PLAN = "plan"
    REPORT = "report"
    SAVE = "save"
    VERIFIED = "verified"
    TEST = "test"
    PACE = "pace"
    TAKEN = "taken"


@dataclass(frozen=True)
class Farewell:
    """How a connection is ended: a WebSocket close code and words for a human."""

    code: int
    reason: str


class Outbox:
    """Filled without waiting, emptied by its own task: memory is bounded by one frame per slot.

    `at_once` is asked first: it sends a frame at once and says so, or says that the peer is still busy with those
    before. Waking 12,500 tasks to show a round takes ten times as long as writing it.
    """

    def __init__(self, at_once: Callable[[bytes], bool] | None = None) -> None:
        self._at_once = at_once
        self._frames: dict[Slot, bytes] = {}
        self._filled = asyncio.Event()
        self._last_word: Farewell | None = None

    def put(self, slot: Slot, frame: bytes) -> None:
        """Show this instead of whatever was in the slot."""
        if not self._frames and self._at_once is not None and self._at_once(frame):
            return
        self._frames.pop(slot, None)  # the newest goes to the end: slots are sent in the order they were filled
        self._frames[slot] = frame
        self._filled.set()

    def finish(self, farewell: Farewell) -> None:
        """Let the connection end once everything is sent."""
        self._last_word = farewell
        self._filled.set()

    async def drain(self, send: Callable[[bytes], Awaitable[None]]) -> Farewell:
        """Send until `finish`, and return the farewell. Raises what `send` raises: the connection is gone."""
        while self._last_word is None or self._frames:
            await self._filled.wait()
            while self._frames:
                slot = next(iter(self._frames))
                await send(self._frames.pop(slot))
            self._filled.clear()
        return self._last_word


@dataclass(eq=False)
class Connection:
    """A peer and what it is still to be shown."""

    socket: web.WebSocketResponse
    outbox: Outbox = field(default_factory=Outbox)


@dataclass(eq=False, kw_only=True)
class LauncherConnection(Connection):
    """A member's connection. `boot` as in `membership.Join`."""

    member: str
    node: str
    boot: str


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


def sender(request: web.Request, socket: web.WebSocketResponse) -> Callable[[bytes], bool]:
    """What sends a binary frame of an accepted connection at once, while the peer has taken everything before it.

    It writes whole frames, as the socket itself does, so that both may write.
    """

    def at_once(body: bytes) -> bool:
        transport = request.transport
        if socket.closed or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(_header(len(body)) + body)
        return True

    return at_once


def _header(size: int) -> bytes:
    """A whole binary frame's, as servers send it. Source: RFC 6455, section 5.2"""
    if size < 126:
        return bytes((0x82, size))
    return struct.pack("!BBH", 0x82, 126, size) if size < 1 << 16 else struct.pack("!BBQ", 0x82, 127, size)


async def first(frames: AsyncIterator[T]) -> T:
    """The first frame. Raises BadMessage when none comes in time or the peer goes."""
    try:
        async with asyncio.timeout(FIRST_MESSAGE_S):
            return await anext(frames)
    except TimeoutError:
        raise BadMessage(f"nothing was said within {FIRST_MESSAGE_S:.0f} s") from None
    except StopAsyncIteration:
        raise BadMessage("closed before the first message") from None


async def decoded(socket: web.WebSocketResponse, decoder: msgspec.msgpack.Decoder[T]) -> AsyncIterator[T]:
    """The peer's messages until it closes. Raises Undecodable at the first that is not one."""
    async for message in socket:
        if message.type is WSMsgType.ERROR:  # a frame against the protocol, or beyond the limit: closing already
            raise BadMessage(str(message.data))
        if message.type is not WSMsgType.BINARY:
            raise Undecodable("send binary frames of msgpack")
        try:
            yield decode(decoder, message.data)
        except Malformed as error:
            raise Undecodable(f"not a message of this connection: {error}") from error


async def serve(
    request: web.Request,
    tally: Tally,
    talk: Callable[[web.Request, web.WebSocketResponse, Outbox], Awaitable[None]],
    *,
    frame_bytes_max: int,
) -> web.WebSocketResponse:
    """Accept a peer, run `talk` and empty the outbox beside it until either ends.

    A longer frame than `frame_bytes_max` closes the connection with 1009, a bad message with its reason. A peer
    that goes while it is answered is no error of ours.
    """
    socket = web.WebSocketResponse(max_msg_size=frame_bytes_max, compress=False, heartbeat=PING_EVERY_S)
    try:
        await socket.prepare(request)
    except ClientConnectionResetError:
        return socket
    outbox = Outbox(sender(request, socket))
    sending = asyncio.create_task(_sending(socket, outbox))
    try:
        with suppress(ClientConnectionResetError):
            await talk(request, socket, outbox)
    except BadMessage as error:
        tally.add(Count.BAD_MESSAGES)
        logger.warning("bad message reason=%s", error)
        await close(socket, error.code, str(error))
    finally:
        sending.cancel()
        (ended,) = await asyncio.gather(sending, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended
    return socket


async def close(socket: web.WebSocketResponse, code: int, reason: str) -> None:
    """Close with a reason, shortened to what the protocol carries. The peer may be gone already."""
    text = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
    with suppress(ConnectionError, RuntimeError):
        await socket.close(code=code, message=text.encode())


async def _sending(socket: web.WebSocketResponse, outbox: Outbox) -> None:
    with suppress(ConnectionError):
        farewell = await outbox.drain(socket.send_bytes)
        await close(socket, farewell.code, farewell.reason)
