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
from collections import defaultdict
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, NoReturn

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed

log = logging.getLogger(__name__)

# As many as the kubelet keeps of a container's log files (containerLogMaxFiles).
# Source: https://kubernetes.io/docs/concepts/cluster-administration/logging/#log-rotation
RUNS_KEPT: Final = 5
BYTES_KEPT: Final = 64 << 20
EARLIER_KEPT: Final = 8
TRIM_INTERVAL_S: Final = 5.0
REGISTER: Final = ".workers.json"
_TAIL_BYTES: Final = 16 << 10
_TAIL_LINES: Final = 30
_BLOCK: Final = 4096
# Source: https://man7.org/linux/man-pages/man2/fallocate.2.html
_PUNCH_HOLE_AND_KEEP_SIZE: Final = 0x02 | 0x01
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
            self._living[run.pid] = msgspec.structs.replace(
                run, rank=rank, ranked_at=self._clock(), earlier=earlier
            )
        if moved:
            self._keep()
        return bool(moved)

    def end(self, pid: int, how: str) -> WorkerRun | None:
        """The process ended, with `how`: a signal or an exit code in words. Returns its entry, if it has one."""
        run = self._living.pop(pid, None)
        if run is None:
            return None
        ended = msgspec.structs.replace(run, ended_at=self._clock(), ended_with=how)
        self._ended.append(ended)
        self._keep()
        return ended

    @property
    def living(self) -> tuple[WorkerRun, ...]:
        """The processes that run."""
        return tuple(self._living.values())

    async def run(self) -> NoReturn:
        """Keep the files of living workers within bounds, until cancelled."""
        while True:
            await asyncio.sleep(TRIM_INTERVAL_S)
            for each in {run.file for run in self._living.values()}:
                trim(self._log_dir / each)

    def _keep(self) -> None:
        """Forget what is beyond the bounds, with its files, and write the register."""
        kept, dropped = _bounded([*self._ended, *self._living.values()])
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


def _bounded(runs: list[WorkerRun]) -> tuple[list[WorkerRun], list[WorkerRun]]:
    """The newest of each local rank, and the others."""
    by_place: dict[int, list[WorkerRun]] = defaultdict(list)
    for run in sorted(runs, key=lambda each: each.started_at):
        by_place[run.local_rank].append(run)
    kept = [run for place in by_place.values() for run in place[-RUNS_KEPT:]]
    return kept, [run for place in by_place.values() for run in place[:-RUNS_KEPT]]


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
            log.seek(max(since, size - _TAIL_BYTES, 0))
            return log.read(_TAIL_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


def tail(text: str) -> str:
    """The last lines of it, as many as a human wants to read."""
    return "\n".join(text.splitlines()[-_TAIL_LINES:])
