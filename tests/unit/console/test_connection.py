"""Connections that keep the console waiting are ended, and no others."""

import asyncio
from typing import Any, cast

import pytest
import uvicorn
from uvicorn.server import ServerState

from holdfast.console.serving.connection import REQUEST_S, UNTAKEN_S, Connection

HEAD = b"POST /x HTTP/1.1\r\nHost: console\r\nContent-Length: 4\r\n\r\n"


class Transport:
    """`is_aborted` once the connection was ended."""

    is_aborted = False

    def get_extra_info(self, name: str) -> Any:
        return None

    def abort(self) -> None:
        self.is_aborted = True

    def close(self) -> None:
        """What is left is sent first."""

    def is_closing(self) -> bool:
        return self.is_aborted

    def __getattr__(self, name: str) -> Any:
        return lambda *_: None


class Loop:
    """Time that goes by when it is told to."""

    def __init__(self) -> None:
        self.now = 0.0
        self.timers: list[tuple[float, Any, Timer]] = []

    def call_later(self, delay: float, then: Any, *_: Any) -> "Timer":
        timer = Timer()
        self.timers.append((self.now + delay, then, timer))
        return timer

    def create_task(self, coroutine: Any) -> Any:
        coroutine.close()
        return Timer()

    def go_on(self, seconds: float) -> None:
        self.now += seconds
        for at, then, timer in self.timers:
            if at <= self.now and timer.stands:
                timer.stands = False
                then()


class Timer:
    stands = True

    def cancel(self) -> None:
        self.stands = False

    def add_done_callback(self, _: Any) -> None:
        """Nothing is done."""


@pytest.fixture
def loop() -> Loop:
    return Loop()


@pytest.fixture
def transport() -> Transport:
    return Transport()


@pytest.fixture
def connection(loop: Loop, transport: Transport) -> Connection:
    async def app(scope: Any, receive: Any, send: Any) -> None:
        """Never run."""

    config = uvicorn.Config(app, log_config=None, lifespan="off", timeout_keep_alive=10_000)
    config.load()
    made = Connection(config, ServerState(), {}, cast(asyncio.AbstractEventLoop, loop))
    made.connection_made(cast(asyncio.Transport, transport))
    return made


def test_who_connects_and_says_nothing_is_sent_away(
    loop: Loop, transport: Transport, connection: Connection
) -> None:
    loop.go_on(REQUEST_S - 1.0)
    assert not transport.is_aborted
    loop.go_on(1.0)
    assert transport.is_aborted
    connection.connection_lost(None)


@pytest.mark.parametrize(
    "said", [HEAD[:20], HEAD, HEAD + b"{"], ids=["part of the head", "no body", "part of the body"]
)
def test_who_says_it_piece_by_piece_is_too(
    loop: Loop, transport: Transport, connection: Connection, said: bytes
) -> None:
    for place in range(len(said)):
        connection.data_received(said[place : place + 1])
        loop.go_on(REQUEST_S / len(said))
    assert transport.is_aborted


def test_who_has_asked_may_wait_for_the_answer(loop: Loop, transport: Transport, connection: Connection) -> None:
    connection.data_received(HEAD + b"null")
    loop.go_on(10.0 * REQUEST_S)
    assert not transport.is_aborted


def test_who_takes_nothing_of_an_answer_is_sent_away_and_who_takes_it_late_is_not(
    loop: Loop, transport: Transport, connection: Connection
) -> None:
    connection.data_received(HEAD + b"null")
    for _ in range(5):
        connection.pause_writing()
        loop.go_on(UNTAKEN_S - 1.0)
        connection.resume_writing()
    assert not transport.is_aborted
    connection.pause_writing()
    loop.go_on(UNTAKEN_S)
    assert transport.is_aborted
