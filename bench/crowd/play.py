"""One process of the crowd: some launchers and agents, kept busy, and what they saw of rounds."""

import asyncio
import os
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any, Final

from crowd import cast
from crowd.cast import Part
from crowd.wire import Wire

TICKS_PER_S: Final = 50
AT_ONCE: Final = 64  # connections being made at the same time
CONNECT_WITHIN_S: Final = 120.0


@dataclass(frozen=True, slots=True)
class Order:
    """What one process of the crowd plays: these launchers and agents, against the watchdog at `port`.

    Each agent says `reports_per_s`; each launcher beats once a second. Connections come from `address`.
    """

    port: int
    token: str
    address: str
    launchers: tuple[Part, ...]
    agents: tuple[Part, ...]
    reports_per_s: float


@dataclass(frozen=True, slots=True)
class Strain:
    """How a process of the crowd bears up: seconds behind its own timetable at worst, connections that it lost."""

    late_s: float
    lost: int
    has_stopped: bool  # it was busy, and is no more


@dataclass(slots=True)
class Shown:
    """When the launchers of a job in this process had the whole of one round."""

    at: list[float] = field(default_factory=list)


@dataclass(slots=True)
class _Agent:
    part: Part
    wire: Wire
    sequence: int = 0


class Troupe:
    """Everybody this process plays. Only the newest round of a job is of interest."""

    def __init__(self, order: Order) -> None:
        self._order = order
        self._launchers: dict[Part, Wire] = {}
        self._agents: list[_Agent] = []
        self._rounds: dict[str, tuple[int, float]] = {}  # by job: the newest round, and since when
        self._first_ranks: dict[
            Part, int
        ] = {}  # which the round gave to each: what it says of others counts nowhere
        self.shown: dict[tuple[str, int], Shown] = {}
        self.late_s = 0.0  # how far the crowd fell behind its own timetable at worst

    @property
    def lost(self) -> int:
        """Connections that are gone: nobody makes them anew, and who is not there costs the watchdog nothing."""
        wires = (*self._launchers.values(), *(agent.wire for agent in self._agents))
        return sum(wire.is_gone for wire in wires)

    async def assemble(self, what: str) -> None:
        """Connect all launchers, or all agents."""
        room = asyncio.Semaphore(AT_ONCE)
        parts = self._order.launchers if what == "launchers" else self._order.agents
        connect = self._launcher if what == "launchers" else self._agent

        async def one(part: Part) -> None:
            async with room:
                await connect(part)

        await asyncio.gather(*(one(part) for part in parts))

    async def keep_busy(self) -> None:
        """Beats and reports, evenly spread over each second, for ever."""
        began, ticks = time.monotonic(), 0
        beats, reports = _Turns(len(self._launchers), 1.0), _Turns(len(self._agents), self._order.reports_per_s)
        wires = list(self._launchers.values())
        while True:
            ticks += 1
            for place in beats.due(ticks):
                wires[place].say(cast.BEAT)
            now = time.monotonic()
            for place in reports.due(ticks):
                self._report(self._agents[place], now)
            wait_s = began + ticks / TICKS_PER_S - time.monotonic()
            self.late_s = max(self.late_s, -wait_s)
            await asyncio.sleep(max(0.0, wait_s))

    def say(self, part: Part, body: bytes) -> float:
        """Let a launcher say something; when it did."""
        at = time.monotonic()
        self._launchers[part].say(body)
        return at

    def newest(self, job: str) -> tuple[int, int]:
        """The newest round of a job, and how many launchers of this process have it."""
        number, _ = self._rounds.get(job, (0, 0.0))
        return number, len(self.shown.get((job, number), Shown()).at)

    async def _launcher(self, part: Part) -> None:
        def heard(body: bytes) -> None:
            number = _round_number(body)
            if number is None:
                return
            at = time.monotonic()
            self.shown.setdefault((part.job, number), Shown()).at.append(at)
            self._first_ranks[part] = _whole(body, b"first_rank")
            if self._rounds.get(part.job, (0, 0.0))[0] < number:
                self._rounds[part.job] = number, at
            self._launchers[part].say(cast.entered(number))

        self._launchers[part] = await self._connected("/v1/member", heard, part.join())

    async def _agent(self, part: Part) -> None:
        wire = await self._connected("/v1/agent", lambda body: None, part.hello())
        self._agents.append(_Agent(part, wire))

    async def _connected(self, path: str, heard: Callable[[bytes], None], first: bytes) -> Wire:
        agreed = asyncio.get_running_loop().create_future()
        head = (
            f"GET {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nAuthorization: Bearer {self._order.token}\r\n"
            "Upgrade: websocket\r\nConnection: Upgrade\r\nSec-WebSocket-Version: 13\r\n"
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==\r\n\r\n"
        )

        def opened(wire: Wire) -> None:
            agreed.set_result(wire)

        # The frames that answer `first` may come before this coroutine goes on: the wire is known by then.
        _, wire = await asyncio.get_running_loop().create_connection(
            lambda: Wire(head.encode(), opened, heard),
            "127.0.0.1",
            self._order.port,
            local_addr=(self._order.address, 0),
        )
        async with asyncio.timeout(CONNECT_WITHIN_S):
            await agreed
        wire.say(first)
        return wire

    def _report(self, agent: _Agent, now: float) -> None:
        number, since = self._rounds.get(agent.part.job, (0, now))
        agent.sequence += 1
        first_rank = self._first_ranks.get(agent.part, 0)
        body = agent.part.report(agent.sequence, round_number=number, first_rank=first_rank, running_s=now - since)
        agent.wire.say(body)


