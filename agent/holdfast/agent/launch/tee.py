"""Copies chosen workers' log lines to the launcher's own output, each with its rank in front.

Workers write to files and never to a pipe of ours: output cannot block them, and none is lost with the launcher.
"""

import asyncio
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TextIO

_INTERVAL_S = 0.1  # what a reader at a terminal takes for at once
_READ_BYTES = 1 << 20
_LINE_BYTES_MAX = 1 << 20  # a longer line is broken: a progress bar may never end its own
BEGINS = "holdfast: a worker process begins"


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
    """Follows files that grow. `output` is the launcher's standard output."""

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
            self._followed[worker] = replace(followed, prefix=prefix_of(rank))

    def finish(self, worker: int) -> None:
        """The process is gone: copy what is left and stop following."""
        followed = self._followed.pop(worker, None)
        if followed is not None:
            self._copy(followed)
            if followed.unfinished:
                self._write(followed, [followed.unfinished])

    async def run(self) -> None:
        """Copy until cancelled."""
        while True:
            await asyncio.sleep(_INTERVAL_S)
            for followed in tuple(self._followed.values()):
                self._copy(followed)

    def _copy(self, followed: _Followed) -> None:
        while data := _read(followed):
            *lines, followed.unfinished = (followed.unfinished + data).split(b"\n")
            if len(followed.unfinished) > _LINE_BYTES_MAX:
                lines, followed.unfinished = [*lines, followed.unfinished], b""
            self._write(followed, lines)

    def _write(self, followed: _Followed, lines: list[bytes]) -> None:
        text = "".join(f"{followed.prefix}{line.decode('utf-8', 'replace')}\n" for line in lines)
        self._output.write(text)
        self._output.flush()


def _read(followed: _Followed) -> bytes:
    try:
        with followed.path.open("rb") as log:
            log.seek(followed.offset)
            data = log.read(_READ_BYTES)
    except OSError:
        return b""
    followed.offset += len(data)
    return data
