"""Starts the ranks of one run on this machine, waits for the wanted steps, and reads what was seen of them."""

import os
import random
import signal
import socket
import subprocess
import time
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from holdfast.api.decoding import decode
from holdfast.api.errors import HoldfastError, Malformed
from holdfast.api.rehearsal import LINE_BYTES_MAX, REHEARSAL_VARIABLE, SEEN_MAX, Kind, Rehearsal, Seen, trace_file
from holdfast.cli.bisect.program import Program

_POLL_S: Final = 0.05
_PORTS_TRIED: Final = 64
_GRACE_S: Final = 5.0
_TAIL_CHARACTERS: Final = 2000
_LINES: Final = msgspec.json.Decoder(Seen)


class Failed(HoldfastError):
    """A run could not be trained again; what it said last."""


@dataclass(frozen=True, slots=True)
class Traces:
    """What the ranks of one rehearsal saw, in files below `folder`."""

    folder: Path
    ranks: int

    def of(self, rank: int) -> Iterator[Seen]:
        """In order, `SEEN_MAX` at the most, without a last line that was cut. Raises Failed when it is none."""
        path = trace_file(self.folder, rank)
        with open(path, "rb") as file:
            for number in range(SEEN_MAX):
                line = file.readline(LINE_BYTES_MAX)
                if not line.endswith(b"\n"):
                    return
                try:
                    yield decode(_LINES, line)
                except Malformed as error:
                    raise Failed(f"line {number + 1} of {path} is no observation: {error}") from error

    def told(self, kind: Kind, rank: int = 0) -> dict[tuple[int, str], str]:
        """What was given of one kind, by step and name."""
        return {(each.step, each.name): each.gave for each in self.of(rank) if each.kind is kind}


class Running:
    """The processes of one rehearsal, each a group of its own. To be closed."""

    def __init__(self, program: Program, wanted: Rehearsal, folder: Path) -> None:
        """Starts them. Raises Failed when they do not start."""
        self._program, self._folder = program, folder
        folder.mkdir(parents=True)
        order = folder / "rehearsal.json"
        order.write_bytes(msgspec.json.encode(msgspec.structs.replace(wanted, output=str(folder))))
        self._processes: list[subprocess.Popen[bytes]] = []
        port = _free_port()
        try:
            for rank in range(program.ranks):
                self._processes.append(self._started(rank, port, order))
        except OSError as error:
            self.close()
            raise Failed(f"{program.command[0]} does not start: {error.strerror}") from error

    def _started(self, rank: int, port: int, order: Path) -> subprocess.Popen[bytes]:
        ranks = str(self._program.ranks)
        of_the_rank = {
            "RANK": str(rank),
            "LOCAL_RANK": str(rank),
            "WORLD_SIZE": ranks,
            "LOCAL_WORLD_SIZE": ranks,
            "MASTER_ADDR": "127.0.0.1",
            "MASTER_PORT": str(port),
            REHEARSAL_VARIABLE: str(order),
        }
        with open(self._log(rank), "wb") as log:
            return subprocess.Popen(
                self._program.command,
                cwd=self._program.directory,
                env={**self._program.environment, **of_the_rank},
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=subprocess.STDOUT,
                start_new_session=True,
            )

    def wait(self, timeout_s: float) -> Traces:
        """Until all have ended. Raises Failed when one fails or has seen nothing, or it takes longer."""
        until = time.monotonic() + timeout_s
        while True:
            codes = [process.poll() for process in self._processes]
            for rank, code in enumerate(codes):
                if code:
                    raise Failed(f"{self._who(rank)} ended with exit code {code}: {self._tail(rank)}")
            if None not in codes:
                break
            if time.monotonic() > until:
                raise Failed(f"run {self._program.name} was not done within {timeout_s:.0f} s (--timeout)")
            time.sleep(_POLL_S)
        for rank in range(self._program.ranks):
            path = trace_file(self._folder, rank)
            if not path.exists() or not path.stat().st_size:
                raise Failed(
                    f"{self._who(rank)} told of no step: bisect needs a script with `run.step`, and "
                    f"`Checkpointer` or `run.watch`: {self._tail(rank)}"
                )
        return Traces(self._folder, self._program.ranks)

    def close(self) -> None:
        """No process that was started here is left."""
        for sent in (signal.SIGTERM, signal.SIGKILL):
            for process in self._processes:
                if process.poll() is None:
                    with suppress(ProcessLookupError):
                        os.killpg(process.pid, sent)
            deadline = time.monotonic() + _GRACE_S
            for process in self._processes:
                with suppress(subprocess.TimeoutExpired):
                    process.wait(max(0.0, deadline - time.monotonic()))

    def _who(self, rank: int) -> str:
        return f"rank {rank} of run {self._program.name}"

    def _log(self, rank: int) -> Path:
        return self._folder / f"rank-{rank:05d}.log"

    def _tail(self, rank: int) -> str:
        written = self._log(rank).read_bytes()[-_TAIL_CHARACTERS:].decode(errors="replace").strip()
        return written or "it wrote nothing"


def rehearse(
    programs: Sequence[tuple[Program, Rehearsal, Path]], timeout_s: float, *, together: bool
) -> list[Traces]:
    """Train each again, one after the other or all `together`. Raises Failed."""
    if not together and len(programs) > 1:
        return [each for one in programs for each in rehearse([one], timeout_s, together=True)]
    running: list[Running] = []
    try:
        for program, wanted, folder in programs:
            running.append(Running(program, wanted, folder))
        return [each.wait(timeout_s) for each in running]
    finally:
        for each in running:
            each.close()


def _free_port() -> int:
    """One that nobody listens on, and that is given to no outgoing connection before the ranks have started.

    Source: https://www.kernel.org/doc/html/latest/networking/ip-sysctl.html (ip_local_port_range begins at 32768)
    """
    for port in random.sample(range(15_000, 32_000), _PORTS_TRIED):
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port
    raise Failed("no port is free for the ranks to meet at")
