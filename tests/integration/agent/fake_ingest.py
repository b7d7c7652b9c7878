"""A watchdog's ingest endpoint for tests: keeps what agents send, answers as it is told."""

import asyncio
from collections.abc import Callable

import msgspec
from aiohttp import WSMsgType, web
from patience import patient
from server_process import free_port

from holdfast.api.telemetry import AgentHello, FromAgent, NodeReport, ReportTaken, ToAgent

TOKEN = "secret"


class Connection:
    """One agent's connection."""

    def __init__(self, socket: web.WebSocketResponse, hello: AgentHello) -> None:
        self.socket = socket
        self.hello = hello
        self.reports: asyncio.Queue[NodeReport] = asyncio.Queue()

    async def say(self, message: ToAgent) -> None:
        await self.socket.send_bytes(msgspec.msgpack.encode(message))

    async def report(self, wanted: Callable[[NodeReport], object] = lambda _: True) -> NodeReport:
        """The next report that is wanted."""
        async with asyncio.timeout(patient(20)):
            while not wanted(report := await self.reports.get()):
                pass
            return report


class FakeWatchdog:
    """Listens on one port; `stop` and `start` again keep it."""

    def __init__(self) -> None:
        self.port = free_port()
        self.takes = True
        self.tokens = [TOKEN]
        self.refused = asyncio.Event()
        self._arrived: asyncio.Queue[Connection] = asyncio.Queue()
        self._runner: web.AppRunner | None = None
        self._sockets: set[web.WebSocketResponse] = set()

    async def start(self) -> None:
        application = web.Application()
        application.router.add_get("/v1/agent", self._serve)
        self._runner = web.AppRunner(application, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port, reuse_address=True).start()

    async def stop(self) -> None:
        assert self._runner is not None
        for socket in tuple(self._sockets):
            await socket.close()
        await self._runner.cleanup()

    async def connection(self) -> Connection:
        """The next connection an agent makes, after its hello."""
        async with asyncio.timeout(patient(20)):
            return await self._arrived.get()

    async def _serve(self, request: web.Request) -> web.StreamResponse:
        if request.headers.get("Authorization") not in [f"Bearer {token}" for token in self.tokens]:
            self.refused.set()
            return web.Response(status=401)
        socket = web.WebSocketResponse()
        await socket.prepare(request)
        self._sockets.add(socket)
        decoder: msgspec.msgpack.Decoder[FromAgent] = msgspec.msgpack.Decoder(FromAgent)
        hello = decoder.decode(await socket.receive_bytes())
        assert isinstance(hello, AgentHello)
        connection = Connection(socket, hello)
        self._arrived.put_nowait(connection)
        async for frame in socket:
            assert frame.type is WSMsgType.BINARY
            report = decoder.decode(frame.data)
            assert isinstance(report, NodeReport)
            connection.reports.put_nowait(report)
            if self.takes:
                await connection.say(ReportTaken(report.sequence))
        self._sockets.discard(socket)
        return socket
