"""A Redis with replicas: what was acknowledged outlives the one that took it, and the next one is found."""

import os
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from itertools import count
from pathlib import Path
from typing import TypeVar

import pytest
import redis
from debian_packages import packaged_program
from patience import patient
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


HANDOVER = Path(__file__).parents[3] / "helm/holdfast/redis/handover.sh"
# What the script calls: each pod has Redis and a Sentinel at the same ports, here they share a machine.
REDIS_CLI = """\
#!/bin/sh
host="$2" port="$4"
shift 4
case "$host:$port" in
{cases}
esac
"""


def hand_over(replicated: RedisWithSentinels, folder: Path) -> None:
    """The script of a pod that is stopped, in the primary's."""
    pods = [f"redis-{number}" for number in range(3)]
    real, cases = packaged_program("redis-cli"), []
    here = replicated.primary()
    for pod, server, sentinel in zip(pods, replicated.servers, replicated.ports, strict=True):
        hosts = f"127.0.0.1:6379|{pod}:6379" if server is here else f"{pod}:6379"
        cases += [
            f'{hosts}) exec {real} -p {server.port} "$@";;',
            f'{pod}:26379) exec {real} -p {sentinel} "$@";;',
        ]
    cli = folder / "redis-cli"
    cli.write_text(REDIS_CLI.format(cases="\n".join(cases)))
    cli.chmod(0o755)
    for name in ("handover.sh", "found.sh"):
        text = (HANDOVER.parent / name).read_text().replace("/etc/redis/conf", str(folder))
        (folder / name).write_text(text.replace('me="$HOSTNAME.$DOMAIN"', 'me="$HOSTNAME"'))
    found = {"HOSTS": " ".join(pods), "DOMAIN": "", "HOSTNAME": pods[replicated.servers.index(here)]}
    path = f"{folder}:{os.environ['PATH']}"
    subprocess.run(["sh", folder / "handover.sh"], env={**found, "PATH": path}, check=True, timeout=patient(60))


def test_a_primary_that_is_stopped_in_good_order_loses_nothing_that_was_acknowledged(
    replicated: RedisWithSentinels, tmp_path: Path
) -> None:
    first, (one, other) = replicated.primary(), replicated.replicas()
    held = 0

    def write() -> None:
        """Until it takes no writes any more."""
        nonlocal held
        with redis.Redis.from_url(first.url, socket_timeout=patient(20.0)) as client, suppress(redis.RedisError):
            while True:
                number = client.incr("number")
                if client.wait(1, 200):
                    held = int(number)

    writing = threading.Thread(target=write)
    writing.start()
    # The one that becomes primary hears of nothing meanwhile, and the other one acknowledges.
    with redis.Redis.from_url(one.url) as client:
        client.config_set("replica-priority", 1)
    with redis.Redis.from_url(other.url) as client:
        client.config_set("replica-priority", 100)
    replicated.sentinels[0].wait_until(lambda: held > 100, patient(20.0))
    hand_over(replicated, tmp_path)
    writing.join(patient(30.0))
    assert not writing.is_alive()
    following = replicated.wait_for_another(first)
    with redis.Redis.from_url(following.url) as client:
        assert int(client.get("number")) >= held > 100
        assert client.incr("number") > held
    # The one before follows, and takes what is written from now on at once.
    with redis.Redis.from_url(first.url) as client:
        replicated.sentinels[0].wait_until(lambda: int(client.get("number")) > held, patient(10.0))
