"""The watchdog's end of a WebSocket, which stands over aiohttp's reader: frames by hand over a real connection."""

import asyncio
import os
import struct
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import cast

import pytest
from aiohttp import web
from patience import patient

from holdfast.watchdog.server import websocket
from holdfast.watchdog.server.websocket import Broken, Message, Socket

BINARY, TEXT, CONTINUED, CLOSE, PING, PONG = 0x2, 0x1, 0x0, 0x8, 0x9, 0xA
FIN = 0x80
BYTES_MAX = 70_000
ASKS = (
    "GET / HTTP/1.1\r\nHost: x\r\nUpgrade: websocket\r\nConnection: keep-alive, Upgrade\r\n"
    "Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
)


@dataclass
class Peer:
    """A client that frames by hand."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter

    def say(self, body: bytes, head: int = FIN | BINARY) -> None:
        self.writer.write(frame(body, head))

    async def hears(self) -> tuple[int, bytes]:
        """The next frame: its first byte, and what it carries."""
        head, size = await self.reader.readexactly(2)
        if size == 126:
            (size,) = struct.unpack("!H", await self.reader.readexactly(2))
        elif size == 127:
            (size,) = struct.unpack("!Q", await self.reader.readexactly(8))
        return head, await self.reader.readexactly(size)

    async def is_closed_with(self) -> tuple[int, str]:
        head, body = await self.hears()
        assert head == FIN | CLOSE
        return struct.unpack("!H", body[:2])[0], body[2:].decode()

    async def sees_the_end(self) -> bool:
        return await self.reader.read() == b""


@dataclass
class Heard:
    """What the server's end was told."""

    first: asyncio.Event = field(default_factory=asyncio.Event)
    go_on: asyncio.Event = field(default_factory=asyncio.Event)
    over: asyncio.Event = field(default_factory=asyncio.Event)
    said: list[bytes] = field(default_factory=list)
    error: BaseException | None = None
    request: web.Request | None = None

    @property
    def transport(self) -> asyncio.Transport:
        assert self.request is not None
        assert self.request.transport is not None
        return cast(asyncio.Transport, self.request.transport)

    @property
    def is_read(self) -> bool:
        """Whether more is taken from the connection."""
        return self.transport.is_reading()


def frame(body: bytes, head: int) -> bytes:
    mask, size = os.urandom(4), len(body)
    masked = bytes(each ^ mask[place % 4] for place, each in enumerate(body))
    if size < 126:
        return bytes((head, 0x80 | size)) + mask + masked
    return (
        struct.pack("!BBH" if size < 1 << 16 else "!BBQ", head, 0xFE if size < 1 << 16 else 0xFF, size)
        + mask
        + masked
    )


Talk = Callable[[Socket, Heard], Awaitable[None]]


async def listens(socket: Socket, heard: Heard) -> None:
    def take(message: Message) -> None:
        heard.said.append(message.data)
        if message.data == b"bad":
            raise ValueError("bad was said")
        if message.data == b"stop":
            socket.stop()

    await heard.go_on.wait()
    await socket.listen(take)


async def asks_first(socket: Socket, heard: Heard) -> None:
    message = await socket.first()
    heard.said.append(b"" if message is None else b"first: " + message.data)
    heard.first.set()
    await listens(socket, heard)


@asynccontextmanager
async def served(talk: Talk, heard: Heard) -> AsyncIterator[int]:
    """The port."""

    async def serve(request: web.Request) -> web.StreamResponse:
        heard.request, socket = request, Socket(request, BYTES_MAX)
        await socket.accept()
        try:
            await talk(socket, heard)
        except (Broken, ValueError) as error:
            heard.error = error
            await socket.close(getattr(error, "code", 1008), str(error))
        finally:
            socket.finish()
            heard.over.set()
        return socket.response

    app = web.Application()
    app.router.add_get("/", serve)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        async with asyncio.timeout(patient(20)):
            yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def connected(talk: Talk = listens, *, waits: bool = False) -> AsyncIterator[tuple[Peer, Heard]]:
    heard = Heard()
    if not waits:
        heard.go_on.set()
    async with served(talk, heard) as port:
        peer = await opened(port)
        yield peer, heard
        peer.writer.close()


