"""Replicas of the watchdog as processes, and what a cluster puts in front of them."""

import asyncio
import itertools
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp
import msgspec
import redis
from patience import patient
from peers import JOB, TO_LAUNCHER, bearer, join, policy_of
from redis_sentinels import RedisWithSentinels
from redis_server import RedisServer
from server_process import free_port

from holdfast.api.event import Journaled
from holdfast.api.membership import Beat, FromLauncher, RoundEntered
from holdfast.api.policy import RestartBudget
from holdfast.api.round import Seat
from holdfast.watchdog.settings import RedisAddress
from holdfast.watchdog.store.redis import RedisStore
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.store import START

PATIENCE_S = patient(20.0)
BEAT_S = 0.3
HANDSHAKE_S = 1.0
ANSWER_S = patient(10.0)
READY_ANSWER_S = 1.0  # what a probe of a cluster waits


class Relay:
    """Passes TCP connections on to wherever `target` says at that moment; None refuses them."""

    def __init__(self, target: Callable[[], int | None]) -> None:
        self._target = target
        self._writers: set[asyncio.StreamWriter] = set()
        self._server: asyncio.Server | None = None
        self.port = free_port()

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._pass_on, "127.0.0.1", self.port, reuse_address=True)

    def cut(self) -> None:
        """End every connection."""
        for writer in self._writers:
            writer.transport.abort()

    async def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self.cut()
            await self._server.wait_closed()

    async def _pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        port = self._target()
        self._writers.add(writer)
        try:
            if port is None:
                return
            there, back = await asyncio.open_connection("127.0.0.1", port)
            self._writers.add(back)
            await asyncio.gather(_pump(reader, back), _pump(there, writer))
            self._writers.discard(back)
        except OSError:
            pass
        finally:
            self._writers.discard(writer)
            writer.transport.abort()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(OSError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()
    writer.transport.abort()


@dataclass
class Replica:
    """One watchdog process and where it listens."""

    name: str
    process: "subprocess.Popen[str]"
    state_file: Path
    output: Path
    http: aiohttp.ClientSession
    token: str = ""

    @property
    def port(self) -> int:
        """Another one each time that it begins anew. Raises FileNotFoundError once it has ended."""
        return int(json.loads(self.state_file.read_text())["port"])

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def get(self, path: str, within_s: float = ANSWER_S) -> tuple[int, Any]:
        """Status and body; status 0 when nobody answers in time."""
        try:
            timeout = aiohttp.ClientTimeout(total=within_s)
            async with self.http.get(self.url + path, headers=bearer(self.token), timeout=timeout) as answer:
                text = await answer.text()
                return answer.status, json.loads(text) if "json" in answer.content_type else text
        except (aiohttp.ClientError, TimeoutError, OSError):
            return 0, None

    async def fence(self) -> int | None:
        """The fence it leads with, None while it does not."""
        status, body = await self.get("/readyz")
        return body["fence"] if status == 200 else None

    def said(self) -> str:
        return self.output.read_text()

    async def stands_by_again(self) -> None:
        """It led, another one does now, and the same process stands by: to Kubernetes nothing has ended."""
        await until(self.said, f"{self.name} begins anew", lambda said: "begins anew as a standby" in said)
        await until(lambda: self.get("/readyz"), f"{self.name} stands by", lambda got: got[0] == 200)
        assert self.process.poll() is None

    async def ended(self) -> int:
        """Its exit code, once it has ended."""
        return await until(self.process.poll, f"{self.name} ends", lambda code: code is not None)


@dataclass(eq=False)
class SteadyLauncher:
    """A launcher that keeps at it: beats, obeys rounds, and connects again with the round it holds."""

    member: str
    endpoint: str
    token: str
    held: int | None = None
    shown: list[int] = field(default_factory=list)
    connections: int = 0
    socket: aiohttp.ClientWebSocketResponse | None = None
    desired: list[Any] = field(default_factory=list)

    async def run(self) -> None:
        async with aiohttp.ClientSession() as http:
            while True:
                with suppress(aiohttp.ClientError, OSError, TimeoutError):
                    async with asyncio.timeout(HANDSHAKE_S):  # a watchdog that hangs accepts, and says nothing
                        socket = await http.ws_connect(f"{self.endpoint}/v1/member", headers=bearer(self.token))
                    async with socket:
                        await self._converse(socket)
                self.socket = None
                await asyncio.sleep(0.1)

    async def say(self, message: FromLauncher) -> None:
        assert self.socket is not None, f"{self.member} is not connected"
        await self.socket.send_bytes(msgspec.msgpack.encode(message))

    async def _converse(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        await socket.send_bytes(
            msgspec.msgpack.encode(join(self.member, held_round=self.held, shown=self.held or 0))
        )
        self.socket = socket
        self.connections += 1
        beating = asyncio.create_task(self._beat(socket))
        try:
            async for message in socket:
                if message.type is aiohttp.WSMsgType.BINARY:
                    await self._take(TO_LAUNCHER.decode(message.data))
        finally:
            beating.cancel()

    async def _take(self, shown: Any) -> None:
        self.desired.append(shown)
        if isinstance(shown, Seat) and (self.held is None or shown.number > self.held):
            self.held = shown.number
            self.shown.append(shown.number)
            await self.say(RoundEntered(shown.number, reentrant=True))

    async def _beat(self, socket: aiohttp.ClientWebSocketResponse) -> None:
        with suppress(OSError, aiohttp.ClientError):
            while True:
                await asyncio.sleep(BEAT_S)
                await socket.send_bytes(msgspec.msgpack.encode(Beat()))


class Replicas:
    """Starts watchdogs and launchers, follows who is ready, and cleans up."""

    def __init__(self, folder: Path, redis_server: RedisServer | RedisWithSentinels) -> None:
        self.redis = redis_server
        self.all: dict[str, Replica] = {}
        self.launchers: list[SteadyLauncher] = []
        self._folder = folder
        self._ready: list[int] = []
        self._turn = itertools.count()
        self._tasks: list[asyncio.Task[None]] = []
        self._relays: list[Relay] = []
        self.service = Relay(self._next_ready)

    async def __aenter__(self) -> "Replicas":
        self.http = aiohttp.ClientSession()
        await self.service.start()
        self._tasks.append(asyncio.create_task(self._follow()))
        return self

    async def __aexit__(self, *_: object) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        for relay in (self.service, *self._relays):
            await relay.close()
        await self.http.close()
        for replica in self.all.values():
            replica.process.kill()
            replica.process.wait(PATIENCE_S)

    async def relay(self, target: Callable[[], int | None]) -> Relay:
        made = Relay(target)
        self._relays.append(made)
        await made.start()
        return made

    async def start(self, name: str, *arguments: str, redis_port: int | None = None) -> Replica:
        """Start one and wait until it listens."""
        state_file, output = self._folder / f"{name}.json", self._folder / f"{name}.log"
        state_file.unlink(missing_ok=True)
        command = [sys.executable, "-m", "holdfast.watchdog", "--identity", name]
        command += ["--store", self.redis.url if redis_port is None else f"redis://127.0.0.1:{redis_port}/0"]
        command += ["--token-file", str(self._folder / "token"), "--state-file", str(state_file), *arguments]
        with output.open("w") as log:
            process = subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, text=True)  # noqa: ASYNC220 - it only starts it
        replica = Replica(name, process, state_file, output, self.http)
        self.all[name] = replica
        await until(lambda: state_file.exists() or process.poll() is not None, f"{name} listens")
        replica.token = (self._folder / "token").read_text().strip()
        return replica

    async def pair(self, *arguments: str) -> tuple[Replica, Replica]:
        """A leader, and one that stands by."""
        leader = await self.start("first", *arguments)
        await until(leader.fence, "the first one leads")
        return leader, await self.start("second", *arguments)

    async def training(self, leader: Replica, *members: str, **policy: Any) -> int:
        """Submit a job for these members and let them enter a round, whose number is returned."""
        body = msgspec.json.encode(policy_of(nodes=len(members), restarts=RestartBudget(backoff_s=0.0), **policy))
        async with self.http.post(f"{leader.url}/v1/jobs", data=body, headers=bearer(leader.token)) as answer:
            assert answer.status == 200, await answer.text()
        for member in members:
            launcher = SteadyLauncher(member, f"http://127.0.0.1:{self.service.port}", leader.token)
            self.launchers.append(launcher)
            self._tasks.append(asyncio.create_task(launcher.run()))
        return await self.in_round(above=0)

    async def in_round(self, *, above: int) -> int:
        """The number of the round that all launchers hold and the leader calls running, once it is greater."""

        async def held() -> int:
            numbers = {launcher.held or 0 for launcher in self.launchers}
            return numbers.pop() if len(numbers) == 1 else 0

        number = await until(held, f"all hold a round above {above}", lambda number: number > above)
        return int(number)

    async def leader(self, *, other_than: Replica | None = None) -> Replica:
        """Whoever leads, once somebody does."""

        async def leading() -> Replica | None:
            for replica in self.all.values():
                if (
                    replica is not other_than
                    and replica.process.poll() is None
                    and await replica.fence() is not None
                ):
                    return replica
            return None

        try:
            found: Replica = await until(leading, "somebody leads")
        except AssertionError as error:
            for replica in self.all.values():
                error.add_note(f"{replica.name} exit={replica.process.poll()}: {replica.said()[-2000:]}")
            raise
        return found

    def leases_expired(self) -> int:
        """How many keys of this Redis have expired so far: of all there are, only the lock can."""
        with redis.Redis.from_url(self.redis.url) as client:
            return int(client.info("stats")["expired_keys"])

    def journal(self) -> list[Journaled]:
        """Every line, which also proves that none is missing."""
        link = RedisLink(RedisAddress.parse(self.redis.url))
        try:
            return list(RedisStore(link).tail(JOB, START))
        finally:
            link.close()

    @property
    def ready(self) -> tuple[int, ...]:
        """The ports that the service leads to."""
        return tuple(self._ready)

    def _next_ready(self) -> int | None:
        return self._ready[next(self._turn) % len(self._ready)] if self._ready else None

    async def _follow(self) -> None:
        """Know who is ready, as a cluster's endpoints do; a process that hangs is not."""
        while True:
            alive = [each for each in self.all.values() if each.process.poll() is None and each.token]
            ports = await asyncio.gather(*map(_ready_at, alive))
            self._ready = [port for port in ports if port is not None]
            await asyncio.sleep(0.05)


async def _ready_at(replica: Replica) -> int | None:
    """The port of one that is ready."""
    status, _ = await replica.get("/readyz", READY_ANSWER_S)
    try:
        return replica.port if status == 200 else None
    except FileNotFoundError:
        return None  # it has ended meanwhile


async def until(
    ask: Callable[[], Any], what: str, accepted: Callable[[Any], bool] = bool, within_s: float = PATIENCE_S
) -> Any:
    """Ask until the answer is accepted. Fails with what was seen last."""
    deadline = time.monotonic() + within_s
    seen: Any = None
    while time.monotonic() < deadline:
        seen = ask()
        if asyncio.iscoroutine(seen):
            seen = await seen
        if accepted(seen):
            return seen
        await asyncio.sleep(0.02)
    raise AssertionError(f"not within {within_s} s: {what}; seen last: {seen!r}")


def stop(replica: Replica) -> None:
    replica.process.send_signal(signal.SIGSTOP)


def resume(replica: Replica) -> None:
    replica.process.send_signal(signal.SIGCONT)
