"""The launcher's connection to the watchdog: one WebSocket, made again whenever it is lost.

Training goes on while the watchdog is away. After every reconnect the launcher joins again and repeats what the
watchdog may have missed (`Outbox`).
"""

import asyncio
import contextlib
import logging
import random
import ssl
import time
from collections.abc import Callable

import aiohttp
import msgspec

from holdfast.agent.launch.credential import Credential, Refusals
from holdfast.agent.launch.outbox import Outbox
from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Malformed, Unavailable
from holdfast.api.membership import Beat, FromLauncher, Join, Leave, Refused, RoundWord, ToLauncher
from holdfast.api.round import Shown
from holdfast.api.selftest import TestWanted
from holdfast.api.standing import ONLY_STANDBYS, LeaderSearch
from holdfast.api.trust import NOT_TRUSTED
from holdfast.api.workeroutput import WorkerOutput

log = logging.getLogger(__name__)

_FIRST_DELAY_S = 0.05
_DELAY_S_MAX = 1.0
_CONNECT_TIMEOUT_S = 3.0
_PING_INTERVAL_S = 4.0  # a watchdog whose machine vanished is noticed half as much later; it judges by beats
_HANDSHAKE_TIMEOUT_S = 5.0  # a watchdog that hangs accepts a connection and says nothing
_LEAVE_TIMEOUT_S = 1.0
_CLOSE_TIMEOUT_S = 0.5
_UNSENT_MAX = 1024  # messages; past this the connection is made anew and the outbox repeated
_SHOWN_BYTES_MAX = 1 << 20  # a seat takes less than 1 KiB, and more with a long reason

_ENDS = (
    aiohttp.WSMsgType.CLOSE,
    aiohttp.WSMsgType.CLOSING,
    aiohttp.WSMsgType.CLOSED,
    aiohttp.WSMsgType.ERROR,
)

ToldOrGone = FromLauncher | None


class TurnedAway(HoldfastError):
    """The watchdog does not take this launcher; trying again does not help."""


