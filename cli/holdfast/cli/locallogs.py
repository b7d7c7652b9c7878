"""Workers' logs of a run on this machine: read from its state directory, also when the run is over."""

import contextlib
import math
import os
import time
from collections import defaultdict, deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.agent.launch.logs import REGISTER, WorkerRun, read_register
from holdfast.api.errors import Unavailable
from holdfast.cli.logs import (
    LogLine,
    LogRequest,
    clock,
    no_previous,
    prefix_for,
    unknown_node,
    unknown_rank,
)
from holdfast.cli.output import remark
from holdfast.cli.statedirectory import StateDirectory, is_over

POLL_INTERVAL_S: Final = 0.2
CHUNK_BYTES: Final = 1 << 20


@dataclass(slots=True)
class _Read:
    """One process's output, and how far it was read. `unfinished` is the beginning of a line."""

    run: WorkerRun
    path: Path
    offset: int
    until: int | None
    unfinished: bytes = b""

    def more(self) -> Iterator[str]:
        """The whole lines behind `offset`; none of a file that cannot be read."""
        try:
            with self.path.open("rb") as log:
                if self.offset == self.run.offset:
                    self._pass_over_what_is_gone(log.fileno())
                log.seek(self.offset)
                until = math.inf if self.until is None else max(self.until, self.offset)
                while data := log.read(int(min(CHUNK_BYTES, until - self.offset))):
                    self.offset += len(data)
                    *lines, self.unfinished = (self.unfinished + data).split(b"\n")
                    yield from (line.decode("utf-8", "replace") for line in lines)
        except OSError:
            return

    def _pass_over_what_is_gone(self, descriptor: int) -> None:
        """What was given back to the file system, with the line it cut."""
        try:
            first = os.lseek(descriptor, self.offset, os.SEEK_DATA)
        except OSError:  # nothing there yet, or a file system that does not tell
            return
        if first > self.offset:
            end_of_line = os.pread(descriptor, 1 << 16, first).find(b"\n")
            remark(f"the first {first - self.offset} bytes of rank {self.run.rank} are no longer kept")
            self.offset = first + end_of_line + 1

    def rest(self) -> Iterator[str]:
        """What a process that will say no more left without a line's end."""
        if self.unfinished:
            yield self.unfinished.decode("utf-8", "replace")
            self.unfinished = b""


def lines_of(directory: StateDirectory, request: LogRequest, now: float) -> Iterator[LogLine]:
    """The lines asked for; headings go to stderr. `now` is the wall clock. Raises InvalidInput, Unavailable."""
    runs = registered(directory.logs)
    if not runs:
        raise Unavailable(f"there are no logs of workers in {directory.logs}")
    chosen = choose(runs, request)
    several = len(chosen)
    reads = []
    for run in chosen:
        path = directory.logs / run.file
        written_at = 0.0
        with contextlib.suppress(OSError):
            written_at = path.stat().st_mtime
        if request.since_s is not None and written_at < now - request.since_s:
            continue
        remark(heading(run))
        # Where the next process's part of the same file begins.
        until = min(
            (each.offset for each in runs if each.file == run.file and each.offset > run.offset), default=None
        )
        read = _Read(run, path, run.offset, until)
        lines = deque(read.more(), request.lines_of_each(several))
        if not request.follows:
            lines.extend(read.rest())
        yield from (LogLine(line, prefix_for(run.rank, several)) for line in lines)
        reads.append(read)
    if request.follows:
        yield from _followed(directory, request, reads)


def registered(logs: Path) -> list[WorkerRun]:
    """Every worker process that some launcher has registered there, oldest first."""
    found = [run for register in sorted(logs.glob(f"*{REGISTER}")) for run in read_register(register)]
    return sorted(found, key=lambda run: (run.ranked_at, run.started_at))


def choose(runs: list[WorkerRun], request: LogRequest) -> list[WorkerRun]:
    """The process of each rank that is meant, by rank. `runs` are oldest first.

    Raises InvalidInput, Unavailable.
    """
    if request.rank is None:  # the processes of each rank that some have now or had at their end
        by_rank: dict[int, list[WorkerRun]] = defaultdict(list)
        for run in runs:
            by_rank[run.rank].append(run)
        groups = [of_rank for _, of_rank in sorted(by_rank.items())]
    else:
        groups = [with_rank(runs, request.rank)]
        if not groups[0]:
            raise unknown_rank(request.rank, [run.rank for run in runs])
    if request.node is not None and request.node not in {run.node for run in runs}:
        raise unknown_node(request.node, (run.node for run in runs))
    place = -2 if request.is_previous else -1
    there = [[run for run in group if request.node in (None, run.node)] for group in groups]
    chosen = [group[place] for group in there if len(group) >= -place]
    if not chosen:
        raise no_previous(request)
    return chosen


def with_rank(runs: list[WorkerRun], rank: int) -> list[WorkerRun]:
    """The processes that have the rank or once had it, in the order in which they were last given it."""
    given = [
        (since, place)
        for place, run in enumerate(runs)
        for had, since in ((run.rank, run.ranked_at), *((each.rank, each.since) for each in run.earlier))
        if had == rank
    ]
    last = {place: since for since, place in sorted(given)}
    return [runs[place] for place in sorted(last, key=lambda place: (last[place], place))]


def heading(run: WorkerRun) -> str:
    """Which process it is, and how it ended."""
    before = f" (before: {', '.join(str(each.rank) for each in run.earlier)})" if run.earlier else ""
    who = f"rank {run.rank}{before} on {run.node}, pid {run.pid}"
    says = f"{who}, started {clock(run.started_at)} in round {run.round}"
    if run.ended_at is None:
        return says
    return f"{says}, ended {clock(run.ended_at)} with {run.ended_with}"


def _followed(directory: StateDirectory, request: LogRequest, reads: list[_Read]) -> Iterator[LogLine]:
    """What is written from now on, by the processes that take over as well, until the run is over."""
    newest = {_place(read.run, request): read for read in reads}
    while True:
        over = is_over(directory)
        for run in choose(registered(directory.logs), request):
            place = _place(run, request)
            known = newest.get(place)
            if known is None or (known.run.pid, known.run.started_at) != (run.pid, run.started_at):
                if known is not None:
                    yield from _marked(known, len(newest), is_last=True)
                remark(heading(run))
                newest[place] = _Read(run, directory.logs / run.file, run.offset, None)
        for read in newest.values():
            yield from _marked(read, len(newest), is_last=over)
        if over:
            return
        time.sleep(POLL_INTERVAL_S)


def _place(run: WorkerRun, request: LogRequest) -> int:
    """The rank that it is followed as."""
    return run.rank if request.rank is None else request.rank


def _marked(read: _Read, several: int, *, is_last: bool) -> Iterator[LogLine]:
    lines = [*read.more(), *(read.rest() if is_last else ())]
    return (LogLine(line, prefix_for(read.run.rank, several)) for line in lines)
