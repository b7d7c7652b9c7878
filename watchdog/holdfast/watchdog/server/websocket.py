"""A peer's WebSocket whose messages are handed on as they arrive, with no task and no queue in between.

12,500 nodes say something every second. To wake a coroutine for each frame costs as much as reading it from the
socket and judging it together. The frames are read by aiohttp's compiled reader; only what takes them is ours.
"""

import asyncio
import base64
import binascii
import hashlib
import struct
from collections.abc import Callable
from typing import Final

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, hdrs, web
from aiohttp._websocket.reader import WebSocketDataQueue, WebSocketReader
from aiohttp.http import WS_KEY, WSMessage, WSMessageTextBytes

Message = WSMessage | WSMessageTextBytes

# A ping and its answer prove the connection when nobody has anything to say; silence of a launcher is judged
# by its beats, much earlier.
PING_EVERY_S: Final = 15.0
PONG_WITHIN_S: Final = PING_EVERY_S / 2
CLOSE_WITHIN_S: Final = 5.0
# Of answers to pings that a peer does not read; TCP's own buffers come on top.
UNREAD_BYTES_MAX: Final = 64 * 1024
# A WebSocket control frame holds 125 bytes: two of code, the rest of reason. Source: RFC 6455, section 5.5
CLOSE_REASON_BYTES_MAX: Final = 123
BINARY: Final = 0x82
PING: Final = 0x89
PONG: Final = 0x8A
CLOSE: Final = 0x88


class Broken(Exception):
    """The peer spoke against the protocol, or more than it may. `code` is a WebSocket close code."""

    def __init__(self, code: int, reason: str) -> None:
        super().__init__(reason)
        self.code = code


