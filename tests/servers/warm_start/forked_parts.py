"""What a run on this machine starts of Holdfast itself, forked from the run instead of started anew.

Importing a part takes a fifth of a second and more of a processor, and a run of three nodes starts seven of them.
They are children of the run as ever, with the session, streams, environment and arguments that they would have; in
the process list they have the run's own command line.
"""

import asyncio
import atexit
import ctypes
import gc
import importlib
import logging
import os
import random
import runpy
import signal
import subprocess
import sys
import threading
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace
from typing import IO, NoReturn

from holdfast.cli.embedded import childprocess

PARTS = {
    "holdfast.agent": "holdfast.agent.program",
    "holdfast.agent.launch": "holdfast.agent.launch.launcher",
    "holdfast.watchdog": "holdfast.watchdog.program",
}
"""By the module that is run, the one that imports what it needs."""
STREAMS = 3
_LIBC = ctypes.CDLL(None)


class ForkedPart:
    """One of `PARTS`, with what is used of a `subprocess.Popen`."""

    def __init__(
        self,
        arguments: Sequence[str],
        *,
        cwd: Path,
        env: Mapping[str, str],
        stdout: IO[bytes],
        preexec_fn: Callable[[], None],
    ) -> None:
        """Fork it. It reads nothing, and writes both streams to `stdout`."""
        module = arguments[2]
        importlib.import_module(PARTS[module])
        self.stdin = None
        self.returncode: int | None = None
        self.pid = os.fork()
        if self.pid == 0:
            _become(module, arguments[3:], cwd, env, stdout.fileno(), preexec_fn)

    def send_signal(self, number: int) -> None:
        if self.returncode is None:
            os.kill(self.pid, number)

    def wait(self) -> int:
        if self.returncode is None:
            self.returncode = os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])
        return self.returncode


def fork_parts() -> None:
    """Have this process, which is a run, fork its parts from now on."""

    def start(arguments: Sequence[str], **given: object) -> object:
        if arguments[:2] != (sys.executable, "-m") or arguments[2] not in PARTS:
            return subprocess.Popen(arguments, **given)  # type: ignore[call-overload]
        assert given.pop("stdin") == subprocess.DEVNULL
        assert given.pop("stderr") == subprocess.STDOUT
        assert given.pop("start_new_session")
        return ForkedPart(arguments, **given)  # type: ignore[arg-type]

    known = {name: getattr(subprocess, name) for name in ("DEVNULL", "PIPE", "STDOUT")}
    childprocess.subprocess = SimpleNamespace(Popen=start, **known)  # type: ignore[assignment]


def _become(
    module: str,
    words: Sequence[str],
    cwd: Path,
    env: Mapping[str, str],
    output: int,
    preexec_fn: Callable[[], None],
) -> NoReturn:
    """Run `module` as `python -m` would, in this freshly forked process.

    What the run holds is kept until the end, so that nothing closes what has its number now.
    """
    status = 1
    try:
        gc.freeze()
        os.setsid()
        preexec_fn()
        _forget_the_run()
        for source, target in ((os.open(os.devnull, os.O_RDONLY), 0), (output, 1), (output, 2)):
            os.dup2(source, target)
        _LIBC.close_range(STREAMS, 0xFFFFFFFF, 0)
        os.chdir(cwd)
        os.environ.clear()
        os.environ.update(env)
        sys.stdout, sys.stderr = (os.fdopen(number, "w", buffering=1, closefd=False) for number in (1, 2))
        sys.path.insert(0, str(cwd))  # as `python -m` does
        sys.argv = [module, *words]
        runpy.run_module(module, run_name="__main__", alter_sys=True)
        status = 0
    except SystemExit as asked:
        status = asked.code if isinstance(asked.code, int) else int(asked.code is not None)
    except BaseException:
        traceback.print_exc()
    finally:
        threading._shutdown()  # type: ignore[attr-defined]
        atexit._run_exitfuncs()
        os._exit(status)


def _forget_the_run() -> None:
    """What a new interpreter would not have: handlers, a loop, loggers, the random state."""
    atexit._clear()
    signal.set_wakeup_fd(-1)
    for number in signal.valid_signals():
        if callable(signal.getsignal(number)):
            signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    asyncio._set_running_loop(None)
    asyncio.set_event_loop(None)
    for handler in tuple(logging.root.handlers):
        logging.root.removeHandler(handler)
    random.seed()
