"""Keeps a cache like the API server's own objects: a list, then a watch from there, and again when it breaks."""

import asyncio
import logging
import random
from collections.abc import Callable
from contextlib import aclosing
from typing import Any, Final, Generic, NoReturn, TypeVar

import msgspec

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.api.nesting import decode, read
from holdfast.operator.kube.cache import Cache, Change, HasMetadata
from holdfast.operator.kube.objects import Resource
from holdfast.wire.backoff import Backoff
from holdfast.wire.kube.client import KubeClient, Request, TooLong
from holdfast.wire.kube.reply import Expired, Said

logger = logging.getLogger(__name__)

PAGE_OBJECTS: Final = 500  # what the API server is asked for at a time: a full list of pods would hold it up
PAGE_BYTES_MAX: Final = 32 * 1024 * 1024  # of objects of 1.5 MB, which users may make, fewer are asked for
WATCH_S: Final = (
    300.0  # a watch ends by itself after this (up to twice as long), so that load spreads over servers
)
# A line that says nothing for so long is ended, and the next watch begins at once, from the same version: the
# server answers it, or says what is wrong, or does not answer. It may be well: many kinds change seldom.
SILENCE_S: Final = 6.0
# So that a kind that is silent costs no connection each time, its watches are short: the server ends one by
# itself, and two seconds before tells how far it is. Without that the version would be too old one day, where
# other objects of the kind change. Source: nextBookmarkTime in
# https://github.com/kubernetes/apiserver/blob/master/pkg/storage/cacher/cache_watcher.go
QUIET_WATCH_S: Final = 5
BLIND_S: Final = 10.0
"""Whoever heard nothing of the API server for so long does not know how the cluster is."""
LEAST_S: Final = 1.0  # a server that ends a watch sooner is asked with growing pauses
RELIST_S: Final = 3600.0  # whatever a watch may have lost is found then
RETRY_FIRST_S: Final = 0.2
RETRY_MOST_S: Final = 20.0

T = TypeVar("T", bound=HasMetadata)


class _ListMetadata(msgspec.Struct, frozen=True, rename="camel"):
    resource_version: str = ""
    continue_: str = msgspec.field(name="continue", default="")


class _Event(msgspec.Struct, frozen=True):
    type: str
    object: msgspec.Raw


class _Versioned(msgspec.Struct, frozen=True):
    """A bookmark."""

    metadata: _ListMetadata


class _RawPage(msgspec.Struct, frozen=True):
    metadata: _ListMetadata
    items: list[msgspec.Raw] | None = None


class _Nameable(msgspec.Struct, frozen=True):
    metadata: dict[str, Any] = {}


class Reflector(Generic[T]):
    """One kind in one namespace (empty: all). `restarted` is called whenever a watch breaks."""

    def __init__(
        self,
        api: KubeClient,
        resource: Resource[T],
        namespace: str,
        cache: Cache[T],
        restarted: Callable[[], None],
    ) -> None:
        self._api = api
        self._resource = resource
        self._namespace = namespace
        self._cache = cache
        self._restarted = restarted
        self._version = ""
        self._relist_at = 0.0  # as the running loop's clock says
        items = ("items", list[resource.shape] | None, None)  # type: ignore[name-defined]
        page = msgspec.defstruct("Page", [("metadata", _ListMetadata), items], frozen=True)
        self._page: msgspec.json.Decoder[Any] = msgspec.json.Decoder(page)
        self._object = msgspec.json.Decoder(resource.shape)
        self._event = msgspec.json.Decoder(_Event)
        self._query = {"labelSelector": resource.selector} if resource.selector else {}
        self._backoff = Backoff(RETRY_FIRST_S, RETRY_MOST_S)
        self._heard_at = 0.0
        self._is_quiet = False  # nothing happened in the last watch
        self.synced = asyncio.Event()
        self.plural = resource.plural

    def silent_s(self) -> float:
        """For how long the API server has said nothing of this kind, not even that it takes a watch."""
        return asyncio.get_running_loop().time() - self._heard_at

    def _hears(self) -> None:
        self._heard_at = asyncio.get_running_loop().time()

    async def run(self) -> NoReturn:
        """Until cancelled. An API server that is away is waited for; the cache keeps what it has."""
        told = ""
        while True:
            try:
                await self._follow()
            except Expired:
                self._version = ""
                self._restarted()
            except (HoldfastError, msgspec.MsgspecError) as error:
                self._restarted()
                # Not each try of an outage is told of, but each outage is.
                if str(error) != told or self._backoff.failures == 0:
                    told = str(error)
                    logger.warning("cannot watch plural=%s error=%s", self.plural, error)
            await asyncio.sleep(self._backoff.next_s())

    async def _follow(self) -> NoReturn:
        """List if there is nothing to go on from or it is time again, then watch. Ends only by an error."""
        loop = asyncio.get_running_loop()
        while True:
            if not self._version or loop.time() >= self._relist_at:
                await self._list()
                self._relist_at = loop.time() + RELIST_S * random.uniform(0.9, 1.1)
            started = loop.time()
            await self._watch()
            if loop.time() - started < LEAST_S:
                raise Unavailable(f"the API server ended the watch of {self.plural} at once")

    async def _list(self) -> None:
        begun = self._cache.begin_list()
        items: list[T] = []
        limit, query = PAGE_OBJECTS, self._query
        while True:
            asked = query | {"limit": str(limit)}
            request = Request("GET", self._resource.path(self._namespace), asked, bytes_max=PAGE_BYTES_MAX)
            try:
                content = await self._api.ask(request)
                self._hears()
            except TooLong:
                if limit == 1:
                    raise
                limit = max(1, limit // 8)
                continue
            try:
                page = decode(self._page, content)
                items += page.items or ()
            except msgspec.ValidationError:
                # One object that is not as expected must not hide the others.
                page = read(content, _RawPage)
                items += [item for each in page.items or () if (item := self._read_one(each)) is not None]
            if not page.metadata.continue_:
                break
            query = query | {"continue": page.metadata.continue_}
        self._version = page.metadata.resource_version
        self._cache.replace(self._namespace, items, begun, self._version)
        self._backoff.reset()
        self.synced.set()

    async def _watch(self) -> None:
        query = self._query | {
            "watch": "1",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(QUIET_WATCH_S if self._is_quiet else int(WATCH_S * random.uniform(1.0, 2.0))),
        }
        self._is_quiet = True
        request = Request("WATCH", self._resource.path(self._namespace), query, timeout_s=None)
        async with aclosing(self._api.lines(request, SILENCE_S)) as lines:
            async for line in lines:
                self._hears()
                if not line:
                    continue
                event = decode(self._event, line)
                if event.type == "ERROR":
                    said = msgspec.json.decode(event.object, type=Said)
                    if said.code == 410:
                        raise Expired(410, said.reason, said.message)
                    raise Unavailable(f"the watch of {self.plural} ended: {said.code} {said.message}")
                if event.type == "BOOKMARK":
                    self._version = msgspec.json.decode(event.object, type=_Versioned).metadata.resource_version
                elif (item := self._read_one(event.object)) is not None:
                    self._is_quiet = False
                    self._cache.observe(Change(event.type), item)
                    self._version = item.metadata.resource_version
                self._backoff.reset()

    def _read_one(self, raw: msgspec.Raw) -> T | None:
        try:
            item: T = self._object.decode(raw)
        except msgspec.ValidationError as error:
            name = msgspec.json.decode(raw, type=_Nameable).metadata.get("name")
            logger.error("cannot read an object plural=%s name=%s error=%s", self.plural, name, error)
            return None
        return item
