"""The metrics, as a scrape sees them."""

import itertools
from collections.abc import Iterator, Mapping
from dataclasses import replace

import msgspec
import pytest
from aiohttp.test_utils import TestClient, TestServer
from full_picture import full_picture
from prometheus_client.core import Metric
from prometheus_client.openmetrics.parser import text_string_to_metric_families as strictly_parsed
from prometheus_client.parser import text_string_to_metric_families

from holdfast.agent.jobstream import Connection
from holdfast.agent.metrics.exporter import DcgmNames, NodeMetrics, metrics_application
from holdfast.agent.metrics.table import AGENT_METRICS, DCGM_METRICS, OWN_METRICS
from holdfast.agent.nodeview import NodeView
from holdfast.agent.reading import (
    ClockDetail,
    DiskDetail,
    GpuDetail,
    MemoryDetail,
    NodeDetail,
    NvlinkDetail,
    PortCounter,
    PortDetail,
    PortState,
    Reading,
)
from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.errors import Unavailable
from holdfast.api.exposition import Style
from holdfast.api.metric import MetricKind
from holdfast.api.rankrecord import Phase
from holdfast.api.telemetry import (
    GpuDisappeared,
    GpuHealth,
    GpuSample,
    ParametersFingerprinted,
    PreemptionNoticed,
    ProcessKilledForMemory,
    ProcessState,
    RankSample,
    StepWork,
    Unreadable,
    XidRaised,
)

RANK = RankSample(
    round=4, rank=2, process=ProcessState.RUNNING, phase=Phase.DATA, progress_age_s=1.5, phase_age_s=1.5, step=9
)
PARTS = ("data", "paused", "waiting", "own", "training")
GPU = GpuSample("GPU-a", 3, GpuHealth.HEALTHY, temperature_c=61.0, utilization_ratio=0.5)
GPU_LABELS = {"UUID": "GPU-a", "gpu": "3", "node": "node-1"}
DCGM_LABELS = {"Hostname": "node-1", "UUID": "GPU-a", "gpu": "3", "device": "nvidia3"}
RANK_LABELS = {"rank": "2", "training_job": "ns/job", "node": "node-1"}
LINE = Connection("ns/job", connected=True, reports=7, dropped=2)
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"


class Samples(dict[tuple[str, frozenset[tuple[str, str]]], float]):
    """By name and labels, of which empty ones are no labels, as for Prometheus."""

    def of(self, name: str, labels: Mapping[str, str] = {}, **more: str) -> float | None:
        return self.get((name, frozenset({**labels, **more}.items())))

    def names(self) -> set[str]:
        return {name for name, _ in self}


def metrics_of(picture: NodeView, dcgm: DcgmNames = DcgmNames.HERE) -> NodeMetrics:
    return NodeMetrics(
        picture,
        node="node-1",
        build=("1.2.3", "ns/job"),
        clock=lambda: 100.5,
        connections=lambda: [LINE],
        dcgm=dcgm,
    )


def families_of(picture: NodeView, dcgm: DcgmNames = DcgmNames.HERE) -> list[Metric]:
    """Every family, as the strict parser reads it."""
    return list(strictly_parsed(metrics_of(picture, dcgm).page().text(Style.OPENMETRICS)))


async def served(picture: NodeView, accept: str = "") -> tuple[str, str]:
    """The text, and how it is called."""
    application = metrics_application(metrics_of(picture), token=lambda: "secret")
    async with TestClient(TestServer(application)) as client:
        headers = {"Authorization": "Bearer secret", "Accept": accept}
        answer = await client.get("/metrics", headers=headers)
        assert answer.status == 200
        return await answer.text(), answer.headers["Content-Type"]


async def scraped(picture: NodeView) -> Samples:
    text, _ = await served(picture)
    return Samples(parsed(text))


def parsed(text: str) -> Iterator[tuple[tuple[str, frozenset[tuple[str, str]]], float]]:
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            labels = frozenset((name, value) for name, value in sample.labels.items() if value)
            yield (sample.name, labels), sample.value


