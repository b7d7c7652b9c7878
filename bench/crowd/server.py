"""The servers that the crowd speaks to, each pinned to one core, and what they cost."""

import contextlib
import json
import os
import subprocess
import sys
import time
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final, TypeVar

import meter
import msgspec

from crowd import bare
from holdfast.api.policy import Policy
from holdfast.watchdog.server.answer import BEARER

T = TypeVar("T")
TOKEN: Final = "a-token-for-the-whole-crowd-of-the-bench"
READY_WITHIN_S: Final = 20.0
TAKEN_MIN: Final = 0.95  # of the reports that are said; the last of them may still be on their way


@dataclass(frozen=True, slots=True)
class Server:
    """A running server."""

    pid: int
    port: int

    def cpu_s(self) -> float:
        return meter.cpu_s(self.pid)

    def resident_mb(self) -> float:
        return meter.memory(self.pid).resident_mb

    def ask(self, path: str, body: bytes | None = None) -> bytes:
        """What the server answers over HTTP. Raises urllib.error.HTTPError."""
        headers = {"Authorization": f"{BEARER}{TOKEN}"}
        request = urllib.request.Request(f"http://127.0.0.1:{self.port}{path}", data=body, headers=headers)
        with urllib.request.urlopen(request, timeout=60) as answer:
            read: bytes = answer.read()
        return read

    def submit(self, policy: Policy) -> None:
        self.ask("/v1/jobs", msgspec.json.encode(policy))

    def reports(self) -> int:
        """How many reports it has taken."""
        lines = self.ask("/metrics").decode().splitlines()
        return int(next(line.split()[1] for line in lines if line.startswith("holdfast_watchdog_reports_total ")))


def check_taken(said: float, *, before: int, after: int) -> None:
    """Raises RuntimeError when the watchdog took fewer reports than the agents said: they cost it less then."""
    if after - before < TAKEN_MIN * said:
        raise RuntimeError(f"the watchdog took {after - before} of {said:.0f} reports")


@contextlib.contextmanager
def watchdog(store: str, folder: Path, core: int) -> Iterator[Server]:
    """A watchdog over `store` (a file or redis://…)."""
    (folder / "token").write_text(TOKEN)
    (folder / "token").chmod(0o600)
    told_in = folder / "watchdog.json"
    command = (
        *(sys.executable, "-m", "holdfast.watchdog", "--listen", "127.0.0.1:0", "--store", store),
        *("--token-file", str(folder / "token"), "--state-file", str(told_in), "--log-level", "WARNING"),
    )
    with _running(("taskset", "-c", str(core), *command), folder / "watchdog.log") as process:
        where = _soon(process, lambda: json.loads(told_in.read_text()))
        server = Server(where["pid"], where["port"])
        _soon(process, lambda: server.ask("/readyz"))
        yield server


@contextlib.contextmanager
def bare_server(folder: Path, core: int) -> Iterator[Server]:
    """The peer."""
    told_in = folder / "bare"
    with _running((sys.executable, bare.__file__, str(core), str(told_in)), folder / "bare.log") as process:
        yield Server(process.pid, _soon(process, lambda: int(told_in.read_text())))


@contextlib.contextmanager
def console(server: Server, folder: Path, core: int) -> Iterator[Server]:
    """A console of the watchdog that was started in `folder`; yielded once it has heard from it."""
    told_in = folder / "console.json"
    command = (
        *(sys.executable, "-m", "holdfast.console", "--listen", "127.0.0.1:0", "--state-file", str(told_in)),
        *("--watchdog", f"127.0.0.1:{server.port}", "--token-file", str(folder / "token")),
    )
    with _running(("taskset", "-c", str(core), *command), folder / "console.log") as process:
        where = _soon(process, lambda: json.loads(told_in.read_text()))
        found = Server(where["pid"], where["port"])
        _soon(process, lambda: found.ask("/healthz"))
        yield found


@contextlib.contextmanager
def redis(folder: Path) -> Iterator[str]:
    """A Redis that appends to a file, as the chart configures it; yields its address."""
    port = 20_000 + os.getpid() % 10_000
    command = ("redis-server", "--port", str(port), "--appendonly", "yes", "--save", "", "--dir", str(folder))
    with _running(command, folder / "redis.log") as process:
        ping = ("redis-cli", "-p", str(port), "ping")
        _soon(process, lambda: subprocess.run(ping, check=True, capture_output=True))
        yield f"redis://127.0.0.1:{port}/0"


@contextlib.contextmanager
def _running(command: tuple[str, ...], log: Path) -> Iterator[subprocess.Popen[bytes]]:
    # A bench that is killed takes its servers with it: left behind, they would cost the next one its figures.
    bound = ("setpriv", "--pdeathsig", "KILL", *command)
    with log.open("wb") as output, subprocess.Popen(bound, stdout=output, stderr=output) as process:
        try:
            yield process
        finally:
            process.terminate()


def _soon(process: subprocess.Popen[bytes], ask: Callable[[], T]) -> T:
    """The first answer that is no error. Raises TimeoutError."""
    last: Exception | None = None
    give_up_at = time.monotonic() + READY_WITHIN_S
    while time.monotonic() < give_up_at and process.poll() is None:
        try:
            return ask()
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            last = error
            time.sleep(0.05)
    raise TimeoutError(f"{process.args!r} is not ready ({process.poll()}): {last}")
