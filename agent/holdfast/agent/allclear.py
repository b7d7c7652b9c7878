"""Of which kinds of conditions this node is free, by the word of all the sources that judge them. Pure.

A source that says nothing keeps a kind from being told, and a kind that no source here judges is Unknown: what an
agent with other settings had raised of it stays until somebody returns the node.
"""

from collections.abc import Iterable, Mapping
from typing import Final

from holdfast.agent.kernelfaults import UNTIL_BOOT
from holdfast.agent.sensors.sensor import Reading
from holdfast.agent.sensors.standing import OPEN_TOLD_MAX
from holdfast.api.condition import AllClear, ConditionKind

KERNEL_KINDS: Final = frozenset((*UNTIL_BOOT, ConditionKind.LINK_FLAPPING))
PORT_KINDS: Final = frozenset(
    (
        ConditionKind.LINK_DOWN,
        ConditionKind.LINK_FLAPPING,
        ConditionKind.LINK_ERRORS,
        ConditionKind.LINK_DEGRADED,
    )
)
NODE_KINDS: Final = frozenset(
    (
        ConditionKind.DISK_FULL,
        ConditionKind.DISK_READ_ONLY,
        ConditionKind.MEMORY_LOW,
        ConditionKind.CLOCK_UNSYNCHRONISED,
    )
)
GPU_KINDS: Final = frozenset(ConditionKind) - KERNEL_KINDS - PORT_KINDS - NODE_KINDS


def all_clear(
    judges: Mapping[str, frozenset[ConditionKind]], readings: Mapping[str, Reading]
) -> tuple[AllClear, ...]:
    """`judges` has what each source judges, by its name, and `readings` what it says."""
    said = {name: {each.kind: each.but for each in reading.all_clear} for name, reading in readings.items()}
    told = []
    for kind in ConditionKind:
        parts = [said.get(name, {}).get(kind) for name, kinds in judges.items() if kind in kinds]
        but = _joined(parts) if parts else None
        if but is not None and len(but) <= OPEN_TOLD_MAX:
            told.append(AllClear(kind, but))
    return tuple(told)


def _joined(parts: Iterable[tuple[tuple[str, str], ...] | None]) -> tuple[tuple[str, str], ...] | None:
    """The parts that any source excepts; None where one of them says nothing."""
    joined: set[tuple[str, str]] = set()
    for each in parts:
        if each is None:
            return None
        joined.update(each)
    return tuple(sorted(joined))
