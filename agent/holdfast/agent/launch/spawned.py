"""Training processes that a script starts itself, with `torch.multiprocessing.spawn`: seen, and told of.

Holdfast starts a process for each rank. A script that spawns its own from there trains in processes that nobody
watches, with ranks of its own making, while the worker itself only waits for them: it would run for ever without a
word. The call is noted by the worker as it happens, in a file of its node's run directory.
"""

import contextlib
import functools
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.stacks import is_own, place_of

LASTS_S: Final = 60.0
"""Work that is shared out to processes for less long is no training: data that are prepared, as a rule."""
_MODULES: Final = ("torch.multiprocessing.spawn", "torch.multiprocessing")
_CALL: Final = "start_processes"


class SpawnCall(msgspec.Struct, frozen=True):
    """A call that goes on: at which of the user's own lines, for how many processes."""

    place: str
    processes: int


def note_file(run_dir: Path, pid: int) -> Path:
    """Where the worker that is process `pid` notes it."""
    return run_dir / f"spawned-{pid}.json"


def note_spawns(run_dir: Path) -> None:
    """Have this process note what it starts with `torch.multiprocessing.spawn`, also through a framework."""
    module: Any = sys.modules.get(_MODULES[0])
    if module is None:
        return
    start, own = getattr(module, _CALL), os.getpid()

    @functools.wraps(start)
    def start_and_note(fn: Any, args: Any = (), nprocs: int = 1, *more: Any, **named: Any) -> Any:
        note = note_file(run_dir, own)
        if os.getpid() == own:
            with contextlib.suppress(OSError):  # then nobody is told, and the script runs all the same
                note.write_bytes(msgspec.json.encode(SpawnCall(_own_place(), int(nprocs))))
        context = start(fn, args, nprocs, *more, **named)
        if context is None and os.getpid() == own:  # it has waited for them
            note.unlink(missing_ok=True)
        return context

    for name in _MODULES:
        if getattr(sys.modules.get(name), _CALL, None) is start:
            setattr(sys.modules[name], _CALL, start_and_note)


def _own_place() -> str:
    """The innermost line of the user's own files that leads here."""
    frame = sys._getframe(2)
    while frame is not None:
        code = frame.f_code
        if is_own(code.co_filename):
            return place_of(code.co_filename, frame.f_lineno, code.co_name)
        if frame.f_back is None:
            break
        frame = frame.f_back
    return ""


class Spawns:
    """Looks for calls that last. `on_spawned` is told the worker's process and the call, once for each worker."""

    def __init__(
        self, run_dir: Path, on_spawned: Callable[[int, SpawnCall], None], *, clock: Callable[[], float]
    ) -> None:
        """`clock` gives seconds since 1970, as files are dated."""
        self._run_dir = run_dir
        self._clock = clock
        self._on_spawned = on_spawned
        self._watched: set[int] = set()

    def watch(self, pid: int) -> None:
        """Look at worker `pid`."""
        self._watched.add(pid)

    def forget(self, pid: int) -> None:
        """The worker speaks for itself, or is gone."""
        self._watched.discard(pid)

    def ended(self, pid: int) -> None:
        """The worker is gone."""
        self.forget(pid)
        with contextlib.suppress(OSError):
            note_file(self._run_dir, pid).unlink()

    def look(self) -> None:
        """Look at each once; called every second or so."""
        for pid in tuple(self._watched):
            path = note_file(self._run_dir, pid)
            with contextlib.suppress(OSError, Malformed):
                if self._clock() - path.stat().st_mtime >= LASTS_S:
                    call = decode_json(path.read_bytes(), SpawnCall)
                    self.forget(pid)
                    self._on_spawned(pid, call)
