"""A Redis with replicas: what was acknowledged outlives the one that took it, and the next one is found."""

import time
from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
from redis_sentinels import FAILS_OVER_WITHIN_S, RedisWithSentinels

from holdfast.api.errors import Unavailable
from holdfast.api.event import MemberLeft
from holdfast.watchdog.settings import RedisAddress
from holdfast.watchdog.store.redis import RedisLease, RedisStore
from holdfast.watchdog.store.redislink import RedisLink
from holdfast.watchdog.store.store import START

pytestmark = pytest.mark.needs("redis")

JOB = "research/gpt"
T = TypeVar("T")


@pytest.fixture
def replicated(tmp_path: Path) -> Iterator[RedisWithSentinels]:
    with RedisWithSentinels(tmp_path) as made:
        yield made


@pytest.fixture
def link(replicated: RedisWithSentinels) -> Iterator[RedisLink]:
    # A clock that always jumps ahead: no call is refused only because an earlier one failed.
    ticks = count(step=10)
    link = RedisLink(RedisAddress.parse(replicated.url), now=lambda: float(next(ticks)))
    yield link
    link.close()


def names(store: RedisStore) -> list[str]:
    return [line.event.member for line in store.tail(JOB, START) if isinstance(line.event, MemberLeft)]


def until_it_answers(ask: Callable[[], T]) -> T:
    deadline = time.monotonic() + FAILS_OVER_WITHIN_S
    while True:
        try:
            return ask()
        except Unavailable:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)


def test_what_was_hardened_outlives_the_primary_and_the_fence_goes_on(
    replicated: RedisWithSentinels, link: RedisLink
) -> None:
    lease, store = RedisLease(link, identity="first", ttl_s=60.0), RedisStore(link)
    fence = lease.take()
    assert fence is not None
    store.append(JOB, [MemberLeft("a", "done")], at=1.0, after=START, fence=fence)
    store.harden(fence=fence)
    died = replicated.primary()
    died.kill()
    until_it_answers(lambda: lease.renew(fence))
    assert replicated.wait_for_another(died) is not died
    store.append(JOB, [MemberLeft("b", "done")], at=2.0, after=1, fence=fence)
    until_it_answers(lambda: store.harden(fence=fence))
    assert names(store) == ["a", "b"]
    died.start()  # as a primary that knows nothing of the other; the Sentinels make it a replica
    assert names(store) == ["a", "b"]
    lease.release()
    assert RedisLease(link, identity="second", ttl_s=60.0).take() == fence + 1


def test_nothing_is_acknowledged_that_no_replica_holds(replicated: RedisWithSentinels, link: RedisLink) -> None:
    lease, store = RedisLease(link, identity="first", ttl_s=60.0), RedisStore(link)
    fence = lease.take()
    assert fence is not None
    replicas = replicated.replicas()
    for each in replicas:
        each.pause()
    with pytest.raises(Unavailable):
        store.harden(fence=fence)
    with pytest.raises(Unavailable):
        lease.take()
    for each in replicas:
        each.resume()
    until_it_answers(lambda: store.harden(fence=fence))
    assert until_it_answers(lease.take) == fence


def until_they_are(count: int, lease: RedisLease) -> None:
    deadline = time.monotonic() + FAILS_OVER_WITHIN_S
    while (seen := until_it_answers(lease.replicas)) != count:
        assert time.monotonic() < deadline, f"{seen} replicas keep up, not {count}"
        time.sleep(0.05)


def test_replicas_that_keep_up_are_counted_and_one_that_hangs_or_is_gone_is_not(
    replicated: RedisWithSentinels, link: RedisLink
) -> None:
    lease = RedisLease(link, identity="first", ttl_s=60.0)
    until_they_are(2, lease)
    hangs, dies = replicated.replicas()
    hangs.pause()  # Redis holds its connection for a minute
    until_they_are(1, lease)
    dies.kill()
    until_they_are(0, lease)
    hangs.resume()
    dies.start()
    until_they_are(2, lease)
    primary = replicated.primary()
    primary.kill()
    replicated.wait_for_another(primary)
    until_they_are(1, lease)


def test_one_sentinel_that_is_gone_and_one_that_hangs_delay_nothing_for_long(
    replicated: RedisWithSentinels, link: RedisLink
) -> None:
    replicated.sentinels[0].kill()
    replicated.sentinels[1].pause()
    assert RedisLease(link, identity="first", ttl_s=60.0).take() == 1
