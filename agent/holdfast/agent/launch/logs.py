"""Workers' logs: a file per worker process, and a register of the processes a launcher has started.

Both output streams of a worker go into one file, named by the rank and the round it was started for. A worker that
re-enters keeps its file, whatever its rank is then, so the register says who wrote what: `MEMBER.workers.json` in
the log directory, replaced as a whole. It is what `holdfast logs` reads, also when the launcher is gone.

What is kept is bounded: of each local rank the newest `RUNS_KEPT` processes, of each the last `BYTES_KEPT`. A
worker has its file open, so the beginning of a file that grew is given back to the file system as a hole; one that
cannot make holes keeps it all.
"""

import asyncio
import contextlib
import ctypes
import logging
import os
import random
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TextIO

import msgspec
from msgspec import structs

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.workeroutput import WorkerOutput, spread_s, tail_bytes

log = logging.getLogger(__name__)

# As many as the kubelet keeps of a container's log files (containerLogMaxFiles).
# Source: https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-rotation
RUNS_KEPT: Final = 5
BYTES_KEPT: Final = 64 << 20
EARLIER_KEPT: Final = 8
TRIM_INTERVAL_S: Final = 5.0
REGISTER: Final = ".workers.json"
_ENDING_BYTES: Final = 256 << 10
"""A traceback whose beginning is not there is none: those of compilers have hundreds of lines."""
_TAIL_CHARACTERS: Final = 16 << 10
_TAIL_LINES: Final = 30
_BLOCK: Final = 4096
# Source: https://man7.org/linux/man-pages/man2/fallocate.2.html
_PUNCH_HOLE_AND_KEEP_SIZE: Final = 0x02 | 0x01
# Of a launcher whose workers end faster than their output is sent, the oldest are left out: 1 MiB.
WAITING_MAX: Final = 64
TEE_INTERVAL_S = 0.1  # what a reader at a terminal takes for at once
_TEE_BYTES = 1 << 20
_LINE_BYTES_MAX = 1 << 20  # a longer line is broken: a progress bar may never end its own
BEGINS = "holdfast: a worker process begins"
_LIBC = ctypes.CDLL(None, use_errno=True)


class EarlierRank(msgspec.Struct, frozen=True):
    """A rank that a process had before, and since when."""

    rank: int
    since: float


class WorkerRun(msgspec.Struct, frozen=True):
    """One worker process. `rank` is the one it has, or had last, and `ranked_at` when it was given it.

    `earlier` are those before, oldest first.

    `round` is the one it was started in. Its output begins at `offset` of `file`, which lies in the log directory.
    Times are seconds since 1970; `ended_at` None: it runs, or its launcher ended first.
    """

    rank: int
    node: str
    member: str
    local_rank: int
    pid: int
    round: int
    file: str
    offset: int
    started_at: float
    ranked_at: float
    ended_at: float | None = None
    ended_with: str = ""
    earlier: tuple[EarlierRank, ...] = ()


