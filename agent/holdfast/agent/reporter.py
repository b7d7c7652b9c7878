"""The agent's one connection to the watchdog: sends what the outbox gives, follows the pace it is told."""

import asyncio
import logging
import random
import time
from typing import Final

import aiohttp
import msgspec

from holdfast.agent.bearer import read_token
from holdfast.agent.outbox import Outbox
from holdfast.api.errors import Unavailable
from holdfast.api.telemetry import AgentHello, FromAgent, Pace, ReportTaken, ToAgent

_LOG = logging.getLogger(__name__)
_MESSAGE_BYTES_MAX: Final = 65536
_CONNECT_S_MAX: Final = 5.0
_CLOSE_S_MAX: Final = 0.5  # an agent that is told to stop does not wait for a watchdog that hangs
_PING_INTERVAL_S: Final = 5.0  # a watchdog that vanished without a word is noticed after one and a half of it
_RETRY_S_MIN: Final = 0.1
_RETRY_S_MAX: Final = 1.5  # decisions are to resume within 2 s of the watchdog's return


def retry_after_s(failures: int, jitter: float) -> float:
    """How long to wait after that many failures in a row; `jitter` in [0, 1) spreads the agents of a cluster."""
    longest = min(_RETRY_S_MAX, _RETRY_S_MIN * 2.0 ** min(failures - 1, 16))
    return longest * (0.5 + 0.5 * jitter)


class Reporter:
    """Keeps a connection to the watchdog for as long as it runs."""

    def __init__(self, outbox: Outbox, *, hello: AgentHello, url: str, token_file: str) -> None:
        self._outbox = outbox
        self._hello = hello
        self._url = url
        self._token_file = token_file
        self._due = asyncio.Event()
        self._failures = 0
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder: msgspec.msgpack.Decoder[ToAgent] = msgspec.msgpack.Decoder(ToAgent)

    def wake(self) -> None:
        """A report is due."""
        self._due.set()

    async def run(self) -> None:
        """Connect, report, reconnect; ends only by cancellation."""
        async with aiohttp.ClientSession() as session:
            while True:
                ended = await self._connection(session)
                self._failures += 1
                if self._failures == 1:
                    _LOG.warning("watchdog away; events are kept, telemetry is not: reason=%r", ended)
                await asyncio.sleep(retry_after_s(self._failures, random.random()))

    async def _connection(self, session: aiohttp.ClientSession) -> str:
        """One connection's life; returns why it ended."""
        try:
            headers = {"Authorization": f"Bearer {read_token(self._token_file)}"}
            async with (
                asyncio.timeout(_CONNECT_S_MAX) as connecting,
                session.ws_connect(
                    self._url,
                    headers=headers,
                    heartbeat=_PING_INTERVAL_S,
                    max_msg_size=_MESSAGE_BYTES_MAX,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_S_MAX),
                ) as socket,
            ):
                connecting.reschedule(None)
                return await self._converse(socket)
        except TimeoutError:
            return "no answer in time"
        except aiohttp.WSServerHandshakeError as error:
            return f"refused with HTTP status {error.status}"
        except (aiohttp.ClientError, OSError, Unavailable) as error:
            return str(error)

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> str:
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
        return f"connection closed with code {socket.close_code}"

    async def _send_reports(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while True:
            while (report := self._outbox.take(time.monotonic())) is not None:
                await self._send(socket, report)
            self._due.clear()
            await self._due.wait()

    async def _send(self, socket: aiohttp.ClientWebSocketResponse, message: FromAgent) -> None:
        await socket.send_bytes(self._encoder.encode(message))

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        async for frame in socket:
            if frame.type is not aiohttp.WSMsgType.BINARY:
                _LOG.warning("message ignored: reason=%r", f"frame of type {frame.type.name}")
                continue
            try:
                message = self._decoder.decode(frame.data)
            except (msgspec.DecodeError, UnicodeDecodeError) as error:
                _LOG.warning("message ignored: reason=%r", str(error))
                continue
            self._heard(message)

    def _heard(self, message: ToAgent) -> None:
        if self._failures:
            _LOG.info("watchdog back: failures=%d", self._failures)
            self._failures = 0
        match message:
            case Pace():
                self._outbox.keep_pace(message, time.monotonic())
            case ReportTaken():
                self._outbox.taken(message.sequence)
