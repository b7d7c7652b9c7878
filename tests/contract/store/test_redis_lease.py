"""The lock that says who may lead, and the fence it hands out."""

import time
from collections.abc import Callable, Iterator

import pytest
import redis
from lossy_line import Loss, LossyLine
from patience import patient
from redis_server import RedisServer

from holdfast.api.errors import Damaged, Fenced, InvalidInput, Unavailable
from holdfast.api.event import MemberLeft
from holdfast.watchdog.store.redis import RedisLease, RedisStore
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.store import START, Fence

pytestmark = pytest.mark.needs("redis")

LOCK = "holdfast:{watchdog}:lock"
TTL_S = 30.0  # longer than a test: what expires is made to

Leases = Callable[..., RedisLease]


@pytest.fixture
def lease_for(link_to: Callable[..., RedisLink]) -> Leases:
    def make(name: str, port: int | None = None) -> RedisLease:
        return RedisLease(link_to(port), identity=name, ttl_s=TTL_S)

    return make


@pytest.fixture
def line(shared_redis: RedisServer) -> Iterator[LossyLine]:
    made = LossyLine(shared_redis.port)
    yield made
    made.close()


def taken(lease: RedisLease) -> Fence:
    fence = lease.take()
    assert fence is not None
    return fence


def test_one_takes_it_and_the_other_does_not(lease_for: Leases, raw: redis.Redis) -> None:
    first, second = lease_for("first"), lease_for("second")
    assert not first.is_held()
    assert first.take() == 1
    assert second.is_held()
    assert second.take() is None
    assert raw.get(LOCK).startswith(b"first/")
    assert 0 < raw.pttl(LOCK) <= TTL_S * 1000
    assert raw.get("holdfast:{watchdog}:fence") == b"1"


def test_each_change_of_hands_raises_the_fence(lease_for: Leases) -> None:
    first, second = lease_for("first"), lease_for("second")
    for fence in (1, 3):
        assert first.take() == fence
        first.release()
        assert second.take() == fence + 1
        second.release()


def test_a_renewed_lock_lives_on(lease_for: Leases, raw: redis.Redis) -> None:
    lease = lease_for("first")
    fence = taken(lease)
    raw.pexpire(LOCK, 1000)
    lease.renew(fence)
    assert raw.pttl(LOCK) > 1000


def test_a_lock_that_expired_is_held_again_by_its_last_holder(lease_for: Leases, raw: redis.Redis) -> None:
    first, second = lease_for("first"), lease_for("second")
    fence = taken(first)
    raw.delete(LOCK)
    first.renew(fence)
    assert second.take() is None
    first.renew(fence)


def test_a_lock_that_expired_and_was_taken_is_lost_for_good(
    lease_for: Leases, raw: redis.Redis, link_to: Callable[..., RedisLink]
) -> None:
    first, second = lease_for("first"), lease_for("second")
    old = taken(first)
    raw.delete(LOCK)
    new = taken(second)
    with pytest.raises(Fenced):
        first.renew(old)
    # Its store is fenced by the same step, whether it has asked for the lock or not.
    with pytest.raises(Fenced):
        RedisStore(link_to()).append("a/job", [MemberLeft("a", "")], at=1.0, after=START, fence=old)
    second.release()
    with pytest.raises(Fenced):
        first.renew(old)
    assert not second.is_held()
    RedisStore(link_to()).append("a/job", [MemberLeft("a", "")], at=1.0, after=START, fence=new)


def test_an_older_copy_of_the_store_fences_who_knows_better_and_gives_no_fence_twice(
    lease_for: Leases, raw: redis.Redis, link_to: Callable[..., RedisLink]
) -> None:
    first, second = lease_for("first"), lease_for("second")
    for lease in (second, first):
        fence = taken(lease)
        lease.release()
    raw.set("holdfast:{watchdog}:fence", fence - 1)
    store = RedisStore(link_to())
    with pytest.raises(Fenced, match="is an older copy of itself"):
        store.append("a/job", [MemberLeft("a", "")], at=1.0, after=START, fence=fence)
    with pytest.raises(Fenced, match="another watchdog"):
        store.append("a/job", [MemberLeft("a", "")], at=1.0, after=START, fence=fence)
    assert second.take() == fence + 2

    raw.set("holdfast:{watchdog}:fence", fence)
    with pytest.raises(Fenced, match="is an older copy of itself"):
        second.renew(Fence(fence + 2))
    raw.delete(LOCK)
    assert first.take() == fence + 4
    assert list(store.tail("a/job", START)) == []


def test_a_redis_without_sentinels_is_to_have_no_replicas(lease_for: Leases) -> None:
    assert lease_for("first").replicas() is None


def test_only_the_holder_releases(lease_for: Leases) -> None:
    first, second = lease_for("first"), lease_for("second")
    first.take()
    second.release()
    assert second.is_held()
    first.release()
    first.release()
    assert not second.is_held()


def test_two_lives_of_one_pod_are_two_holders(lease_for: Leases) -> None:
    assert lease_for("pod-0").take() == 1
    assert lease_for("pod-0").take() is None


def test_a_taking_whose_answer_was_lost_is_found_to_be_ours(lease_for: Leases, line: LossyLine) -> None:
    lease = lease_for("first", line.port)
    lease.is_held()
    assert lease.take() == 1
    lease.release()
    line.loss = Loss.ANSWERS
    with pytest.raises(Unavailable):
        lease.take()
    line.loss = Loss.NOTHING
    assert lease.take() == 2


def test_it_expires_by_itself(link_to: Callable[..., RedisLink]) -> None:
    first = RedisLease(link_to(), identity="first", ttl_s=0.1)
    second = RedisLease(link_to(), identity="second", ttl_s=0.1)
    assert first.take() == 1
    deadline = time.monotonic() + patient(5.0)
    while (fence := second.take()) is None:
        assert time.monotonic() < deadline, "the lock did not expire within 5 s"
        time.sleep(0.01)
    assert fence == 2


def test_keys_of_another_version_are_refused_and_left_alone(lease_for: Leases, raw: redis.Redis) -> None:
    raw.set("holdfast:{watchdog}:schema", 99)
    with pytest.raises(Damaged, match="version 99"):
        lease_for("first").take()
    assert raw.get(LOCK) is None


def test_a_redis_that_would_forget_is_not_led_on(lease_for: Leases, raw: redis.Redis) -> None:
    raw.config_set("appendonly", "no")
    try:
        with pytest.raises(InvalidInput, match="appendonly yes"):
            lease_for("first").take()
        assert raw.get(LOCK) is None
    finally:
        raw.config_set("appendonly", "yes")
