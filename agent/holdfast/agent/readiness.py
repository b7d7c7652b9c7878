"""GET /readyz: whether the agent reaches the watchdog. For the kubelet's probe, which shows no token.

With jobs on the node their connections tell; with none the watchdog is asked whether it is there. Nothing else is
told: no job, node or rank is named.
"""

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

import aiohttp
from aiohttp import web

from holdfast.agent.jobstream import Connection
from holdfast.api.errors import Unavailable
from holdfast.wire.access import Access

ASK_S: Final = 3.0
"""How long the watchdog has to answer: less than the probe waits."""
GOOD_FOR_S: Final = 60.0
"""How long a good answer stands: ten thousand idle nodes are 170 questions a second, whoever else asks them."""
BAD_FOR_S: Final = 5.0

Ask = Callable[[], Awaitable[str]]
"""Why the watchdog cannot be reached; empty when it answers."""


class Readiness:
    """`lines` are the jobs' connections, `clock` is monotonic seconds."""

    def __init__(
        self,
        connections: Callable[[], Iterable[Connection]],
        ask: Ask,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._connections = connections
        self._ask = ask
        self._clock = clock
        self._asking = asyncio.Lock()
        self._said = ""
        self._stands_until = float("-inf")

    async def trouble(self) -> str:
        """Why the watchdog does not hear of this node; empty when it does, or would."""
        connected = [each.connected for each in self._connections()]
        if connected:
            away = connected.count(False)
            return f"{away} of {len(connected)} connections to the watchdog are away" if away else ""
        async with self._asking:
            if self._clock() >= self._stands_until:
                self._said = await self._ask()
                self._stands_until = self._clock() + (BAD_FOR_S if self._said else GOOD_FOR_S)
            return self._said

    async def answer(self, request: web.Request) -> web.Response:
        """200, or 503 with the reason."""
        trouble = await self.trouble()
        return (
            web.json_response({"error": trouble}, status=503) if trouble else web.json_response({"status": "ok"})
        )


def asking(watchdog: Access) -> Ask:
    """Asks the watchdog whether it is there; any of its replicas may say so."""
    url = watchdog.url("http", "/livez")

    async def ask() -> str:
        try:
            trusted = watchdog.trust.context()
            timeout = aiohttp.ClientTimeout(total=ASK_S)
            async with (
                aiohttp.ClientSession(timeout=timeout) as session,
                session.get(url, ssl=True if trusted is None else trusted) as response,
            ):
                return "" if response.ok else f"the watchdog answers with HTTP status {response.status}"
        except TimeoutError:
            return f"the watchdog does not answer within {ASK_S:g} s"
        except (aiohttp.ClientError, OSError, Unavailable) as error:
            return f"the watchdog does not answer: {error}"

    return ask
