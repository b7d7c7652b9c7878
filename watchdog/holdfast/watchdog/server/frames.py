"""Frames of a WebSocket: bounded, decoded into types, refused with a clear word."""

import asyncio
import logging
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import TypeVar

import msgspec
from aiohttp import WSCloseCode, WSMsgType, web

from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Malformed
from holdfast.watchdog.server.outbox import Outbox
from holdfast.watchdog.server.tally import Count, Tally

logger = logging.getLogger(__name__)

T = TypeVar("T")

FIRST_MESSAGE_S = 5.0
# A ping and its answer prove the connection when nobody has anything to say; silence of a launcher is judged
# by its beats, much earlier.
PING_EVERY_S = 15.0
# A WebSocket control frame holds 125 bytes: two of code, the rest of reason. Source: RFC 6455, section 5.5
CLOSE_REASON_BYTES_MAX = 123


class BadMessage(HoldfastError):
    """A peer said something it may not. Its connection is closed with the text; nothing else changes."""

    code = WSCloseCode.POLICY_VIOLATION


class Undecodable(BadMessage):
    """The frame is not of the wire format."""

    code = WSCloseCode.INVALID_TEXT  # 1007: data not consistent with the message's type


async def open_socket(request: web.Request, *, frame_bytes_max: int) -> web.WebSocketResponse:
    """Accept the connection. A longer frame than `frame_bytes_max` closes it with 1009."""
    socket = web.WebSocketResponse(max_msg_size=frame_bytes_max, compress=False, heartbeat=PING_EVERY_S)
    await socket.prepare(request)
    return socket


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


async def converse(
    socket: web.WebSocketResponse, outbox: Outbox, tally: Tally, talk: Callable[[], Awaitable[None]]
) -> None:
    """Run `talk` and empty the outbox beside it until either ends. A bad message closes with its reason."""
    sender = asyncio.create_task(_sending(socket, outbox))
    try:
        await talk()
    except BadMessage as error:
        tally.add(Count.BAD_MESSAGES)
        logger.warning("bad message reason=%s", error)
        await close(socket, error.code, str(error))
    finally:
        sender.cancel()
        (ended,) = await asyncio.gather(sender, return_exceptions=True)
    if isinstance(ended, Exception):
        raise ended


async def close(socket: web.WebSocketResponse, code: int, reason: str) -> None:
    """Close with a reason, shortened to what the protocol carries. The peer may be gone already."""
    text = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore")
    with suppress(ConnectionError, RuntimeError):
        await socket.close(code=code, message=text.encode())


async def _sending(socket: web.WebSocketResponse, outbox: Outbox) -> None:
    with suppress(ConnectionError):
        farewell = await outbox.drain(socket.send_bytes)
        await close(socket, farewell.code, farewell.reason)
