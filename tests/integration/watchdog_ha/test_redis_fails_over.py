"""The Redis that takes writes is lost with its machine: another one goes on, and so does healing."""

from pathlib import Path

import pytest
from redis_sentinels import RedisWithSentinels
from replicas import Replicas
from test_failover import all_back, heals

pytestmark = pytest.mark.needs("redis")


@pytest.mark.parametrize("leader_too", [False, True], ids=["redis alone", "redis and the leader"])
async def test_what_is_lost_with_the_primary_is_healed_by_the_next(tmp_path: Path, leader_too: bool) -> None:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisWithSentinels(folder) as redis:
        async with Replicas(tmp_path, redis) as replicas:
            leader, standby = await replicas.pair()
            number = await replicas.training(leader, "m1", "m2")
            number = await heals(replicas, number)
            redis.primary().kill()
            if leader_too:
                leader.process.kill()
                assert await replicas.leader(other_than=leader) is standby
                await all_back(replicas.launchers, 2)
            assert await heals(replicas, number) > number
            shown = replicas.launchers[0].shown
            assert shown == sorted(set(shown))
            replicas.journal()
