"""A real Redis for the stores' contract: one for the run, empty for each test."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis
from lossy_line import LossyLine
from patience import patient
from redis_server import RedisServer

from holdfast.watchdog.settings import Host, RedisAddress
from holdfast.watchdog.store import redislink
from holdfast.watchdog.store.redislink import RedisLink


@pytest.fixture(scope="session")
def shared_redis(tmp_path_factory: pytest.TempPathFactory) -> Iterator[RedisServer]:
    server = RedisServer(tmp_path_factory.mktemp("redis"))
    try:
        server.start()
        yield server
    finally:
        server.stop()


@pytest.fixture
def raw(shared_redis: RedisServer) -> Iterator[redis.Redis]:
    """A client of that Redis, emptied."""
    with redis.Redis.from_url(shared_redis.url) as client:
        client.flushall()
        yield client


@pytest.fixture
def link_to(
    raw: redis.Redis, shared_redis: RedisServer, monkeypatch: pytest.MonkeyPatch
) -> Iterator[Callable[..., RedisLink]]:
    """Makes links to it, or to another port; they are closed at the end. A busy machine may answer late."""
    monkeypatch.setattr(redislink, "TIMEOUT_S", patient(redislink.TIMEOUT_S))
    made: list[RedisLink] = []

    def make(port: int | None = None) -> RedisLink:
        # A clock that always jumps ahead: no call is refused only because an earlier one failed.
        ticks = iter(range(10**9))
        made.append(
            RedisLink(
                RedisAddress((Host("127.0.0.1", port or shared_redis.port),)), now=lambda: next(ticks) * 10.0
            )
        )
        return made[-1]

    yield make
    for each in made:
        each.close()


@pytest.fixture
def line(shared_redis: RedisServer) -> Iterator[LossyLine]:
    made = LossyLine(shared_redis.port)
    yield made
    made.close()


@pytest.fixture
def data_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "data"
    folder.mkdir()
    return folder
