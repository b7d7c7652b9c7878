"""One replica's part in the succession: stand by, lead, hand over.

    standing by   asks for the lock a few times per lease; warm, listening, deciding nothing
    leading       renews the lock three times per lease
    lapsed        leading, but the store has not answered for a whole lease: somebody else may lead by now

A lapsed leader goes on serving what it has. It cannot decide: every decision needs a journal line under the
fence, and there is no store to take it. It stops when it learns of a greater fence: from the store once that
answers again, or from the service in front of all replicas, where another leader would be found.
"""

import asyncio
import logging
import ssl
from collections.abc import Callable
from typing import Protocol

import aiohttp
import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Fenced, Malformed, Unavailable
from holdfast.api.standing import Standing
from holdfast.watchdog.settings import TlsFiles
from holdfast.watchdog.store.store import Fence

logger = logging.getLogger(__name__)

RENEWALS_PER_LEASE = 3
# A store that did not answer is not asked for so long, and may then let one more question wait: see redislink.py.
TRIED_AGAIN_WITHIN_S = 1.25
# A leader that stops in good order is followed within this part of a lease: a quarter of a second by default.
ASKS_PER_LEASE = 12
# Replicas are counted for people and alerts, who wait for minutes.
COUNTED_EVERY_S = 10.0
PATH = "/readyz"
ASK_S = 1.0
# Behind the service are the one who asks, the one who may lead by now, and standbys: one ask may miss the leader.
ASKS = 4


# Who may lead: a lock that expires, and hands out a fence with itself.
#
# The lock says only when somebody else may take over. That two never write is the fence's work: it is raised in
# the same step in which the lock changes hands, and every write of the one before is refused from then on.


class Lease(Protocol):
    """The port of the lock. Every call raises Unavailable when it cannot be asked now."""

    def is_held(self) -> bool:
        """Whether somebody holds it. Changes nothing."""

    def take(self) -> Fence | None:
        """Take the lock when it is free, and the fence with it; None while somebody else holds it."""

    def renew(self, fence: Fence) -> None:
        """Hold it on. Also takes it again when it has expired and nobody took it. Raises Fenced when one did."""

    def replicas(self) -> int | None:
        """How many replicas keep up with what is written; None where there are to be none."""

    def release(self) -> None:
        """Let the next one have it at once; nothing when it is not ours."""


# Who leads, as the service in front of all replicas shows it.


class Readiness(msgspec.Struct, frozen=True):
    """What `/readyz` tells. `fence` of the one who leads."""

    status: Standing
    fence: int | None = None


class ServicePeer:
    """It can only make a leader stop that could decide nothing anyway."""

    def __init__(self, url: str, tls: TlsFiles | None) -> None:
        self._url = url.rstrip("/") + PATH
        self._tls = tls

    async def fence(self) -> Fence | None:
        """The greatest fence that is met. Whoever does not answer in time is not waited for again."""
        met: list[int] = []
        try:
            trusted: ssl.SSLContext | bool = True
            if self._tls is not None:
                # All replicas serve with the same certificate, whoever signed it; it is renewed while we run.
                trusted = ssl.create_default_context()
                trusted.load_verify_locations(self._tls.certificate)
                trusted.verify_flags |= ssl.VERIFY_X509_PARTIAL_CHAIN
            # One that keeps no connection, and goes from one address of the name to the next.
            connector = aiohttp.TCPConnector(ssl=trusted, force_close=True)
            async with asyncio.timeout(ASK_S), aiohttp.ClientSession(connector=connector) as http:
                for _ in range(ASKS):
                    async with http.get(self._url) as response:
                        met.append(decode_json(await response.read(), Readiness).fence or 0)  # 0 for a standby
        except (aiohttp.ClientError, TimeoutError, Malformed, OSError):
            pass
        return Fence(max(met)) if any(met) else None


class Leadership:
    """`note` is told why the store does not answer, None when it does again; `peer` is the service in front of all
    replicas.

    While this one leads, `note_replicas` is told how many replicas of the store keep up: None where there are to
    be none, and when it is not known.
    """

    def __init__(
        self,
        lease: Lease,
        *,
        ttl_s: float,
        note: Callable[[str | None], None],
        note_replicas: Callable[[int | None], None] = lambda _: None,
        peer: ServicePeer | None = None,
    ) -> None:
        self._lease = lease
        self._ttl_s = ttl_s
        self._note = note
        self._note_replicas = note_replicas
        self._peer = peer
        self._trouble: str | None = None

    async def won(self) -> Fence:
        """Stand by until the lock is ours. Raises InvalidInput, Damaged when this store cannot be used at all."""
        clock = asyncio.get_running_loop().time
        not_before = clock()
        while True:
            try:
                # Looked at first, because Redis carries out late what it was asked while it hung: a look changes
                # nothing then, but a `take` would, from a leader that only waited for Redis as we did.
                is_held = self._lease.is_held()
                if self._trouble is not None:
                    # The leader's lease has run out by no fault of its own. It gets the time of its next renewal,
                    # or every outage of the store would end in a change of leader.
                    not_before = clock() + self._ttl_s / RENEWALS_PER_LEASE + TRIED_AGAIN_WITHIN_S
                elif not is_held and clock() >= not_before and (fence := self._lease.take()) is not None:
                    logger.info("leading fence=%d", fence)
                    return fence
                self._note_trouble(None)
            except Unavailable as error:
                self._note_trouble(str(error))
            await asyncio.sleep(self._ttl_s / ASKS_PER_LEASE)

    async def keep(self, fence: Fence) -> None:
        """Renew the lock for ever. Raises Fenced when somebody else has taken over."""
        clock = asyncio.get_running_loop().time
        renewed_at = clock()
        counted_at = float("-inf")
        while True:
            await asyncio.sleep(self._ttl_s / RENEWALS_PER_LEASE)
            asked_at = clock()
            try:
                self._lease.renew(fence)
            except Unavailable as error:
                self._note_trouble(str(error))
            else:
                renewed_at = asked_at  # the lease runs from when it was asked for, not from the answer
                self._note_trouble(None)
                if asked_at - counted_at >= COUNTED_EVERY_S:
                    counted_at = asked_at
                    try:
                        self._note_replicas(self._lease.replicas())
                    except Unavailable:
                        self._note_replicas(None)  # why is said by the next renewal: nothing may delay or stop it
            if clock() - renewed_at >= self._ttl_s:
                found = await self._peer.fence() if self._peer is not None else None
                if found is not None and found > fence:
                    raise Fenced(f"another watchdog leads with fence {found}, this one has {fence}")

    def resign(self) -> None:
        """Let a standby lead at once. Called when nothing is decided any more; safe when we do not lead."""
        try:
            self._lease.release()
        except Unavailable as error:
            logger.warning("the lock could not be released, it expires reason=%s", error)

    def _note_trouble(self, trouble: str | None) -> None:
        if trouble is not None and self._trouble is None:
            logger.error("store is away reason=%s", trouble)
        elif trouble is None and self._trouble is not None:
            logger.info("store answers again")
        self._trouble = trouble
        self._note(trouble)
