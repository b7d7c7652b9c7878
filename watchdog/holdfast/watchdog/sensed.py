"""What agents' sensors read that no job can bring about: only that is believed by all where owners share nodes.

A faulty kernel of a job raises an XID as broken memory does, and a job can use up a node's memory and disk.
"""

from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import SENSED, FindingKind
from holdfast.api.xid import CATALOGUE, XidClass, XidEntry

BY_JOBS: Final = frozenset({ConditionKind.DISK_FULL, ConditionKind.MEMORY_LOW})


def is_of_the_node(kind: FindingKind, cause: str) -> bool:
    """Whether a finding or incident of this kind and cause tells of the node, whatever runs on it."""
    if kind is FindingKind.XID:
        entry = xid_of(cause)
        return entry is not None and entry.blames is XidClass.HARDWARE
    return kind in SENSED and cause not in BY_JOBS


def xid_of(cause: str) -> XidEntry | None:
    """The catalogue's entry for "xid N"; None when there is none."""
    number = cause.removeprefix("xid ")
    return CATALOGUE.get(int(number)) if number.isdecimal() else None
