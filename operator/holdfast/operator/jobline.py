"""One job's line to the watchdog: what is seen goes in, the plan and the report come out."""

import asyncio
import logging
import random
from collections.abc import AsyncIterator, Callable, Iterable
from typing import Final, NoReturn

import aiohttp
import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.plan import (
    FromOperator,
    JobReport,
    NodeObserved,
    OperatorHello,
    Plan,
    PodEnd,
    PodObserved,
    PodState,
    ToOperator,
)
from holdfast.api.standing import ONLY_STANDBYS, LeaderSearch
from holdfast.operator.backoff import Backoff
from holdfast.operator.watchdog import Watchdog

logger = logging.getLogger(__name__)

RETRY_FIRST_S: Final = 0.1
RETRY_MOST_S: Final = 5.0
PING_S: Final = 5.0  # a peer that answers no ping within half of this is gone
FRAME_BYTES_MAX: Final = 16 * 1024 * 1024

SHOWN: msgspec.msgpack.Decoder[ToOperator] = msgspec.msgpack.Decoder(ToOperator)

Seen = NodeObserved | PodObserved


class JobLine:
    """Connects by itself, and again. `changed` is called when a report came, or the line was lost.

    A plan counts from the report that follows it: by itself, the plan of a job that has ended would take away the
    pods of one that goes on.

    `clock` is monotonic seconds.
    """

    def __init__(
        self, watchdog: Watchdog, job: str, changed: Callable[[], None], clock: Callable[[], float]
    ) -> None:
        self._watchdog = watchdog
        self._job = job
        self._changed = changed
        self._clock = clock
        self._lost_at: float | None = clock()
        self._outbox = Outbox()
        self._search = LeaderSearch()
        self._coming: Plan | None = None
        self.plan: Plan | None = None
        self.report: JobReport | None = None
        self.nodes: frozenset[str] = frozenset()
        """The nodes the plan names."""

    @property
    def connected(self) -> bool:
        """Whether the watchdog is there now, and has said on this line how the job is."""
        return self._lost_at is None

    def heard_age_s(self) -> float:
        """For how long it has been away; 0 while it is there."""
        return 0.0 if self._lost_at is None else max(self._clock() - self._lost_at, 1e-3)

    def tell(self, seen: Iterable[Seen]) -> None:
        """All that is seen now; what changed is sent."""
        self._outbox.put(seen)

    async def run(self) -> NoReturn:
        """Until cancelled."""
        backoff, told = Backoff(RETRY_FIRST_S, RETRY_MOST_S), ""
        while True:
            try:
                await self._converse(backoff)
            except (aiohttp.ClientError, OSError, TimeoutError, HoldfastError) as error:
                pause_s = self._pause_s(error)
                reason = str(error) if pause_s is None else ONLY_STANDBYS if self._search.in_vain else told
                if reason != told:
                    told = reason
                    logger.warning("no line to the watchdog job=%s error=%s", self._job, reason)
            if self._lost_at is None:
                self._lost_at, told = self._clock(), ""
                self._changed()
            await asyncio.sleep(backoff.next_s() if pause_s is None else pause_s)

    def _pause_s(self, error: Exception) -> float | None:
        """How long to wait when it was only a standby that was met, else None."""
        if not isinstance(error, aiohttp.WSServerHandshakeError):
            return None
        return self._search.after_s(error.status, error.headers, random.random())

    async def _converse(self, backoff: Backoff) -> NoReturn:
        """One connection's life. Raises why it ended."""
        timeout = aiohttp.ClientWSTimeout(ws_close=1.0)
        async with self._watchdog.session.ws_connect(
            self._watchdog.line,
            headers=self._watchdog.headers(),
            ssl=self._watchdog.trusted(),
            heartbeat=PING_S,
            max_msg_size=FRAME_BYTES_MAX,
            timeout=timeout,
        ) as line:
            await line.send_bytes(_encode(OperatorHello(self._job)))
            self._search.found()
            self._coming = None
            sending = asyncio.create_task(self._send(line))
            try:
                async for message in line:
                    if message.type is aiohttp.WSMsgType.BINARY:
                        self._show(decode(SHOWN, message.data))
                        backoff.reset()
            finally:
                sending.cancel()
                # Waited for so that being cancelled meanwhile still ends this line.
                (ended,) = await asyncio.gather(sending, return_exceptions=True)
            if isinstance(ended, Exception) and not isinstance(ended, aiohttp.ClientError | OSError):
                raise ended
            raise Unavailable(f"the watchdog closed the line: {line.close_code} {_reason(line)}")

    def _show(self, shown: ToOperator) -> None:
        if isinstance(shown, Plan):
            self._coming = shown
            return
        if self._coming is not None:
            self._take(self._coming)
        self.report = shown
        # From here on, not from the greeting: what was shown before the line was lost may be out of date, and
        # a job that ended meanwhile would get new pods.
        self._lost_at = None
        self._changed()

    def _take(self, plan: Plan) -> None:
        self.plan, self._coming = plan, None
        orders = (each.node for each in (*plan.avoid, *plan.cordon))
        self.nodes = frozenset((*orders, *plan.returned))

    async def _send(self, line: aiohttp.ClientWebSocketResponse) -> None:
        async for seen in self._outbox.follow():
            await line.send_bytes(_encode(seen))


class Outbox:
    """What is to be told: the newest of every node and pod, all of it again on each new connection."""

    def __init__(self) -> None:
        self._newest: dict[tuple[type[Seen], str], Seen] = {}
        self._parted: dict[str, PodObserved] = {}
        self._changed = asyncio.Event()

    def put(self, seen: Iterable[Seen]) -> None:
        """All there is. A pod that is there no more is told as gone, once; a node is not spoken of any more."""
        newest = {_subject(each): each for each in seen}
        for key, old in self._newest.items():
            if key not in newest and isinstance(old, PodObserved) and old.state is not PodState.GONE:
                # Why it was on its way out is known; any other is gone at once because somebody forced it.
                end = old.end if old.state is PodState.LEAVING else PodEnd.DELETED
                self._parted[old.member] = PodObserved(
                    old.member, old.node, PodState.GONE, "the pod was deleted", end
                )
        if newest != self._newest or self._parted:
            self._newest = newest
            self._changed.set()

    async def follow(self) -> AsyncIterator[Seen]:
        """Everything known, then every change. One reader at a time."""
        told: dict[tuple[type[Seen], str], Seen] = {}
        while True:
            self._changed.clear()
            # First who is gone: another pod may have the name by now.
            while self._parted:
                member = next(iter(self._parted))
                told.pop((PodObserved, member), None)
                yield self._parted[member]
                # Taken out only now: while it was being sent the line may have broken.
                self._parted.pop(member, None)
            for key, seen in tuple(self._newest.items()):
                if told.get(key) != seen:
                    told[key] = seen
                    yield seen
            await self._changed.wait()


def _subject(seen: Seen) -> tuple[type[Seen], str]:
    return type(seen), seen.node if isinstance(seen, NodeObserved) else seen.member


def _encode(message: FromOperator) -> bytes:
    return msgspec.msgpack.encode(message)


def _reason(line: aiohttp.ClientWebSocketResponse) -> str:
    error = line.exception()
    return str(error) if error else ""
