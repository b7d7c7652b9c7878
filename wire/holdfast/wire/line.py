"""A WebSocket to the watchdog that is made again whenever it is lost: of a launcher, an agent or an operator.

What is said on it, and what is said again on the next one, is the `Speaker`'s business; when and how to connect,
and why there is no connection, is the line's. Token and certificate authority are read for each connection.
"""

import asyncio
import contextlib
import logging
import random
import time
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from enum import Enum
from typing import Final, Generic, NoReturn, Protocol, TypeVar

import aiohttp
import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Malformed, Unavailable
from holdfast.wire.access import Access, Refusals, untrusted
from holdfast.wire.answer import ONLY_STANDBYS, LeaderSearch
from holdfast.wire.backoff import Backoff
from holdfast.wire.http import watchdog_connector

logger = logging.getLogger(__name__)

_TCP_CONNECT_S_MAX: Final = 3.0

Sent = TypeVar("Sent", covariant=True)
Shown = TypeVar("Shown", contravariant=True)
Heard = TypeVar("Heard")


class TurnedAway(HoldfastError):
    """The watchdog does not take this client; trying again does not help."""


class Speaker(Protocol[Sent, Shown]):
    """Whose line it is."""

    def speech(self) -> AsyncGenerator[Sent, None]:
        """All there is to say on a new connection, from the greeting on. Its end asks for another connection."""

    def hear(self, shown: Shown) -> None:
        """The watchdog says so. May raise TurnedAway."""

    def lost(self) -> None:
        """The connection that stood is gone."""


class OnMalformed(Enum):
    """What a message that is not understood does."""

    SKIP = "skip"
    RECONNECT = "reconnect"  # where it matters what each message follows


@dataclass(frozen=True, slots=True, kw_only=True)
class Manner:
    """How one kind of client connects.

    `client`: what it is called in errors. `retry_first_s` doubles up to `retry_most_s`, and begins anew after a
    connection on which the watchdog spoke and that lasted for `steady_s`. A peer that answers no ping within half
    of `ping_s` is gone. `refused_s`: for how long a token is shown on after the watchdog took it once and now
    refuses it; None is for ever, and then also when it never took it.
    """

    client: str
    retry_first_s: float
    retry_most_s: float
    steady_s: float
    ping_s: float
    frame_bytes_max: int
    handshake_s: float = 5.0  # a watchdog that hangs accepts a connection and says nothing
    close_s: float = 0.5  # a client that is told to end does not wait for a watchdog that hangs
    refused_s: float | None = None
    on_malformed: OnMalformed = OnMalformed.SKIP


