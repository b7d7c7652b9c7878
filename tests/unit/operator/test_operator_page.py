"""The operator's metrics, as a scrape sees them."""

from pathlib import Path

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly_parsed
from prometheus_client.parser import text_string_to_metric_families

from holdfast.api.exposition import Style
from holdfast.operator.kube.objects import Job, JobMetadata
from holdfast.operator.metrics import JobConditions, Metrics
from holdfast.operator.program import surface

READY = {
    "type": "Ready",
    "status": "True",
    "reason": "FullRound",
    "lastTransitionTime": "2026-01-01T00:00:00Z",
}
OPENMETRICS = "application/openmetrics-text;version=1.0.0,text/plain;version=0.0.4;q=0.3,*/*;q=0.1"


def metrics() -> Metrics:
    """Those of an operator that has something of every kind to tell."""
    told = Metrics()
    told.reconcile_seconds.observe(0.2)
    told.reconciles.labels(result="ok").inc(3)
    told.actions.labels(kind='a "quoted" kind').inc()
    told.follow(lambda: 2.0, lambda: 1.0, lambda: 1.0)
    job = Job(JobMetadata("gpt", namespace="ml"), status=msgspec.Raw(msgspec.json.encode({"conditions": [READY]})))
    told.add(JobConditions(lambda: (job,)))
    return told


async def served(folder: Path, accept: str) -> tuple[str, str]:
    """The text, and how it is called."""
    (folder / "token").write_text("secret")
    application = surface(metrics(), folder / "token", lambda: "")
    async with TestClient(TestServer(application)) as client:
        headers = {"Authorization": "Bearer secret", "Accept": accept}
        answer = await client.get("/metrics", headers=headers)
        assert answer.status == 200
        return await answer.text(), answer.headers["Content-Type"]


def values(families: list[Metric]) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """By name and labels; when a series began is no value."""
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
        if not sample.name.endswith("_created")
    }


async def test_who_accepts_openmetrics_gets_what_the_strict_parser_reads(tmp_path: Path) -> None:
    text, called = await served(tmp_path, OPENMETRICS)
    assert called == Style.OPENMETRICS.value
    told = values(list(strictly_parsed(text)))
    assert told["holdfast_operator_reconcile_total", (("result", "ok"),)] == 3.0
    assert told["holdfast_operator_actions_total", (("kind", 'a "quoted" kind'),)] == 1.0
    assert told["holdfast_job_condition", (("condition", "Ready"), ("training_job", "ml/gpt"))] == 1.0


@pytest.mark.parametrize("accept", ["", "text/plain;version=0.0.4", "*/*"])
async def test_who_does_not_gets_the_older_format_with_the_same_values(tmp_path: Path, accept: str) -> None:
    text, called = await served(tmp_path, accept)
    assert called == Style.CLASSIC.value
    strict, _ = await served(tmp_path, OPENMETRICS)
    assert values(list(text_string_to_metric_families(text))) == values(list(strictly_parsed(strict)))
