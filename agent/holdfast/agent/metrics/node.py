"""The agent itself, the ranks on its node, and the node: its conditions, ports, memory, disks and clock."""

import resource
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Final

from holdfast.agent.metrics.gpus import gpu_labels
from holdfast.agent.picture import Picture
from holdfast.agent.reading import ClockDetail, DiskDetail, NodeDetail, PortDetail, PortState, Writability
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.exposition import Page
from holdfast.api.telemetry import RankSample


@dataclass(frozen=True, slots=True)
class Line:
    """One job's line to the watchdog: whether it stands, reports sent, events lost for want of room."""

    job: str
    connected: bool
    reports: int
    dropped: int


@dataclass(frozen=True, slots=True)
class Footprint:
    """What the agent costs its node: CPU time of all threads in seconds, and memory."""

    cpu_s: float
    resident_bytes: int | None

    @classmethod
    def now(cls) -> "Footprint":
        """This process's. Source: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html"""
        try:
            with open("/proc/self/statm", encoding="ascii") as file:
                resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
        except (OSError, ValueError, IndexError):
            resident_bytes = None
        return cls(time.process_time(), resident_bytes)


def write_footprint(page: Page, footprint: Footprint, *, node: str) -> None:
    """What the agent costs."""
    page.put("holdfast_agent_cpu_seconds_total", footprint.cpu_s, node)
    page.put("holdfast_agent_resident_memory_bytes", footprint.resident_bytes, node)


def write_itself(page: Page, picture: Picture, lines: Iterable[Line], *, node: str) -> None:
    """Every source ever met, and every job's line."""
    for source, readable in sorted(picture.readable.items()):
        page.put("holdfast_sensor_up", float(readable), source, node)
        page.put("holdfast_sensor_failures_total", picture.failures[source], source, node)
    for sensor, looks in picture.looks.items():
        page.put_summary("holdfast_sensor_read_seconds", sensor, node, count=looks.count, total=looks.total_s)
    for line in lines:
        labels = (line.job, node)
        page.put("holdfast_agent_watchdog_connected", float(line.connected), *labels)
        page.put("holdfast_agent_reports_sent_total", line.reports, *labels)
        page.put("holdfast_agent_events_dropped_total", line.dropped, *labels)


_GAUGES: Final[tuple[tuple[str, Callable[[RankSample], float | None]], ...]] = (
    ("holdfast_rank_step", lambda rank: rank.step),
    ("holdfast_rank_loss", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", lambda rank: rank.step_time_s),
    ("holdfast_rank_step_tokens", lambda rank: rank.tokens),
)


def write_ranks(page: Page, picture: Picture, *, node: str, now: float) -> None:
    """Every rank, with its ages as of `now`."""
    looked_s = max(0.0, now - picture.read_at)
    for job, reading in picture.jobs.items():
        for rank in _newest_round(reading.ranks):
            labels = (job, str(rank.rank), node)
            for name, value_of in _GAUGES:
                page.put(name, value_of(rank), *labels)
            pulse_age_s = None if rank.pulse_age_s is None else rank.pulse_age_s + looked_s
            page.put("holdfast_rank_progress_age_seconds", rank.progress_age_s + looked_s, *labels)
            page.put("holdfast_rank_pulse_age_seconds", pulse_age_s, *labels)
            page.put("holdfast_rank_phase", 1, *labels, rank.phase.name.lower())
            page.put("holdfast_rank_process", 1, *labels, rank.process.value)
            if rank.tokens is not None:
                page.put("holdfast_rank_tokens_total", picture.tokens[job, rank.rank], *labels)
        page.put("holdfast_fingerprints_total", picture.fingerprints[job], job, node)


def _newest_round(ranks: Iterable[RankSample]) -> Iterable[RankSample]:
    """A node may hold a leftover record of an older round: the newest round's word on a rank counts."""
    return {rank.rank: rank for rank in sorted(ranks, key=lambda rank: rank.round)}.values()


_BYTES_PER_GIGABIT = 1e9 / 8


def write_surroundings(page: Page, picture: Picture, *, node: str, now: float) -> None:
    """The conditions that hold, what befell the node, and the node as it is now."""
    for condition in picture.node.conditions:
        if condition.state is ConditionState.RAISED:
            gpu = gpu_labels(picture, condition.gpu)
            page.put("holdfast_condition", 1, condition.kind.value, *gpu, condition.device, node)
    for kind in ConditionKind:
        page.put("holdfast_conditions_raised_total", picture.raised[kind], kind.value, node)
    page.put("holdfast_oom_kills_total", picture.oom_kills, node)
    page.put("holdfast_preemption_notices_total", picture.notices, node)
    page.put("holdfast_kernel_records_lost_total", picture.kernel_records_lost, node)
    if picture.preempted_at is not None:
        page.put("holdfast_preemption_seconds", picture.preempted_at - now, node)
    for port in picture.node.ports:
        _write_port(page, port, (port.device, str(port.port), node))
    if picture.node.node is not None:
        _write_node(page, picture.node.node, node)


def _write_port(page: Page, port: PortDetail, labels: tuple[str, ...]) -> None:
    up = None if port.state is PortState.UNKNOWN else float(port.state is PortState.UP)
    rate = None if port.rate_gbps is None else port.rate_gbps * _BYTES_PER_GIGABIT
    page.put("holdfast_port_up", up, *labels)
    page.put("holdfast_port_bytes_per_second", rate, *labels)
    page.put("holdfast_port_downs_total", port.downs, *labels)
    page.put("holdfast_port_sent_bytes_total", port.sent_bytes, *labels)
    page.put("holdfast_port_received_bytes_total", port.received_bytes, *labels)
    for counter, count in port.counters.items():
        page.put("holdfast_port_errors_total", count, *labels, counter.value)


def _write_node(page: Page, detail: NodeDetail, node: str) -> None:
    page.put("holdfast_node_load1", detail.load, node)
    page.put("holdfast_node_uptime_seconds", detail.uptime_s, node)
    if detail.memory is not None:
        page.put("holdfast_node_memory_total_bytes", detail.memory.total_bytes, node)
        page.put("holdfast_node_memory_available_bytes", detail.memory.available_bytes, node)
    if detail.clock is not None:
        _write_clock(page, detail.clock, node)
    for disk in detail.disks:
        _write_disk(page, disk, node)


def _write_clock(page: Page, clock: ClockDetail, node: str) -> None:
    page.put("holdfast_node_clock_synchronised", float(not clock.unsynchronised), node)
    page.put("holdfast_node_clock_error_seconds", clock.error_s_max, node)
    page.put("holdfast_node_clock_offset_seconds", clock.offset_s, node)


def _write_disk(page: Page, disk: DiskDetail, node: str) -> None:
    labels = (disk.path, node)
    page.put("holdfast_node_disk_size_bytes", disk.total_bytes, *labels)
    page.put("holdfast_node_disk_free_bytes", disk.free_bytes, *labels)
    page.put("holdfast_node_disk_inodes_free", disk.free_inodes, *labels)
    page.put("holdfast_node_disk_writable", float(disk.writability is Writability.WRITABLE), *labels)
