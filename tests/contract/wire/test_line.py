"""What every line to the watchdog does: the launcher's, the agent's and the operator's."""

import asyncio
import logging
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
import pytest
from aiohttp import web
from patience import patient
from server_process import free_port

from holdfast.agent.jobstream import Reporter
from holdfast.agent.launch.connection import Connection
from holdfast.agent.outbox import Outbox
from holdfast.api.membership import FromLauncher, Join
from holdfast.api.plan import FromOperator, OperatorHello, Plan
from holdfast.api.round import Idle
from holdfast.api.standing import STANDBY_STATUS, STANDING_HEADER, Standing
from holdfast.api.telemetry import AgentHello, FromAgent, Pace
from holdfast.operator.watchdog import JobLine, Watchdog
from holdfast.wire.access import Access, Address, Credential
from holdfast.wire.line import TurnedAway

JOB = "research/gpt"


@dataclass
class Server:
    """Takes every line, or answers with `refuses`. It shows `shows` to each."""

    token_file: Path
    address: Address = field(default_factory=lambda: Address("127.0.0.1", free_port()))
    refuses: web.Response | None = None
    shows: list[bytes] = field(default_factory=list)
    tokens: list[str] = field(default_factory=list)
    greetings: list[bytes] = field(default_factory=list)
    opened_at: list[float] = field(default_factory=list)
    lines: set[web.WebSocketResponse] = field(default_factory=set)
    hangs: bool = False

    @property
    def access(self) -> Access:
        return Access(self.address, Credential(file=self.token_file))

    async def serve(self, request: web.Request) -> web.StreamResponse:
        self.tokens.append(request.headers["Authorization"])
        if self.refuses is not None:
            return web.Response(status=self.refuses.status, headers=self.refuses.headers.copy())
        line = web.WebSocketResponse()
        await line.prepare(request)
        self.opened_at.append(time.monotonic())
        self.greetings.append(await line.receive_bytes())
        self.lines.add(line)
        for shown in self.shows:
            await line.send_bytes(shown)
        if self.hangs:
            await asyncio.Event().wait()
        async for _ in line:
            pass
        self.lines.discard(line)
        return line

    async def hang_up(self) -> None:
        for line in tuple(self.lines):
            await line.close()


@asynccontextmanager
async def serving(server: Server) -> AsyncIterator[web.AppRunner]:
    app = web.Application()
    app.router.add_get("/v1/{who}", server.serve)
    runner = web.AppRunner(app, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, server.address.host, server.address.port, reuse_address=True).start()
    try:
        yield runner
    finally:
        await runner.cleanup()


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    (tmp_path / "token").write_text("first view")
    server = Server(tmp_path / "token")
    async with serving(server):
        yield server


def _launcher(server: Server) -> Callable[[], Awaitable[object]]:
    join = Join(JOB, "m0", "node-0", "boot", "127.0.0.1", local_size=1, ports=(29500,), warm=True)
    return Connection(
        server.access, job=JOB, heartbeat_interval_s=0.1, join=lambda: join, on_shown=lambda _: None
    ).run


def _agent(server: Server) -> Callable[[], Awaitable[object]]:
    outbox = Outbox(node="node-0", boot="boot", interval_s=0.1)
    return Reporter(outbox, AgentHello("node-0", "boot", JOB), server.access).run


def _operator(server: Server) -> Callable[[], Awaitable[object]]:
    async def run() -> None:
        watchdog = Watchdog(str(server.address), server.token_file)
        try:
            await JobLine(watchdog, JOB, lambda: None, time.monotonic).run()
        finally:
            await watchdog.close()

    return run


@dataclass(frozen=True)
class Use:
    make: Callable[[Server], Callable[[], Awaitable[object]]]
    greeting: type
    says: object
    shown: msgspec.Struct


USES = {
    "launcher": Use(_launcher, Join, FromLauncher, Idle(JOB, 0, "r")),
    "agent": Use(_agent, AgentHello, FromAgent, Pace(interval_s=0.1)),
    "operator": Use(_operator, OperatorHello, FromOperator, Plan(JOB, 1, members=0, spares=0)),
}


@pytest.fixture(params=USES)
def use(request: pytest.FixtureRequest) -> Use:
    return USES[request.param]


@asynccontextmanager
async def running(use: Use, server: Server) -> AsyncIterator["asyncio.Task[object]"]:
    task = asyncio.ensure_future(use.make(server)())
    try:
        yield task
    finally:
        task.cancel()
        await asyncio.wait((task,), timeout=patient(5.0))
        assert task.done(), "a line ends when it is told to"


