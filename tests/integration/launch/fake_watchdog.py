"""A watchdog that decides nothing: it records what launchers say and shows them what a test wants."""

import asyncio
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Self, TypeVar

import msgspec
from aiohttp import WSMsgType, web
from patience import patient
from server_process import free_port

from holdfast.api.membership import FromLauncher, Join, Refused, RoundWord
from holdfast.api.memory import MemoryRound
from holdfast.api.round import Closed, Desired, Endpoint, Entry, Idle, MemberRanks, Restore, Round, shown_to
from holdfast.api.selftest import TestWanted
from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing

TOKEN = "test-token"
JOB = "default/test"
Message = TypeVar("Message", bound=msgspec.Struct)


@dataclass(frozen=True)
class Heard:
    """One message, who sent it, and when it arrived (monotonic seconds)."""

    member: str
    message: FromLauncher
    at: float


def _frame(shown: Desired | RoundWord | TestWanted, member: str) -> bytes:
    is_request = isinstance(shown, RoundWord | TestWanted)
    return msgspec.msgpack.encode(shown if is_request else shown_to(shown, member))


def _standby() -> web.Response:
    return web.Response(status=STANDBY_STATUS, headers={STANDING_HEADER: Standing.STANDBY})


@dataclass
class FakeWatchdog:
    """Use as an async context manager; `endpoint` is where launchers find it."""

    port: int = field(default_factory=free_port)
    refuse: str = ""
    token: str = TOKEN
    standby: bool = False
    turned_away: int = 0
    heard: list[Heard] = field(default_factory=list)
    joins: dict[str, Join] = field(default_factory=dict)
    connections: dict[str, web.WebSocketResponse] = field(default_factory=dict)
    desired: Desired | None = None
    on_heard: Callable[[Heard], None] | None = None

    async def __aenter__(self) -> Self:
        await self.open()
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def open(self) -> None:
        app = web.Application()
        app.router.add_get("/v1/member", self._member)
        self._runner = web.AppRunner(app, shutdown_timeout=0.1)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True)
        await site.start()
        self._changed = asyncio.Event()

    async def hang_up(self) -> None:
        for connection in tuple(self.connections.values()):
            await connection.close()

    async def was_turning_away(self, times: int, timeout_s: float = 15.0) -> None:
        """Wait until that many more connections were not accepted."""
        until = self.turned_away + times
        async with asyncio.timeout(patient(timeout_s)):
            while self.turned_away < until:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        for connection in tuple(self.connections.values()):
            await connection.close()
        await self._runner.cleanup()

    @property
    def endpoint(self) -> str:
        return f"127.0.0.1:{self.port}"

    async def show(self, desired: Desired | RoundWord | TestWanted) -> None:
        """Show it to all that are connected; a desired state also to who connects later."""
        if not isinstance(desired, RoundWord | TestWanted):
            self.desired = desired
        for member, connection in tuple(self.connections.items()):
            await connection.send_bytes(_frame(desired, member))

    def round(
        self,
        number: int,
        *members: str,
        entry: Entry = Entry.RESPAWN,
        fresh: tuple[int, ...] = (),
        restore: Restore | None = None,
        memory: MemoryRound | None = None,
    ) -> Round:
        """A round of `members` in this order, its store on a reserved port of the first one."""
        shares, first_rank = [], 0
        for member in members:
            join = self.joins[member]
            shares.append(MemberRanks(member, join.node, first_rank, join.local_size))
            first_rank += join.local_size
        host = self.joins[members[0]]
        endpoint = Endpoint(host.address, host.ports[number % len(host.ports)])
        return Round(
            job=JOB,
            number=number,
            ranks=tuple(shares),
            endpoint=endpoint,
            restore=restore or Restore(),
            entry=entry,
            reason=f"round {number}",
            fresh_ranks=fresh,
            memory=memory,
        )

    def idle(self, number: int) -> Idle:
        return Idle(JOB, number, "waiting")

    def closed(self, number: int, *, succeeded: bool) -> Closed:
        return Closed(JOB, number, succeeded, "done")

    def all_of(self, kind: type[Message], member: str | None = None) -> list[Message]:
        return [
            heard.message
            for heard in self.heard
            if isinstance(heard.message, kind) and member in (None, heard.member)
        ]

    async def wait_for(
        self,
        kind: type[Message],
        *,
        member: str | None = None,
        count: int = 1,
        where: Callable[[Message], bool] = lambda _: True,
        timeout_s: float = 30.0,
    ) -> Message:
        """The `count`-th message of that kind, from the beginning of the test."""
        async with asyncio.timeout(patient(timeout_s)):
            while True:
                found = [message for message in self.all_of(kind, member) if where(message)]
                if len(found) >= count:
                    return found[count - 1]
                self._changed.clear()
                await self._changed.wait()

    async def _member(self, request: web.Request) -> web.StreamResponse:
        is_known = request.headers.get("Authorization") == f"Bearer {self.token}"
        if self.standby or not is_known:
            self.turned_away += 1
            self._changed.set()
            return _standby() if self.standby else web.Response(status=401)
        connection = web.WebSocketResponse()
        await connection.prepare(request)
        member = ""
        async for frame in connection:
            if frame.type is not WSMsgType.BINARY:
                break
            message = msgspec.msgpack.decode(frame.data, type=FromLauncher)
            if isinstance(message, Join):
                member = message.member
                await self._welcome(message, connection)
            self._record(Heard(member, message, time.monotonic()))
        if self.connections.get(member) is connection:
            del self.connections[member]
        return connection

    async def _welcome(self, join: Join, connection: web.WebSocketResponse) -> None:
        if self.refuse:
            await connection.send_bytes(msgspec.msgpack.encode(Refused(self.refuse)))
            return
        self.joins[join.member] = join
        self.connections[join.member] = connection
        if self.desired is not None:
            await connection.send_bytes(_frame(self.desired, join.member))

    def _record(self, heard: Heard) -> None:
        self.heard.append(heard)
        self._changed.set()
        if self.on_heard is not None:
            self.on_heard(heard)
