"""Launchers and their workers while the watchdog changes hands: the workers must not notice."""

import asyncio
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from fake_watchdog import JOB
from launch_harness import SCRIPTS, Nodes
from peers import bearer
from replicas import Replica, Replicas, resume, stop, until

from holdfast.api.policy import Policy


class Training:
    """Two real launchers with a worker each."""

    def __init__(self, replicas: Replicas, nodes: Nodes) -> None:
        self._replicas = replicas
        self.nodes = nodes

    async def begin(self, leader: Replica, **policy: Any) -> None:
        body = msgspec.json.encode(Policy(job=JOB, nodes_min=1, nodes_max=2, form_grace_s=10.0, **policy))
        http = self._replicas.http
        async with http.post(f"{leader.url}/v1/jobs", data=body, headers=bearer(leader.token)) as answer:
            assert answer.status == 200, await answer.text()
        service = f"127.0.0.1:{self._replicas.service.port}"
        for name in ("n1", "n2"):
            await self.nodes.start(name, service, str(SCRIPTS / "waits.py"), token=leader.token)
        await until(lambda: len(self.workers()), "both workers run", lambda count: count == 2, within_s=60.0)

    def workers(self) -> dict[str, int]:
        """What each worker said when it started, by log: one per life."""
        return {
            str(log.relative_to(self.nodes.folder)): msgspec.json.decode(text)["pid"]
            for log in sorted(self.nodes.folder.glob("*/logs/*.log"))
            if (text := log.read_text().partition("\n")[0])
        }

    async def status(self, leader: Replica) -> dict[str, Any]:
        status, body = await leader.get(f"/v1/jobs/{JOB}/status")
        return dict(body) if status == 200 else {"members": {"ready": 0}}

    async def all_back(self, leader: Replica) -> dict[str, Any]:
        found: dict[str, Any] = await until(
            lambda: self.connected(leader), "both launchers are with the new leader", lambda count: count == 2
        )
        assert found == 2
        return await self.status(leader)

    async def connected(self, leader: Replica) -> int:
        _, text = await leader.get("/metrics")
        name = f'holdfast_watchdog_launchers{{training_job="{JOB}"}} '
        return next((int(line.removeprefix(name)) for line in str(text).splitlines() if line.startswith(name)), 0)


@pytest.fixture
async def training(replicas: Replicas, tmp_path: Path) -> AsyncIterator[Training]:
    folder = tmp_path / "nodes"
    folder.mkdir()
    nodes = Nodes(folder)
    yield Training(replicas, nodes)
    await nodes.close()


async def test_workers_run_on_when_the_leader_is_killed(replicas: Replicas, training: Training) -> None:
    leader, standby = await replicas.pair()
    await training.begin(leader)
    workers = training.workers()
    before = await training.status(leader)
    leader.process.kill()
    assert await replicas.leader(other_than=leader) is standby
    after = await training.all_back(standby)
    # Whoever was not heard of is judged within three seconds of the change; all of that passes without a word.
    quiet_until = time.monotonic() + 4.0
    while time.monotonic() < quiet_until:
        after = await training.status(standby)
        assert (after["round"], after["incidents_total"], after["restarts"]) == (before["round"], 0, 0)
        await asyncio.sleep(0.1)
    assert after["members"]["ready"] == 2
    assert training.workers() == workers


async def test_workers_run_on_when_the_leader_stops_in_good_order(replicas: Replicas, training: Training) -> None:
    leader, standby = await replicas.pair()
    await training.begin(leader)
    workers, before = training.workers(), await training.status(leader)
    leader.process.terminate()
    assert await leader.ended() == 0
    assert await replicas.leader(other_than=leader) is standby
    after = await training.all_back(standby)
    assert (after["round"], after["incidents_total"]) == (before["round"], 0)
    assert training.workers() == workers


async def test_workers_run_on_when_the_leader_hangs(replicas: Replicas, training: Training) -> None:
    leader, standby = await replicas.pair()
    # A launcher finds out by a ping without an answer, after 15 s at most. With the usual 3 s the new leader
    # would take both for lost by then.
    await training.begin(leader, lost_after_s=20.0)
    workers, before = training.workers(), await training.status(leader)
    stop(leader)
    try:
        assert await replicas.leader(other_than=leader) is standby
        after = await training.all_back(standby)
    finally:
        resume(leader)
    assert (after["round"], after["incidents_total"]) == (before["round"], 0)
    assert training.workers() == workers
