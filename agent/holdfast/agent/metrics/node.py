"""The agent itself, the ranks on its node, and the node: its conditions, ports, memory, disks and clock."""

import contextlib
import resource
import time
from collections.abc import Callable, Iterable
from typing import Final

from holdfast.agent.jobstream import Connection
from holdfast.agent.metrics.gpus import gpu_labels
from holdfast.agent.nodeview import NodeView
from holdfast.agent.reading import NodeDetail, PortDetail, PortState, Writability
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.exposition import Page
from holdfast.api.telemetry import RankSample

_GAUGES: Final[tuple[tuple[str, Callable[[RankSample], float | None]], ...]] = (
    ("holdfast_rank_step", lambda rank: rank.step),
    ("holdfast_rank_loss", lambda rank: rank.loss),
    ("holdfast_rank_grad_norm", lambda rank: rank.grad_norm),
    ("holdfast_rank_step_seconds", lambda rank: rank.step_time_s),
    ("holdfast_rank_step_tokens", lambda rank: rank.tokens),
)
_BYTES_PER_GIGABIT = 1e9 / 8


def write_itself(page: Page, view: NodeView, connections: Iterable[Connection], *, node: str) -> None:
    """What the agent costs, every source ever met, and every job's connection.

    Source of its memory: https://man7.org/linux/man-pages/man5/proc_pid_statm.5.html
    """
    page.put("holdfast_agent_cpu_seconds_total", time.process_time(), node)
    with contextlib.suppress(OSError, ValueError, IndexError), open("/proc/self/statm", encoding="ascii") as file:
        resident_bytes = int(file.read().split()[1]) * resource.getpagesize()
        page.put("holdfast_agent_resident_memory_bytes", resident_bytes, node)
    for source, readable in sorted(view.readable.items()):
        page.put("holdfast_sensor_up", float(readable), source, node)
        page.put("holdfast_sensor_failures_total", view.failures[source], source, node)
    for sensor, looks in view.looks.items():
        page.put_summary("holdfast_sensor_read_seconds", sensor, node, count=looks.count, total=looks.total_s)
    for connection in connections:
        labels = (connection.job, node)
        page.put("holdfast_agent_watchdog_connected", float(connection.connected), *labels)
        page.put("holdfast_agent_reports_sent_total", connection.reports, *labels)
        page.put("holdfast_agent_events_dropped_total", connection.dropped, *labels)


def write_ranks(page: Page, view: NodeView, *, node: str, now: float) -> None:
    """Every rank, with its ages as of `now`."""
    looked_s = max(0.0, now - view.read_at)
    for job, reading in view.jobs.items():
        # A node may hold a leftover record of an older round: the newest round's word on a rank counts.
        newest = {rank.rank: rank for rank in sorted(reading.ranks, key=lambda rank: rank.round)}
        for rank in newest.values():
            labels = (job, str(rank.rank), node)
            for name, value_of in _GAUGES:
                page.put(name, value_of(rank), *labels)
            pulse_age_s = None if rank.pulse_age_s is None else rank.pulse_age_s + looked_s
            page.put("holdfast_rank_progress_age_seconds", rank.progress_age_s + looked_s, *labels)
            page.put("holdfast_rank_pulse_age_seconds", pulse_age_s, *labels)
            page.put("holdfast_rank_phase", 1, *labels, rank.phase.name.lower())
            page.put("holdfast_rank_process", 1, *labels, rank.process.value)
            if rank.tokens is not None:
                page.put("holdfast_rank_tokens_total", view.tokens[job, rank.rank], *labels)
        page.put("holdfast_fingerprints_total", view.fingerprints[job], job, node)


def write_surroundings(page: Page, view: NodeView, *, node: str, now: float) -> None:
    """The conditions that hold, what befell the node, and the node as it is now."""
    for condition in view.node.conditions:
        if condition.state is ConditionState.RAISED:
            gpu = gpu_labels(view, condition.gpu)
            page.put("holdfast_condition", 1, condition.kind.value, *gpu, condition.device, node)
    for kind in ConditionKind:
        page.put("holdfast_conditions_raised_total", view.raised[kind], kind.value, node)
    page.put("holdfast_oom_kills_total", view.oom_kills, node)
    page.put("holdfast_preemption_notices_total", view.notices, node)
    page.put("holdfast_kernel_records_lost_total", view.kernel_records_lost, node)
    if view.preempted_at is not None:
        page.put("holdfast_preemption_seconds", view.preempted_at - now, node)
    for port in view.node.ports:
        _write_port(page, port, (port.device, str(port.port), node))
    if view.node.node is not None:
        _write_node(page, view.node.node, node)


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
        page.put("holdfast_node_clock_synchronised", float(not detail.clock.unsynchronised), node)
        page.put("holdfast_node_clock_error_seconds", detail.clock.error_s_max, node)
        page.put("holdfast_node_clock_offset_seconds", detail.clock.offset_s, node)
    for disk in detail.disks:
        labels = (disk.path, node)
        page.put("holdfast_node_disk_size_bytes", disk.total_bytes, *labels)
        page.put("holdfast_node_disk_free_bytes", disk.free_bytes, *labels)
        page.put("holdfast_node_disk_inodes_free", disk.free_inodes, *labels)
        page.put("holdfast_node_disk_writable", float(disk.writability is Writability.WRITABLE), *labels)