async def until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + patient(10.0)
    while not holds():
        assert time.monotonic() < deadline, f"waited in vain for {what}"
        await asyncio.sleep(0.005)


async def test_every_connection_begins_with_the_greeting(use: Use, server: Server) -> None:
    async with running(use, server):
        for times in range(1, 4):
            await until(lambda times=times: len(server.greetings) == times and server.lines, "a connection")
            await server.hang_up()
        await until(lambda: len(server.greetings) >= 4, "one more")
    for greeting in server.greetings:
        assert isinstance(msgspec.msgpack.decode(greeting, type=use.says), use.greeting)


async def test_the_token_is_read_for_each_connection(use: Use, server: Server) -> None:
    async with running(use, server):
        await until(lambda: bool(server.lines), "a connection")
        server.token_file.write_text("second\n")
        await server.hang_up()
        await until(lambda: len(server.tokens) == 2, "another one")
    assert server.tokens == ["Bearer first", "Bearer second"]


async def test_a_token_that_cannot_be_read_is_waited_for(use: Use, server: Server) -> None:
    server.token_file.unlink()
    async with running(use, server) as task:
        await asyncio.sleep(0.2)
        assert not task.done()
        server.token_file.write_text("back")
        await until(lambda: server.tokens == ["Bearer back"], "a connection")


async def test_a_watchdog_that_returns_has_its_clients_within_two_seconds(use: Use, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("t")
    server = Server(tmp_path / "token")
    async with serving(server):
        pass  # only its port is wanted: nobody listens there now
    with socket.socket() as held:  # or a client might get the port for its own end of a connection
        held.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        held.bind((server.address.host, server.address.port))
        async with running(use, server):
            await asyncio.sleep(1.0)
            async with serving(server):
                back = time.monotonic()
                await until(lambda: bool(server.opened_at), "a connection")
                limit_s = 2.0 if use is not USES["operator"] else 5.0
                assert server.opened_at[0] - back < patient(limit_s)


async def test_why_there_is_no_line_is_logged_once_and_its_return_too(
    use: Use, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "holdfast.wire.line")
    server.refuses = web.Response(status=500)
    server.shows = [msgspec.msgpack.encode(use.shown)]
    async with running(use, server):
        await until(lambda: len(server.tokens) >= 3, "three tries")
        server.refuses = None
        await until(lambda: "is back" in caplog.text, "its return")
    assert caplog.text.count("the watchdog is away") == 1
    assert "refused with HTTP status 500" in caplog.text
    assert f"job={JOB}" in caplog.text


async def test_standbys_are_asked_again_at_once_and_not_told_of(
    use: Use, server: Server, caplog: pytest.LogCaptureFixture
) -> None:
    server.refuses = web.Response(status=STANDBY_STATUS, headers={STANDING_HEADER: Standing.STANDBY})
    async with running(use, server):
        await until(lambda: len(server.tokens) >= 5, "five tries")
        server.refuses = None
        await until(lambda: bool(server.lines), "the leader")
    assert "the watchdog is away" not in caplog.text


async def test_a_refused_token_ends_only_the_launcher_which_was_never_welcome(use: Use, server: Server) -> None:
    server.refuses = web.Response(status=401)
    async with running(use, server) as task:
        if use is USES["launcher"]:
            with pytest.raises(TurnedAway, match=f"{server.address} does not accept this launcher's token"):
                await task
        else:
            await until(lambda: len(server.tokens) >= 3, "three tries")
            assert not task.done()


async def test_a_message_that_is_not_understood_costs_the_line_only_where_its_place_matters(
    use: Use, server: Server
) -> None:
    server.shows = [b"\xc1"]
    async with running(use, server):
        if use is USES["operator"]:
            await until(lambda: len(server.greetings) >= 2, "a new line")
        else:
            await until(lambda: bool(server.lines), "a connection")
            await asyncio.sleep(0.3)
            assert len(server.greetings) == 1


async def test_a_line_ends_though_the_watchdog_hangs(use: Use, server: Server) -> None:
    server.hangs = True
    async with running(use, server) as task:
        await until(lambda: bool(server.lines), "a connection")
        began = time.monotonic()
        task.cancel()
        await asyncio.wait((task,), timeout=patient(5.0))
        assert task.done()
        assert time.monotonic() - began < patient(2.0)
