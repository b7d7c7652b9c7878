"""One server program that a test started: it is never left behind, however the test ends."""

import os
import re
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from patience import patient

STOP_S_MAX = patient(20.0)
POLL_S = 0.05
# Reads until this program is gone, however it died, then ends the server's process group.
GUARD = 'read -r nothing; kill -KILL "-$0" 2>/dev/null'


FATAL = re.compile(r"F\d{4} |panic: |fatal error: ")


class ServerFailed(RuntimeError):
    """A server did not start, or ended by itself. The text has the end of its log."""


def free_port() -> int:
    """A loopback port for a server, kept until this process ends: no other program is given it.

    It stays bound with SO_REUSEADDR and is never listened on, so that a server that sets SO_REUSEADDR too (Go's,
    redis, asyncio's) can listen there, and start there again. Source: Linux socket(7).
    """
    with socket.socket() as reserved:
        reserved.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        reserved.bind(("127.0.0.1", 0))
        port: int = reserved.getsockname()[1]
        reserved.detach()
        return port


class ServerProcess:
    """A program with its log file, in a process group of its own.

    A guard ends the group when this program dies without stopping it, also by SIGKILL. The kernel's own
    parent-death signal is not used: it fires when the *thread* that started the server ends.
    """

    def __init__(self, name: str, command: Sequence[str | Path], log: Path, env: Mapping[str, str] | None = None):
        self.name = name
        self.command = [str(each) for each in command]
        self.log = log
        self.env = env
        self.process: subprocess.Popen[bytes] | None = None
        self.guard: subprocess.Popen[bytes] | None = None

    @property
    def running(self) -> bool:
        return self.process is not None and self.process.poll() is None

    @property
    def pid(self) -> int:
        if self.process is None:
            raise ServerFailed(f"{self.name} was never started")
        return self.process.pid

    def start(self) -> None:
        if self.running:
            raise ServerFailed(f"{self.name} runs already as process {self.pid}")
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self.command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=self.env,
                start_new_session=True,
            )
        self.guard = subprocess.Popen(
            ["sh", "-c", GUARD, str(self.process.pid)], stdin=subprocess.PIPE, start_new_session=True
        )

    def stop(self) -> None:
        """End it in order; after STOP_S_MAX by force. Nothing happens when it does not run."""
        self._end(signal.SIGTERM)

    def kill(self) -> None:
        """End it as a crash would."""
        self._end(signal.SIGKILL)

    def pause(self) -> None:
        """Make it hang: its connections stay open and nothing answers."""
        self._signal(signal.SIGSTOP)

    def resume(self) -> None:
        self._signal(signal.SIGCONT)

    def wait_until(self, ready: Callable[[], bool], within_s: float) -> None:
        """Poll `ready`. Raises ServerFailed when the program ends first or the time is over."""
        deadline = time.monotonic() + within_s
        while not ready():
            self.check()
            if time.monotonic() > deadline:
                raise ServerFailed(
                    f"{self.name} was not ready after {within_s} s; its log {self.log} ends with:\n{self._tail()}"
                )
            time.sleep(POLL_S)

    def check(self) -> None:
        """Raises ServerFailed, with the end of its log, when it does not run."""
        if not self.running:
            code = None if self.process is None else self.process.returncode
            raise ServerFailed(f"{self.name} ended with {code}; its log {self.log} ends with:\n{self._tail()}")

    def _wait_for_group(self, group: int) -> None:
        """Until the last of the group has ended: a wrapper such as nsenter ends before what it wraps."""
        deadline = time.monotonic() + STOP_S_MAX
        while time.monotonic() < deadline:
            try:
                os.killpg(group, 0)
            except ProcessLookupError:
                return
            time.sleep(POLL_S / 10)

    def _tail(self) -> str:
        lines = self.log.read_text(errors="replace").splitlines()
        # A Go program says why it gives up before pages of stacks.
        fatal = [number for number, line in enumerate(lines) if FATAL.match(line)]
        start = max(0, fatal[0] - 2) if fatal else max(0, len(lines) - 15)
        return "\n".join(lines[start : start + 15])

    def _signal(self, which: signal.Signals) -> None:
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, which)

    def _end(self, first: signal.Signals) -> None:
        if self.process is not None:
            self._signal(first)
            self._signal(signal.SIGCONT)  # a paused program would not see the first
            try:
                self.process.wait(STOP_S_MAX)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                self.process.wait(STOP_S_MAX)
            self._wait_for_group(self.process.pid)
        if self.guard is not None and self.guard.stdin is not None:
            self.guard.stdin.close()  # it ends what the program left in its group, then itself
            self.guard.wait(STOP_S_MAX)
            self.guard = None
