"""The node's Prometheus metrics, made of the view when they are scraped. What is Unknown is absent, never zero.

GPUs are shown under Holdfast's names, and under those of dcgm-exporter 4.8 and older for a node that runs none.
"""

import contextlib
import hmac
import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import Enum
from typing import Final, TypeVar

from aiohttp import web

from holdfast.agent.jobstream import Connection
from holdfast.agent.metrics.table import AGENT_METRICS, DCGM_METRICS, OWN_METRICS
from holdfast.agent.nodeview import NodeView
from holdfast.agent.reading import GpuDetail, NvlinkDetail, PortState
from holdfast.agent.sensors.dcgm_text import filling_of
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.errors import Unavailable
from holdfast.api.exposition import Page, accepted
from holdfast.api.telemetry import GpuHealth, RankSample

Subject = TypeVar("Subject")
# A metric, or the last label's value of one, and how its value is read off what it is of.
_Values = tuple[tuple[str, Callable[[Subject], float | None]], ...]

_MEBIBYTE: Final = 1 << 20
_BYTES_PER_GIGABIT: Final = 1e9 / 8
# An idle GPU, and clocks that somebody has set, are not held down.
# Source: https://docs.nvidia.com/deploy/nvml-api/group__nvmlClocksEventReasons.html
_THROTTLE_BITS: Final = {
    0x04: "power_cap",
    0x08: "hw_slowdown",
    0x20: "sw_thermal",
    0x40: "hw_thermal",
    0x80: "power_brake",
}
_RANK: Final[_Values[RankSample]] = (
    ("holdfast_rank_step", lambda rank: rank.step),
    ("holdfast_rank_loss", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", lambda rank: rank.step_time_s),
    ("holdfast_rank_step_tokens", lambda rank: rank.tokens),
)
_GPU: Final[_Values[GpuDetail]] = (
    ("holdfast_gpu_temperature_margin_celsius", lambda gpu: gpu.margin_c),
    ("holdfast_gpu_power_limit_watts", lambda gpu: gpu.power_limit_w),
    ("holdfast_gpu_processes", lambda gpu: gpu.processes),
    ("holdfast_gpu_pcie_width_max", lambda gpu: gpu.pcie_width_max),
    ("holdfast_gpu_pcie_generation_max", lambda gpu: gpu.pcie_generation_max),
)
_THROTTLED_S: Final[_Values[GpuDetail]] = (
    ("thermal", lambda gpu: gpu.thermal_throttled_s),
    ("power", lambda gpu: gpu.power_throttled_s),
    ("board_limit", lambda gpu: gpu.board_limit_throttled_s),
    ("reliability", lambda gpu: gpu.reliability_throttled_s),
)


def _over_links(gpu: GpuDetail, count_of: Callable[[NvlinkDetail], int | None]) -> int | None:
    """The sum over those links of which it is known."""
    known = [count for link in gpu.nvlinks if (count := count_of(link)) is not None]
    return sum(known) if known else None


def _free_mib(gpu: GpuDetail) -> float | None:
    if gpu.memory_total_bytes is None or gpu.memory_used_bytes is None:
        return None
    return (gpu.memory_total_bytes - gpu.memory_used_bytes) / _MEBIBYTE


# What of DCGM's is no field of a GPU by itself; for the others, what a dcgm-exporter's answer is read by.
_DCGM_OF_SEVERAL: Final[_Values[GpuDetail]] = (
    ("DCGM_FI_DEV_FB_FREE", _free_mib),
    ("DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.replays)),
    ("DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.recoveries)),
    ("DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", lambda gpu: _over_links(gpu, lambda link: link.crc_errors)),
)
_DCGM: Final = tuple((row.name, filling) for row in DCGM_METRICS if (filling := filling_of(row.name)) is not None)


class DcgmNames(Enum):
    """Who exports GPU telemetry under DCGM's names. Told twice, every sum over GPUs would count them twice."""

    HERE = "here"
    ELSEWHERE = "elsewhere"


@dataclass(frozen=True, slots=True)
class NodeMetrics:
    """Turns the view into metrics when it is scraped.

    `build` is the agent's version, and its only job; empty for an agent of many. `clock` is CLOCK_MONOTONIC in
    seconds, `connections` gives the jobs' connections to the watchdog.
    """

    view: NodeView
    node: str
    build: tuple[str, str]
    clock: Callable[[], float]
    connections: Callable[[], Iterable[Connection]]
    dcgm: DcgmNames = DcgmNames.HERE

    def page(self) -> Page:
        """Every family, also those without a sample now."""
        now, here = self.clock(), self.dcgm is DcgmNames.HERE
        page = Page(AGENT_METRICS if here else OWN_METRICS)
        self._put_agent(page)
        self._put_ranks(page, now)
        gpus = self._gpus()
        self._put_gpus(page, gpus, now)
        self._put_troubles(page, now)
        self._put_node(page)
        if here:
            self._put_dcgm(page, gpus)
        return page

    def _put_agent(self, page: Page) -> None:
        """What the agent costs, every source ever met, and every job's connection.

        Source of its memory: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html
        """
        view, node = self.view, self.node
        page.put("holdfast_agent_build_info", 1, *self.build, node)
        page.put("holdfast_agent_cpu_seconds_total", time.process_time(), node)
        with (
            contextlib.suppress(OSError, ValueError, IndexError),
            open("/proc/self/statm", encoding="ascii") as file,
        ):
            resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
            page.put("holdfast_agent_resident_memory_bytes", resident_bytes, node)
        for source, readable in sorted(view.readable.items()):
            page.put("holdfast_sensor_up", float(readable), source, node)
            page.put("holdfast_sensor_failures_total", view.failures[source], source, node)
        for sensor, looks in view.looks.items():
            page.put_summary("holdfast_sensor_read_seconds", sensor, node, count=looks.count, total=looks.total_s)
        for each in self.connections():
            page.put("holdfast_agent_watchdog_connected", float(each.connected), each.job, node)
            page.put("holdfast_agent_reports_sent_total", each.reports, each.job, node)
            page.put("holdfast_agent_events_dropped_total", each.dropped, each.job, node)

    def _put_ranks(self, page: Page, now: float) -> None:
        """Every rank, with its ages as of `now`."""
        looked_s = max(0.0, now - self.view.read_at)
        for job, reading in self.view.jobs.items():
            # A node may hold a leftover record of an older round: the newest round's word on a rank counts.
            newest = {rank.rank: rank for rank in sorted(reading.ranks, key=lambda rank: rank.round)}
            for rank in newest.values():
                labels = (job, str(rank.rank), self.node)
                for name, value_of in _RANK:
                    page.put(name, value_of(rank), *labels)
                pulse_age_s = None if rank.pulse_age_s is None else rank.pulse_age_s + looked_s
                page.put("holdfast_rank_progress_age_seconds", rank.progress_age_s + looked_s, *labels)
                page.put("holdfast_rank_pulse_age_seconds", pulse_age_s, *labels)
                page.put("holdfast_rank_phase", 1, *labels, rank.phase.name.lower())
                page.put("holdfast_rank_process", 1, *labels, rank.process.value)
                for part, seconds in self.view.spent_of(job, rank.rank):
                    page.put("holdfast_rank_step_part_seconds_total", seconds, *labels, part)
                if rank.tokens is not None:
                    page.put("holdfast_rank_tokens_total", self.view.tokens[job, rank.rank], *labels)
            page.put("holdfast_fingerprints_total", self.view.fingerprints[job], job, self.node)

    def _gpus(self) -> tuple[GpuDetail, ...]:
        """Every GPU that is seen now, as well as it is known."""
        detailed = {each.uuid for each in self.view.node.details}
        plain = tuple(
            GpuDetail(
                uuid=sample.uuid,
                index=sample.index,
                temperature_c=sample.temperature_c,
                memory_temperature_c=sample.memory_temperature_c,
                margin_c=sample.margin_c,
                power_w=sample.power_w,
                utilization_ratio=sample.utilization_ratio,
                throttle=sample.throttle,
                thermal_throttled_s=sample.throttled_s,
            )
            for sample in self.view.node.gpus
            if sample.uuid not in detailed
        )
        return self.view.node.details + plain

    def _labels_of(self, uuid: str) -> tuple[str, str]:
        """A GPU's index, empty when it was never seen, and its UUID."""
        index = self.view.indices.get(uuid)
        return ("" if index is None else str(index), uuid)

    def _put_gpus(self, page: Page, gpus: Iterable[GpuDetail], now: float) -> None:
        """Every GPU that is seen now, and every one that ever had an error."""
        view, node = self.view, self.node
        for sample in view.node.gpus:
            if sample.health is not GpuHealth.UNKNOWN:
                healthy = float(sample.health is GpuHealth.HEALTHY)
                page.put("holdfast_gpu_healthy", healthy, str(sample.index), sample.uuid, node)
        for gpu in gpus:
            labels = (str(gpu.index), gpu.uuid, node)
            for name, value_of in _GPU:
                page.put(name, value_of(gpu), *labels)
            page.put("holdfast_gpu_temperature_limit_celsius", gpu.slowdown_c, *labels, "slowdown")
            page.put("holdfast_gpu_temperature_limit_celsius", gpu.shutdown_c, *labels, "shutdown")
            for reason, seconds_of in _THROTTLED_S:
                page.put("holdfast_gpu_throttled_seconds_total", seconds_of(gpu), *labels, reason)
            if gpu.throttle is not None:
                for bit, reason in _THROTTLE_BITS.items():
                    page.put("holdfast_gpu_throttled", float(bool(gpu.throttle & bit)), *labels, reason)
            known = [link.active for link in gpu.nvlinks if link.active is not None]
            if known:
                page.put("holdfast_gpu_nvlinks", known.count(True), *labels, "up")
                page.put("holdfast_gpu_nvlinks", known.count(False), *labels, "down")
        for (uuid, xid), count in view.xids.items():
            error = (*self._labels_of(uuid), node, str(xid))
            page.put("holdfast_xid_errors_total", count, *error)
            page.put("holdfast_xid_age_seconds", max(0.0, now - view.xid_at[uuid, xid]), *error)
        for uuid, count in view.lost.items():
            page.put("holdfast_gpu_lost_total", count, *self._labels_of(uuid), node)
            age_s = max(0.0, now - view.lost_at[uuid])
            page.put("holdfast_gpu_lost_age_seconds", age_s, *self._labels_of(uuid), node)

    def _put_dcgm(self, page: Page, gpus: Iterable[GpuDetail]) -> None:
        """Every GPU that is seen now; the last XID also of one that is not."""
        labels = {}
        for gpu in gpus:
            bus, model, index = gpu.pci_bus_id or "", gpu.model or "", str(gpu.index)
            labels[gpu.uuid] = (index, gpu.uuid, bus, f"nvidia{index}", model, self.node)
            for name, filling in _DCGM:
                page.put(name, filling.shown(gpu), *labels[gpu.uuid])
            for name, value_of in _DCGM_OF_SEVERAL:
                page.put(name, value_of(gpu), *labels[gpu.uuid])
        for uuid, xid in self.view.last_xid.items():
            gone = (*self._labels_of(uuid), "", "", "", self.node)
            page.put("DCGM_FI_DEV_XID_ERRORS", xid, *labels.get(uuid, gone))

    def _put_troubles(self, page: Page, now: float) -> None:
        """The conditions that hold, and what befell the node."""
        view, node = self.view, self.node
        for condition in view.node.conditions:
            if condition.state is ConditionState.RAISED:
                part = (*self._labels_of(condition.gpu), condition.device)
                page.put("holdfast_condition", 1, condition.kind.value, *part, node)
        for kind in ConditionKind:
            page.put("holdfast_conditions_raised_total", view.raised[kind], kind.value, node)
        page.put("holdfast_oom_kills_total", view.oom_kills, node)
        page.put("holdfast_preemption_notices_total", view.notices, node)
        page.put("holdfast_kernel_records_lost_total", view.kernel_records_lost, node)
        if view.preempted_at is not None:
            page.put("holdfast_preemption_seconds", view.preempted_at - now, node)

    def _put_node(self, page: Page) -> None:
        """The node as it is now: ports, load, memory, clock and disks."""
        node, detail = self.node, self.view.node.node
        for port in self.view.node.ports:
            labels = (port.device, str(port.port), node)
            if port.state is not PortState.UNKNOWN:
                page.put("holdfast_port_up", float(port.state is PortState.UP), *labels)
            rate = None if port.rate_gbps is None else port.rate_gbps * _BYTES_PER_GIGABIT
            page.put("holdfast_port_bytes_per_second", rate, *labels)
            page.put("holdfast_port_downs_total", port.downs, *labels)
            page.put("holdfast_port_sent_bytes_total", port.sent_bytes, *labels)
            page.put("holdfast_port_received_bytes_total", port.received_bytes, *labels)
            for counter, count in port.counters.items():
                page.put("holdfast_port_errors_total", count, *labels, counter.value)
        if detail is None:
            return
        page.put("holdfast_node_load1", detail.load, node)
        page.put("holdfast_node_uptime_seconds", detail.uptime_s, node)
        if detail.memory is not None:
            page.put("holdfast_node_memory_total_bytes", detail.memory.total_bytes, node)
            page.put("holdfast_node_memory_available_bytes", detail.memory.available_bytes, node)
        if detail.clock is not None:
            page.put("holdfast_node_clock_synchronised", float(not detail.clock.unsynchronised), node)
            page.put("holdfast_node_clock_error_seconds", detail.clock.error_s_max, node)
            page.put("holdfast_node_clock_offset_seconds", detail.clock.offset_s, node)
        for disk in detail.disks:
            page.put("holdfast_node_disk_size_bytes", disk.total_bytes, disk.path, node)
            page.put("holdfast_node_disk_free_bytes", disk.free_bytes, disk.path, node)
            page.put("holdfast_node_disk_inodes_free", disk.free_inodes, disk.path, node)
            page.put("holdfast_node_disk_writable", float(not disk.read_only), disk.path, node)


def metrics_application(of_node: NodeMetrics, *, token: Callable[[], str]) -> web.Application:
    """GET /metrics for whoever shows the token; 401 with one clear sentence for everybody else.

    The text is OpenMetrics for who accepts that, else the older format.
    """

    async def metrics(request: web.Request) -> web.Response:
        given = request.headers.get("Authorization", "")
        try:
            wanted = f"Bearer {token()}"
        except Unavailable:
            return web.json_response({"error": "The agent cannot read its token now."}, status=503)
        if not hmac.compare_digest(given.encode("utf-8", "surrogateescape"), wanted.encode()):
            refusal = {"error": "Send the agent's token as `Authorization: Bearer TOKEN`."}
            return web.json_response(refusal, status=401, headers={"WWW-Authenticate": "Bearer"})
        style = accepted(request.headers.get("Accept", ""))
        return web.Response(body=of_node.page().text(style).encode(), headers={"Content-Type": style.value})

    application = web.Application(client_max_size=1024)
    application.router.add_get("/metrics", metrics)
    return application
