"""The metrics, as a scrape sees them."""

from collections.abc import Iterator
from dataclasses import replace

import pytest
from aiohttp.test_utils import TestClient, TestServer
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agent.exporter import NodeCollector, metrics_application
from holdfast.agent.picture import Picture
from holdfast.agent.sensors.sensor import Reading
from holdfast.api.errors import Unavailable
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    ProcessState,
    RankSample,
    Unreadable,
    XidRaised,
)

RANK = RankSample(
    round=4, rank=2, process=ProcessState.RUNNING, phase=Phase.DATA, progress_age_s=1.5, phase_age_s=1.5, step=9
)
GPU = GpuSample("GPU-a", 3, GpuHealth.HEALTHY, temperature_c=61.0, utilization_ratio=0.5)
GPU_LABELS = (("Hostname", "node-1"), ("UUID", "GPU-a"), ("gpu", "3"))
RANK_LABELS = (("rank", "2"), ("training_job", "ns/job"))

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def collector(picture: Picture) -> NodeCollector:
    return NodeCollector(picture, node="node-1", job="ns/job", version="1.2.3", clock=lambda: 100.5)


async def scraped(picture: Picture) -> Samples:
    application = metrics_application(collector(picture), token=lambda: "secret")
    async with TestClient(TestServer(application)) as client:
        answer = await client.get("/metrics", headers={"Authorization": "Bearer secret"})
        assert answer.status == 200
        return dict(parsed(await answer.text()))


def parsed(text: str) -> Iterator[tuple[tuple[str, tuple[tuple[str, str], ...]], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            yield (sample.name, tuple(sorted(sample.labels.items()))), sample.value


def picture_of(reading: Reading) -> Picture:
    """The ranks as one job's, all else as the node's own."""
    picture = Picture()
    picture.observe(replace(reading, ranks=()), {"ns/job": Reading(ranks=reading.ranks)}, 100.0)
    return picture


async def test_a_rank_is_exported_with_its_age_at_the_scrape() -> None:
    samples = await scraped(picture_of(Reading(ranks=(RANK,))))
    assert samples["holdfast_rank_step", RANK_LABELS] == 9
    assert samples["holdfast_rank_progress_age_seconds", RANK_LABELS] == 2.0


async def test_the_ranks_of_every_job_on_the_node_carry_its_name() -> None:
    picture = Picture()
    picture.observe(Reading(), {"ns/job": Reading(ranks=(RANK,)), "b/other": Reading(ranks=(RANK,))}, 100.0)
    samples = await scraped(picture)
    assert samples["holdfast_rank_step", RANK_LABELS] == 9
    assert samples["holdfast_rank_step", (("rank", "2"), ("training_job", "b/other"))] == 9


async def test_what_is_unknown_is_absent() -> None:
    names = {name for name, _ in await scraped(picture_of(Reading(ranks=(RANK,), gpus=(GPU,))))}
    assert not names & {"holdfast_rank_loss", "holdfast_rank_step_seconds", "DCGM_FI_DEV_POWER_USAGE"}


async def test_a_leftover_record_of_an_older_round_does_not_speak_for_the_rank() -> None:
    old = RankSample(1, 2, ProcessState.GONE, Phase.DATA, 900.0, 900.0, step=999)
    samples = await scraped(picture_of(Reading(ranks=(RANK, old))))
    assert samples["holdfast_rank_step", RANK_LABELS] == 9


async def test_gpu_telemetry_has_the_names_labels_and_units_of_dcgm() -> None:
    samples = await scraped(picture_of(Reading(gpus=(GPU,))))
    assert samples["DCGM_FI_DEV_GPU_TEMP", GPU_LABELS] == 61.0
    assert samples["DCGM_FI_DEV_GPU_UTIL", GPU_LABELS] == 50.0


@pytest.mark.parametrize(
    ("health", "value"), [(GpuHealth.HEALTHY, 1.0), (GpuHealth.FAILED, 0.0), (GpuHealth.UNKNOWN, None)]
)
async def test_an_unknown_gpu_is_neither_healthy_nor_failed(health: GpuHealth, value: float | None) -> None:
    samples = await scraped(picture_of(Reading(gpus=(GpuSample("GPU-a", 3, health),))))
    assert samples.get(("holdfast_gpu_healthy", GPU_LABELS)) == value


async def test_xids_are_counted_and_the_last_one_is_shown() -> None:
    picture = picture_of(Reading(events=(XidRaised("GPU-a", 31, 0.0), XidRaised("GPU-a", 79, 0.0))))
    picture.observe(Reading(gpus=(GPU,), events=(XidRaised("GPU-a", 31, 0.0),)), {}, 100.0)
    samples = await scraped(picture)
    assert samples["holdfast_xid_errors_total", (*GPU_LABELS, ("xid", "31"))] == 2
    assert samples["holdfast_xid_errors_total", (*GPU_LABELS, ("xid", "79"))] == 1
    assert samples["DCGM_FI_DEV_XID_ERRORS", GPU_LABELS] == 31


async def test_a_gpu_that_disappeared_is_no_xid() -> None:
    samples = await scraped(picture_of(Reading(events=(GpuDisappeared("GPU-a", 0.0),))))
    assert not [name for name, _ in samples if "xid" in name.lower()]


async def test_an_unreadable_source_is_said() -> None:
    problems = (Unreadable("ranks", "a"), Unreadable("ranks", "b"))
    samples = await scraped(picture_of(Reading(unreadable=problems)))
    assert samples["holdfast_sensor_unreadable", (("source", "ranks"),)] == 1


async def test_the_names_of_all_metrics_are_a_promise() -> None:
    families = sorted(family.name for family in collector(Picture()).collect())
    assert families == [
        "DCGM_FI_DEV_GPU_TEMP",
        "DCGM_FI_DEV_GPU_UTIL",
        "DCGM_FI_DEV_MEMORY_TEMP",
        "DCGM_FI_DEV_POWER_USAGE",
        "DCGM_FI_DEV_XID_ERRORS",
        "holdfast_agent_build_info",
        "holdfast_gpu_healthy",
        "holdfast_rank_grad_norm",
        "holdfast_rank_loss",
        "holdfast_rank_progress_age_seconds",
        "holdfast_rank_step",
        "holdfast_rank_step_seconds",
        "holdfast_sensor_unreadable",
        "holdfast_xid_errors",
    ]


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
async def test_nobody_reads_metrics_without_the_token(header: dict[str, str]) -> None:
    application = metrics_application(collector(Picture()), token=lambda: "secret")
    async with TestClient(TestServer(application)) as client:
        answer = await client.get("/metrics", headers=header)
        assert answer.status == 401
        assert "holdfast_" not in await answer.text()


async def test_an_agent_that_cannot_read_its_token_serves_nobody() -> None:
    def token() -> str:
        raise Unavailable("gone")

    async with TestClient(TestServer(metrics_application(collector(Picture()), token=token))) as client:
        answer = await client.get("/metrics", headers={"Authorization": "Bearer secret"})
        assert answer.status == 503
