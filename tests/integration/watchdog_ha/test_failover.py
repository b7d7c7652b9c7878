"""One watchdog of two dies, stops or hangs: the other leads, and training notices nothing."""

import asyncio
import time

from peers import JOB
from replicas import Replica, Replicas, SteadyLauncher, resume, stop, until

from holdfast.api.event import MemberLeft, WatchdogStarted
from holdfast.api.membership import Leave, WorkerExited
from holdfast.api.round import Seat
from holdfast.watchdog.settings import LEASE_TTL_S


def killed(round_number: int, rank: int) -> WorkerExited:
    return WorkerExited(round_number, rank, age_s=0.0, signal=9, error="Killed")


async def all_back(launchers: list[SteadyLauncher], connections: int) -> None:
    await until(
        lambda: [each.connections for each in launchers],
        f"all have connected {connections} times",
        lambda counts: min(counts) >= connections,
    )


async def heals(replicas: Replicas, number: int, *, rank: int = 0) -> int:
    """A worker dies; the round that follows. Three times the same one would be its node's fault."""
    await replicas.launchers[rank].say(killed(number, rank))
    return await replicas.in_round(above=number)


async def incidents_of(replica: Replica) -> int:
    _, status = await replica.get(f"/v1/jobs/{JOB}/status")
    return int(status["incidents_total"])


async def test_a_standby_tells_that_it_stands_by_and_serves_nothing_else(replicas: Replicas) -> None:
    leader, standby = await replicas.pair()
    assert await leader.get("/readyz") == (200, {"status": "leading", "fence": 1})
    await until(lambda: standby.get("/readyz"), "it could take over", lambda answer: answer[0] == 200)
    assert await standby.get("/readyz") == (200, {"status": "standby", "fence": None})
    assert await standby.get("/livez") == (200, {"status": "ok"})
    assert await standby.get("/healthz") == (200, {"status": "ok"})
    status, text = await standby.get("/metrics")
    assert (status, "holdfast_watchdog_leading 0" in text) == (200, True)
    async with replicas.http.get(f"{standby.url}/v1/jobs") as answer:
        assert (answer.status, answer.headers["Retry-After"]) == (503, "0")
        assert (answer.headers["X-Holdfast-Standing"], answer.headers["Connection"]) == ("standby", "close")
        assert "stands by" in (await answer.json())["error"]


async def test_a_leader_that_is_killed_is_followed_after_its_lease_and_the_round_goes_on(
    replicas: Replicas,
) -> None:
    leader, standby = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    leader.process.kill()
    assert await replicas.leader(other_than=leader) is standby
    await all_back(replicas.launchers, 2)
    assert await standby.fence() == 2
    assert [each.shown for each in replicas.launchers] == [[number], [number]]
    assert await incidents_of(standby) == 0
    # The next fault is healed with a number never given before, and nothing is missing in between.
    assert await heals(replicas, number) > number
    lines = replicas.journal()
    assert [line.offset for line in lines] == list(range(1, len(lines) + 1))
    assert sum(isinstance(line.event, WatchdogStarted) for line in lines) == 1


async def test_a_lease_of_another_length_is_waited_for_that_long(replicas: Replicas) -> None:
    ttl_s = 3 * LEASE_TTL_S
    leader, standby = await replicas.pair("--lease-ttl", str(ttl_s))
    await replicas.training(leader, "m1", "m2")
    leader.process.kill()
    killed_at = time.monotonic()
    assert await replicas.leader(other_than=leader) is standby
    assert time.monotonic() - killed_at > 1.5 * LEASE_TTL_S


async def test_a_leader_that_stops_in_good_order_is_followed_at_once(replicas: Replicas) -> None:
    leader, standby = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    expired = replicas.leases_expired()
    leader.process.terminate()
    assert await replicas.leader(other_than=leader) is standby
    assert replicas.leases_expired() == expired, "the lease was waited for, it was not given back"
    assert await leader.ended() == 0
    await all_back(replicas.launchers, 2)
    assert [each.shown for each in replicas.launchers] == [[number], [number]]
    assert await incidents_of(standby) == 0
    assert await heals(replicas, number) > number


async def test_a_leader_that_hung_beyond_its_lease_writes_nothing_any_more_and_ends(replicas: Replicas) -> None:
    leader, standby = await replicas.pair()
    # Finding out that a watchdog hangs takes a launcher longer than finding out that it has gone.
    number = await replicas.training(leader, "m1", lost_after_s=10.0)
    # This one does not come through the service: it stays with the leader that hangs.
    faithful = SteadyLauncher("m2", leader.url, leader.token)
    staying = asyncio.create_task(faithful.run())
    await until(lambda: faithful.desired, "the leader shows m2 something")
    stop(leader)
    await faithful.say(Leave("said to one that hangs"))
    # Its kernel keeps the connection open, so m1 finds out as a launcher does, by what it does not hear.
    replicas.service.cut()
    assert await replicas.leader(other_than=leader) is standby
    await until(lambda: replicas.launchers[0].connections, "m1 is with the new leader", lambda count: count == 2)
    resume(leader)
    await leader.stands_by_again()
    assert "another watchdog" in leader.said()
    staying.cancel()
    lefts = [line.event for line in replicas.journal() if isinstance(line.event, MemberLeft)]
    assert lefts == []
    assert replicas.launchers[0].shown == [number]
    assert await heals(replicas, number) > number


async def test_a_leader_cut_off_from_redis_alone_gives_way(replicas: Replicas) -> None:
    open_ = [True]
    way = await replicas.relay(lambda: replicas.redis.port if open_[0] else None)
    service = ("--peer", f"http://127.0.0.1:{replicas.service.port}")
    leader = await replicas.start("first", *service, redis_port=way.port)
    await until(leader.fence, "the first one leads")
    standby = await replicas.start("second", *service)
    number = await replicas.training(leader, "m1", "m2")
    open_[0] = False
    way.cut()
    # Nobody tells it; it finds the other one behind the service, and ends.
    assert await replicas.leader(other_than=leader) is standby
    await leader.stands_by_again()
    assert "another watchdog leads with fence 2, this one has 1" in leader.said()
    await all_back(replicas.launchers, 2)
    assert [each.shown for each in replicas.launchers] == [[number], [number]]
    assert await incidents_of(standby) == 0
    assert await heals(replicas, number) > number
    shown = [each.number for each in replicas.launchers[0].desired if isinstance(each, Seat)]
    assert shown == sorted(shown)


async def test_many_changes_of_the_leader_leave_one_journal(replicas: Replicas) -> None:
    leader, other = await replicas.pair()
    number = await replicas.training(leader, "m1", "m2")
    for turn in range(3):
        leader.process.terminate()
        assert await leader.ended() == 0
        leader, previous = await replicas.leader(other_than=leader), leader
        assert await leader.fence() == turn + 2
        await all_back(replicas.launchers, turn + 2)
        number = await heals(replicas, number, rank=turn % 2)
        other = await replicas.start(previous.name)
    assert other.process.poll() is None
    shown = replicas.launchers[0].shown
    assert shown == sorted(set(shown))
    replicas.journal()
