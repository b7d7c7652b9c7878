from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from fake_watchdog import FakeWatchdog
from launch_harness import Nodes


@pytest.fixture
async def watchdog() -> AsyncIterator[FakeWatchdog]:
    async with FakeWatchdog() as watchdog:
        yield watchdog


@pytest.fixture
async def nodes(tmp_path: Path, watchdog: FakeWatchdog) -> AsyncIterator[Nodes]:
    nodes = Nodes(tmp_path)
    yield nodes
    await nodes.close()
