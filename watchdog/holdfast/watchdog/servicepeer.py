"""Who leads, as the service in front of all replicas shows it."""

import asyncio
import ssl

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.standing import Standing
from holdfast.watchdog.settings import TlsFiles
from holdfast.watchdog.store.store import Fence

PATH = "/readyz"
ASK_S = 1.0
# Behind the service are the one who asks, the one who may lead by now, and standbys: one ask may miss the leader.
ASKS = 4


class Readiness(msgspec.Struct, frozen=True):
    """What `/readyz` tells. `fence` of the one who leads."""

    status: Standing
    fence: int | None = None


class ServicePeer:
    """Fills the `Peer` port. It can only make a leader stop that could decide nothing anyway."""

    def __init__(self, url: str, tls: TlsFiles | None) -> None:
        self._url = url.rstrip("/") + PATH
        self._tls = tls

    async def fence(self) -> Fence | None:
        """The greatest fence that is met. Whoever does not answer in time is not waited for again."""
        met: list[int] = []
        try:
            trusted = self._trusted()
            # One that keeps no connection, and goes from one address of the name to the next.
            connector = aiohttp.TCPConnector(ssl=trusted, force_close=True)
            async with asyncio.timeout(ASK_S), aiohttp.ClientSession(connector=connector) as http:
                for _ in range(ASKS):
                    met.append(await self._ask(http))
        except (aiohttp.ClientError, TimeoutError, Malformed, OSError):
            pass
        return Fence(max(met)) if any(met) else None

    def _trusted(self) -> ssl.SSLContext | bool:
        """All replicas serve with the same certificate, whoever signed it; it is renewed while we run."""
        if self._tls is None:
            return True
        context = ssl.create_default_context()
        context.load_verify_locations(self._tls.certificate)
        context.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
        return context

    async def _ask(self, http: aiohttp.ClientSession) -> int:
        """The fence of whoever answers, 0 for a standby."""
        async with http.get(self._url) as response:
            return decode_json(await response.read(), Readiness).fence or 0