class Socket:
    """One accepted connection; messages up to `bytes_max` each.

    The first is asked for with `first`; those after it are read once `listen` says who takes them.
    """

    def __init__(self, request: web.Request, bytes_max: int) -> None:
        self.response = web.StreamResponse(status=101, headers=_agreed(request))
        self._request = request
        self._loop = asyncio.get_running_loop()
        # Held here as well: aiohttp's queue knows its reader weakly.
        self._reader = WebSocketReader(_Sink(self, request), bytes_max, compress=False, decode_text=False)
        self._waiting: list[Message] = []
        self._take: Callable[[Message], None] | None = None
        self._arrived = asyncio.Event()
        self._ended: asyncio.Future[None] = self._loop.create_future()
        self._is_heard = False
        self._is_pinged = False
        self._is_closing = False
        self._timer: asyncio.TimerHandle | None = None

    async def accept(self) -> None:
        """Answer the handshake. Raises ClientConnectionResetError when the peer has gone."""
        self.response.force_close()
        await self.response.prepare(self._request)
        self._request.protocol.set_parser(self._reader, data_received_cb=self._was_heard)
        self._request.protocol.keep_alive(val=False)
        self._timer = self._loop.call_later(PING_EVERY_S, self._look)

    async def first(self) -> Message | None:
        """The first message; None when the peer goes before. Raises Broken."""
        arrives = asyncio.ensure_future(self._arrived.wait())
        try:
            await asyncio.wait((arrives, self._ended), return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrives.cancel()
        if self._waiting:
            return self._waiting.pop(0)
        return self._ended.result()

    async def listen(self, take: Callable[[Message], None]) -> None:
        """Hand every message to `take` until `stop`, or the peer goes. Raises Broken, and what `take` raises."""
        self._take = take
        while self._waiting and not self._ended.done():
            self._hand_on(self._waiting.pop(0))
        self._resume()
        await self._ended

    def stop(self) -> None:
        """Hear no more: `listen` returns."""
        self._end(None)

    def send_now(self, body: bytes) -> bool:
        """Send at once, if the peer has taken everything before; whether it was sent."""
        transport = self._request.transport
        if self._is_closing or transport is None or transport.is_closing() or transport.get_write_buffer_size():
            return False
        transport.write(_header(BINARY, len(body)) + body)
        return True

    async def send(self, body: bytes) -> None:
        """Send when there is room. Raises ClientConnectionResetError when the peer has gone."""
        if self._is_closing:
            raise ClientConnectionResetError("the connection is being closed")
        await self.response.write(_header(BINARY, len(body)) + body)

    async def close(self, code: int, reason: str) -> None:
        """Close with a reason, shortened to what the protocol carries. What is still said is passed over.

        Where the peer has not ended the connection, it gets the time to read why.
        """
        if self._is_closing:
            return
        self._is_closing = True
        text = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()
        self._say(CLOSE, struct.pack("!H", code) + text)
        self._end(None)
        self._take, self._ended = _pass_over, self._loop.create_future()
        self._resume()
        await asyncio.wait((self._ended,), timeout=CLOSE_WITHIN_S)

    def finish(self) -> None:
        """The connection is over, whoever ended it. What the peer has not read by now it does not get."""
        self._is_closing = True
        if self._timer is not None:
            self._timer.cancel()
        self._end(None)
        transport = self._request.transport
        if transport is not None and self._unread():
            transport.abort()

    def arrived(self, message: Message) -> None:
        """A whole message, or a control frame."""
        if message.type is WSMsgType.BINARY or message.type is WSMsgType.TEXT:
            if self._take is not None:
                self._hand_on(message)
            else:
                self._waiting.append(message)
                self._arrived.set()
                if (transport := self._request.transport) is not None:
                    transport.pause_reading()
        elif message.type is WSMsgType.PING:
            if self._unread() > UNREAD_BYTES_MAX:
                self._end(Broken(WSCloseCode.POLICY_VIOLATION, "it does not read what its pings are answered"))
            else:
                self._say(PONG, message.data)
        elif message.type is WSMsgType.CLOSE:
            if not self._is_closing:
                self._say(CLOSE, struct.pack("!H", message.data or WSCloseCode.OK))
                self._is_closing = True
            self._end(None)

    def ended(self, error: BaseException | None) -> None:
        """Nothing more will arrive."""
        self._end(
            None if error is None else Broken(getattr(error, "code", WSCloseCode.PROTOCOL_ERROR), str(error))
        )

    def _hand_on(self, message: Message) -> None:
        if self._ended.done() or self._take is None:
            return
        try:
            self._take(message)
        except Exception as error:  # whoever listens gets it
            self._end(error)

    def _end(self, error: BaseException | None) -> None:
        if self._ended.done():
            return
        if error is None:
            self._ended.set_result(None)
        else:
            self._ended.set_exception(error)
            self._ended.exception()  # nobody may listen any more

    def _resume(self) -> None:
        if (transport := self._request.transport) is not None and not transport.is_closing():
            transport.resume_reading()

    def _unread(self) -> int:
        """How many bytes wait for the peer to read."""
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _say(self, head: int, body: bytes) -> None:
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            transport.write(_header(head, len(body)) + body)

    def _was_heard(self) -> None:
        self._is_heard = True

    def _look(self) -> None:
        """Every 15 s; whoever was silent for as long is pinged, and is gone when that is not answered."""
        wait_s = PING_EVERY_S
        if self._is_heard:
            self._is_heard = self._is_pinged = False
        elif not self._is_pinged:
            self._is_pinged, wait_s = True, PONG_WITHIN_S
            self._say(PING, b"")
        else:
            self._end(None)
            if (transport := self._request.transport) is not None:
                transport.abort()
            return
        self._timer = self._loop.call_later(wait_s, self._look)


class _Sink(WebSocketDataQueue):
    """Where aiohttp's reader puts what it has read."""

    def __init__(self, socket: Socket, request: web.Request) -> None:
        super().__init__(request.protocol, 0, loop=asyncio.get_running_loop())
        self._socket = socket

    def feed_data(self, data: Message, size: int) -> None:
        self._socket.arrived(data)

    def feed_eof(self) -> None:
        self._socket.ended(None)

    def set_exception(self, exc: BaseException, exc_cause: object = None) -> None:
        self._socket.ended(exc)


def _pass_over(message: Message) -> None:
    """Said after the end."""


def _agreed(request: web.Request) -> dict[str, str]:
    """The headers that accept a handshake. Raises HTTPBadRequest. Source: RFC 6455, section 4.2"""
    key = request.headers.get(hdrs.SEC_WEBSOCKET_KEY, "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except binascii.Error:
        is_key = False
    upgrades = request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
    connection = {each.strip().lower() for each in request.headers.get(hdrs.CONNECTION, "").split(",")}
    if not upgrades or "upgrade" not in connection or not is_key:
        raise web.HTTPBadRequest(text="open a WebSocket here: Upgrade, Connection or Sec-WebSocket-Key is missing")
    if request.headers.get(hdrs.SEC_WEBSOCKET_VERSION) != "13":
        raise web.HTTPBadRequest(text="Sec-WebSocket-Version: give 13")
    accept = base64.b64encode(hashlib.sha1(key.encode() + WS_KEY).digest()).decode()
    return {hdrs.UPGRADE: "websocket", hdrs.CONNECTION: "upgrade", hdrs.SEC_WEBSOCKET_ACCEPT: accept}


def _header(head: int, size: int) -> bytes:
    """A whole frame's, as servers send it. Source: RFC 6455, section 5.2"""
    if size < 126:
        return bytes((head, size))
    return struct.pack("!BBH", head, 126, size) if size < 1 << 16 else struct.pack("!BBQ", head, 127, size)
