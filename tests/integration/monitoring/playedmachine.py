"""The agent's own program where kernel and clock are played: `python -m playedmachine FOLDER FLAGS...`.

What the kernel tells is read from FOLDER instead, in the kernel's own forms, by the agent's own readers: the ports
of `infiniband/`, `proc/meminfo`, `boot_id`, the file systems in `disks.json` (as statvfs has them) and the clock's
state in `adjtimex`. CLOCK_MONOTONIC is ahead by the seconds in `passed`: an hour can pass in a moment.
"""

import json
import mmap
import os
import struct
import sys
import time
from collections.abc import Callable
from pathlib import Path

AHEAD = struct.Struct("d")
LOOK_INTERVAL_S = 0.3  # of what is looked at every five or ten seconds


def play_time(file: Path) -> None:
    """Before anything is imported that keeps the clock."""
    with file.open("r+b") as opened:
        passed = mmap.mmap(opened.fileno(), AHEAD.size)
    clock = time.monotonic
    time.monotonic = lambda: clock() + AHEAD.unpack_from(passed)[0]


def play_kernel(folder: Path) -> None:
    """Put the folder in the kernel's place."""
    import psutil

    from holdfast.agent.conditions import memory
    from holdfast.agent.sensors import infiniband, nodebasics
    from holdfast.agent.sensors.nodebasics import clock_detail

    psutil.PROCFS_PATH = str(folder / "proc")
    _begin_with(infiniband.Infiniband.__init__, str(folder / "infiniband"), interval_s=LOOK_INTERVAL_S)
    _begin_with(memory.boot_id, str(folder / "boot_id"))
    asked = os.statvfs

    def statvfs(path: str) -> os.statvfs_result:
        told = json.loads((folder / "disks.json").read_text()).get(path)
        return asked(path) if told is None else os.statvfs_result(told)

    def kernel_clock() -> object:
        state, status = map(int, (folder / "adjtimex").read_text().split())
        return clock_detail(state, status, offset=0, maxerror_us=16_000_000)

    for place, name, played in (
        (os, "statvfs", statvfs),
        (nodebasics, "kernel_clock", kernel_clock),
        (nodebasics, "DISK_INTERVAL_S", LOOK_INTERVAL_S),
    ):
        setattr(place, name, played)


def _begin_with(function: Callable[..., object], *first: object, **named: object) -> None:
    """Give the function other defaults."""
    function.__defaults__ = first
    function.__kwdefaults__ = {**(function.__kwdefaults__ or {}), **named} or None


if __name__ == "__main__":
    play_time(Path(sys.argv[1]) / "passed")
    play_kernel(Path(sys.argv[1]))
    from holdfast.agent.program import main

    sys.exit(main(sys.argv[2:]))