class _Turns:
    """Whose turn it is at each tick, so that each of `count` has `per_s` turns a second."""

    def __init__(self, count: int, per_s: float) -> None:
        self._count = count
        self._per_tick = count * per_s / TICKS_PER_S
        self._given = 0

    def due(self, tick: int) -> Sequence[int]:
        until = int(tick * self._per_tick)
        places = [turn % self._count for turn in range(self._given, until)]
        self._given = until
        return places


def _round_number(body: bytes) -> int | None:
    """The number of the round that the frame shows, None when it shows something else."""
    kind = body[:24]
    if b"Round" not in kind and b"Seat" not in kind:
        return None
    return _whole(body, b"number")


def _whole(body: bytes, field: bytes) -> int:
    """The number in a field of a frame: to decode 12,500 of them would cost more than playing does."""
    name = bytes((0xA0 | len(field),)) + field
    at = body.find(name) + len(name)
    size = {0xCC: 1, 0xCD: 2, 0xCE: 4}.get(body[at], 0)
    return int.from_bytes(body[at + 1 : at + 1 + size]) if size else body[at]


def play(order: Order, stage: Connection, core: int | None, nice: int) -> None:
    """A process's life: do what comes down `stage`, answer with what was seen."""
    os.nice(nice)
    if core is not None:
        os.sched_setaffinity(0, {core})
    asyncio.run(_play(order, stage))


async def _play(order: Order, stage: Connection) -> None:
    troupe = Troupe(order)
    loop = asyncio.get_running_loop()
    busy: asyncio.Task[None] | None = None
    while True:
        await _readable(loop, stage)
        match stage.recv():
            case ("assemble", str(what)):
                await troupe.assemble(what)
                stage.send(time.monotonic())
            case ("busy",):
                busy = asyncio.create_task(troupe.keep_busy())
                stage.send(None)
            case ("say", Part() as part, bytes(body)):
                stage.send(troupe.say(part, body))
            case ("shown", str(job), int(number)):
                stage.send(tuple(troupe.shown.get((job, number), Shown()).at))
            case ("newest", str(job)):
                stage.send(troupe.newest(job))
            case ("strain",):
                late_s, troupe.late_s = troupe.late_s, 0.0
                stage.send(Strain(late_s, troupe.lost, busy is not None and busy.done()))


async def _readable(loop: asyncio.AbstractEventLoop, stage: Connection) -> None:
    """Wait until the stage has something to read."""
    ready: asyncio.Future[Any] = loop.create_future()
    loop.add_reader(stage.fileno(), ready.set_result, None)
    try:
        await ready
    finally:
        loop.remove_reader(stage.fileno())
