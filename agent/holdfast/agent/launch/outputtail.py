"""Sends the watchdog the end of what each worker process wrote, so that it can be read when this pod is gone.

It is sent a while after the process ended (see `workeroutput.spread_s`), at the latest when the launcher leaves in
good order; then also that of the workers which still run. A node that vanishes takes along what was not sent.
"""

import asyncio
import os
import random
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final

from holdfast.agent.launch.logfile import WorkerRun
from holdfast.api.workeroutput import WorkerOutput, spread_s, tail_bytes

# Of a launcher whose workers end faster than they are sent, the oldest are left out: 1 MiB.
WAITING_MAX: Final = 64


class OutputTails:
    """Of one launcher. `report` sends a message to the watchdog."""

    def __init__(self, log_dir: Path, report: Callable[[WorkerOutput], None]) -> None:
        self._log_dir = log_dir
        self._report = report
        self._waiting: dict[tuple[int, float], tuple[WorkerOutput, asyncio.TimerHandle]] = {}

    def ended(self, run: WorkerRun, world_size: int) -> None:
        """The process of `run`, of a job of so many ranks, has ended: read what it wrote, send it soon."""
        assert run.ended_at is not None
        output = output_of(
            run, self._log_dir, tail_bytes(world_size), ended_at=run.ended_at, ended_with=run.ended_with
        )
        if output is None:
            return
        key = (run.pid, run.started_at)
        delay_s = random.uniform(0.0, spread_s(world_size))
        timer = asyncio.get_running_loop().call_later(delay_s, self._send, key)
        self._waiting[key] = output, timer
        if len(self._waiting) > WAITING_MAX:
            oldest = next(iter(self._waiting))
            self._waiting.pop(oldest)[1].cancel()

    def leave(self, living: Iterable[tuple[WorkerRun, int]], now: float) -> None:
        """The launcher leaves: send what waits, and of each process that still runs, given with the world size.

        `now` is in seconds since 1970.
        """
        for key in tuple(self._waiting):
            self._send(key)
        for run, world_size in living:
            output = output_of(run, self._log_dir, tail_bytes(world_size), ended_at=now, ended_with="")
            if output is not None:
                self._report(output)

    def _send(self, key: tuple[int, float]) -> None:
        output, timer = self._waiting.pop(key)
        timer.cancel()
        self._report(output)


def output_of(
    run: WorkerRun, log_dir: Path, size: int, *, ended_at: float, ended_with: str
) -> WorkerOutput | None:
    """The last `size` bytes that the process wrote, from the beginning of a line on when there is one in them.

    None when it wrote nothing, or that cannot be read.
    """
    try:
        with (log_dir / run.file).open("rb") as log:
            end = log.seek(0, os.SEEK_END)
            begin = log.seek(max(run.offset, end - size))
            tail = log.read(size)
    except OSError:
        return None
    if begin > run.offset:
        tail = tail[tail.find(b"\n", 0, -1) + 1 :]
    if not tail:
        return None
    omitted = max(0, end - run.offset - len(tail))
    return WorkerOutput(run.rank, run.pid, run.round, run.started_at, ended_at, ended_with, omitted, tail)
