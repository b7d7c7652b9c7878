"""What the kernel tells of the node itself: for its metrics and for judging it. None is Unknown."""

from dataclasses import dataclass
from enum import StrEnum


class Writability(StrEnum):
    """Whether a file system takes writes."""

    WRITABLE = "Writable"
    READ_ONLY = "ReadOnly"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskDetail:
    """The file system that `path` is on. `free_bytes` and `free_inodes` are what an ordinary user may still take.

    A file system that counts no inodes has None of them.
    """

    path: str
    total_bytes: int
    free_bytes: int
    total_inodes: int | None
    free_inodes: int | None
    writability: Writability


@dataclass(frozen=True, slots=True, kw_only=True)
class ClockDetail:
    """The system clock, as the kernel's discipline sees it.

    `offset_s` is what is still to be corrected, `error_s_max` the most it may be wrong by. `unsynchronised` is the
    kernel's word for it; where nothing ever set the clock it says so too.
    """

    offset_s: float
    error_s_max: float
    unsynchronised: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class MemoryDetail:
    """Memory that processes may have, and what of it they can still take without swapping."""

    total_bytes: int
    available_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeDetail:
    """The node. `load` is of one minute."""

    memory: MemoryDetail | None = None
    load: float | None = None
    uptime_s: float | None = None
    clock: ClockDetail | None = None
    disks: tuple[DiskDetail, ...] = ()