class WorkerLogs:
    """The register of one launcher. Nothing here fails for want of a disk: training goes on without it."""

    def __init__(self, log_dir: Path, *, member: str, node: str, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since 1970."""
        self._log_dir = log_dir
        self._member = member
        self._node = node
        self._clock = clock
        self._path = log_dir / f"{member}{REGISTER}"
        # What an earlier launcher of this member left: its workers are gone, nobody saw how.
        self._ended: list[WorkerRun] = list(read_register(self._path))
        self._living: dict[int, WorkerRun] = {}

    def begin(self, pid: int, *, rank: int, local_rank: int, round_: int, path: Path, offset: int) -> None:
        """A process was started that writes to `path` from `offset` on."""
        now = self._clock()
        self._living[pid] = WorkerRun(
            rank, self._node, self._member, local_rank, pid, round_, path.name, offset, now, now
        )
        self._keep()

    def assign(self, ranks: Iterable[tuple[int, int]]) -> bool:
        """Which process has which rank now, as (pid, rank). True when that was news."""
        moved = [(run, rank) for pid, rank in ranks if (run := self._living.get(pid)) and run.rank != rank]
        for run, rank in moved:
            earlier = (*run.earlier, EarlierRank(run.rank, run.ranked_at))[-EARLIER_KEPT:]
            self._living[run.pid] = structs.replace(run, rank=rank, ranked_at=self._clock(), earlier=earlier)
        if moved:
            self._keep()
        return bool(moved)

    def end(self, pid: int, how: str) -> WorkerRun | None:
        """The process ended, with `how`: a signal or an exit code in words. Returns its entry, if it has one."""
        run = self._living.pop(pid, None)
        if run is None:
            return None
        ended = structs.replace(run, ended_at=self._clock(), ended_with=how)
        self._ended.append(ended)
        self._keep()
        return ended

    @property
    def living(self) -> tuple[WorkerRun, ...]:
        """The processes that run."""
        return tuple(self._living.values())

    def trim(self) -> None:
        """Keep the files of living workers within bounds; called every `TRIM_INTERVAL_S`."""
        for each in {run.file for run in self._living.values()}:
            trim(self._log_dir / each)

    def _keep(self) -> None:
        """Forget what is beyond the bounds, with its files, and write the register."""
        by_place: dict[int, list[WorkerRun]] = defaultdict(list)
        for run in sorted([*self._ended, *self._living.values()], key=lambda each: each.started_at):
            by_place[run.local_rank].append(run)
        kept = [run for place in by_place.values() for run in place[-RUNS_KEPT:]]
        dropped = [run for place in by_place.values() for run in place[:-RUNS_KEPT]]
        self._ended = [run for run in kept if run.pid not in self._living or run.ended_at is not None]
        for file in {run.file for run in dropped} - {run.file for run in kept}:
            with contextlib.suppress(OSError):
                (self._log_dir / file).unlink()
        fresh = self._path.with_name(f"{self._path.name}.{os.getpid()}")
        try:
            fresh.write_bytes(msgspec.json.encode(kept))
            os.replace(fresh, self._path)
        except OSError as error:
            log.warning("the register of workers cannot be written path=%s reason=%s", self._path, error.strerror)


def read_register(path: Path) -> tuple[WorkerRun, ...]:
    """What a launcher has registered; nothing where there is no such file, or it is of another version."""
    try:
        return decode_json(path.read_bytes(), tuple[WorkerRun, ...])
    except (OSError, Malformed):
        return ()


def trim(path: Path, kept_bytes: int = BYTES_KEPT) -> None:
    """Give all but the last `kept_bytes` of a file back to the file system. Offsets in it stay what they are."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
        try:
            status = os.fstat(descriptor)
            beyond = (status.st_size - kept_bytes) // _BLOCK * _BLOCK
            if beyond > 0 and status.st_blocks * 512 > kept_bytes + _BLOCK:
                zero, length = ctypes.c_int64(0), ctypes.c_int64(beyond)
                _LIBC.fallocate(descriptor, _PUNCH_HOLE_AND_KEEP_SIZE, zero, length)
        finally:
            os.close(descriptor)


def log_path(log_dir: Path, rank: int, round_: int) -> Path:
    """Where the worker started as `rank` in `round_` writes. A worker that re-enters keeps its file."""
    return log_dir / f"rank-{rank:05d}.round-{round_:04d}.log"


def ending(path: Path, *, since: int) -> str:
    """What was written last, from offset `since` on at most; empty when that is nothing or cannot be read."""
    try:
        with path.open("rb") as log:
            size = log.seek(0, os.SEEK_END)
            log.seek(max(since, size - _ENDING_BYTES, 0))
            return log.read(_ENDING_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(text: str) -> str:
    """The last lines of it, as many as a human wants to read."""
    return "\n".join(text[-_TAIL_CHARACTERS:].splitlines()[-_TAIL_LINES:])


def prefix_of(rank: int) -> str:
    """What stands before each line of the rank."""
    return f"[rank{rank}]: "


@dataclass(slots=True)
class _Followed:
    path: Path
    prefix: str
    offset: int
    unfinished: bytes = b""


class LogFollower:
    """Copies chosen workers' log lines to `output`, the launcher's own, each with its rank in front.

    Workers write to files and never to a pipe of ours: output cannot block them, none is lost with the launcher.
    """

    def __init__(self, output: TextIO) -> None:
        self._output = output
        self._followed: dict[int, _Followed] = {}

    def follow(self, worker: int, path: Path, *, rank: int, round_: int, offset: int) -> None:
        """From now on copy what process `worker` appends to `path` beyond `offset`, behind a line that says so.

        Whoever reads the launcher's output, as `holdfast logs` does, tells a rank's processes apart by it.
        """
        self._followed[worker] = _Followed(path, prefix_of(rank), offset)
        self._write(self._followed[worker], [f"{BEGINS}, pid {worker}, round {round_}".encode()])

    def rename(self, worker: int, rank: int) -> None:
        """The process goes on as another rank."""
        followed = self._followed.get(worker)
        if followed is not None and followed.prefix != prefix_of(rank):
            self._copy(followed)
            followed.prefix = prefix_of(rank)

    def finish(self, worker: int) -> None:
        """The process is gone: copy what is left and stop following."""
        followed = self._followed.pop(worker, None)
        if followed is not None:
            self._copy(followed)
            if followed.unfinished:
                self._write(followed, [followed.unfinished])

    def copy(self) -> None:
        """Copy what is new; called every `TEE_INTERVAL_S`."""
        for followed in tuple(self._followed.values()):
            self._copy(followed)

    def _copy(self, followed: _Followed) -> None:
        while True:
            try:
                with followed.path.open("rb") as log:
                    log.seek(followed.offset)
                    data = log.read(_TEE_BYTES)
            except OSError:
                return
            if not data:
                return
            followed.offset += len(data)
            *lines, followed.unfinished = (followed.unfinished + data).split(b"\n")
            if len(followed.unfinished) > _LINE_BYTES_MAX:
                lines, followed.unfinished = [*lines, followed.unfinished], b""
            self._write(followed, lines)

    def _write(self, followed: _Followed, lines: list[bytes]) -> None:
        text = "".join(f"{followed.prefix}{line.decode('utf-8', 'replace')}\n" for line in lines)
        self._output.write(text)
        self._output.flush()


class OutputTails:
    """Sends the watchdog the end of what each worker wrote, so that it can be read when this pod is gone.

    It is sent a while after the process ended (see `workeroutput.spread_s`), at the latest when the launcher
    leaves in good order; then also that of the workers which still run. A node that vanishes takes along what was
    not sent. `report` sends a message to the watchdog.
    """

    def __init__(self, log_dir: Path, report: Callable[[WorkerOutput], None]) -> None:
        self._log_dir = log_dir
        self._report = report
        self._waiting: dict[tuple[int, float], tuple[WorkerOutput, asyncio.TimerHandle]] = {}

    def ended(self, run: WorkerRun, world_size: int) -> None:
        """The process of `run`, of a job of so many ranks, has ended: read what it wrote, send it soon."""
        output = output_of(run, self._log_dir, tail_bytes(world_size))
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
            output = output_of(structs.replace(run, ended_at=now), self._log_dir, tail_bytes(world_size))
            if output is not None:
                self._report(output)

    def _send(self, key: tuple[int, float]) -> None:
        output, timer = self._waiting.pop(key)
        timer.cancel()
        self._report(output)


def output_of(run: WorkerRun, log_dir: Path, size: int) -> WorkerOutput | None:
    """The last `size` bytes that the process wrote, from the beginning of a line on when there is one in them.

    None when it wrote nothing, or that cannot be read.
    """
    assert run.ended_at is not None
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
    return WorkerOutput(run.rank, run.pid, run.round, run.started_at, run.ended_at, run.ended_with, omitted, tail)
