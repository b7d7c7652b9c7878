"""What is wrong with the node itself: memory, disks, the clock. Pure.

What was raised stays raised while its source cannot be read.
"""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass
from typing import Final

from holdfast.agent.sensors.node_detail import ClockDetail, DiskDetail, MemoryDetail, NodeDetail, Writability
from holdfast.agent.sensors.standing import Held, StandingConditions
from holdfast.api.condition import AllClear, Condition, ConditionKind

# A daemon that sets the clock takes some minutes after a boot, and no step of a training run waits for it.
UNSYNCHRONISED_FOR_S: Final = 600.0
# Pages are given back in bursts: memory has to be short for so long.
MEMORY_LOW_FOR_S: Final = 5.0
CLEARING_FACTOR: Final = 1.1


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeLimits:
    """Below which share of the whole something is short. Ours: the last twentieth goes fast on a full disk, and a
    node with a fiftieth of its memory left is about to kill processes for it.
    """

    disk_free_ratio_min: float = 0.05
    memory_available_ratio_min: float = 0.02


class NodeJudge:
    """`now` is CLOCK_MONOTONIC in seconds and never goes back."""

    def __init__(self, limits: NodeLimits) -> None:
        self._limits = limits
        self._standing = StandingConditions()
        self._short_since: float | None = None
        self._unsynchronised_since: float | None = None
        self._was_writable: set[str] = set()

    def take_up(self, held: Iterable[Held], *, disks: Container[str], now: float) -> None:
        """What an earlier run of the agent had raised. A disk that is not among `disks` is watched no more."""
        before = tuple(held)
        self._standing.take_up(before)
        for each in before:
            if each.device and each.device not in disks:
                says = f"{each.device} is watched no more"
                self._standing.clear(each.kind, says, now, device=each.device)

    def observe(self, node: NodeDetail, now: float) -> None:
        """Take in what was just read; None in it is Unknown and changes nothing."""
        if node.memory is not None:
            self._judge_memory(node.memory, now)
        if node.clock is not None:
            self._judge_clock(node.clock, now)

    def observe_disks(self, disks: Sequence[DiskDetail], now: float) -> None:
        """Take in the file systems that could be read."""
        for disk in disks:
            self._judge_space(disk, now)
            self._judge_writability(disk, now)

    def report(self, now: float) -> tuple[Condition, ...]:
        """What holds, and what is over for less than a minute."""
        return self._standing.report(now)

    def held(self) -> tuple[Held, ...]:
        """What holds, to be remembered."""
        return self._standing.held()

    def all_clear(self) -> tuple[AllClear, ...]:
        """As a reading has them, where every disk can be read."""
        return self._standing.all_clear()

    def _judge_memory(self, memory: MemoryDetail, now: float) -> None:
        self._standing.doubt(ConditionKind.MEMORY_LOW)
        ratio, low = _share(memory.available_bytes, memory.total_bytes), self._limits.memory_available_ratio_min
        if ratio >= low:
            self._short_since = None
            if ratio >= CLEARING_FACTOR * low:
                self._standing.clear(ConditionKind.MEMORY_LOW, f"{ratio:.1%} of the memory is free", now)
            return
        self._short_since = now if self._short_since is None else self._short_since
        if now - self._short_since >= MEMORY_LOW_FOR_S:
            free_mib = memory.available_bytes // 2**20
            self._standing.hold(ConditionKind.MEMORY_LOW, f"{free_mib} MiB of memory left, {ratio:.1%}", now)

    def _judge_clock(self, clock: ClockDetail, now: float) -> None:
        self._standing.doubt(ConditionKind.CLOCK_UNSYNCHRONISED)
        if not clock.unsynchronised:
            self._unsynchronised_since = None
            self._standing.clear(
                ConditionKind.CLOCK_UNSYNCHRONISED, "the kernel says that it is synchronised", now
            )
            return
        if self._unsynchronised_since is None:
            self._unsynchronised_since = now
        if now - self._unsynchronised_since >= UNSYNCHRONISED_FOR_S:
            says = f"the clock is not synchronised; it may be off by {clock.error_s_max:.3g} s"
            self._standing.hold(ConditionKind.CLOCK_UNSYNCHRONISED, says, now)

    def _judge_space(self, disk: DiskDetail, now: float) -> None:
        self._standing.doubt(ConditionKind.DISK_FULL, device=disk.path)
        space = _share(disk.free_bytes, disk.total_bytes)
        inodes = 1.0
        if disk.total_inodes and disk.free_inodes is not None:
            inodes = _share(disk.free_inodes, disk.total_inodes)
        low = self._limits.disk_free_ratio_min
        if min(space, inodes) < low:
            what = f"{space:.1%} of its space" if space <= inodes else f"{inodes:.1%} of its inodes"
            self._standing.hold(ConditionKind.DISK_FULL, f"{disk.path}: {what} is left", now, device=disk.path)
        elif min(space, inodes) >= CLEARING_FACTOR * low:
            says = f"{disk.path}: {min(space, inodes):.1%} is free"
            self._standing.clear(ConditionKind.DISK_FULL, says, now, device=disk.path)

    def _judge_writability(self, disk: DiskDetail, now: float) -> None:
        """A file system that was read-only from the start is meant to be."""
        self._standing.doubt(ConditionKind.DISK_READ_ONLY, device=disk.path)
        if disk.writability is Writability.WRITABLE:
            self._was_writable.add(disk.path)
            says = f"{disk.path} takes writes again"
            self._standing.clear(ConditionKind.DISK_READ_ONLY, says, now, device=disk.path)
        elif disk.path in self._was_writable:
            says = f"{disk.path} took writes and is read-only now"
            self._standing.hold(ConditionKind.DISK_READ_ONLY, says, now, device=disk.path)


def _share(part: int, whole: int) -> float:
    """`part` of `whole`; all of it where there is no whole: nothing can be short of it."""
    return part / whole if whole > 0 else 1.0
