"""What a process costs, as the kernel counts it."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

MEGABYTE: Final = 1e6


def cpu_s(pid: int) -> float:
    """On-CPU time of all threads. Source: https://docs.kernel.org/scheduler/sched-stats.html"""
    tasks = Path(f"/proc/{pid}/task").glob("*/schedstat")
    return sum(int(task.read_text().split()[0]) for task in tasks) / 1e9


@dataclass(frozen=True, slots=True)
class Memory:
    """Resident now, and the most it ever was."""

    resident_mb: float
    peak_mb: float


def memory(pid: int) -> Memory:
    """Source: https://docs.kernel.org/filesystems/proc.html (VmRSS, VmHWM)"""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    kilobytes = {line.split(":")[0]: int(line.split()[1]) for line in lines if line.endswith("kB")}
    return Memory(kilobytes["VmRSS"] * 1024 / MEGABYTE, kilobytes["VmHWM"] * 1024 / MEGABYTE)
