"""The way in to a server, with real connections: who is let in, who gives way, and what is said of it."""

import asyncio
import errno
import logging
import os
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable

import pytest

from holdfast.wire import door as door_module
from holdfast.wire.door import Door, listen

FILES = 64  # Strangers have 16 of them, those of one address 4.


class Echo(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def data_received(self, data: bytes) -> None:
        self.transport.write(data)


class Place:
    """A door, the protocols of those who are in, and how many were dropped."""

    def __init__(self) -> None:
        self.dropped = 0
        self.made: list[Echo] = []
        self.callers: list[socket.socket] = []
        self.door = Door(listen("127.0.0.1", 0), files=FILES, dropped=self._drop)
        self.door.open(self._protocol)

    def _protocol(self) -> Echo:
        self.made.append(Echo())
        return self.made[-1]

    def _drop(self) -> None:
        self.dropped += 1

    async def enter(self) -> socket.socket:
        caller = socket.socket()
        self.callers.append(caller)
        caller.settimeout(0)
        await asyncio.get_running_loop().sock_connect(caller, self.door.address)
        return caller

    async def close(self) -> None:
        await self.door.close()
        for caller in self.callers:
            caller.close()
        for each in self.made:
            each.transport.abort()
        await asyncio.sleep(0)


@pytest.fixture
async def place() -> AsyncIterator[Place]:
    place = Place()
    yield place
    await place.close()


async def is_answered(caller: socket.socket) -> bool:
    loop = asyncio.get_running_loop()
    try:
        await loop.sock_sendall(caller, b"hello")
        return await loop.sock_recv(caller, 5) == b"hello"
    except ConnectionError:
        return False


async def test_whoever_speaks_is_heard_however_many_say_nothing(
    place: Place, caplog: pytest.LogCaptureFixture
) -> None:
    callers = [await place.enter() for _ in range(20)]
    assert await is_answered(await place.enter())
    assert [await is_answered(each) for each in callers] == [False] * 17 + [True] * 3
    assert place.dropped == 17
    assert caplog.text.count("connections of strangers give way") == 1


async def test_who_is_known_gives_way_to_nobody_and_room_is_kept_for_strangers(place: Place) -> None:
    known = []
    while True:
        known.append(await place.enter())
        assert await is_answered(known[-1])
        if not place.door.admit(place.made[-1]):
            break
    assert len(known) == 45  # 44 of 64 are for callers that are known
    for _ in range(9):
        await place.enter()
    assert [await is_answered(each) for each in known[:-1]] == [True] * 44


async def test_out_of_files_it_waits_a_moment_and_says_so_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    loop = asyncio.get_running_loop()
    taken: Callable[[socket.socket], Awaitable[tuple[socket.socket, tuple[str, int]]]] = loop.sock_accept
    refusals = [OSError(errno.EMFILE, os.strerror(errno.EMFILE)) for _ in range(3)]
    gone = [ConnectionAbortedError()]

    async def accept(listener: socket.socket) -> tuple[socket.socket, tuple[str, int]]:
        for failures in (gone, refusals):
            if failures:
                raise failures.pop()
        return await taken(listener)

    monkeypatch.setattr(loop, "sock_accept", accept)
    monkeypatch.setattr(door_module, "ACCEPT_AGAIN_S", 0.05)
    place, began = Place(), time.monotonic()
    assert await is_answered(await place.enter())
    assert time.monotonic() - began >= 0.15
    assert [each.message for each in caplog.records if each.levelno == logging.WARNING] == [
        f"callers wait outside reason={os.strerror(errno.EMFILE)}"
    ]
    await place.close()
