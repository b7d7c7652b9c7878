"""Signals that ask a worker to end, as they reach the handlers of its script.

A script may answer SIGTERM with a checkpoint and an exit code of zero: its process then looks as if it had trained
to its end. The interpreter itself writes the number of each signal for which the script has a handler into the
file of the worker, before the handler runs. It costs nothing until then, and changes nothing that the script sees.

Not seen are signals that no handler of Python's takes: blocked ones that a thread waits for, those of a program
that is not Python, of an interpreter that was started anew, and of a script that gave the descriptor to another
(`asyncio` does where it has handlers of its own).

Source: https://docs.python.org/3/library/signal.html#signal.set_wakeup_fd
"""

import contextlib
import os
import signal
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Final

from holdfast.api.control import RUN_DIRECTORY_VARIABLE

ASKING: Final = frozenset(
    {signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGXCPU, signal.SIGUSR1, signal.SIGUSR2}
)
"""What schedulers and people send to have a program end, some of them with a notice before. Of other signals a
script makes what it likes.

Source: https://slurm.schedmd.com/sbatch.html (--signal), https://man7.org/linux/man-pages/man7/signal.7.html
"""
SHORTLY_S: Final = 600.0
"""So long before its end a signal counts as the reason for it: a script may save first, and schedulers give notice
of a few minutes. One after which it goes on for longer meant something else."""


def signals_file(run_dir: Path, pid: int) -> Path:
    """Where the signals of the worker that is process `pid` are noted, a byte each."""
    return run_dir / f"signals-{pid}"


def note_signals(environment: Mapping[str, str]) -> None:
    """Have this process note its signals, if it is the worker of a round; what it forks does not. To be called in
    its main thread. Raises OSError when the run directory cannot be written.
    """
    if RUN_DIRECTORY_VARIABLE not in environment:
        return
    path = signals_file(Path(environment[RUN_DIRECTORY_VARIABLE]), os.getpid())
    flags = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_NONBLOCK | os.O_CLOEXEC
    note = os.open(path, flags, 0o644)
    signal.set_wakeup_fd(note)

    def forget() -> None:
        if (other := signal.set_wakeup_fd(-1)) not in (note, -1):
            signal.set_wakeup_fd(other)  # the script's own

    os.register_at_fork(after_in_child=forget)


class EndSignals:
    """What was noted of the workers of one launcher."""

    def __init__(self, run_dir: Path, *, clock: Callable[[], float]) -> None:
        """`clock` gives seconds since 1970, as files are dated."""
        self._run_dir = run_dir
        self._clock = clock

    def take(self, pid: int) -> int | None:
        """The newest signal that asked worker `pid`, which has ended, to do so; None: none is known. Its note is
        removed.
        """
        path = signals_file(self._run_dir, pid)
        numbers, age_s = b"", 0.0
        with contextlib.suppress(OSError):
            numbers = path.read_bytes()
            age_s = self._clock() - path.stat().st_mtime
            path.unlink()
        return next((each for each in reversed(numbers) if each in ASKING), None) if age_s <= SHORTLY_S else None