class Connection:
    """Speaks for one member. `join` is asked for the member's state at every (re)connect."""

    def __init__(
        self,
        *,
        endpoint: str,
        credential: Credential,
        heartbeat_interval_s: float,
        join: Callable[[], Join],
        on_shown: Callable[[Shown | RoundWord | TestWanted], None],
        trusted: ssl.SSLContext | None = None,
    ) -> None:
        """`trusted` None speaks plainly."""
        self._url = f"{'ws' if trusted is None else 'wss'}://{endpoint}/v1/member"
        self._trusted: ssl.SSLContext | bool = trusted or True
        self._endpoint = endpoint
        self._credential = credential
        self._refusals = Refusals()
        self._search = LeaderSearch()
        self._heartbeat_interval_s = heartbeat_interval_s
        self._join = join
        self._on_shown = on_shown
        self._outbox = Outbox()
        self._unsent: asyncio.Queue[ToldOrGone] | None = None
        self._encoder = msgspec.msgpack.Encoder()
        self._decoder = msgspec.msgpack.Decoder(ToLauncher)
        self._said_unreachable = False

    def report(self, message: FromLauncher) -> None:
        """Send at once when connected; what lasts is repeated after a reconnect."""
        self._outbox.keep(message, time.monotonic())
        if isinstance(message, WorkerOutput) and self._unsent is None:
            self._outbox.hold(message)
        self._send(message)

    async def run(self) -> None:
        """Stay connected until cancelled.

        Raises TurnedAway when the watchdog refuses the member, or the token for longer than can be waited for.
        """
        delay_s = _FIRST_DELAY_S
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S)
        async with aiohttp.ClientSession(timeout=timeout) as session:
            while True:
                began = time.monotonic()
                try:
                    await self._converse(session)
                except (aiohttp.ClientError, OSError, TimeoutError, Unavailable) as error:
                    if (standby_s := self._standby_s(error)) is not None:
                        await asyncio.sleep(standby_s)
                        continue
                    is_strange = isinstance(error, aiohttp.ClientConnectorCertificateError)
                    self._explain(f"{NOT_TRUSTED}: {error}" if is_strange else str(error))
                if time.monotonic() - began > _DELAY_S_MAX:
                    delay_s = _FIRST_DELAY_S
                await asyncio.sleep(delay_s * random.uniform(0.5, 1.0))
                delay_s = min(2 * delay_s, _DELAY_S_MAX)

    def _standby_s(self, error: Exception) -> float | None:
        """How long to wait when it was only a standby that was met, else None."""
        if not isinstance(error, aiohttp.WSServerHandshakeError):
            return None
        pause_s = self._search.after_s(error.status, error.headers, random.random())
        if self._search.in_vain:
            self._explain(ONLY_STANDBYS)
        return pause_s

    async def leave(self, reason: str) -> None:
        """Say goodbye, if there is a connection to say it on; call before cancelling `run`."""
        self._send(Leave(reason))
        await self.flush()

    async def flush(self) -> None:
        """Wait a moment until what was reported is sent, if there is a connection to send it on."""
        if self._unsent is None:
            return
        with contextlib.suppress(TimeoutError):
            await asyncio.wait_for(self._unsent.join(), _LEAVE_TIMEOUT_S)

    async def _converse(self, session: aiohttp.ClientSession) -> None:
        token = self._credential.read()
        try:
            async with asyncio.timeout(_HANDSHAKE_TIMEOUT_S):
                socket = await session.ws_connect(
                    self._url,
                    ssl=self._trusted,
                    headers={"Authorization": f"Bearer {token}"},
                    heartbeat=_PING_INTERVAL_S,
                    timeout=aiohttp.ClientWSTimeout(ws_close=_CLOSE_TIMEOUT_S),
                    max_msg_size=_SHOWN_BYTES_MAX,
                )
        except aiohttp.WSServerHandshakeError as error:
            if error.status in (401, 403):
                raise self._refusal(token) from None
            raise
        self._refusals.welcomed()
        self._search.found()
        async with socket:
            await self._speak_and_listen(socket)

    def _refusal(self, token: str) -> HoldfastError:
        """What to make of it that the watchdog did not accept `token`."""
        reason = f"the watchdog at {self._endpoint} does not accept this launcher's token"
        is_final = self._refusals.is_final(token, self._credential.read(), time.monotonic())
        return TurnedAway(reason) if is_final else Unavailable(reason)

    async def _speak_and_listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        unsent: asyncio.Queue[ToldOrGone] = asyncio.Queue(_UNSENT_MAX)
        self._unsent = unsent
        self._send(self._join())
        for message in self._outbox.messages(time.monotonic()):
            self._send(message)
        for output in self._outbox.held():
            self._send(output)
        tasks = [
            asyncio.ensure_future(self._speak(socket, unsent)),
            asyncio.ensure_future(self._beat()),
            asyncio.ensure_future(self._listen(socket)),
        ]
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            self._unsent = None
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _speak(self, socket: aiohttp.ClientWebSocketResponse, unsent: asyncio.Queue[ToldOrGone]) -> None:
        while (message := await unsent.get()) is not None:
            await socket.send_bytes(self._encoder.encode(message))
            unsent.task_done()

    async def _beat(self) -> None:
        while True:
            await asyncio.sleep(self._heartbeat_interval_s)
            self._send(Beat())

    async def _listen(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        while (frame := await socket.receive()).type not in _ENDS:
            if frame.type is aiohttp.WSMsgType.BINARY:
                self._said_unreachable = False
                self._take(frame.data)
        log.info("the watchdog closed the connection code=%s reason=%s", socket.close_code, frame.extra or "none")

    def _take(self, data: bytes) -> None:
        try:
            shown = decode(self._decoder, data)
        except Malformed as error:
            log.error("the watchdog's message was not understood error=%s", error)
            return
        if isinstance(shown, Refused):
            raise TurnedAway(f"the watchdog refused this launcher: {shown.reason}")
        if isinstance(shown, Shown):  # the numbers of the others are no rounds
            self._outbox.advance(shown.number)
        self._on_shown(shown)

    def _send(self, message: FromLauncher) -> None:
        if self._unsent is None:
            return
        if self._unsent.full():
            log.warning("the watchdog takes no messages unsent=%d", self._unsent.qsize())
            self._unsent.get_nowait()
            self._unsent.put_nowait(None)
            self._unsent = None
            return
        self._unsent.put_nowait(message)

    def _explain(self, error: str) -> None:
        if not self._said_unreachable:
            log.warning("the watchdog is away, trying again endpoint=%s error=%s", self._endpoint, error)
            self._said_unreachable = True
