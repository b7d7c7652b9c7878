"""Nodes and their GPUs, as text."""

from collections.abc import Sequence

from holdfast.api.condition import ConditionState
from holdfast.api.status import Hearing, NodeStatus
from holdfast.api.telemetry import GpuHealth, GpuSample
from holdfast.cli.view.table import UNKNOWN, ago, number, table

NODE_HEADERS = ("NODE", "HEARD", "GPUS", "HEALTH", "HOTTEST", "POWER", "BUSY", "TROUBLE")
GPU_HEADERS = ("NODE", "GPU", "UUID", "HEALTH", "TEMPERATURE", "MEMORY", "POWER", "BUSY")
NOTHING = "no agent has reported"
HEARING = {Hearing.SILENT: "silent", Hearing.ENDED: "of a job that is over"}
# A margin worth a word: the detectors' own is 3 C, for a minute.
WARM_C = 5.0


def nodes_text(nodes: Sequence[NodeStatus]) -> str:
    """One line per node."""
    return table(NODE_HEADERS, [_node_row(node) for node in nodes]) if nodes else NOTHING


def nodes_wide_text(nodes: Sequence[NodeStatus]) -> str:
    """One line per GPU; a node without any has one line of its own."""
    rows = [row for node in nodes for row in _gpu_rows(node)]
    return table(GPU_HEADERS, rows) if rows else NOTHING


def _node_row(node: NodeStatus) -> tuple[str, ...]:
    temperatures = [gpu.temperature_c for gpu in node.gpus if gpu.temperature_c is not None]
    powers = [gpu.power_w for gpu in node.gpus if gpu.power_w is not None]
    busy = [gpu.utilization_ratio for gpu in node.gpus if gpu.utilization_ratio is not None]
    return (
        node.node,
        ago(node.heard_age_s),
        str(len(node.gpus)),
        _healths(node.gpus),
        _unit(max(temperatures, default=None), "C"),
        _unit(sum(powers) if powers else None, "W"),
        _percent(sum(busy) / len(busy) if busy else None),
        _trouble(node),
    )


def _trouble(node: NodeStatus) -> str:
    """What is wrong with it, as short as a column is: all that is known is in `-o yaml`."""
    held = sorted({each.kind.value for each in node.conditions if each.state is ConditionState.RAISED})
    margins = [gpu.margin_c for gpu in node.gpus if gpu.margin_c is not None]
    told = [HEARING[node.hearing]] if node.hearing in HEARING else []
    told += [f"avoided: {node.avoided}"] if node.avoided else []
    told += [node.tested] if node.tested else []
    told += held
    told += [f"{number(min(margins))} C below slowing down"] if margins and min(margins) < WARM_C else []
    told += (
        [f"cannot read {', '.join(sorted({each.source for each in node.unreadable}))}"] if node.unreadable else []
    )
    told += [f"known for: {node.known}"] if node.known else []
    return "; ".join(told) or "none"


def _healths(gpus: Sequence[GpuSample]) -> str:
    """`all healthy`, or how many are what."""
    counts = {health: sum(gpu.health is health for gpu in gpus) for health in GpuHealth}
    told = [f"{count} {health.value.lower()}" for health, count in counts.items() if count]
    return ", ".join(told) or "none"


def _gpu_rows(node: NodeStatus) -> list[tuple[str, ...]]:
    if not node.gpus:
        return [(node.node, "none", *[UNKNOWN] * 6)]
    return [
        (
            node.node,
            str(gpu.index),
            gpu.uuid,
            gpu.health.value,
            _unit(gpu.temperature_c, "C"),
            _unit(gpu.memory_temperature_c, "C"),
            _unit(gpu.power_w, "W"),
            _percent(gpu.utilization_ratio),
        )
        for gpu in node.gpus
    ]


def _unit(value: float | None, unit: str) -> str:
    return UNKNOWN if value is None else f"{number(value)} {unit}"


def _percent(ratio: float | None) -> str:
    return UNKNOWN if ratio is None else f"{ratio:.0%}"
