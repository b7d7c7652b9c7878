"""What holds of the node itself: conditions, network ports, memory, disks, the clock."""

from holdfast.agent.metrics.gpus import gpu_labels
from holdfast.agent.picture import Picture
from holdfast.agent.sensors.node_detail import ClockDetail, DiskDetail, NodeDetail, Writability
from holdfast.agent.sensors.port_detail import PortDetail, PortState
from holdfast.api.condition import ConditionKind, ConditionState
from holdfast.api.exposition import Page

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
