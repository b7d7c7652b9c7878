"""Whoever watches: all jobs as they change, in one stream. While nobody subscribes nothing of it is computed.

One look a second at every job makes the messages for all subscribers. Those of a large job are made in slices,
between which launchers and agents get their turn.
"""

import asyncio
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import msgspec
from aiohttp import web

from holdfast.api.feed import FeedHello, JobGone, Pulse
from holdfast.watchdog.server.answer import CALLER
from holdfast.watchdog.server.connection import Connection, Farewell, Outbox, first, listen, serve
from holdfast.watchdog.server.host import JobHost
from holdfast.watchdog.server.jobview import JobView
from holdfast.watchdog.server.watchdog import WATCHDOG, Watchdog
from holdfast.watchdog.server.websocket import Socket

logger = logging.getLogger(__name__)

LOOK_EVERY_S: Final = 1.0
SUBSCRIBERS_MAX: Final = 16
HELLO_BYTES_MAX: Final = 1024

_ENCODE = msgspec.msgpack.Encoder().encode
_HELLO: msgspec.msgpack.Decoder[FeedHello] = msgspec.msgpack.Decoder(FeedHello)


class Feed:
    """The subscribers of one watchdog, and what all of them are told."""

    def __init__(self, watchdog: Watchdog) -> None:
        self._watchdog = watchdog
        self._subscribers: set[Connection] = set()
        self._views: dict[str, JobView] = {}
        self._looking: asyncio.Task[None] | None = None
        self._decided: set[str] = set()
        watchdog.watchers.append(self._note)

    @property
    def is_full(self) -> bool:
        return len(self._subscribers) >= SUBSCRIBERS_MAX

    def subscribe(self, connection: Connection) -> None:
        """Tell it of everything from now on."""
        for view in self._views.values():
            for kind, frame in view.frames.items():
                connection.outbox.put(kind, frame)
        self._subscribers.add(connection)
        if self._looking is None:
            self._looking = asyncio.create_task(self._look())

    def unsubscribe(self, connection: Connection) -> None:
        """It has gone. With the last one everything is forgotten."""
        self._subscribers.discard(connection)
        if self._subscribers or self._looking is None:
            return
        self._looking.cancel()
        self._looking = None
        self._views.clear()
        self._decided.clear()

    def end_connections(self, farewell: Farewell) -> None:
        """Send everybody away."""
        for subscriber in self._subscribers:
            subscriber.outbox.finish(farewell)

    def _note(self, host: JobHost) -> None:
        """Something was decided: it is told behind whatever the decision still has to send."""
        if self._looking is None:
            return
        if not self._decided:
            asyncio.get_running_loop().call_soon(self._tell_decided)
        self._decided.add(host.job.name)

    def _tell_decided(self) -> None:
        decided, self._decided = self._decided, set()
        for name in decided:
            host = self._watchdog.known(name)
            if host is not None and self._looking is not None:
                with _only_this_job(name):
                    self._view(host).decided()

    def _view(self, host: JobHost) -> JobView:
        view = self._views.get(host.job.name)
        if view is None or view.host is not host:
            view = self._views[host.job.name] = JobView(host, self._watchdog.fleet, self._put)
        return view

    async def _look(self) -> None:
        loop = asyncio.get_running_loop()
        due = loop.time()
        while True:
            await self._look_once()
            due = max(due + LOOK_EVERY_S, loop.time())
            await asyncio.sleep(due - loop.time())

    async def _look_once(self) -> None:
        hosts = list(self._watchdog.hosts())
        for name in self._views.keys() - {host.job.name for host in hosts}:
            del self._views[name]
            self._put((name, "job"), _ENCODE(JobGone(name)))
        for host in hosts:
            with _only_this_job(host.job.name):
                for _ in self._view(host).look():
                    await asyncio.sleep(0)
        self._put(("", "pulse"), _ENCODE(Pulse(self._watchdog.clock.now())))

    def _put(self, kind: tuple[str, str], frame: bytes) -> None:
        for subscriber in self._subscribers:
            subscriber.outbox.put(kind, frame)


@contextmanager
def _only_this_job(name: str) -> Iterator[None]:
    """What cannot be told of one job costs no other its place in the feed, and nobody a decision."""
    try:
        yield
    except Exception:
        logger.exception("the feed failed job=%s", name)


FEED = web.AppKey("feed", Feed)


async def serve_feed(request: web.Request) -> web.StreamResponse:
    """One subscriber's connection, from its `FeedHello` to its end."""
    if request.app[FEED].is_full:
        raise web.HTTPServiceUnavailable(text=f"this watchdog has {SUBSCRIBERS_MAX} subscribers already")
    return await serve(request, request.app[WATCHDOG].tally, _talk, HELLO_BYTES_MAX)


async def _talk(request: web.Request, socket: Socket, outbox: Outbox) -> None:
    hello = await first(socket, _HELLO)
    feed, subscriber = request.app[FEED], Connection(socket, outbox)
    logger.info("subscriber client=%s caller=%s", hello.client, request[CALLER].name)
    feed.subscribe(subscriber)
    try:
        await listen(socket, _HELLO, lambda _: None)
    finally:
        feed.unsubscribe(subscriber)
