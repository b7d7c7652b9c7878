"""How much memory a process holds, shared memory it has touched included."""

from pathlib import Path
from typing import Final

_STATUS: Final = Path("/proc/self/status")
_FORGET_PEAK: Final = "5"  # Source: proc(5), /proc/pid/clear_refs


def resident_bytes() -> int:
    return _read("VmRSS")


def peak_bytes() -> int:
    """Since `forget_peak`."""
    return _read("VmHWM")


def forget_peak() -> None:
    Path("/proc/self/clear_refs").write_text(_FORGET_PEAK)


def read_bytes() -> int:
    """What this process has asked of read calls so far, from disk, page cache or shared memory alike.

    Source: proc(5), rchar of /proc/pid/io. What is mapped and touched is not in it.
    """
    lines = Path("/proc/self/io").read_text().splitlines()
    return int(dict(line.split(": ") for line in lines)["rchar"])


def _read(field: str) -> int:
    for line in _STATUS.read_text().splitlines():
        if line.startswith(f"{field}:"):
            return int(line.split()[1]) * 1024
    raise LookupError(field)
