"""Redis dies, hangs or comes back: what runs goes on, and what was decided stays decided."""

import asyncio
import re
import time

import redis
from peers import JOB
from replicas import Replicas, until
from test_failover import heals, killed


async def test_redis_killed_and_started_again_has_lost_nothing(replicas: Replicas) -> None:
    leader, _ = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    number = await heals(replicas, number)
    before = replicas.journal()
    replicas.redis.kill()
    replicas.redis.start()
    assert replicas.journal()[: len(before)] == before
    await until(lambda: leader.get("/healthz"), "the leader sees it", lambda answer: answer[0] == 200)
    assert await heals(replicas, number) > number
    assert await leader.fence() == 1
    assert [each.connections for each in replicas.launchers] == [1, 1]


async def test_while_redis_is_away_the_round_goes_on_and_what_came_meanwhile_is_decided_after(
    replicas: Replicas,
) -> None:
    leader, standby = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    replicas.redis.kill()
    away_since = time.monotonic()
    await until(lambda: leader.get("/healthz"), "trouble shows", lambda answer: answer[0] == 503)
    await replicas.launchers[0].say(killed(number, 0))
    # Longer than any lease: the leader has no right to the lock any more, and still serves what it has.
    while (passed_s := time.monotonic() - away_since) < 7.0:
        status, body = await leader.get(f"/v1/jobs/{JOB}/status")
        assert (status, body["round"]) == (200, number), f"after {passed_s:.1f} s"
        assert await leader.fence() == 1
        assert await standby.fence() is None
        await asyncio.sleep(0.2)
    _, metrics = await leader.get("/metrics")
    assert "holdfast_watchdog_store_up 0" in metrics
    assert f'holdfast_watchdog_store_refuses{{training_job="{JOB}"}} 1' in metrics
    assert "redis://127.0.0.1" in body["reason"]
    assert [each.shown for each in replicas.launchers] == [[number], [number]]
    replicas.redis.start()
    healed = await replicas.in_round(above=number)
    assert healed > number
    await until(lambda: leader.get("/healthz"), "trouble is over", lambda answer: answer[0] == 200)
    _, metrics = await leader.get("/metrics")
    assert "holdfast_watchdog_store_up 1" in metrics
    # The same leader: its lease ran out by no fault of its own, and the standby let it have it again.
    assert (await leader.fence(), await standby.fence()) == (1, None)
    assert [each.connections for each in replicas.launchers] == [1, 1]
    # Told of once, not with every try; a machine that is busy may have made it wait for its Redis at other times.
    told = re.findall("store is away|store answers again", leader.said())
    assert told == ["store is away", "store answers again"] * (len(told) // 2)


async def test_a_redis_that_hangs_does_not_hold_up_those_who_read(replicas: Replicas) -> None:
    leader, _ = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    replicas.redis.pause()
    try:
        hangs_since = time.monotonic()
        while time.monotonic() - hangs_since < 4.0:
            # Answered, which a read that waits for this Redis would not be before it is resumed.
            status, body = await leader.get(f"/v1/jobs/{JOB}/status")
            assert (status, body["round"]) == (200, number)
            await asyncio.sleep(0.02)
        await replicas.launchers[0].say(killed(number, 0))
    finally:
        replicas.redis.resume()
    assert await replicas.in_round(above=number) > number
    assert [each.connections for each in replicas.launchers] == [1, 1]


async def test_a_watchdog_that_starts_before_redis_waits_for_it(replicas: Replicas) -> None:
    replicas.redis.stop()
    early = await replicas.start("early")
    # Nobody could do better: were it not ready, an installation would wait for it while Redis is away.
    ready = await until(lambda: early.get("/readyz"), "it has asked", lambda answer: answer[0] == 200)
    assert ready == (200, {"status": "standby", "fence": None})
    status, body = await early.get("/healthz")
    assert (status, body["reason"].startswith("redis://")) == (503, True), body
    replicas.redis.start()
    await until(early.fence, "it leads")


async def test_a_redis_that_would_forget_is_refused_with_the_fix(replicas: Replicas) -> None:
    with redis.Redis.from_url(replicas.redis.url) as client:
        client.config_set("appendonly", "no")
    refusing = await replicas.start("refusing")
    assert await refusing.ended() == 3
    assert "run this Redis with 'appendonly yes'" in refusing.said()
