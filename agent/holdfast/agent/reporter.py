"""The agent's one connection to the watchdog: sends what the outbox gives, follows the pace it is told."""

import asyncio
import time
from collections.abc import AsyncGenerator
from typing import Final, NoReturn

import msgspec

from holdfast.agent.outbox import Outbox
from holdfast.api.telemetry import AgentHello, FromAgent, Pace, ReportTaken, ToAgent
from holdfast.wire.access import Access
from holdfast.wire.line import Line, Manner

MANNER: Final = Manner(
    client="agent",
    retry_first_s=0.1,
    retry_most_s=1.5,  # decisions are to resume within 2 s of the watchdog's return
    steady_s=5.0,  # two agents of one name close each other's connection: neither may retry at full speed
    ping_s=5.0,
    frame_bytes_max=65536,
)


class Reporter:
    """Keeps a connection to the watchdog for as long as it runs; while it is away only events are kept."""

    def __init__(self, outbox: Outbox, hello: AgentHello, access: Access) -> None:
        self._outbox = outbox
        self._hello = hello
        self._due = asyncio.Event()
        self._line = Line(access, "/v1/agent", self, msgspec.msgpack.Decoder(ToAgent), MANNER, hello.job)

    @property
    def connected(self) -> bool:
        """Whether the watchdog listens now."""
        return self._line.connected

    def wake(self) -> None:
        """A report is due."""
        self._due.set()

    async def run(self) -> NoReturn:
        """Ends only by cancellation."""
        await self._line.run()

    async def speech(self) -> AsyncGenerator[FromAgent, None]:
        """Who we are, what the watchdog may not have taken, and every report that is due."""
        yield self._hello
        for again in self._outbox.reconnected(time.monotonic()):
            yield again
        while True:
            while (report := self._outbox.take(time.monotonic())) is not None:
                yield report
            self._due.clear()
            await self._due.wait()

    def hear(self, shown: ToAgent) -> None:
        """The pace to keep, or that reports were taken."""
        match shown:
            case Pace():
                self._outbox.keep_pace(shown, time.monotonic())
            case ReportTaken():
                self._outbox.taken(shown.sequence)

    def lost(self) -> None:
        """The outbox keeps what must arrive."""