def picture_of(reading: Reading) -> NodeView:
    """The ranks as one job's, all else as the node's own."""
    picture = NodeView()
    picture.observe(replace(reading, ranks=()), {"ns/job": Reading(ranks=reading.ranks)}, 100.0)
    return picture


async def test_a_rank_is_exported_with_its_age_at_the_scrape() -> None:
    samples = await scraped(picture_of(Reading(ranks=(RANK,))))
    assert samples.of("holdfast_rank_step", RANK_LABELS) == 9
    assert samples.of("holdfast_rank_progress_age_seconds", RANK_LABELS) == 2.0


async def test_the_ranks_of_every_job_on_the_node_carry_its_name() -> None:
    picture = NodeView()
    picture.observe(Reading(), {"ns/job": Reading(ranks=(RANK,)), "b/other": Reading(ranks=(RANK,))}, 100.0)
    samples = await scraped(picture)
    assert samples.of("holdfast_rank_step", RANK_LABELS) == 9
    assert samples.of("holdfast_rank_step", RANK_LABELS, training_job="b/other") == 9


async def test_a_rank_says_what_it_is_in_and_what_the_kernel_says_of_it() -> None:
    samples = await scraped(picture_of(Reading(ranks=(RANK,))))
    assert samples.of("holdfast_rank_phase", RANK_LABELS, phase="data") == 1
    assert samples.of("holdfast_rank_process", RANK_LABELS, state="Running") == 1


async def test_what_is_unknown_is_absent() -> None:
    names = (await scraped(picture_of(Reading(ranks=(RANK,), gpus=(GPU,))))).names()
    assert not names & {"holdfast_rank_loss", "holdfast_rank_step_seconds", "DCGM_FI_DEV_POWER_USAGE"}
    assert not names & {"holdfast_rank_tokens_total", "holdfast_gpu_throttled", "holdfast_preemption_seconds"}


async def test_a_leftover_record_of_an_older_round_does_not_speak_for_the_rank() -> None:
    old = RankSample(1, 2, ProcessState.GONE, Phase.DATA, 900.0, 900.0, step=999)
    samples = await scraped(picture_of(Reading(ranks=(RANK, old))))
    assert samples.of("holdfast_rank_step", RANK_LABELS) == 9


async def test_tokens_are_counted_over_steps_and_rounds() -> None:
    picture = NodeView()
    for round_, step in ((4, 9), (4, 10), (4, 10), (4, 13), (5, 2), (5, 3)):
        rank = RankSample(round_, 2, ProcessState.RUNNING, Phase.DATA, 0.0, 0.0, step=step, tokens=100)
        picture.observe(Reading(), {"ns/job": Reading(ranks=(rank,))}, 100.0)
    samples = await scraped(picture)
    assert samples.of("holdfast_rank_tokens_total", RANK_LABELS) == (1 + 3 + 1) * 100
    assert samples.of("holdfast_rank_step_tokens", RANK_LABELS) == 100


async def test_the_parts_of_a_rounds_steps_add_up_to_it() -> None:
    work = StepWork(4, 10.0, 1.0, 0.5, 0.25, 0.125, 3.0, 0.75, 2.0, own_s=0.5)
    name, parts = "holdfast_rank_step_part_seconds_total", {}
    samples = await scraped(picture_of(Reading(ranks=(msgspec.structs.replace(RANK, work=work),))))
    for part in PARTS:
        parts[part] = samples.of(name, RANK_LABELS, part=part)
    assert parts == {"data": 1.0, "paused": 0.75, "waiting": 1.0, "own": 0.5, "training": 6.75}
    assert sum(parts.values()) == 10.0
    unknown = msgspec.structs.replace(work, waited_s=None, delayed_s=None, stopped_s=0.0)
    samples = await scraped(picture_of(Reading(ranks=(msgspec.structs.replace(RANK, work=unknown),))))
    assert samples.of(name, RANK_LABELS, part="waiting") is None
    assert samples.of(name, RANK_LABELS, part="training") == 7.75