class Line(Generic[Heard]):
    """One client's line. `job` is named in the log."""

    def __init__(
        self,
        access: Access,
        path: str,
        speaker: Speaker[msgspec.Struct, Heard],
        decoder: "msgspec.msgpack.Decoder[Heard]",
        manner: Manner,
        job: str,
    ) -> None:
        self._access = access
        self._path = path
        self._speaker = speaker
        self._decoder = decoder
        self._encoder = msgspec.msgpack.Encoder()
        self._manner = manner
        self._job = job
        self._search = LeaderSearch()
        self._refusals = Refusals(manner.refused_s)
        self._backoff = Backoff(manner.retry_first_s, manner.retry_most_s)
        self._said = ""  # the reason that was logged last
        self._away = False  # whether that still holds
        self._heard = False  # whether the watchdog spoke on this connection
        self.connected = False

    async def run(self, session: aiohttp.ClientSession | None = None) -> NoReturn:
        """Connect, speak, listen, connect again; ends by cancellation alone, or raises TurnedAway.

        Without a `session` it has one of its own.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_TCP_CONNECT_S_MAX)
        async with contextlib.AsyncExitStack() as stack:
            if session is None:
                own = aiohttp.ClientSession(timeout=timeout, connector=watchdog_connector())
                session = await stack.enter_async_context(own)
            while True:
                pause_s = await self._once(session)
                await asyncio.sleep(pause_s)
        raise AssertionError("the loop has no end")

    async def _once(self, session: aiohttp.ClientSession) -> float:
        """One connection's life, or why there was none. Returns how long to wait. Raises TurnedAway."""
        began, self._heard, standby_s = time.monotonic(), False, None
        try:
            reason = await self._converse(session)
        except TurnedAway:
            raise
        except aiohttp.WSServerHandshakeError as error:
            standby_s = self._search.after_s(error.status, error.headers, random.random())
            reason = f"refused with HTTP status {error.status}"
        except aiohttp.ClientConnectorCertificateError as error:
            reason = untrusted(self._access.address, error)
        except TimeoutError as error:
            reason = str(error) or "no answer in time"
        except (aiohttp.ClientError, OSError, HoldfastError) as error:
            reason = str(error) or type(error).__name__
        finally:
            stood, self.connected = self.connected, False
        if standby_s is not None:
            if self._search.in_vain:
                self._tell(ONLY_STANDBYS)
            return standby_s
        if self._heard and time.monotonic() - began > self._manner.steady_s:
            self._backoff.reset()
            self._said = ""
        self._tell(reason)
        if stood:
            self._speaker.lost()
        return self._backoff.next_s()

    def _tell(self, reason: str) -> None:
        """Once until it changes, or a connection was good in between."""
        if reason != self._said:
            self._said, self._away = reason, True
            logger.warning(
                "the watchdog is away, retrying client=%s at=%s job=%s reason=%s",
                *(self._manner.client, self._access.address, self._job, reason),
            )

    async def _converse(self, session: aiohttp.ClientSession) -> str:
        """Connect, then speak and listen until either ends. Returns why it did, or raises it."""
        token, trusted = self._access.credential.read(), self._access.trust.context()
        try:
            async with asyncio.timeout(self._manner.handshake_s):
                socket = await session.ws_connect(
                    self._access.url("ws", self._path),
                    headers={"Authorization": f"Bearer {token}"},
                    ssl=True if trusted is None else trusted,
                    heartbeat=self._manner.ping_s,
                    max_msg_size=self._manner.frame_bytes_max,
                    timeout=aiohttp.ClientWSTimeout(ws_close=self._manner.close_s),
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status not in (401, 403):
                raise
            reason = (
                f"the watchdog at {self._access.address} does not accept this {self._manner.client}'s token: "
                f"refused with HTTP status {error.status}"
            )
            if self._refusals.is_final(token, self._access.credential.read(), time.monotonic()):
                raise TurnedAway(reason) from None
            raise Unavailable(reason) from None
        self._refusals.welcomed()
        self._search.found()
        self.connected = True
        async with socket:
            listening = asyncio.create_task(self._listen(socket))
            speaking = asyncio.create_task(self._speak(socket))
            try:
                await asyncio.wait((listening, speaking), return_when=asyncio.FIRST_COMPLETED)
            finally:
                # Waited for so that being cancelled meanwhile still ends this line.
                listening.cancel()
                speaking.cancel()
                heard, said = await asyncio.gather(listening, speaking, return_exceptions=True)
        # A watchdog that closes the line says why; that nothing can be sent any more only follows from it.
        follows = isinstance(said, aiohttp.ClientError | OSError | asyncio.CancelledError)
        for ended in (heard, said) if follows else (said, heard):
            if isinstance(ended, str):
                return ended
            if not isinstance(ended, asyncio.CancelledError):
                raise ended
        return "connection ended"

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        async with contextlib.aclosing(self._speaker.speech()) as speech:
            async for message in speech:
                await socket.send_bytes(self._encoder.encode(message))
        return "the connection was given up"

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> str:
        """Take in what the watchdog says; why it says no more. Raises Malformed as `Manner.on_malformed` says."""
        while True:
            frame = await socket.receive()
            match frame.type:
                case aiohttp.WSMsgType.BINARY:
                    try:
                        shown = decode(self._decoder, frame.data)
                    except Malformed as error:
                        if self._manner.on_malformed is OnMalformed.RECONNECT:
                            raise
                        logger.error("the watchdog's message was not understood job=%s error=%s", self._job, error)
                        continue
                    if self._away:
                        logger.info("the watchdog is back client=%s job=%s", self._manner.client, self._job)
                    self._away, self._heard = False, True
                    self._speaker.hear(shown)
                case aiohttp.WSMsgType.CLOSE:
                    return f"closed by the watchdog with code {frame.data}: {frame.extra or 'no reason given'}"
                case aiohttp.WSMsgType.CLOSING | aiohttp.WSMsgType.CLOSED | aiohttp.WSMsgType.ERROR:
                    return f"connection lost: {socket.exception() or frame.data or socket.close_code}"
                case other:
                    logger.warning("message ignored reason=%s", f"frame of type {other.name}")
