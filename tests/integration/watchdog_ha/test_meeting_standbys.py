"""Behind the service stand a leader and a standby: every client finds the leader, at once, also after a change."""

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
from peers import JOB, join, policy_of
from replicas import Replica, Replicas, until

from holdfast.agent.jobstream import Reporter
from holdfast.agent.launch.connection import Connection
from holdfast.agent.outbox import Outbox
from holdfast.api.telemetry import AgentHello
from holdfast.cli.watchdogclient import DirectLine
from holdfast.operator.watchdog import JobLine, Watchdog
from holdfast.wire.access import Access, Address, Credential

# A dozen clients of a kind: that none of them meets the standby first does not happen.
CLIENTS = 12


@pytest.fixture
async def leader(replicas: Replicas, tmp_path: Path) -> Replica:
    """With a job, and with a standby that is as ready as it is."""
    leader, standby = await replicas.pair()
    await until(lambda: standby.get("/readyz"), "the standby is ready", lambda answer: answer[0] == 200)
    await asyncio.to_thread(_line(replicas, leader).ask, "POST", "/v1/jobs", _policy())
    return leader


def _policy() -> bytes:
    return msgspec.json.encode(policy_of(nodes=1))


def _service(replicas: Replicas) -> str:
    return f"127.0.0.1:{replicas.service.port}"


def _line(replicas: Replicas, replica: Replica) -> DirectLine:
    at = Address("127.0.0.1", replicas.service.port)
    return DirectLine(Access(at, Credential(replica.token)), token_of="a test")


async def _other_behind_the_service(replicas: Replicas, gone: int) -> None:
    """Until then the service may lead to the one that has gone: refused, which is an error like any other."""
    await until(lambda: replicas.ready and gone not in replicas.ready, "it is known that one has gone")


async def _connected(replica: Replica, peers: str) -> int:
    _, text = await replica.get("/metrics")
    name = f'holdfast_watchdog_{peers}{{training_job="{JOB}"}} '
    return next((int(line.removeprefix(name)) for line in str(text).splitlines() if line.startswith(name)), 0)


def _access(at: str, token_file: Path) -> Access:
    return Access(Address.parse(at, given_by="a test"), Credential(file=token_file))


def _launchers(at: str, token_file: Path) -> list[Callable[[], Awaitable[object]]]:
    def one(place: int) -> Callable[[], Awaitable[object]]:
        return Connection(
            _access(at, token_file),
            job=JOB,
            heartbeat_interval_s=0.3,
            join=lambda: join(f"m{place}"),
            on_shown=lambda _: None,
        ).run

    return [one(place) for place in range(CLIENTS)]


def _agents(at: str, token_file: Path) -> list[Callable[[], Awaitable[object]]]:
    def one(place: int) -> Callable[[], Awaitable[object]]:
        node = f"node-{place}"
        return Reporter(
            Outbox(node=node, boot="b", interval_s=1.0),
            AgentHello(node=node, boot="b", job=JOB),
            _access(at, token_file),
        ).run

    return [one(place) for place in range(CLIENTS)]


@asynccontextmanager
async def _running(clients: list[Callable[[], Awaitable[object]]]) -> AsyncIterator[None]:
    tasks = [asyncio.ensure_future(client()) for client in clients]
    try:
        yield
        assert not [task for task in tasks if task.done()], "a client gave up"
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@pytest.mark.parametrize("peers", ["launchers", "agents"])
async def test_launchers_and_agents_find_the_leader_and_the_next_one(
    replicas: Replicas, leader: Replica, tmp_path: Path, peers: str
) -> None:
    makers = {"launchers": _launchers, "agents": _agents}
    async with _running(makers[peers](_service(replicas), tmp_path / "token")):
        await until(lambda: _connected(leader, peers), f"all {peers} are there", lambda count: count == CLIENTS)
        leader.process.terminate()
        following = next(each for each in replicas.all.values() if each is not leader)
        await until(lambda: _connected(following, peers), f"all {peers} are back", lambda count: count == CLIENTS)


async def test_the_operator_finds_the_leader_and_the_next_one(
    replicas: Replicas, leader: Replica, tmp_path: Path
) -> None:
    watchdog = Watchdog(_service(replicas), tmp_path / "token")
    changes: list[bool] = []
    lines = [JobLine(watchdog, JOB, lambda: changes.append(True), time.monotonic) for _ in range(CLIENTS)]
    try:
        async with _running([line.run for line in lines]):
            await until(lambda: sum(line.connected for line in lines), "all lines", lambda count: count == CLIENTS)
            for _ in range(CLIENTS):
                await watchdog.submit(policy_of(nodes=1))
            gone = leader.port
            leader.process.terminate()
            await leader.ended()
            await _other_behind_the_service(replicas, gone)
            # A submission just then waits for the next leader instead of failing.
            await watchdog.submit(policy_of(nodes=1))
            await until(lambda: sum(line.connected for line in lines), "all lines", lambda count: count == CLIENTS)
    finally:
        await watchdog.close()


async def test_a_command_finds_the_leader_and_the_next_one(replicas: Replicas, leader: Replica) -> None:
    line = _line(replicas, leader)
    for _ in range(CLIENTS):
        assert JOB in (await asyncio.to_thread(line.ask, "GET", "/v1/jobs")).decode()
    gone = leader.port
    leader.process.terminate()
    await leader.ended()
    await _other_behind_the_service(replicas, gone)
    assert JOB in (await asyncio.to_thread(line.ask, "GET", "/v1/jobs")).decode()
