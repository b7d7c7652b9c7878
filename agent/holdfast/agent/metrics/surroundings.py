"""What holds of the node itself: conditions, network ports, memory, disks, the clock."""

from holdfast.agent.metrics.gpus import gpu_labels
from holdfast.agent.metrics.sheet import Sheet
from holdfast.agent.picture import Picture
from holdfast.agent.sensors.node_detail import ClockDetail, DiskDetail, NodeDetail, Writability
from holdfast.agent.sensors.port_detail import PortDetail, PortState
from holdfast.api.condition import ConditionKind, ConditionState

_BYTES_PER_GIGABIT = 1e9 / 8


def write_surroundings(sheet: Sheet, picture: Picture, *, node: str, now: float) -> None:
    """The conditions that hold, what befell the node, and the node as it is now."""
    for condition in picture.node.conditions:
        if condition.state is ConditionState.RAISED:
            gpu = gpu_labels(picture, condition.gpu)
            sheet.put("holdfast_condition", (condition.kind.value, *gpu, condition.device, node), 1)
    for kind in ConditionKind:
        sheet.put("holdfast_conditions_raised_total", (kind.value, node), picture.raised[kind])
    sheet.put("holdfast_oom_kills_total", (node,), picture.oom_kills)
    sheet.put("holdfast_preemption_notices_total", (node,), picture.notices)
    sheet.put("holdfast_kernel_records_lost_total", (node,), picture.kernel_records_lost)
    if picture.preempted_at is not None:
        sheet.put("holdfast_preemption_seconds", (node,), picture.preempted_at - now)
    for port in picture.node.ports:
        _write_port(sheet, port, (port.device, str(port.port), node))
    if picture.node.node is not None:
        _write_node(sheet, picture.node.node, node)


def _write_port(sheet: Sheet, port: PortDetail, labels: tuple[str, ...]) -> None:
    up = None if port.state is PortState.UNKNOWN else float(port.state is PortState.UP)
    rate = None if port.rate_gbps is None else port.rate_gbps * _BYTES_PER_GIGABIT
    sheet.put("holdfast_port_up", labels, up)
    sheet.put("holdfast_port_bytes_per_second", labels, rate)
    sheet.put("holdfast_port_downs_total", labels, port.downs)
    sheet.put("holdfast_port_sent_bytes_total", labels, port.sent_bytes)
    sheet.put("holdfast_port_received_bytes_total", labels, port.received_bytes)
    for counter, count in port.counters.items():
        sheet.put("holdfast_port_errors_total", (*labels, counter.value), count)


def _write_node(sheet: Sheet, detail: NodeDetail, node: str) -> None:
    sheet.put("holdfast_node_load1", (node,), detail.load)
    sheet.put("holdfast_node_uptime_seconds", (node,), detail.uptime_s)
    if detail.memory is not None:
        sheet.put("holdfast_node_memory_total_bytes", (node,), detail.memory.total_bytes)
        sheet.put("holdfast_node_memory_available_bytes", (node,), detail.memory.available_bytes)
    if detail.clock is not None:
        _write_clock(sheet, detail.clock, node)
    for disk in detail.disks:
        _write_disk(sheet, disk, node)


def _write_clock(sheet: Sheet, clock: ClockDetail, node: str) -> None:
    sheet.put("holdfast_node_clock_synchronised", (node,), float(not clock.unsynchronised))
    sheet.put("holdfast_node_clock_error_seconds", (node,), clock.error_s_max)
    sheet.put("holdfast_node_clock_offset_seconds", (node,), clock.offset_s)


def _write_disk(sheet: Sheet, disk: DiskDetail, node: str) -> None:
    labels = (disk.path, node)
    sheet.put("holdfast_node_disk_size_bytes", labels, disk.total_bytes)
    sheet.put("holdfast_node_disk_free_bytes", labels, disk.free_bytes)
    sheet.put("holdfast_node_disk_inodes_free", labels, disk.free_inodes)
    sheet.put("holdfast_node_disk_writable", labels, float(disk.writability is Writability.WRITABLE))
