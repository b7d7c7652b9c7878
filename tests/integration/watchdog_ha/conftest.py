"""Two watchdogs over one Redis, and a service in front of them."""

import sys
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from redis_server import RedisServer

# What the peers of one watchdog say is the same with two, and so are real launchers.
sys.path.insert(0, str(Path(__file__).parents[1] / "watchdog"))
sys.path.insert(0, str(Path(__file__).parents[1] / "launch"))

from replicas import Replicas


@pytest.fixture
async def replicas(tmp_path: Path, redis_server: RedisServer) -> AsyncIterator[Replicas]:
    async with Replicas(tmp_path, redis_server) as made:
        yield made
