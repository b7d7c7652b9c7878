"""Requests to the watchdog that are answered once: reads, submissions, interventions."""

import asyncio
import random
import socket
from typing import Final

import aiohttp
from aiohttp.abc import ResolveResult

from holdfast.api.errors import Unavailable
from holdfast.wire.access import Access, untrusted
from holdfast.wire.answer import TRIES_MAX, ask_again_after_s, is_standby, refusal

CONNECT_TIMEOUT_S: Final = 3.0


class _AnyOrder(aiohttp.ThreadedResolver):
    """A name's addresses in another order each time: behind one of them is the leader."""

    async def resolve(
        self, host: str, port: int = 0, family: socket.AddressFamily = socket.AF_INET
    ) -> list[ResolveResult]:
        found = await super().resolve(host, port, family)
        return random.sample(found, len(found))


def watchdog_connector() -> aiohttp.TCPConnector:
    """To a name that stands for all watchdogs. It is looked up for each connection: an upgrade replaces all of
    them within the time for which aiohttp keeps addresses, and members that come back later count as lost.
    """
    return aiohttp.TCPConnector(limit=0, use_dns_cache=False, resolver=_AnyOrder())


class WatchdogHttp:
    """`answer_s` is the time for an answer. A standby's refusal is no answer: the leader is looked for."""

    def __init__(self, access: Access, answer_s: float = 10.0) -> None:
        self._access = access
        self._answer_s = answer_s
        self._session: aiohttp.ClientSession | None = None

    @property
    def session(self) -> aiohttp.ClientSession:
        """Made on first use: it belongs to the running loop."""
        if self._session is None:
            timeout = aiohttp.ClientTimeout(total=self._answer_s, sock_connect=CONNECT_TIMEOUT_S)
            self._session = aiohttp.ClientSession(timeout=timeout, connector=watchdog_connector())
        return self._session

    async def close(self) -> None:
        """End every connection."""
        if self._session is not None:
            await self._session.close()

    async def ask(self, method: str, path: str, body: bytes | None = None) -> bytes | None:
        """The answer's content, None for 404. Raises Unavailable without one, InvalidInput for a refusal."""
        status, content = await self.answered(method, path, body)
        if status == 404:
            return None
        if status >= 400:
            raise refusal(status, content, path, str(self._access.credential.file or "this program"))
        return content

    async def answered(
        self, method: str, path: str, body: bytes | None = None, token: str | None = None
    ) -> tuple[int, bytes]:
        """The leader's answer as it is: its status and content; a standby's where no leader is met. Another
        `token` may be shown than one's own. Raises Unavailable without an answer.
        """
        for standbys_met in range(1, TRIES_MAX + 1):
            answer, content = await self._ask_once(method, path, body, token)
            if not is_standby(answer.status, answer.headers):
                break
            await asyncio.sleep(ask_again_after_s(standbys_met, random.random()))
        return answer.status, content

    async def _ask_once(
        self, method: str, path: str, body: bytes | None, token: str | None
    ) -> tuple[aiohttp.ClientResponse, bytes]:
        """The answer of whichever watchdog is met."""
        at, shown = self._access.address, self._access.credential.read() if token is None else token
        trusted = self._access.trust.context()
        try:
            async with self.session.request(
                method,
                self._access.url("http", path),
                data=body,
                headers={"Authorization": f"Bearer {shown}", "Content-Type": "application/json"},
                ssl=True if trusted is None else trusted,
            ) as answer:
                return answer, await answer.read()
        except aiohttp.ClientConnectorCertificateError as error:
            raise Unavailable(untrusted(at, error)) from error
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            what = str(error) or type(error).__name__
            raise Unavailable(f"the watchdog does not answer at {at}: {what}") from error