WORK = StepWork(4, 10.0, 1.0, 0.5, 0.25, 0.125, 3.0, 0.75, 0.5, own_s=0.5)


@pytest.mark.parametrize(
    "later",
    [
        (4, msgspec.structs.replace(WORK, stopped_s=2.5)),  # it is stopped: its step has not ended yet
        (4, msgspec.structs.replace(WORK, wall_s=31.0, waited_s=23.0, own_s=0.5)),  # one step more, all of it wait
        (4, msgspec.structs.replace(WORK, waited_s=2.0)),
        (5, StepWork(1, 0.5, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0)),  # the same process in its next round
        (3, StepWork(1, 0.5, 0.0, 0.0, 0.0, 0.0, 0.1, 0.0)),  # a record that is left over
    ],
)
async def test_no_counter_of_a_ranks_steps_ever_goes_down(later: tuple[int, StepWork]) -> None:
    view, name, seen = NodeView(), "holdfast_rank_step_part_seconds_total", []
    for round_, work in ((4, WORK), later, (6, WORK)):
        rank = msgspec.structs.replace(RANK, round=round_, work=work)
        view.observe(Reading(), {"ns/job": Reading(ranks=(rank,))}, 100.0)
        samples = await scraped(view)
        seen.append([samples.of(name, RANK_LABELS, part=part) for part in PARTS])
    for before, after in itertools.pairwise(seen):
        assert all(one <= other for one, other in zip(before, after, strict=True))
    assert sum(seen[-1]) >= 20.0


def test_a_job_that_is_made_anew_under_its_name_is_counted_from_its_first_round() -> None:
    view, totals = NodeView(), []
    of_before = msgspec.structs.replace(RANK, round=12, rank=3, process=ProcessState.GONE, work=WORK)
    for round_ in (12, 1, 2):
        rank = msgspec.structs.replace(RANK, round=round_, work=WORK)
        view.observe(Reading(), {"ns/job": Reading(ranks=(rank, of_before))}, 100.0)
        totals.append([sum(dict(view.spent_of("ns/job", each)).values()) for each in (2, 3)])
    assert totals == [[10.0, 10.0], [20.0, 10.0], [30.0, 10.0]]


async def test_fingerprints_are_counted() -> None:
    told = ParametersFingerprinted(round=4, rank=2, group=0, step=9, value=1, age_s=0.0)
    picture = NodeView()
    picture.observe(Reading(), {"ns/job": Reading(events=(told, told))}, 100.0)
    samples = await scraped(picture)
    assert samples.of("holdfast_fingerprints_total", training_job="ns/job", node="node-1") == 2


async def test_gpu_telemetry_has_the_names_labels_and_units_of_dcgm() -> None:
    samples = await scraped(picture_of(Reading(gpus=(GPU,))))
    assert samples.of("DCGM_FI_DEV_GPU_TEMP", DCGM_LABELS) == 61.0
    assert samples.of("DCGM_FI_DEV_GPU_UTIL", DCGM_LABELS) == 50.0


DETAIL = GpuDetail(
    uuid="GPU-a",
    index=3,
    model="H100",
    pci_bus_id="00000000:3B:00.0",
    energy_j=2.5,
    memory_used_bytes=3 << 20,
    memory_total_bytes=10 << 20,
    slowdown_c=87.0,
    shutdown_c=92.0,
    throttle=0x48,
    thermal_throttled_s=1.5,
    row_remap_failed=True,
    row_remap_pending=False,
    nvlinks=(
        NvlinkDetail(link=0, active=True, replays=2, crc_errors=5),
        NvlinkDetail(link=1, active=False, replays=3),
        NvlinkDetail(link=2),
    ),
)


