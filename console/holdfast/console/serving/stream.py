"""One reader's events of one job, as a server sends them: of each kind only the newest, however slow the reader.

Nothing is queued: a reader that has taken in what was sent is sent what is the newest then.
Source: https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import suppress
from typing import Final

import msgspec

from holdfast.console.feed import Feed
from holdfast.console.heard import JobHeard
from holdfast.console.serving.document import Documents, point_of

# The watchdog looks once a second; a reader that waited a whole one would miss every other look by a hair.
BREATH_S: Final = 0.2
JOB_EVERY_S: Final = 0.5
# After how much silence a comment shows that both live.
KEEP_ALIVE_S: Final = 5.0
CHECK_EVERY_S: Final = 30.0
# Columns of large worlds are a megabyte: they are announced as often as somebody can look.
RANKS_EVERY_S: Final = 0.5
LARGE_WORLD: Final = 16_384
LARGE_RANKS_EVERY_S: Final = 2.5
NODES_EVERY_S: Final = 5.0


def event(name: str, data: bytes) -> bytes:
    """One event. JSON has no line breaks in it."""
    return b"event: %s\ndata: %s\n\n" % (name.encode(), data)


class Reader:
    """`check` raises when the reader may not read the job any more."""

    def __init__(
        self,
        feed: Feed,
        job: JobHeard,
        documents: Callable[[JobHeard], Documents],
        check: Callable[[], Awaitable[object]],
    ) -> None:
        self._feed = feed
        self._job = job
        self._documents = documents
        self._check = check
        self._seen = dict(job.versions)
        self._sent_at: dict[str, float] = {}

    async def events(self) -> AsyncIterator[bytes]:
        """From the document as it is now to the end of the job, or of the reader's right to read it."""
        loop = asyncio.get_running_loop()
        yield b": welcome\n\n"
        spoke_at, checked_at = loop.time(), loop.time()
        first = True
        while True:
            now = loop.time()
            if now >= checked_at + CHECK_EVERY_S:
                checked_at = now
                await self._check()
            told, is_over = self._feed.told, self._job.is_gone
            said = b"".join(self._news(now, first=first))
            first = False
            if not said and now >= spoke_at + KEEP_ALIVE_S:
                said = b": here\n\n"
            if said:
                spoke_at = now
                yield said
            if is_over:
                return
            with suppress(TimeoutError):
                await asyncio.wait_for(told.wait(), KEEP_ALIVE_S)
            await asyncio.sleep(BREATH_S)

    def _news(self, now: float, *, first: bool) -> list[bytes]:
        """What is new to this reader and due."""
        job, documents = self._job, self._documents(self._job)
        if job.is_gone:
            return [event("gone", b'{"job":%s}' % msgspec.json.encode(job.job))]
        news: list[bytes] = []
        for version, incident in job.newest_incidents:
            if version > self._seen["incidents"]:
                news.append(event("incident", msgspec.json.encode(incident)))
        had_incidents, had_nodes = bool(news), self._is_news("nodes", NODES_EVERY_S, now)
        self._seen["incidents"] = job.versions["incidents"]
        if self._is_news("job", JOB_EVERY_S, now) or had_incidents or had_nodes or first:
            self._note("job", now)
            if had_nodes:
                self._note("nodes", now)
            if job.told is not None:
                parts = {"incidents": had_incidents or first, "nodes": had_nodes or first}
                news.append(event("job", documents.whole(self._feed, **parts)))
        if self._is_news("points", 0.0, now) and (point := point_of(job)) is not None:
            self._note("points", now)
            news.append(event("series", point))
        every_s = LARGE_RANKS_EVERY_S if job.world > LARGE_WORLD else RANKS_EVERY_S
        if self._is_news("ranks", every_s, now):
            self._note("ranks", now)
            news.append(event("ranks", b"%d" % job.versions["ranks"]))
        return news

    def _is_news(self, kind: str, every_s: float, now: float) -> bool:
        due = now >= self._sent_at.get(kind, float("-inf")) + every_s
        return due and self._job.versions[kind] != self._seen[kind]

    def _note(self, kind: str, now: float) -> None:
        self._seen[kind], self._sent_at[kind] = self._job.versions[kind], now
