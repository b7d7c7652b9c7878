"""Two watchdogs over a Redis with Sentinels: one of a kind is lost, everything goes on, and that is told of."""

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from alert_rig import Rig, alert_rig, expected
from installation import NAMESPACE
from patience import patient
from prometheus_server import Target
from redis_sentinels import RedisWithSentinels
from server_process import ServerProcess, free_port

pytestmark = [pytest.mark.long, pytest.mark.needs("prometheus", "redis"), pytest.mark.timeout(300)]
# Replicas are counted every ten seconds, and one that comes back is found by the Sentinels first.
SEEN_WITHIN_S = patient(60.0)
REPLICAS = f'holdfast_watchdog_store_replicas{{namespace="{NAMESPACE}"}}'


@pytest.fixture
def rig(tmp_path: Path) -> Iterator[Rig]:
    folder = tmp_path / "prometheus"
    folder.mkdir()
    with alert_rig(folder, "the-token-of-this-test") as rig:
        yield rig


@pytest.fixture
def redis(tmp_path: Path) -> Iterator[RedisWithSentinels]:
    folder = tmp_path / "redis"
    folder.mkdir()
    with RedisWithSentinels(folder) as made:
        yield made


@pytest.fixture
def watchdogs(rig: Rig, redis: RedisWithSentinels, tmp_path: Path) -> Iterator[list[ServerProcess]]:
    """The first of them leads. Both are scraped, as long as they live."""
    started: list[ServerProcess] = []
    try:
        for pod in ("w-1", "w-2"):
            port = free_port()
            command = [sys.executable, "-m", "holdfast.watchdog", "--identity", pod, "--store", redis.url]
            command += ["--listen", f"127.0.0.1:{port}", "--token-file", str(rig.token_file)]
            started.append(ServerProcess(pod, command, tmp_path / f"{pod}.log"))
            target = Target(f"127.0.0.1:{port}", {"namespace": NAMESPACE, "pod": pod})
            rig.scraped.append(lambda target=target: [target])
            started[-1].start()
            leads = (
                f'holdfast_watchdog_leading{{pod="w-1"}} == 1 and on () holdfast_watchdog_leading{{pod="{pod}"}}'
            )
            rig.until(lambda leads=leads: rig.prometheus.query(leads), f"{pod} to be scraped")
        yield started
    finally:
        for each in started:
            each.stop()


def test_lost_redundancy_is_told_of_until_it_is_back(
    rig: Rig, redis: RedisWithSentinels, watchdogs: list[ServerProcess]
) -> None:
    of_redis = expected("HoldfastRedundancyLost", namespace=NAMESPACE, part="redis")
    of_watchdogs = expected("HoldfastRedundancyLost", namespace=NAMESPACE, part="watchdog")
    rig.until(lambda: rig.prometheus.query(f"{REPLICAS} == 2"), "both replicas", SEEN_WITHIN_S)
    rig.until_over(of_redis, of_watchdogs)

    lost = redis.replicas()[0]
    lost.kill()
    rig.until(lambda: rig.fires(of_redis), "the loss of a replica", SEEN_WITHIN_S)
    assert f"Holdfast in {NAMESPACE} is left with 1 replicas of its Redis" in rig.summaries()
    assert rig.prometheus.query('holdfast_watchdog_store_up{pod="w-1"} == 1')
    assert rig.is_over(of_watchdogs)
    lost.start()
    rig.until(lambda: rig.prometheus.query(f"{REPLICAS} == 2"), "both replicas again", SEEN_WITHIN_S)
    rig.until_over(of_redis)

    watchdogs[1].kill()
    rig.until(lambda: rig.fires(of_watchdogs), "the loss of a watchdog")
    assert f"Holdfast in {NAMESPACE} is left with 1 of its watchdogs" in rig.summaries()
    assert rig.is_over(of_redis)
    watchdogs[1].start()
    rig.until_over(of_watchdogs)
    assert rig.prometheus.failing_rules() == []