async def test_what_the_driver_tells_of_a_gpu_is_exported_in_dcgms_units() -> None:
    samples = await scraped(picture_of(Reading(gpus=(GPU,), details=(DETAIL,))))
    labels = {**DCGM_LABELS, "modelName": "H100", "pci_bus_id": "00000000:3B:00.0"}
    assert samples.of("DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", labels) == 2500.0
    assert samples.of("DCGM_FI_DEV_FB_USED", labels) == 3
    assert samples.of("DCGM_FI_DEV_FB_FREE", labels) == 7
    assert samples.of("DCGM_FI_DEV_THERMAL_VIOLATION", labels) == 1.5e9
    assert samples.of("DCGM_FI_DEV_ROW_REMAP_FAILURE", labels) == 1
    assert samples.of("DCGM_FI_DEV_ROW_REMAP_PENDING", labels) == 0
    assert samples.of("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", labels) == 5
    assert samples.of("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", labels) == 5
    assert "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL" not in samples.names()


async def test_what_holds_a_gpus_clocks_down_is_named() -> None:
    samples = await scraped(picture_of(Reading(details=(DETAIL,))))
    limits = ("slowdown", "shutdown")
    told = [samples.of("holdfast_gpu_temperature_limit_celsius", GPU_LABELS, limit=limit) for limit in limits]
    assert told == [87, 92]
    reasons = ("hw_thermal", "hw_slowdown", "sw_thermal", "power_cap", "power_brake")
    told = [samples.of("holdfast_gpu_throttled", GPU_LABELS, reason=reason) for reason in reasons]
    assert told == [1, 1, 0, 0, 0]
    assert samples.of("holdfast_gpu_throttled_seconds_total", GPU_LABELS, reason="thermal") == 1.5
    states = [samples.of("holdfast_gpu_nvlinks", GPU_LABELS, state=state) for state in ("up", "down")]
    assert states == [1, 1]  # and one that is Unknown


def test_dcgms_names_are_left_to_an_exporter_that_runs() -> None:
    picture = picture_of(Reading(gpus=(GPU,), details=(DETAIL,), events=(XidRaised("GPU-a", 79, 0.0),)))
    names = {family.name for family in families_of(picture, DcgmNames.ELSEWHERE)}
    assert not [name for name in names if name.startswith("DCGM_")]
    assert "holdfast_gpu_temperature_margin_celsius" in names
    assert "holdfast_gpu_temperature_limit_celsius" in names


@pytest.mark.parametrize(
    ("health", "value"), [(GpuHealth.HEALTHY, 1.0), (GpuHealth.FAILED, 0.0), (GpuHealth.UNKNOWN, None)]
)
async def test_an_unknown_gpu_is_neither_healthy_nor_failed(health: GpuHealth, value: float | None) -> None:
    samples = await scraped(picture_of(Reading(gpus=(GpuSample("GPU-a", 3, health),))))
    assert samples.of("holdfast_gpu_healthy", GPU_LABELS) == value


async def test_xids_are_counted_and_the_last_one_is_shown() -> None:
    picture = picture_of(Reading(events=(XidRaised("GPU-a", 31, 0.0), XidRaised("GPU-a", 79, 2.0))))
    picture.observe(Reading(gpus=(GPU,), events=(XidRaised("GPU-a", 31, 0.0),)), {}, 100.25)
    samples = await scraped(picture)
    assert samples.of("holdfast_xid_errors_total", GPU_LABELS, xid="31") == 2
    assert samples.of("holdfast_xid_errors_total", GPU_LABELS, xid="79") == 1
    assert samples.of("holdfast_xid_age_seconds", GPU_LABELS, xid="31") == 0.25
    assert samples.of("holdfast_xid_age_seconds", GPU_LABELS, xid="79") == 2.5
    assert samples.of("DCGM_FI_DEV_XID_ERRORS", DCGM_LABELS) == 31


async def test_a_gpu_that_is_lost_keeps_its_index() -> None:
    picture = picture_of(Reading(gpus=(GPU,)))
    picture.observe(Reading(events=(GpuDisappeared("GPU-a", 0.0),)), {}, 100.0)
    samples = await scraped(picture)
    assert samples.of("holdfast_gpu_lost_total", GPU_LABELS) == 1
    assert samples.of("holdfast_gpu_lost_age_seconds", GPU_LABELS) == 0.5
    assert not [name for name in samples.names() if "xid" in name.lower()]


