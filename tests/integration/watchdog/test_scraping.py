"""The metrics, for Prometheus, which shows one fixed token."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import pytest
from aiohttp import test_utils
from peers import TOKEN, bearer, quick_senses
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.watchdog import brain
from holdfast.watchdog.auth import ALL_ROLES, Grant, TokenFile
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog
from holdfast.watchdog.store.memory import MemoryStore

SCRAPING = "prometheus-shows-this"


@pytest.fixture
async def url(tmp_path: Path) -> AsyncIterator[str]:
    watchdog = Watchdog(MemoryStore(), brain=brain, senses_for=quick_senses, fenced=lambda _: None)
    watchdog.start()
    (tmp_path / "token").write_text(SCRAPING + "\n")
    app = make_app(watchdog, TokenFile((Grant(TOKEN, ALL_ROLES),)), tmp_path / "token")
    async with test_utils.TestServer(app) as server:
        yield str(server.make_url(""))
    watchdog.stop()


async def _status(url: str, path: str, token: str) -> int:
    async with aiohttp.ClientSession() as http, http.get(url.rstrip("/") + path, headers=bearer(token)) as answer:
        return answer.status


async def test_the_metrics_token_reads_the_metrics_and_nothing_else(url: str) -> None:
    assert await _status(url, "/metrics", SCRAPING) == 200
    assert await _status(url, "/v1/jobs", SCRAPING) == 401


async def test_who_may_read_everything_may_read_the_metrics_too(url: str) -> None:
    assert await _status(url, "/metrics", TOKEN) == 200


async def test_nobody_else_may(url: str, tmp_path: Path) -> None:
    assert await _status(url, "/metrics", "another") == 401
    (tmp_path / "token").write_text("")  # being replaced: an empty file lets nobody in
    assert await _status(url, "/metrics", "") == 401
    assert await _status(url, "/metrics", SCRAPING) == 401


async def test_a_token_that_cannot_be_read_is_told_of_once_until_it_can_be(
    url: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for _ in range(2):
        caplog.clear()
        (tmp_path / "token").unlink()
        assert [await _status(url, "/metrics", SCRAPING) for _ in range(2)] == [401, 401]
        told = [each for each in caplog.records if each.name.endswith("server.scraping")]
        assert ["No such file" in each.getMessage() for each in told] == [True]
        (tmp_path / "token").write_text(SCRAPING)
        assert await _status(url, "/metrics", SCRAPING) == 200


async def test_prometheus_gets_the_format_it_accepts(url: str) -> None:
    for accept, called in (("", "text/plain"), ("application/openmetrics-text", "application/openmetrics-text")):
        headers = {**bearer(SCRAPING), "Accept": accept}
        async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers=headers) as answer:
            assert answer.content_type == called
            text = await answer.text()
    strict = {family.name for family in text_string_to_metric_families(text)}
    assert strict == {row.family for row in WATCHDOG_METRICS}