async def opened(port: int) -> Peer:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(ASKS.encode())
    head = await reader.readuntil(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 101"), head
    assert b"s3pPLMBiTxaQ9kYGzzhZRbK+xOo=" in head  # Source: RFC 6455, section 1.3
    return Peer(reader, writer)


async def test_messages_are_handed_on_whole_and_in_order_however_they_are_cut() -> None:
    async with connected() as (peer, heard):
        long = os.urandom(66_000)
        for each in frame(b"one", FIN | BINARY) + frame(b"t", BINARY) + frame(b"w", CONTINUED) + frame(b"o", FIN):
            peer.writer.write(bytes((each,)))
            await peer.writer.drain()
        peer.say(long)
        peer.say(b"")
        peer.say(b"stop")
        peer.say(b"after")
        await heard.over.wait()
        assert heard.said == [b"one", b"two", long, b"", b"stop"]
        assert await peer.sees_the_end()


async def test_what_is_said_before_anybody_listens_waits_and_is_not_read_without_end() -> None:
    async with connected(asks_first, waits=True) as (peer, heard):
        peer.say(b"hello")
        await heard.first.wait()
        for number in range(40):
            peer.say(b"%d" % number + b" " * 60_000)
        while heard.is_read:  # noqa: ASYNC110 - a transport tells nobody that it is paused
            await asyncio.sleep(0.01)
        heard.go_on.set()
        await peer.writer.drain()
        peer.say(b"stop")
        await heard.over.wait()
        assert heard.said[0] == b"first: hello"
        assert [int(each) for each in heard.said[1:-1]] == list(range(40))


async def test_a_peer_that_goes_before_its_first_message_is_none() -> None:
    async with connected(asks_first) as (peer, heard):
        peer.writer.close()
        await heard.over.wait()
        assert heard.said == [b""]


async def test_a_ping_is_answered_and_a_close_ends_it() -> None:
    async with connected() as (peer, heard):
        peer.say(b"are you there", FIN | PING)
        assert await peer.hears() == (FIN | PONG, b"are you there")
        peer.say(struct.pack("!H", 1001) + b"bye", FIN | CLOSE)
        assert await peer.is_closed_with() == (1001, "")
        await heard.over.wait()
        assert heard.error is None
        assert await peer.sees_the_end()


@pytest.mark.parametrize(
    ("size", "head", "code"),
    [
        (BYTES_MAX + 1, FIN | BINARY, 1009),
        (1, FIN | 0x40 | BINARY, 1002),
        (1, FIN | 0x3, 1002),
        (1, FIN | CONTINUED, 1002),
        (126, FIN | PING, 1002),
    ],
)
async def test_frames_against_the_protocol_end_the_connection_with_the_reason(
    size: int, head: int, code: int
) -> None:
    async with connected() as (peer, heard):
        peer.say(b"x" * size, head)
        told, reason = await peer.is_closed_with()
        assert told == code
        assert reason
        peer.say(struct.pack("!H", told), FIN | CLOSE)
        await heard.over.wait()
        assert isinstance(heard.error, Broken)


async def test_what_taking_a_message_raises_reaches_who_listens_and_nothing_is_taken_after() -> None:
    async with connected() as (peer, heard):
        peer.writer.write(frame(b"bad", FIN | BINARY) + frame(b"more", FIN | BINARY))
        assert await peer.is_closed_with() == (1008, "bad was said")
        peer.say(b"more")
        peer.say(struct.pack("!H", 1008), FIN | CLOSE)
        await heard.over.wait()
        assert heard.said == [b"bad"]
        assert isinstance(heard.error, ValueError)


async def test_a_peer_that_pings_and_never_reads_costs_no_memory_and_is_left_in_the_end() -> None:
    async with connected() as (peer, heard):
        peer.reader._transport.pause_reading()  # type: ignore[attr-defined]
        for _ in range(200):  # 26 MB
            peer.writer.write(frame(b"x" * 125, FIN | PING) * 1000)
            await peer.writer.drain()
            assert heard.transport.get_write_buffer_size() <= websocket.UNREAD_BYTES_MAX + 127
        peer.say(b"stop")
        await heard.over.wait()
        while heard.request is not None and heard.request.transport is not None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)


