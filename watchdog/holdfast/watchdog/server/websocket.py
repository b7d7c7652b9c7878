"""A peer's WebSocket whose messages are handed on as they arrive, with no task and no queue in between.

12,500 nodes say something every second. To wake a coroutine for each frame costs as much as reading it from the
socket and judging it together. The frames are read by aiohttp's compiled reader; only what takes them is ours.
"""

import asyncio
import base64
import hashlib
import struct
from collections import deque
from collections.abc import Callable
from typing import Final

from aiohttp import ClientConnectionResetError, WSCloseCode, WSMsgType, hdrs, web
from aiohttp._websocket.reader import WebSocketDataQueue, WebSocketReader
from aiohttp.http import WS_KEY, WSMessage, WSMessageTextBytes

Message = WSMessage | WSMessageTextBytes

# A ping and its answer prove the connection when nobody has anything to say; silence of a launcher is judged
# by its beats, much earlier. Who says nothing for two looks is pinged, and is gone at the next one.
LOOK_EVERY_S: Final = 7.5
SILENT_LOOKS_MAX: Final = 2
CLOSE_WITHIN_S: Final = 5.0
# What one peer may say in a row before others get their turn.
IN_A_ROW_MAX: Final = 64
# A peer that does not read gets no more answers to its pings. Source: RFC 6455, section 5.5.3
UNREAD_BYTES_MAX: Final = 4096
# A WebSocket control frame holds 125 bytes: two of code, the rest of reason. Source: RFC 6455, section 5.5
CLOSE_REASON_BYTES_MAX: Final = 123
# Close codes that are said of a connection and never on it. Source: RFC 6455, section 7.4.1
NOT_TO_BE_SAID: Final = (1004, 1005, 1006, 1015)
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

    The first is asked for with `first`; those after it are read once `listen` says who takes them. What a peer has
    said before it went is taken, too.
    """

    def __init__(self, request: web.Request, bytes_max: int) -> None:
        self.response = web.StreamResponse(status=101, headers=_agreed(request))
        self._request = request
        self._loop = asyncio.get_running_loop()
        # Held here as well: aiohttp's queue knows its reader weakly.
        self._reader = WebSocketReader(_Sink(self, request), bytes_max, compress=False, decode_text=False)
        self._waiting: deque[Message] = deque()
        self._take: Callable[[Message], None] | None = None
        self._arrived = asyncio.Event()
        self._gone: asyncio.Future[None] = self._loop.create_future()  # nothing more will arrive
        self._ended: asyncio.Future[None] = self._loop.create_future()  # nothing more is taken
        self._in_a_row = 0
        self._turn: asyncio.Handle | None = None
        self._silent_looks = 0
        self._is_closing = False
        self._peers_code: int | None = None  # with which it closed
        self._timer: asyncio.TimerHandle | None = None

    async def accept(self) -> None:
        """Answer the handshake. Raises ClientConnectionResetError when the peer has gone."""
        self.response.force_close()
        await self.response.prepare(self._request)
        self._request.protocol.set_parser(self._reader, data_received_cb=self._was_heard)
        self._request.protocol.keep_alive(val=False)
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)

    async def first(self) -> Message | None:
        """The first message; None when the peer goes before. Raises Broken."""
        arrives = asyncio.ensure_future(self._arrived.wait())
        try:
            await asyncio.wait((arrives, self._gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            arrives.cancel()
        if self._waiting:
            return self._waiting.popleft()
        return self._gone.result()

    async def listen(self, take: Callable[[Message], None]) -> None:
        """Hand every message to `take` until `stop`, or the peer goes. Raises Broken, and what `take` raises."""
        self._take = take
        self._go_on()
        await self._ended

    def stop(self) -> None:
        """Hear no more: `listen` returns."""
        _settle(self._ended, None)

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

    async def close(self, code: int, reason: str, *, wait: bool = True) -> None:
        """Close with a reason, shortened to what the protocol carries. What is still said is passed over.

        A peer that has not gone gets the time to read why, unless nobody is to `wait`.
        """
        if self._is_closing:
            return
        self._is_closing = True
        text = reason.encode()[:CLOSE_REASON_BYTES_MAX].decode(errors="ignore").encode()
        self._say(CLOSE, struct.pack("!H", code) + text)
        self.stop()
        self._waiting.clear()
        self._request.protocol.resume_reading()
        if wait and (transport := self._request.transport) is not None and not transport.is_closing():
            await asyncio.wait((self._gone,), timeout=CLOSE_WITHIN_S)

    def finish(self) -> None:
        """The connection is over, whoever ended it. What the peer has not read by now it does not get."""
        if self._peers_code is not None and not self._is_closing:
            may_be_said = 1000 <= self._peers_code < 5000 and self._peers_code not in NOT_TO_BE_SAID
            self._say(CLOSE, struct.pack("!H", self._peers_code if may_be_said else WSCloseCode.OK))
        self._is_closing = True
        for planned in (self._timer, self._turn):
            if planned is not None:
                planned.cancel()
        self.stop()
        _settle(self._gone, None)
        transport = self._request.transport
        if transport is not None and self._unread():
            transport.abort()

    def arrived(self, message: Message) -> None:
        """A whole message, or a control frame."""
        self._in_a_row += 1
        if self._in_a_row == IN_A_ROW_MAX:
            self._rest()
        if message.type is WSMsgType.BINARY or message.type is WSMsgType.TEXT:
            if self._take is not None and not self._waiting and self._in_a_row < IN_A_ROW_MAX:
                self._hand_on(message)
            elif not self._ended.done():
                self._waiting.append(message)
                self._arrived.set()
                self._rest()
        elif message.type is WSMsgType.PING:
            if not self._is_closing and self._unread() < UNREAD_BYTES_MAX:
                self._say(PONG, message.data)
        elif message.type is WSMsgType.CLOSE:
            self._peers_code = message.data
            self.over(None)

    def over(self, error: BaseException | None) -> None:
        """Nothing more will arrive: the peer has gone, or spoke against the protocol."""
        broken = None
        if error is not None:
            broken = Broken(getattr(error, "code", WSCloseCode.PROTOCOL_ERROR), str(error))
        _settle(self._gone, broken)
        if self._take is not None and not self._waiting:
            _settle(self._ended, broken)

    def _hand_on(self, message: Message) -> None:
        if self._ended.done() or self._take is None:
            return
        try:
            self._take(message)
        except Exception as error:  # whoever listens gets it
            _settle(self._ended, error)

    def _rest(self) -> None:
        """Read no more until the others had their turn, and until somebody takes what there is."""
        self._request.protocol.pause_reading()
        if self._turn is None and self._take is not None:
            self._turn = self._loop.call_soon(self._go_on)

    def _go_on(self) -> None:
        """Hand on what waits, as much as there may be in a row, and read on when nothing is left."""
        self._turn = None
        for _ in range(min(IN_A_ROW_MAX, len(self._waiting))):
            self._hand_on(self._waiting.popleft())
        if self._ended.done():
            self._waiting.clear()
        elif self._waiting:
            self._turn = self._loop.call_soon(self._go_on)
            return
        elif self._gone.done():
            _settle(self._ended, self._gone.exception())
        self._request.protocol.resume_reading()

    def _unread(self) -> int:
        """How many bytes wait for the peer to read."""
        transport = self._request.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def _say(self, head: int, body: bytes) -> None:
        transport = self._request.transport
        if transport is not None and not transport.is_closing():
            transport.write(_header(head, len(body)) + body)

    def _was_heard(self) -> None:
        self._silent_looks = self._in_a_row = 0

    def _look(self) -> None:
        self._silent_looks += 1
        if self._silent_looks > SILENT_LOOKS_MAX + 1:
            self.over(None)
            if (transport := self._request.transport) is not None:
                transport.abort()
            return
        if self._silent_looks > SILENT_LOOKS_MAX:
            self._say(PING, b"")
        self._timer = self._loop.call_later(LOOK_EVERY_S, self._look)


class _Sink(WebSocketDataQueue):
    """Where aiohttp's reader puts what it has read."""

    def __init__(self, socket: Socket, request: web.Request) -> None:
        super().__init__(request.protocol, 0, loop=asyncio.get_running_loop())
        self._socket = socket

    def feed_data(self, data: Message, size: int) -> None:
        self._socket.arrived(data)

    def feed_eof(self) -> None:
        self._socket.over(None)

    def set_exception(self, exc: BaseException, exc_cause: object = None) -> None:
        self._socket.over(exc)


def _settle(future: "asyncio.Future[None]", error: BaseException | None) -> None:
    """For good: what comes later changes nothing."""
    if future.done():
        return
    if error is None:
        future.set_result(None)
    else:
        future.set_exception(error)
        future.exception()  # maybe nobody asks


def _agreed(request: web.Request) -> dict[str, str]:
    """The headers that accept a handshake. Raises HTTPBadRequest. Source: RFC 6455, section 4.2"""
    key = request.headers.get(hdrs.SEC_WEBSOCKET_KEY, "")
    try:
        is_key = len(base64.b64decode(key, validate=True)) == 16
    except ValueError:
        is_key = False
    upgrades = request.headers.get(hdrs.UPGRADE, "").strip().lower() == "websocket"
    lines = ",".join(request.headers.getall(hdrs.CONNECTION, ()))
    connection = {each.strip().lower() for each in lines.split(",")}
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
