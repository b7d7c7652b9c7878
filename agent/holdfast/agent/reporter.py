"""The agent's one connection to the watchdog: sends what the outbox gives, follows the pace it is told."""

import asyncio
import logging
import random
import time
from typing import Final

import aiohttp
import msgspec

from holdfast.agent.bearer import read_authority, read_token
from holdfast.agent.outbox import Outbox
from holdfast.api.decoding import decode
from holdfast.api.errors import Malformed, Unavailable
from holdfast.api.standing import ONLY_STANDBYS, LeaderSearch
from holdfast.api.telemetry import AgentHello, FromAgent, Pace, ReportTaken, ToAgent
from holdfast.api.trust import NOT_TRUSTED

_LOG = logging.getLogger(__name__)
_MESSAGE_BYTES_MAX: Final = 65536
_CONNECT_S_MAX: Final = 5.0
_CLOSE_S_MAX: Final = 0.5  # an agent that is told to stop does not wait for a watchdog that hangs
_PING_INTERVAL_S: Final = 5.0  # a watchdog that vanished without a word is noticed after one and a half of it
_STEADY_S: Final = 5.0  # two agents of one name close each other's connection: neither may retry at full speed
_RETRY_S_MIN: Final = 0.1
_RETRY_S_MAX: Final = 1.5  # decisions are to resume within 2 s of the watchdog's return


def retry_after_s(failures: int, jitter: float) -> float:
    """How long to wait after that many failures in a row; `jitter` in [0, 1) spreads the agents of a cluster."""
    longest = min(_RETRY_S_MAX, _RETRY_S_MIN * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + 0.5 * jitter)


class ConnectionEnded(Exception):
    """The connection is over. Its text says why."""


class Reporter:
    """Keeps a connection to the watchdog for as long as it runs."""

    def __init__(
        self, outbox: Outbox, *, hello: AgentHello, url: str, token_file: str, ca_file: str | None = None
    ) -> None:
        """`ca_file` names who may have signed the watchdog's certificate, for a `url` that is wss."""
        self._outbox = outbox
        self._hello = hello
        self._url = url
        self._token_file = token_file
        self._ca_file = ca_file
        self._due = asyncio.Event()
        self._search = LeaderSearch()
        self._standby_s: float | None = None  # how long to wait when it was only a standby that was met
        self._failures = 0  # in a row, a connection that did not last counts as one
        self._said = ""  # the reason that was logged last
        self._away = False
        self.connected = False  # whether the watchdog listens now
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)

    def wake(self) -> None:
        """A report is due."""
        self._due.set()

    async def run(self) -> None:
        """Connect, report, reconnect; ends only by cancellation."""
        async with aiohttp.ClientSession() as session:
            while True:
                began, self._standby_s = time.monotonic(), None
                ended = await self._connection(session)
                if self._standby_s is not None:
                    if self._search.in_vain:
                        self._say_away(ended)
                    await asyncio.sleep(self._standby_s)
                    continue
                if time.monotonic() - began > _STEADY_S:
                    self._failures, self._said = 0, ""
                self._failures += 1
                self._say_away(ended)
                await asyncio.sleep(retry_after_s(self._failures, random.random()))

    def _say_away(self, reason: str) -> None:
        if reason != self._said:
            _LOG.warning("watchdog away; events are kept, telemetry is not: reason=%r", reason)
            self._said, self._away = reason, True

    async def _connection(self, session: aiohttp.ClientSession) -> str:
        """One connection's life; returns why it ended."""
        try:
            headers = {"Authorization": f"Bearer {read_token(self._token_file)}"}
            trusted = read_authority(self._ca_file) if self._ca_file else True
            async with (
                asyncio.timeout(_CONNECT_S_MAX) as connecting,
                session.ws_connect(
                    self._url,
                    headers=headers,
                    ssl=trusted,
                    heartbeat=_PING_INTERVAL_S,
                    max_msg_size=_MESSAGE_BYTES_MAX,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S_MAX),
                ) as socket,
            ):
                connecting.reschedule(None)
                self._search.found()
                self.connected = True
                await self._converse(socket)
                return "connection ended"
        except TimeoutError:
            return "no answer in time"
        except aiohttp.WSServerHandshakeError as error:
            self._standby_s = self._search.after_s(error.status, error.headers, random.random())
            if self._standby_s is not None:
                return ONLY_STANDBYS
            return f"refused with HTTP status {error.status}"
        except aiohttp.ClientConnectorCertificateError as error:
            return f"{NOT_TRUSTED}: {error}"
        except (aiohttp.ClientError, OSError, Unavailable, ConnectionEnded) as error:
            return str(error)
        finally:
            self.connected = False

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Send and listen until one of the two ends, which it does by an exception."""
        await self._send(socket, self._hello)
        for report in self._outbox.reconnected(time.monotonic()):
            await self._send(socket, report)
        both = [asyncio.create_task(self._send_reports(socket)), asyncio.create_task(self._listen(socket))]
        try:
            done, _ = await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for task in both:
                task.cancel()
            await asyncio.gather(*both, return_exceptions=True)
        for task in done:
            task.result()

    async def _send_reports(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            while (report := self._outbox.take(time.monotonic())) is not None:
                await self._send(socket, report)
            self._due.clear()
            await self._due.wait()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, message: FromAgent) -> None:
        await socket.send_bytes(self._encoder.encode(message))

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        """Take in what the watchdog says. Raises ConnectionEnded, with the watchdog's reason if it gave one."""
        while True:
            frame = await socket.receive()
            match frame.type:
                case aiohttp.WSMsgType.BINARY:
                    self._take_in(frame.data)
                case aiohttp.WSMsgType.CLOSE:
                    raise ConnectionEnded(f"closed by the watchdog with code {frame.data}: {frame.extra}")
                case aiohttp.WSMsgType.CLOSING | aiohttp.WSMsgType.CLOSED | aiohttp.WSMsgType.ERROR:
                    raise ConnectionEnded(f"connection lost: {frame.data}")
                case other:
                    _LOG.warning("message ignored: reason=%r", f"frame of type {other.name}")

    def _take_in(self, frame: bytes) -> None:
        try:
            message = decode(self._decoder, frame)
        except Malformed as error:
            _LOG.warning("message ignored: reason=%r", str(error))
            return
        self._heard(message)

    def _heard(self, message: ToAgent) -> None:
        if self._away:
            _LOG.info("watchdog back: failures=%d", self._failures)
            self._away = False
        match message:
            case Pace():
                self._outbox.keep_pace(message, time.monotonic())
            case ReportTaken():
                self._outbox.taken(message.sequence)
