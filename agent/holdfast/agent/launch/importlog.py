"""What a worker's script imports: written by the worker as it happens, read by its launcher.

The log is a file in the node's run directory, one module's name a line in the order of their first import, so that
a worker that is killed leaves it too. It says what a warm parent may import before the next worker needs it. A
line `NAME=` is a variable of the environment that was changed by then: an import that reads it is for no parent.
"""

import contextlib
import importlib.abc
import importlib.machinery
import os
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Final

from holdfast.api.bounds import MODULE_NAME, NAME_LENGTH_MAX

NAMES_MAX: Final = 20_000
"""What a script imports beyond them is not learned; transformers and torch together are about 2500."""
NAME: Final = re.compile(MODULE_NAME)
# The interpreter's function that loads a module. `importlib.util.find_spec` only asks whether there is one.
_LOADS: Final = "_find_and_load_unlocked"
_APPENDS: Final = os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC
_QUIET_LOOKS: Final = 3
_BYTES_MAX: Final = NAMES_MAX * NAME_LENGTH_MAX


def log_file(run_dir: Path, pid: int) -> Path:
    """Where the worker that is process `pid` writes."""
    return run_dir / f"imports-{pid}.txt"


class ImportLog(importlib.abc.MetaPathFinder):
    """Finds nothing, and writes the name of each module that is about to be loaded in this process."""

    def __init__(self, path: Path, environment: Mapping[str, str]) -> None:
        """`environment` is the one that the worker began with. Raises OSError when the file cannot be made."""
        os.close(os.open(path, _APPENDS, 0o644))
        self._path = str(path)
        self._pid = os.getpid()
        self._began_with = dict(environment)
        self._told: set[str] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> importlib.machinery.ModuleSpec | None:
        """None. Who asks is two frames up: who only wants to know whether there is a module imports nothing."""
        if sys._getframe(2).f_code.co_name == _LOADS and os.getpid() == self._pid:
            # Opened each time: a script may close what it did not open, and then have the number for its own file.
            with contextlib.suppress(OSError):
                descriptor = os.open(self._path, _APPENDS, 0o644)
                try:
                    os.write(descriptor, "".join((*self._changes(), f"{fullname}\n")).encode())
                finally:
                    os.close(descriptor)
        return None

    def _changes(self) -> Iterator[str]:
        """A line for each variable that is another one than at the beginning and was not told of yet."""
        now, before = dict(os.environ), self._began_with
        if now == before:
            return
        for name in sorted(now.keys() | before.keys()):
            if now.get(name) != before.get(name) and name not in self._told:
                self._told.add(name)
                yield f"{name}=\n"


def names_in(path: Path) -> tuple[str, ...]:
    """The modules that a log tells of; none when there is no log. What is no module's name is left out."""
    return tuple(dict.fromkeys(name for name in _lines(path) if NAME.fullmatch(name)))


def variables_in(path: Path) -> tuple[str, ...]:
    """The variables of the environment that were changed before an import."""
    names = (line[:-1] for line in _lines(path) if line.endswith("="))
    return tuple(dict.fromkeys(name for name in names if name))


def _lines(path: Path) -> Iterator[str]:
    try:
        with path.open("rb") as file:
            text = file.read(_BYTES_MAX).decode("utf-8", "replace")
    except OSError:
        return
    yield from (line for line in text.splitlines()[:NAMES_MAX] if len(line) <= NAME_LENGTH_MAX)


@dataclass(slots=True)
class _Watched:
    path: Path
    size: int = 0
    quiet: int = 0
    trains: bool = False


class ImportLogs:
    """Reads the logs of workers: when one trains and imports nothing more for a while, and when it has ended."""

    def __init__(self, run_dir: Path, on_learned: Callable[[Iterable[str], Iterable[str]], None]) -> None:
        """`on_learned` is told the modules, and the variables that were changed before one of them."""
        self._run_dir = run_dir
        self._on_learned = on_learned
        self._watched: dict[int, _Watched] = {}

    def watch(self, pid: int) -> None:
        """Look at the log of worker `pid`."""
        self._watched[pid] = _Watched(log_file(self._run_dir, pid))

    def trains(self, pid: int) -> None:
        """The worker has shown a sign of training: what it imported for that is in its log."""
        if (watched := self._watched.get(pid)) is not None:
            watched.trains = True

    def look(self) -> None:
        """Look at each once; called every second or so. Reading a log once is enough until its worker ends."""
        for watched in self._watched.values():
            if not watched.trains or watched.quiet > _QUIET_LOOKS:
                continue
            try:
                size = watched.path.stat().st_size
            except OSError:
                continue
            watched.quiet = watched.quiet + 1 if size == watched.size else 0
            watched.size = size
            if watched.quiet == _QUIET_LOOKS:
                watched.quiet += 1
                self._on_learned(names_in(watched.path), variables_in(watched.path))

    def ended(self, pid: int) -> None:
        """The worker is gone: what it imported last is learned, and its log removed."""
        if (watched := self._watched.pop(pid, None)) is not None:
            if names := names_in(watched.path):
                self._on_learned(names, variables_in(watched.path))
            watched.path.unlink(missing_ok=True)