async def test_one_that_says_much_at_once_gives_others_their_turn() -> None:
    async with connected() as (peer, heard):
        peer.writer.write(frame(b"x", FIN | BINARY) * 20_000 + frame(b"stop", FIN | BINARY))
        most = before = 0
        while not heard.over.is_set():
            await asyncio.sleep(0)
            most, before = max(most, len(heard.said) - before), len(heard.said)
        assert len(heard.said) == 20_001
        assert most <= 2 * websocket.IN_A_ROW_MAX


# Ids by hand: a mask is drawn anew by each process that collects, and they must agree.
@pytest.mark.parametrize(
    "ends",
    [
        pytest.param(frame(struct.pack("!H", 1000), FIN | CLOSE), id="closes"),
        pytest.param(frame(b"x", FIN | 0x3), id="breaks the protocol"),
        pytest.param(b"", id="hangs up"),
    ],
)
async def test_what_a_peer_said_before_it_went_is_taken(ends: bytes) -> None:
    async with connected(asks_first) as (peer, heard):
        peer.writer.write(b"".join(frame(each, FIN | BINARY) for each in (b"hello", b"one", b"two")) + ends)
        peer.writer.write_eof()
        await heard.over.wait()
        assert heard.said == [b"first: hello", b"one", b"two"]
        assert isinstance(heard.error, Broken) == (ends[:1] == bytes((FIN | 0x3,)))


async def test_nobody_waits_for_a_peer_that_has_gone(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_WITHIN_S", 3600.0)

    async def fails(socket: Socket, heard: Heard) -> None:
        await heard.go_on.wait()
        raise ValueError("no good")

    async with connected(fails, waits=True) as (peer, heard):
        peer.writer.transport.abort()
        while heard.request is None or heard.request.transport is not None:  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.01)
        heard.go_on.set()
        await heard.over.wait()


@pytest.mark.parametrize(("said", "answered"), [(1000, 1000), (1006, 1000), (4001, 4001)])
async def test_a_close_is_answered_with_its_code_where_that_may_be_said(said: int, answered: int) -> None:
    async with connected() as (peer, heard):
        peer.say(struct.pack("!H", said), FIN | CLOSE)
        code, _ = await peer.is_closed_with()
        assert code in (answered, 1002)  # what may not be said at all is against the protocol
        assert code != 1006
        peer.say(struct.pack("!H", code), FIN | CLOSE)
        await heard.over.wait()


async def test_a_silent_peer_is_pinged_and_is_gone_when_it_does_not_answer(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(websocket, "LOOK_EVERY_S", 0.1)
    async with connected() as (peer, heard):
        assert await peer.hears() == (FIN | PING, b"")
        peer.say(b"", FIN | PONG)
        assert await peer.hears() == (FIN | PING, b"")
        await heard.over.wait()
        with pytest.raises((ConnectionResetError, asyncio.IncompleteReadError)):
            await peer.hears()


async def test_a_peer_that_does_not_answer_the_close_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(websocket, "CLOSE_WITHIN_S", 0.1)
    async with connected() as (peer, heard):
        peer.say(b"bad")
        await heard.over.wait()
        assert await peer.is_closed_with() == (1008, "bad was said")
        assert await peer.sees_the_end()


@pytest.mark.parametrize(
    ("changed", "to"),
    [
        ("Upgrade: websocket", "Upgrade: h2c"),
        ("Connection: keep-alive, Upgrade", "Connection: close"),
        ("Version: 13", "Version: 12"),
        ("Sec-WebSocket-Key: ", "Sec-WebSocket-Key: !"),
    ],
)
async def test_a_request_that_opens_no_websocket_is_refused(changed: str, to: str) -> None:
    async with served(listens, Heard()) as port:
        reader, writer = await asyncio.open_connection("127.0.0.1", port)
        assert changed in ASKS
        writer.write(ASKS.replace(changed, to).encode())
        assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"HTTP/1.1 400")
        writer.close()
