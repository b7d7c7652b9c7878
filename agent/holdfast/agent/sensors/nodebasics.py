"""The node itself: memory, load, clock, and the file systems that training writes to."""

import contextlib
import ctypes
import os
from collections.abc import Sequence
from functools import partial
from typing import Final

import psutil

from holdfast.agent.conditions.memory import ConditionMemory
from holdfast.agent.conditions.nodes import NodeJudge
from holdfast.agent.reading import ClockDetail, DiskDetail, MemoryDetail, NodeDetail, Reading
from holdfast.agent.sensors.background import Polled
from holdfast.api.telemetry import Unreadable

_STA_UNSYNC: Final = 0x0040
_STA_NANO: Final = 0x2000
_TIME_ERROR: Final = 5

LOOK_INTERVAL_S: Final = 1.0
DISK_INTERVAL_S: Final = 10.0
DISK_PATIENCE_S: Final = 60.0


class NodeBasics:
    """The sensor.

    `disks` are paths on the file systems to watch, each on a thread of its own: a file server that is away hangs
    whoever asks.
    """

    name = "node"

    def __init__(self, *, disks: Sequence[str] = (), memory: ConditionMemory | None = None) -> None:
        self._judge = NodeJudge()
        self._memory = memory or ConditionMemory()
        self._begun = False
        self._disks = {
            path: Polled(
                partial(disk_at, path),
                name=f"disk {path}",
                interval_s=DISK_INTERVAL_S,
                patience_s=DISK_PATIENCE_S,
            )
            for path in disks
        }
        self._looked_at = float("-inf")
        self._node = NodeDetail()
        self._unreadable: tuple[Unreadable, ...] = ()

    def read(self, now: float) -> Reading:
        """As in `Sensor`: the cheap things once a second, the disks from their threads."""
        if not self._begun:
            self._begun = True
            self._judge.take_up(self._memory.recall(now), disks=self._disks, now=now)
        if now - self._looked_at >= LOOK_INTERVAL_S:
            self._look(now)
        sees_all = not self._unreadable and len(self._node.disks) == len(self._disks)
        return Reading(
            node=self._node,
            unreadable=self._unreadable,
            conditions=self._judge.book.report(now),
            all_clear=self._judge.book.all_clear() if sees_all else (),
        )

    def close(self) -> None:
        for polled in self._disks.values():
            polled.close()

    def _look(self, now: float) -> None:
        self._looked_at = now
        unreadable: list[Unreadable] = []
        memory = clock = load = None
        disks = []
        for polled in self._disks.values():
            latest = polled.latest(now)
            if isinstance(latest, Unreadable):
                unreadable.append(latest)
            elif latest is not None:
                disks.append(latest.seen)
        try:
            machine = psutil.virtual_memory()
            memory = MemoryDetail(total_bytes=machine.total, available_bytes=machine.available)
        except (OSError, ValueError) as error:
            unreadable.append(Unreadable("memory", str(error)))
        try:
            clock = kernel_clock()
        except (OSError, AttributeError) as error:
            unreadable.append(Unreadable("clock", str(error)))
        with contextlib.suppress(OSError):
            load = os.getloadavg()[0]
        # CLOCK_MONOTONIC counts from the boot.
        self._node = NodeDetail(memory=memory, load=load, uptime_s=now, clock=clock, disks=tuple(disks))
        self._judge.observe(self._node, now)
        self._unreadable = tuple(unreadable)
        self._memory.keep(self._judge.book.held(), now)


def disk_at(path: str) -> DiskDetail:
    """The file system that `path` is on. Raises OSError."""
    stat = os.statvfs(path)
    return DiskDetail(
        path=path,
        total_bytes=stat.f_blocks * stat.f_frsize,
        free_bytes=stat.f_bavail * stat.f_frsize,
        total_inodes=stat.f_files or None,
        free_inodes=stat.f_favail if stat.f_files else None,
        read_only=bool(stat.f_flag & os.ST_RDONLY),
    )


# What the kernel says of its own clock: adjtimex, asking without changing anything.
#
# Source: https://man7.org/linux/man-pages/man2/adjtimex.2.html


class _Timex(ctypes.Structure):
    """struct timex of 64-bit Linux; `modes` 0 asks."""

    _fields_ = (
        ("modes", ctypes.c_uint),
        ("offset", ctypes.c_long),
        ("freq", ctypes.c_long),
        ("maxerror", ctypes.c_long),
        ("esterror", ctypes.c_long),
        ("status", ctypes.c_int),
        ("rest", ctypes.c_byte * 256),
    )


def kernel_clock() -> ClockDetail:
    """The clock's state. Raises OSError where the kernel refuses to tell."""
    timex = _Timex()
    libc = ctypes.CDLL(None, use_errno=True)
    state = libc.adjtimex(ctypes.byref(timex))
    if state < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return clock_detail(state, timex.status, offset=timex.offset, maxerror_us=timex.maxerror)


def clock_detail(state: int, status: int, *, offset: int, maxerror_us: int) -> ClockDetail:
    """adjtimex's answer in seconds: its offset is in nanoseconds or microseconds, as `status` says."""
    return ClockDetail(
        offset_s=offset * (1e-9 if status & _STA_NANO else 1e-6),
        error_s_max=maxerror_us * 1e-6,
        unsynchronised=state == _TIME_ERROR or bool(status & _STA_UNSYNC),
    )
