"""The metrics, for Prometheus, which shows one fixed token."""

from collections.abc import AsyncIterator
from pathlib import Path

import aiohttp
import msgspec
import pytest
from aiohttp import test_utils
from forgetful_store import MemoryStore
from peers import JOB, TOKEN, bearer, quick_senses
from prometheus_client.openmetrics.parser import text_string_to_metric_families

from holdfast.api.policy import ModelFlops, Policy
from holdfast.watchdog import brain
from holdfast.watchdog.access.auth import ALL_ROLES, Grant, TokenFile
from holdfast.watchdog.metrics.table import WATCHDOG_METRICS
from holdfast.watchdog.server.app import make_app
from holdfast.watchdog.server.watchdog import Watchdog

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
        told = [each for each in caplog.records if "metrics token" in each.getMessage()]
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


async def test_every_judge_of_a_job_has_its_failures_from_zero(url: str) -> None:
    policy = Policy(job=JOB, nodes_min=1, nodes_max=1)
    assert (await _submitted(url, policy))[0] == 200
    async with aiohttp.ClientSession() as http, http.get(f"{url}/metrics", headers=bearer(SCRAPING)) as answer:
        page = await answer.text()
    told = [line for line in page.splitlines() if line.startswith("holdfast_watchdog_judge_failures_total{")]
    assert sorted(told) == [
        f'holdfast_watchdog_judge_failures_total{{training_job="{JOB}",detector="{judge}"}} 0'
        for judge in ("QuickDetector", "ReportGauge")
    ]


async def test_a_gpu_that_can_do_nothing_is_refused_before_anything_is_divided_by_it(url: str) -> None:
    policy = Policy(job=JOB, nodes_min=1, nodes_max=1, flops=ModelFlops(per_token=1.0, gpu_peak_per_s=0.0))
    status, told = await _submitted(url, policy)
    assert status == 400
    assert "gpu_peak_per_s" in told


async def _submitted(url: str, policy: Policy) -> tuple[int, str]:
    body = msgspec.json.encode(policy)
    async with (
        aiohttp.ClientSession() as http,
        http.post(f"{url}/v1/jobs", data=body, headers=bearer(TOKEN)) as answer,
    ):
        return answer.status, await answer.text()
