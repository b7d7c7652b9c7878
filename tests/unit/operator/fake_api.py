"""An API server of one Lease, or of what a test hands it."""

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import Any

import msgspec

from holdfast.api.errors import HoldfastError, Unavailable
from holdfast.wire.kube.client import Request
from holdfast.wire.kube.reply import refusal


class LeaseServer:
    """Keeps one Lease as the API server would: a write must name the version it was made from."""

    def __init__(self) -> None:
        self.lease: dict[str, Any] | None = None
        self.away = False
        self._version = 0

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        if self.away:
            raise Unavailable("the API server does not answer")
        if request.verb == "GET":
            if self.lease is None:
                raise refusal(404, b'{"reason": "NotFound"}')
            return msgspec.json.encode(self.lease)
        given = msgspec.json.decode(request.body or b"")
        held = None if self.lease is None else self.lease["metadata"]["resourceVersion"]
        if given["metadata"].get("resourceVersion") != held:
            raise refusal(409, b'{"reason": "Conflict"}')
        self._version += 1
        self.lease = given | {"metadata": given["metadata"] | {"resourceVersion": str(self._version)}}
        return msgspec.json.encode(self.lease)


class ScriptedServer:
    """Answers lists and watches in the order given; then stays silent."""

    def __init__(self, *, lists: list[Any], watches: list[list[Any] | HoldfastError]) -> None:
        self.lists = lists
        self.watches = watches
        self.asked: list[Request] = []

    async def ask(self, request: Request, guard: Callable[[], None] | None = None) -> bytes:
        self.asked.append(request)
        listed = self.lists.pop(0)
        if isinstance(listed, HoldfastError):
            raise listed
        return msgspec.json.encode(listed)

    async def lines(self, request: Request, silence_s: float) -> AsyncGenerator[bytes, None]:
        self.asked.append(request)
        if not self.watches:
            await asyncio.Event().wait()
        script = self.watches.pop(0)
        if isinstance(script, HoldfastError):
            raise script
        for event in script:
            yield msgspec.json.encode(event)
        await asyncio.Event().wait()
