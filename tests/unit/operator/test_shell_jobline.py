"""From when on a line counts as one: what was shown before it broke may have been overtaken meanwhile."""

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
from aiohttp import WSMsgType, web
from operator_builders import JOB_ID, plan, report
from patience import patient

from holdfast.api.plan import FromOperator, OperatorHello, ToOperator
from holdfast.api.status import JobPhase
from holdfast.operator.watchdog import JobLine, Watchdog


class Shown:
    """A watchdog that shows each new line what it was handed, and breaks them when told to."""

    def __init__(self) -> None:
        self.shows: asyncio.Queue[ToOperator | None] = asyncio.Queue()
        self.greetings: list[OperatorHello] = []

    async def serve(self, request: web.Request) -> web.StreamResponse:
        line = web.WebSocketResponse()
        await line.prepare(request)
        greeting = await line.receive()
        assert greeting.type is WSMsgType.BINARY
        self.greetings.append(msgspec.msgpack.decode(greeting.data, type=OperatorHello))
        while (message := await self.shows.get()) is not None:
            await line.send_bytes(msgspec.msgpack.encode(message))
        await line.close()
        return line


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = asyncio.get_running_loop().time() + patient(5.0)
    while not holds():
        assert asyncio.get_running_loop().time() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


@asynccontextmanager
async def served(shown: Shown, folder: Path) -> AsyncIterator[Watchdog]:
    """The operator's way to it."""
    app = web.Application()
    app.router.add_get("/v1/operator", shown.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    (folder / "token").write_text("token")
    watchdog = Watchdog(f"127.0.0.1:{runner.addresses[0][1]}", folder / "token")
    try:
        yield watchdog
    finally:
        await watchdog.close()
        shown.shows.put_nowait(None)
        await runner.cleanup()


class SlowToEnd(JobLine):
    """Its sender takes time to end, as one does that has much to write."""

    ending: asyncio.Event

    async def speech(self) -> AsyncGenerator[FromOperator, None]:
        yield OperatorHello(JOB_ID)
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.ending.set()
            await asyncio.Event().wait()


async def test_a_line_that_just_broke_ends_when_it_is_told_to(tmp_path: Path) -> None:
    shown = Shown()
    async with served(shown, tmp_path) as watchdog:
        line = SlowToEnd(watchdog, JOB_ID, lambda: None, asyncio.get_running_loop().time)
        line.ending = asyncio.Event()
        running = asyncio.create_task(line.run())
        shown.shows.put_nowait(None)
        await line.ending.wait()
        running.cancel()
        await asyncio.wait((running,), timeout=patient(5.0))
        ended = running.done()
        running.cancel()
        assert ended, "an operator that lost its lease waits for its lines, for ever if one goes on"


async def test_a_line_counts_from_the_first_report_on_it_not_from_the_greeting(tmp_path: Path) -> None:
    shown = Shown()
    async with served(shown, tmp_path) as watchdog:
        await _breaks_and_comes_back(shown, watchdog)


async def _breaks_and_comes_back(shown: Shown, watchdog: Watchdog) -> None:
    looks: list[tuple[int, JobPhase]] = []

    def look() -> None:
        assert line.plan is not None
        assert line.report is not None
        looks.append((line.plan.members, line.report.status.phase))

    rounds = iter((None, 7))
    line = JobLine(watchdog, JOB_ID, look, asyncio.get_running_loop().time, lambda: next(rounds))
    running = asyncio.create_task(line.run())
    try:
        for message in (plan(2), report()):
            shown.shows.put_nowait(message)
        await until(lambda: line.connected, "connected")
        assert line.heard_age_s() == 0.0
        shown.shows.put_nowait(None)
        await until(lambda: len(shown.greetings) == 2, "a second line")
        # The job may have ended while the line was broken: the plan of before asks for its pods still.
        assert not line.connected
        for message in (plan(0), report(JobPhase.SUCCEEDED)):
            shown.shows.put_nowait(message)
        await until(lambda: line.connected, "connected again")
        assert [each.round for each in shown.greetings] == [None, 7], "as the job's status says by then"
        # Never the plan of the end with the report before it: that would take away the pods of one that goes on.
        assert looks == [(2, JobPhase.RUNNING), (2, JobPhase.RUNNING), (0, JobPhase.SUCCEEDED)]
    finally:
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