async def test_an_error_of_a_gpu_never_seen_is_counted_under_its_own_name() -> None:
    samples = await scraped(picture_of(Reading(events=(XidRaised("PCI:0000:3b:00", 79, 0.0),))))
    labels = {"UUID": "PCI:0000:3b:00", "node": "node-1", "xid": "79"}
    assert samples.of("holdfast_xid_errors_total", labels) == 1


def raised(state: ConditionState) -> Condition:
    return Condition(ConditionKind.NVLINK_DOWN, state, 1.0, "link 4 is down", gpu="GPU-a", device="4")


async def test_a_condition_is_there_while_it_holds_and_counted_once() -> None:
    picture = picture_of(Reading(gpus=(GPU,), conditions=(raised(ConditionState.RAISED),)))
    picture.observe(Reading(gpus=(GPU,), conditions=(raised(ConditionState.RAISED),)), {}, 100.1)
    labels = {**GPU_LABELS, "kind": "NvlinkDown", "device": "4"}
    samples = await scraped(picture)
    assert samples.of("holdfast_condition", labels) == 1
    assert samples.of("holdfast_conditions_raised_total", kind="NvlinkDown", node="node-1") == 1
    picture.observe(Reading(conditions=(raised(ConditionState.CLEARED),)), {}, 100.2)
    assert (await scraped(picture)).of("holdfast_condition", labels) is None
    picture.observe(Reading(conditions=(raised(ConditionState.RAISED),)), {}, 100.3)
    samples = await scraped(picture)
    assert samples.of("holdfast_conditions_raised_total", kind="NvlinkDown", node="node-1") == 2
    assert samples.of("holdfast_conditions_raised_total", kind="DiskFull", node="node-1") == 0


async def test_what_befell_the_node_is_counted_from_zero() -> None:
    before = await scraped(NodeView())
    assert before.of("holdfast_oom_kills_total", node="node-1") == 0
    assert before.of("holdfast_preemption_notices_total", node="node-1") == 0
    killed = ProcessKilledForMemory(pid=5, name="python", age_s=0.0)
    noticed = PreemptionNoticed("aws", within_s=120.0, age_s=1.0)
    after = await scraped(picture_of(Reading(events=(killed, noticed))))
    assert after.of("holdfast_oom_kills_total", node="node-1") == 1
    assert after.of("holdfast_preemption_notices_total", node="node-1") == 1
    assert after.of("holdfast_preemption_seconds", node="node-1") == 118.5


async def test_ports_and_the_node_itself_are_exported() -> None:
    port = PortDetail(
        device="mlx5_0",
        port=1,
        state=PortState.DOWN,
        rate_gbps=400.0,
        downs=3,
        sent_bytes=10,
        counters={PortCounter.SYMBOL_ERROR: 4},
    )
    detail = NodeDetail(
        memory=MemoryDetail(total_bytes=100, available_bytes=40),
        load=1.5,
        clock=ClockDetail(offset_s=0.25, error_s_max=2.0, unsynchronised=True),
        disks=(
            DiskDetail(
                path="/ckpt",
                total_bytes=10,
                free_bytes=4,
                total_inodes=None,
                free_inodes=None,
                read_only=True,
            ),
        ),
    )
    samples = await scraped(picture_of(Reading(ports=(port,), node=detail)))
    on = {"device": "mlx5_0", "port": "1", "node": "node-1"}
    assert samples.of("holdfast_port_up", on) == 0
    assert samples.of("holdfast_port_bytes_per_second", on) == 50e9
    assert samples.of("holdfast_port_downs_total", on) == 3
    assert samples.of("holdfast_port_errors_total", on, counter="symbol_error") == 4
    assert samples.of("holdfast_node_memory_available_bytes", node="node-1") == 40
    assert samples.of("holdfast_node_clock_synchronised", node="node-1") == 0
    assert samples.of("holdfast_node_disk_writable", node="node-1", path="/ckpt") == 0
    assert not samples.names() & {"holdfast_port_received_bytes_total", "holdfast_node_disk_inodes_free"}


