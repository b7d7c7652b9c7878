"""Whether the kernel killed a process because its pod reached the memory limit of its own.

Such a worker ends with signal 9 like one that somebody killed, and its node has no part in it. A container whose
first process lives on is not marked OOMKilled, and the kernel's log is the agent's, where it may be read at all.
But the control group counts: this is asked when a worker has ended with signal 9.

Sources: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.events) and
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html (memory.oom_control, memory.failcnt)
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

CONTROL_GROUPS = Path("/sys/fs/cgroup")
OWN = Path("/proc/self/cgroup")


@dataclass(frozen=True)
class Counters:
    """`killed`: processes that the kernel killed for memory, also for that of the node. `short`: how often the
    group reached its own limit."""

    killed: int = 0
    short: int = 0


class MemoryLimit:
    """Of the control group of this process. Where nothing can be read, nothing is said to have reached a limit."""

    def __init__(self, control_groups: Path = CONTROL_GROUPS, own: Path = OWN) -> None:
        self._folders = tuple(_folders(control_groups, own))
        self._known = self._read()

    def has_killed(self) -> bool:
        """Whether a process was killed since the last call, after the group had reached its limit."""
        before, self._known = self._known, self._read()
        return self._known.killed > before.killed and self._known.short > before.short

    def _read(self) -> Counters:
        for folder in self._folders:
            try:
                if (events := folder / "memory.events").exists():
                    counted = _pairs(events.read_text())
                    return Counters(counted["oom_kill"], counted["oom"])
                if (control := folder / "memory.oom_control").exists():
                    failed = int((folder / "memory.failcnt").read_text())
                    return Counters(_pairs(control.read_text())["oom_kill"], failed)
            except (OSError, ValueError, KeyError):
                continue
        return Counters()


def _folders(control_groups: Path, own: Path) -> Iterator[Path]:
    """Where the group may lie. In a container its own is mounted as the root, whatever path the kernel tells."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, path = (*line.split(":", 2), "", "")[:3]
        if not controllers:
            yield control_groups / path.lstrip("/")
        elif "memory" in controllers.split(","):
            yield control_groups / "memory" / path.lstrip("/")
    yield control_groups
    yield control_groups / "memory"


def _pairs(text: str) -> dict[str, int]:
    return {name: int(count) for name, count in (line.split() for line in text.splitlines())}
