"""A Redis that was restored from an older copy: what was decided since is gone from it, and known outside."""

import shutil
from pathlib import Path

import msgspec
from peers import JOB, bearer
from replicas import Replica, Replicas, until
from test_failover import all_back, heals

from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.round import Seat


def copied(replicas: Replicas, copy: Path) -> Path:
    """What Redis holds now. It writes every command at once, so that its files may be copied while it runs."""
    shutil.copytree(replicas.redis.folder, copy)
    return copy


def restored(replicas: Replicas, copy: Path) -> None:
    replicas.redis.stop()
    shutil.rmtree(replicas.redis.folder)
    shutil.copytree(copy, replicas.redis.folder)
    replicas.redis.start()


async def asked(replicas: Replicas, leader: Replica) -> tuple[int, str]:
    """The same intervention each time: status and answer."""
    body = msgspec.json.encode(InterventionRequest("i-1", JOB, InterventionAction.RESIZE, "test", nodes=2))
    url = f"{leader.url}/v1/jobs/{JOB}/interventions"
    async with replicas.http.post(url, data=body, headers=bearer(leader.token)) as answer:
        return answer.status, await answer.text()


async def leads_again(replicas: Replicas, *, above: int) -> Replica:
    async def fence() -> int:
        return max([await each.fence() or 0 for each in replicas.all.values()])

    await until(fence, f"one leads with a fence above {above}", lambda found: found > above)
    return await replicas.leader()


async def test_a_job_that_went_on_since_the_copy_is_left_alone_until_the_newer_one_is_back(
    replicas: Replicas, tmp_path: Path
) -> None:
    first, second = await replicas.pair()
    number = await replicas.training(first, "m1", "m2")
    older = copied(replicas, tmp_path / "older")
    number = await heals(replicas, number)
    first.process.terminate()
    assert await replicas.leader(other_than=first) is second
    await all_back(replicas.launchers, 2)
    number = await heals(replicas, number, rank=1)
    answered = await asked(replicas, second)
    assert answered[0] == 200
    newer = copied(replicas, tmp_path / "newer")
    fence = await second.fence()
    assert fence is not None

    restored(replicas, older)
    leader = await leads_again(replicas, above=fence)
    assert "an older copy of itself" in second.said()

    async def says() -> str:
        return str((await leader.get(f"/v1/jobs/{JOB}/status"))[1]["reason"])

    told = await until(says, "the job is left alone", lambda reason: "nothing can be decided" in reason)
    assert "the store is an older copy of itself" in told
    assert f"number {number}" in told
    status, text = await asked(replicas, leader)
    assert (status, "older copy" in text) == (503, True)
    _, metrics = await leader.get("/metrics")
    assert f'holdfast_watchdog_store_refuses{{training_job="{JOB}"}} 1' in metrics
    assert [each.held for each in replicas.launchers] == [number, number]

    fence = await leader.fence()
    assert fence is not None
    before = [each.connections for each in replicas.launchers]
    restored(replicas, newer)
    leader = await leads_again(replicas, above=fence)
    for launcher, connections in zip(replicas.launchers, before, strict=True):
        await all_back([launcher], connections + 1)
    await until(says, "it goes on", lambda reason: "nothing can be decided" not in reason)
    assert await asked(replicas, leader) == answered
    assert await heals(replicas, number) > number
    for launcher in replicas.launchers:
        rounds = [each.number for each in launcher.desired if isinstance(each, Seat)]
        assert rounds == sorted(rounds)
