"""Processes of a drill: started, signalled as whole trees, and none left behind."""

import contextlib
import ctypes
import os
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil

# Source: prctl(2), https://man7.org/linux/man-pages/man2/PR_SET_CHILD_SUBREAPER.2const.html
_PR_SET_CHILD_SUBREAPER: Final = 36
GONE_WITHIN_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class Tree:
    """A process that was started here, and everything below it."""

    root: psutil.Process

    @classmethod
    def start(cls, command: Sequence[str], *, log: Path, environment: Mapping[str, str]) -> "Tree":
        """Start `command` in a session of its own, its output at the end of `log`. Raises OSError."""
        with log.open("ab") as output:
            process = subprocess.Popen(
                command,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                start_new_session=True,
            )
        return cls(psutil.Process(process.pid))

    def members(self) -> list[psutil.Process]:
        """The root first."""
        try:
            return [self.root, *self.root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []


def signal_each(processes: Sequence[psutil.Process], number: signal.Signals) -> None:
    """Send a signal to all of them, in order; one that is gone needs none."""
    for process in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            process.send_signal(number)


@contextlib.contextmanager
def none_left_behind() -> Iterator[None]:
    """Whatever was started in the block, and whatever that started, is gone after it.

    Orphans come to this process instead of init, so that its descendants are all there is to end.
    """
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    try:
        yield
    finally:
        _end_descendants()


def _end_descendants() -> None:
    give_up = time.monotonic() + GONE_WITHIN_S
    while time.monotonic() < give_up:
        below = psutil.Process().children(recursive=True)
        signal_each(below, signal.SIGKILL)
        _reap()
        if not below:
            return
        time.sleep(0.01)
    raise RuntimeError(f"processes do not end: {psutil.Process().children(recursive=True)}")


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass
