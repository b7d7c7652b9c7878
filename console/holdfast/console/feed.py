"""The client of the watchdog's feed: what it last said of every job, held by one subscription.

feed = Feed(access, client="console")
await feed.run()                        # for as long as it is needed; connects again whenever that is lost
feed.jobs["research/gpt"].told.status   # what is known, and feed.stale_s for how long it is not news
await feed.changed()                    # something was told since this was called
"""

import asyncio
import time
from collections.abc import AsyncGenerator, Callable
from typing import Final, NoReturn

import msgspec

from holdfast.api.feed import FEED_BYTES_MAX, FEED_PATH, FeedHello, JobGone, Pulse, Told
from holdfast.console.heard import JobHeard
from holdfast.wire.access import Access
from holdfast.wire.line import Line, Manner

MANNER: Final = Manner(
    client="console",
    retry_first_s=0.1,
    retry_most_s=2.0,
    steady_s=5.0,
    ping_s=5.0,
    frame_bytes_max=FEED_BYTES_MAX,
)


class Feed:
    """Fills `wire.line.Speaker`. `jobs` are those the watchdog has, by `namespace/name`.

    `clock` gives monotonic seconds. While the watchdog is away, what was heard stays, and `stale_s` grows.
    """

    def __init__(self, access: Access, client: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.jobs: dict[str, JobHeard] = {}
        self.heard_at: float | None = None  # the watchdog's clock, when it spoke last
        self._client = client
        self._clock = clock
        self._heard_on: float | None = None
        self.told = asyncio.Event()  # set, and replaced, whenever something is told
        self._fresh: set[str] | None = None  # since a reconnect: the jobs that were told of again
        self._line = Line(access, FEED_PATH, self, msgspec.msgpack.Decoder(Told), MANNER, "all")

    @property
    def connected(self) -> bool:
        """Whether the watchdog takes this subscriber now."""
        return self._line.connected

    @property
    def stale_s(self) -> float | None:
        """For how many seconds the watchdog has said nothing; None when it never spoke."""
        return None if self._heard_on is None else max(0.0, self._clock() - self._heard_on)

    async def run(self) -> NoReturn:
        """Ends by cancellation, or raises TurnedAway when the watchdog takes no such client."""
        await self._line.run()

    async def speech(self) -> AsyncGenerator[FeedHello, None]:
        """Who subscribes; nothing else is ever said."""
        self._fresh = set()
        yield FeedHello(self._client)
        await asyncio.Event().wait()

    def hear(self, shown: Told) -> None:
        """Take in what the watchdog says."""
        self._heard_on = self._clock()
        match shown:
            case Pulse(at=at):
                self.heard_at = at
                self._forget_untold()
            case JobGone(job=name):
                if (gone := self.jobs.pop(name, None)) is not None:
                    gone.is_gone = True
            case _:
                if self._fresh is not None:
                    self._fresh.add(shown.job)
                job = self.jobs.get(shown.job)
                if job is None:
                    job = self.jobs[shown.job] = JobHeard(shown.job)
                job.hear(shown)
        told, self.told = self.told, asyncio.Event()
        told.set()

    def lost(self) -> None:
        """What was heard stays."""

    def _forget_untold(self) -> None:
        """The first pulse of a connection comes behind everything there is: other jobs went meanwhile."""
        if self._fresh is None:
            return
        for name in self.jobs.keys() - self._fresh:
            self.jobs.pop(name).is_gone = True
        self._fresh = None
