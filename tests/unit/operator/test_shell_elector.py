"""Who leads, and until when."""

import asyncio

import pytest
from fake_api import LeaseServer

from holdfast.api.errors import Fenced
from holdfast.operator.kube.elector import Elector

WHERE = ("ns", "operator")
WALL = 1_800_000_000.25


class Clock:
    def __init__(self) -> None:
        self.now = 0.0

    def __call__(self) -> float:
        return self.now


def candidate(server: LeaseServer, identity: str, clock: Clock, lease_s: float = 15.0) -> Elector:
    return Elector(server, WHERE, identity, lease_s, clock, lambda: WALL)  # type: ignore[arg-type]


async def test_the_first_candidate_leads_and_the_second_does_not() -> None:
    server, clock = LeaseServer(), Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock, lease_s=0.2)
    await one.win()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.2):
            await two.win()
    assert (one.leads(), two.leads()) == (True, False)
    assert server.lease is not None
    assert server.lease["spec"]["acquireTime"] == "2027-01-15T08:00:00.250000Z"


async def test_leadership_ends_by_the_clock_though_nothing_is_heard() -> None:
    server, clock = LeaseServer(), Clock()
    one = candidate(server, "one", clock)
    await one.win()
    clock.now += 9.9
    assert one.leads()
    clock.now += 0.2
    assert not one.leads()


async def test_another_waits_for_the_whole_lease_after_it_first_saw_it() -> None:
    server, clock = LeaseServer(), Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock, lease_s=0.2)
    await one.win()
    clock.now += 1000.0  # time before it looked does not count: it cannot know when the last renewal was
    winning = asyncio.create_task(two.win())
    await asyncio.sleep(0.1)
    assert not two.leads()
    clock.now += 15.0
    await winning
    assert two.leads()


async def test_a_lease_that_was_given_back_is_taken_at_once() -> None:
    server, clock = LeaseServer(), Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock)
    await one.win()
    await one.release()
    assert not one.leads()
    await two.win()
    assert two.leads()
    assert server.lease is not None
    assert server.lease["spec"]["leaseTransitions"] == 1


async def test_a_leader_that_cannot_renew_ends_in_time() -> None:
    server = LeaseServer()
    one = Elector(server, WHERE, "one", 0.3, asyncio.get_running_loop().time, lambda: WALL)  # type: ignore[arg-type]
    await one.win()
    server.away = True
    with pytest.raises(Fenced):
        await one.keep()
    assert not one.leads()


async def test_a_lease_that_is_not_renewed_ends_with_its_time() -> None:
    clock = Clock()
    one = candidate(LeaseServer(), "one", clock)
    await one.win()
    assert one.leads()
    clock.now = 15.0
    assert not one.leads()


async def test_a_leader_whose_lease_was_taken_ends_at_once() -> None:
    server = LeaseServer()
    one = Elector(server, WHERE, "one", 0.5, asyncio.get_running_loop().time, lambda: WALL)  # type: ignore[arg-type]
    await one.win()
    assert server.lease is not None
    server.lease["spec"]["holderIdentity"] = "two"
    server.lease["metadata"]["resourceVersion"] = "100"
    with pytest.raises(Fenced):
        await one.keep()


async def test_a_renewal_somebody_else_got_in_front_of_is_made_again() -> None:
    server = LeaseServer()
    one = Elector(server, WHERE, "one", 1.5, asyncio.get_running_loop().time, lambda: WALL)  # type: ignore[arg-type]
    await one.win()
    assert server.lease is not None
    server.lease["metadata"]["resourceVersion"] = "100"  # a label was added, say
    keeping = asyncio.create_task(one.keep())
    while server.lease["metadata"]["resourceVersion"] == "100":
        assert not keeping.done()
        await asyncio.sleep(0.01)
    assert one.leads()
    keeping.cancel()
    await asyncio.gather(keeping, return_exceptions=True)


async def test_a_lease_that_somebody_deletes_is_not_taken_while_its_holder_may_act() -> None:
    server, clock = LeaseServer(), Clock()
    one, two = candidate(server, "one", clock), candidate(server, "two", clock, lease_s=15.0)
    await one.win()
    await two._try_to_take()
    server.lease = None
    clock.now += 1.0
    await two._try_to_take()
    assert (one.leads(), two.leads()) == (True, False)
    clock.now += 15.0
    await two._try_to_take()
    assert (one.leads(), two.leads()) == (False, True)