async def test_a_source_says_whether_it_can_be_read_and_how_often_it_could_not() -> None:
    picture = NodeView()
    picture.timed("nvml", 0.25)
    for problems in ((), (Unreadable("nvml", "gone"),), (Unreadable("nvml", "still gone"),), ()):
        picture.observe(Reading(unreadable=problems), {}, 100.0)
    picture.observe(Reading(), {"ns/job": Reading(unreadable=(Unreadable("ranks of pod-1", "a"),))}, 100.0)
    samples = await scraped(picture)
    assert samples.of("holdfast_sensor_up", source="nvml", node="node-1") == 1
    assert samples.of("holdfast_sensor_failures_total", source="nvml", node="node-1") == 1
    assert samples.of("holdfast_sensor_up", source="ranks", node="node-1") == 0
    assert samples.of("holdfast_sensor_read_seconds_sum", source="nvml", node="node-1") == 0.25
    assert samples.of("holdfast_sensor_read_seconds_count", source="nvml", node="node-1") == 1


async def test_the_line_to_the_watchdog_is_told() -> None:
    samples = await scraped(NodeView())
    labels = {"training_job": "ns/job", "node": "node-1"}
    assert samples.of("holdfast_agent_watchdog_connected", labels) == 1
    assert samples.of("holdfast_agent_reports_sent_total", labels) == 7
    assert samples.of("holdfast_agent_events_dropped_total", labels) == 2


def test_every_metric_in_the_table_is_exported_and_no_other() -> None:
    promised = {(row.family, row.kind, row.help, row.labels) for row in AGENT_METRICS}
    families = families_of(full_picture())
    assert {family.name for family in families} == {name for name, *_ in promised}
    assert [family.name for family in families if not family.samples] == []
    for family in families:
        row = next(each for each in AGENT_METRICS if each.family == family.name)
        assert (family.type, family.documentation) == (row.kind.value, row.help)
        assert all(tuple(sample.labels) == row.labels for sample in family.samples)


def test_own_names_are_of_holdfast_and_counters_say_so() -> None:
    assert [row.name for row in OWN_METRICS if not row.name.startswith("holdfast_")] == []
    assert [row.name for row in DCGM_METRICS if not row.name.startswith("DCGM_FI_DEV_")] == []
    totals = {row.name for row in AGENT_METRICS if row.name.endswith("_total")}
    assert totals == {row.name for row in AGENT_METRICS if row.kind is MetricKind.COUNTER}
    assert len({row.name for row in AGENT_METRICS}) == len(AGENT_METRICS)


async def test_who_accepts_openmetrics_gets_it_and_everybody_else_the_older_format() -> None:
    text, called = await served(full_picture(), accept=OPENMETRICS)
    assert called.startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")
    strict = {family.name for family in strictly_parsed(text)}
    assert {row.family for row in AGENT_METRICS} == strict
    older, called = await served(full_picture())
    assert called.startswith("text/plain; version=0.0.4")
    assert "# EOF" not in older
    assert "# TYPE holdfast_xid_errors_total counter" in older


def test_a_node_of_eight_gpus_and_ranks_is_scraped_in_few_series() -> None:
    samples = [sample for family in families_of(full_picture()) for sample in family.samples]
    of_ranks = [sample for sample in samples if sample.name.startswith("holdfast_rank_")]
    assert len(of_ranks) == 8 * 15
    assert len(samples) < 800


@pytest.mark.parametrize("header", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": "secret"}])
async def test_nobody_reads_metrics_without_the_token(header: dict[str, str]) -> None:
    application = metrics_application(metrics_of(NodeView()), token=lambda: "secret")
    async with TestClient(TestServer(application)) as client:
        answer = await client.get("/metrics", headers=header)
        assert answer.status == 401
        assert "holdfast_" not in await answer.text()


async def test_an_agent_that_cannot_read_its_token_serves_nobody() -> None:
    def token() -> str:
        raise Unavailable("gone")

    async with TestClient(TestServer(metrics_application(metrics_of(NodeView()), token=token))) as client:
        answer = await client.get("/metrics", headers={"Authorization": "Bearer secret"})
        assert answer.status == 503
