"""How much more memory the cgroups of this process leave it.

A file system that is full says so. A memory limit that is reached has the kernel kill a process: files in memory
count against it, and the /dev/shm of a pod is as large as its limit.
Source: https://docs.kernel.org/admin-guide/cgroup-v2.html#memory-interface-files,
https://docs.kernel.org/admin-guide/cgroup-v1/memory.html
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

_GROUPS: Final = Path("/sys/fs/cgroup")
_OWN: Final = Path("/proc/self/cgroup")
_SPARED_BYTES: Final = 256 << 20  # The workers grow a little as well, and several make buffers at the same time.


@dataclass(frozen=True, slots=True)
class _Names:
    """The files of one version of cgroups; `reclaimable` are lines of memory.stat: what is freed when needed."""

    limit: str
    used: str
    reclaimable: tuple[str, ...]


_V2: Final = _Names("memory.max", "memory.current", ("active_file", "inactive_file", "slab_reclaimable"))
_V1: Final = _Names("memory.limit_in_bytes", "memory.usage_in_bytes", ("total_active_file", "total_inactive_file"))


def allowance_bytes(groups: Path = _GROUPS, own: Path = _OWN) -> int | None:
    """May be negative. None: there is no limit, or nothing can be told of it."""
    left = [each for folder, names in _limited(groups, own) if (each := _left(folder, names)) is not None]
    return min(left, default=None)


def _limited(groups: Path, own: Path) -> Iterator[tuple[Path, _Names]]:
    """Every group this process is in. A container may see its own at the top, whatever path it is told."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "memory" not in controllers.split(","):
            continue
        top, names = (groups / "memory", _V1) if controllers else (groups, _V2)
        folder = top / path.lstrip("/")
        yield from ((each, names) for each in (folder, *folder.parents) if each.is_relative_to(top))


def _left(folder: Path, names: _Names) -> int | None:
    try:
        limit, used = (int((folder / name).read_text()) for name in (names.limit, names.used))
        stat = dict(line.split(" ", 1) for line in (folder / "memory.stat").read_text().splitlines())
        return limit - used + sum(int(stat.get(name, 0)) for name in names.reclaimable) - _SPARED_BYTES
    except (OSError, ValueError):  # "max", which is no limit, is no number either.
        return None
