"""What is wrong with the node itself: memory, disks, the clock. Pure.

What was raised stays raised while its source cannot be read.
"""

from collections.abc import Container, Iterable
from typing import Final, NamedTuple

from holdfast.agent.conditions.book import ConditionBook, Held, Rule, Unknown
from holdfast.agent.reading import ClockDetail, DiskDetail, MemoryDetail, NodeDetail
from holdfast.api.condition import ConditionKind

# Below which share of the whole something is short. Ours: the last twentieth goes fast on a full disk, and a node
# with a fiftieth of its memory left is about to kill processes for it.
DISK_FREE_RATIO_MIN: Final = 0.05
MEMORY_AVAILABLE_RATIO_MIN: Final = 0.02
CLEARING_FACTOR: Final = 1.1
# A daemon that sets the clock takes some minutes after a boot, and no step of a training run waits for it.
UNSYNCHRONISED_FOR_S: Final = 600.0
# Pages are given back in bursts: memory has to be short for so long.
MEMORY_LOW_FOR_S: Final = 5.0


class _Disk(NamedTuple):
    """A file system, and whether it took writes since the start."""

    detail: DiskDetail
    was_writable: bool


def _share(part: int, whole: int) -> float:
    """`part` of `whole`; all of it where there is no whole: nothing can be short of it."""
    return part / whole if whole > 0 else 1.0


def _short(ratio: float, low: float) -> bool | None:
    return True if ratio < low else False if ratio >= CLEARING_FACTOR * low else None


def _free_memory(memory: MemoryDetail) -> float:
    return _share(memory.available_bytes, memory.total_bytes)


def _free_disk(disk: DiskDetail) -> tuple[float, str]:
    """What is scarcer, space or inodes: which share is left, and of what."""
    space = _share(disk.free_bytes, disk.total_bytes)
    counted = disk.total_inodes and disk.free_inodes is not None
    inodes = _share(disk.free_inodes or 0, disk.total_inodes or 0) if counted else 1.0
    return (space, "space") if space <= inodes else (inodes, "inodes")


def _full_says(disk: _Disk) -> str:
    share, of = _free_disk(disk.detail)
    return f"{disk.detail.path}: {share:.1%} of its {of} is left"


def _read_only(disk: _Disk) -> bool | None:
    """A file system that was read-only from the start is meant to be."""
    if not disk.detail.read_only:
        return False
    return True if disk.was_writable else None


MEMORY_LOW: Final = Rule[MemoryDetail](
    kind=ConditionKind.MEMORY_LOW,
    raise_if=lambda seen: _short(_free_memory(seen), MEMORY_AVAILABLE_RATIO_MIN),
    says=lambda seen: f"{seen.available_bytes // 2**20} MiB of memory left, {_free_memory(seen):.1%}",
    over=lambda seen: f"{_free_memory(seen):.1%} of the memory is free",
    raise_after_s=MEMORY_LOW_FOR_S,
    unknown=Unknown.RESTARTS,
)
CLOCK_UNSYNCHRONISED: Final = Rule[ClockDetail](
    kind=ConditionKind.CLOCK_UNSYNCHRONISED,
    raise_if=lambda clock: clock.unsynchronised,
    says=lambda clock: f"the clock is not synchronised; it may be off by {clock.error_s_max:.3g} s",
    over=lambda clock: "the kernel says that it is synchronised",
    raise_after_s=UNSYNCHRONISED_FOR_S,
)
DISK_RULES: Final = (
    Rule[_Disk](
        kind=ConditionKind.DISK_FULL,
        raise_if=lambda disk: _short(_free_disk(disk.detail)[0], DISK_FREE_RATIO_MIN),
        says=_full_says,
        over=lambda disk: f"{disk.detail.path}: {_free_disk(disk.detail)[0]:.1%} is free",
    ),
    Rule[_Disk](
        kind=ConditionKind.DISK_READ_ONLY,
        raise_if=_read_only,
        says=lambda disk: f"{disk.detail.path} took writes and is read-only now",
        over=lambda disk: f"{disk.detail.path} takes writes again",
    ),
)
NODE_KINDS: Final = frozenset((MEMORY_LOW.kind, CLOCK_UNSYNCHRONISED.kind, *(rule.kind for rule in DISK_RULES)))


class NodeJudge:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back. `book` has what was raised."""

    def __init__(self) -> None:
        self.book = ConditionBook()
        self._were_writable: set[str] = set()

    def take_up(self, held: Iterable[Held], *, disks: Container[str], now: float) -> None:
        """What an earlier run of the agent had raised. A disk that is not among `disks` is watched no more."""
        before = tuple(held)
        self.book.take_up(before)
        for each in before:
            if each.device and each.device not in disks:
                self.book.clear(each.kind, f"{each.device} is watched no more", now, device=each.device)

    def observe(self, node: NodeDetail, now: float) -> None:
        """Take in what was just read; what is None in it, or a disk that is not there, is Unknown."""
        if node.memory is not None:
            self.book.judge(MEMORY_LOW, node.memory, now)
        if node.clock is not None:
            self.book.judge(CLOCK_UNSYNCHRONISED, node.clock, now)
        for disk in node.disks:
            if not disk.read_only:
                self._were_writable.add(disk.path)
            for rule in DISK_RULES:
                self.book.judge(rule, _Disk(disk, disk.path in self._were_writable), now, device=disk.path)
