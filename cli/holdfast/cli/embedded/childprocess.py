"""Processes of this run: one dies with us, whatever kills us, and its end is known at once.

Which others descend from it, and whether one runs, is read from the kernel.
"""

import asyncio
import contextlib
import ctypes
import os
import signal
import subprocess
from collections import defaultdict
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_PDEATHSIG.2const.html
_PR_SET_PDEATHSIG: Final = 1
_libc = ctypes.CDLL(None, use_errno=True)
POLITE_S: Final = 3.0  # how long SIGTERM may take before SIGKILL follows


class ChildProcess:
    """One child process in a session of its own, so that Ctrl-C reaches it only through us."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        log: Path | None,
        directory: Path,
        variables: Mapping[str, str] | None = None,
        is_told: bool = False,
    ) -> None:
        """Start it, with `variables` added to our environment. Raises OSError.

        Output goes to the end of `log`, without one to where ours goes. With `is_told` it has a standard input
        that `tell` writes to, which ends with us. Must be called in the event loop.
        """
        self.log = log
        parent_pid = os.getpid()

        def die_with_parent() -> None:
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            if os.getppid() != parent_pid:  # it died between the fork and the call above
                os._exit(0)

        if log is not None:
            log.parent.mkdir(parents=True, exist_ok=True)
        with log.open("ab") if log is not None else contextlib.nullcontext() as output:
            self._process = subprocess.Popen(
                arguments,
                cwd=directory,
                env={**os.environ, **(variables or {})},
                stdin=subprocess.PIPE if is_told else subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=die_with_parent,
            )
        if self._process.stdin is not None:
            os.set_blocking(self._process.stdin.fileno(), False)
        loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[int] = loop.create_future()
        self._descriptor = os.pidfd_open(self._process.pid)
        loop.add_reader(self._descriptor, self._reap)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def alive(self) -> bool:
        return not self.ended.done()

    def send(self, number: signal.Signals) -> None:
        """Send a signal; a process that is already gone needs none."""
        if self.alive:
            self._process.send_signal(number)

    def tell(self, words: bytes) -> None:
        """Write to its standard input; nothing happens where it reads no more, or too slowly."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                os.write(self._process.stdin.fileno(), words)

    def tell_no_more(self) -> None:
        """End its standard input."""
        if self._process.stdin is not None:
            with contextlib.suppress(OSError):
                self._process.stdin.close()

    async def stop(self) -> int:
        """End it: SIGTERM, and SIGKILL when that takes too long. Returns the exit code."""
        self.send(signal.SIGTERM)
        await asyncio.wait((self.ended,), timeout=POLITE_S)
        self.send(signal.SIGKILL)
        return await asyncio.shield(self.ended)

    def last_line(self) -> str:
        """The last line it wrote that is not empty; nothing where it has no log."""
        if self.log is None:
            return ""
        try:
            lines = self.log.read_text(errors="replace").splitlines()
        except OSError:
            return ""
        return next((line.strip() for line in reversed(lines) if line.strip()), "")

    def _reap(self) -> None:
        asyncio.get_running_loop().remove_reader(self._descriptor)
        os.close(self._descriptor)
        self.tell_no_more()
        self.ended.set_result(self._process.wait())


def exit_text(code: int) -> str:
    """How a process ended, in words. A negative code is a signal's."""
    if code >= 0:
        return f"exit code {code}"
    try:
        return f"signal {-code} ({signal.Signals(-code).name})"
    except ValueError:
        return f"signal {-code}"


def descendants(root: int) -> list[int]:
    """Children, their children and so on, nearest first. Processes that end meanwhile are left out."""
    children = defaultdict(list)
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and (fields := _state_of(int(entry.name))):
            children[int(fields[1])].append(int(entry.name))
    found: list[int] = []
    frontier = [root]
    while frontier:
        frontier = [child for pid in frontier for child in children[pid]]
        found += frontier
    return found


def is_running(pid: int) -> bool:
    """Whether there is such a process; one that has ended and is not reaped yet does not run."""
    fields = _state_of(pid)
    return bool(fields) and fields[0] not in ("Z", "X")


def _state_of(pid: int) -> list[str]:
    """What the kernel says of a process, its state and its parent first; nothing of one that is gone."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return []
    # The command's name stands in brackets and may hold anything, so fields count from the last bracket.
    return text.rpartition(")")[2].split()


def send(pid: int, number: signal.Signals) -> None:
    """Send a signal to a process that may be gone already."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)
