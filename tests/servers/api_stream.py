"""Requests and watches against an API server that may go away and come back at any moment."""

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import aiohttp
import msgspec
from apiserver import ADMIN_TOKEN, ApiServer, Refused
from patience import patient

from holdfast.api.nesting import read

LINE_BYTES_MAX = 4 << 20  # the longest object in a watch
AWAY_S_MAX = patient(60.0)  # the longest a request is tried again while the server is away
RETRY_S = 0.2
WATCH_S = 240  # how long the server may keep one watch open
GONE = 410

Manifest = dict[str, Any]


class ApiAway(RuntimeError):
    """The API server did not come back in time."""


class ApiStream:
    """A client of the administrator, for use inside one event loop. Counts its requests."""

    def __init__(self, server: ApiServer, concurrency: int):
        self.requests = 0
        self._server = server
        self._session = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {ADMIN_TOKEN}"},
            connector=aiohttp.TCPConnector(ssl=server.ssl, limit=concurrency + 8),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5.0),
            read_bufsize=LINE_BYTES_MAX,
        )

    async def close(self) -> None:
        """At once: an encrypted connection that ends in order may outlive its loop, and that is a warning."""
        if self._session.connector is not None:
            await self._session.connector.close(abort_ssl=True)
        await self._session.close()

    async def call(
        self, method: str, path: str, body: Any = None, *, content: str = "application/json"
    ) -> Manifest:
        """One request, tried again while the server is away. Raises Refused or ApiAway."""
        deadline = asyncio.get_running_loop().time() + AWAY_S_MAX
        data = None if body is None else msgspec.json.encode(body)
        while True:
            try:
                self.requests += 1
                async with self._session.request(
                    method, self._server.url + path, data=data, headers={"Content-Type": content}
                ) as answer:
                    raw = await answer.read()
                    if answer.status < 400:
                        return read(raw, Manifest)
                    if answer.status not in (429, 500, 503, 504):
                        raise Refused(answer.status, _said(raw))
                    problem = f"{answer.status}: {raw[:200]!r}"
            except (aiohttp.ClientError, TimeoutError) as error:
                problem = repr(error)
            if asyncio.get_running_loop().time() > deadline:
                raise ApiAway(f"{method} {path} was tried for {AWAY_S_MAX} s; last: {problem}")
            await asyncio.sleep(RETRY_S)

    async def follow(self, path: str, selector: str = "") -> AsyncIterator[tuple[str, Manifest]]:
        """Every object of a collection, now and as it changes, as (LISTED, ADDED, MODIFIED or DELETED, object).

        Before each full list, the first and any after a break that lost events, comes ("CLEARED", {}).
        """
        while True:
            yield "CLEARED", {}
            more = f"&labelSelector={selector}" if selector else ""
            listed = await self.call("GET", f"{path}?resourceVersion=0{more}")
            version = listed["metadata"]["resourceVersion"]
            for each in listed["items"]:
                yield "LISTED", each
            async for kind, each in self._watch(path, version, more):
                yield kind, each

    async def _watch(self, path: str, version: str, more: str) -> AsyncIterator[tuple[str, Manifest]]:
        """Watch from a version on, through breaks; ends when the server cannot go on from there."""
        while True:
            address = f"{self._server.url}{path}?watch=1&allowWatchBookmarks=true&timeoutSeconds={WATCH_S}"
            try:
                async with self._session.get(f"{address}&resourceVersion={version}{more}") as answer:
                    if answer.status == GONE:
                        return
                    answer.raise_for_status()
                    try:
                        async for line in answer.content:
                            event = msgspec.json.decode(line)
                            if event["type"] == "ERROR":
                                return
                            version = event["object"]["metadata"]["resourceVersion"]
                            if event["type"] != "BOOKMARK":
                                yield event["type"], event["object"]
                    finally:
                        _hang_up(answer)
            except (aiohttp.ClientError, TimeoutError, msgspec.DecodeError):
                await asyncio.sleep(RETRY_S)


def _hang_up(answer: aiohttp.ClientResponse) -> None:
    """At once: a watch that is broken off would say goodbye (TLS) in the background, and may outlive its loop."""
    if answer.connection is not None and answer.connection.transport is not None:
        answer.connection.transport.abort()


def _said(raw: bytes) -> dict[str, Any]:
    """What a path that is not served yet answers is no Status, but text."""
    try:
        return msgspec.json.decode(raw, type=dict[str, Any])
    except msgspec.DecodeError:
        return {"message": raw[:200].decode(errors="replace")}
