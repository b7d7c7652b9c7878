"""What a script imported before, kept from one launcher to the next on this machine.

By script and content: an edited script starts from nothing. Only names are kept, so that no code can be stale:
what is imported by them is what is installed then, and never what is the user's own and may be edited.
"""

import contextlib
import hashlib
import logging
import os
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch.forking import EntrypointKind
from holdfast.agent.launch.preload import (
    BROUGHT,
    SINGLE_THREADED,
    PreloadList,
    is_installed,
    read_list,
    write_list,
)
from holdfast.agent.launch.settings import Entrypoint
from holdfast.api.bounds import LEARNED

log = logging.getLogger(__name__)

CACHE_VARIABLE: Final = "HOLDFAST_CACHE"
_FOLDER: Final = "imports"


class LearnedImports:
    """The list of one launcher: what the job names, and where it says so what the script imported before."""

    def __init__(
        self, preload: Iterable[str], entrypoint: Entrypoint, environment: Mapping[str, str], run_dir: Path
    ) -> None:
        """What is learned lies in the user's cache, or in `run_dir` where that cannot be written."""
        names = tuple(preload)
        self.wanted = PreloadList(tuple(name for name in names if name != LEARNED))
        self._worth: dict[str, bool] = {}  # by top-level package
        self._file: Path | None = None
        if LEARNED in names and entrypoint.kind is not EntrypointKind.PROGRAM:
            self._file = _folder(environment, run_dir) / f"{key_of(entrypoint)}.json"
            known = read_list(self._file)
            whole = self.wanted.learning(known.modules).modules
            is_proven = known.proven and len(whole) == len(known.modules)
            self.wanted = PreloadList(whole, known.left, is_proven, known.changed)

    @property
    def learns(self) -> bool:
        """Whether what the script imports is of interest."""
        return self._file is not None

    def learn(self, names: Iterable[str], changed: Iterable[str] = ()) -> bool:
        """Take in what the script was seen to import, and which variables it had `changed` by then. Whether that
        is a reason to make another warm parent: more packages are. Variables are for the next launcher's, for what
        was set before a package was imported is learned with it.
        """
        before = self.wanted
        worth = (name for name in names if self._is_worth_it(name.partition(".")[0]))
        self.wanted = before.learning(worth, changed)
        if self.wanted == before:
            return False
        self._keep()
        return bool(self.wanted.units().keys() - before.units().keys())

    def _is_worth_it(self, unit: str) -> bool:
        """An installed package that neither Python nor the plain warm parent brings along."""
        if unit not in self._worth:
            brought = unit in sys.stdlib_module_names or unit in BROUGHT
            self._worth[unit] = not brought and is_installed(unit)
        return self._worth[unit]

    def leave(self, worked: PreloadList) -> None:
        """Take in that a warm parent has worked through the list, and what it had to leave."""
        tried = msgspec.structs.replace(self.wanted, left=worked.left)  # it may have grown meanwhile
        tried = msgspec.structs.replace(tried, proven=tried.units().keys() <= worked.units().keys())
        if tried != self.wanted:
            self.wanted = tried
            self._keep()

    def _keep(self) -> None:
        if self._file is None:
            return
        try:
            write_list(self._file, self.wanted)
        except OSError as error:
            log.info("what the script imports is not kept for the next launcher error=%s", error)


def _folder(environment: Mapping[str, str], run_dir: Path) -> Path:
    for cache in (cache_of(environment), run_dir):
        folder = cache / _FOLDER
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError:
            continue
        if os.access(folder, os.W_OK):
            return folder
    return run_dir


def cache_of(environment: Mapping[str, str]) -> Path:
    """The folder for what may be lost: as `HOLDFAST_CACHE` says, else the user's.

    Source: https://specifications.freedesktop.org/basedir-spec/latest/ (XDG_CACHE_HOME)
    """
    if given := environment.get(CACHE_VARIABLE):
        return Path(given)
    home = Path(environment.get("HOME") or "/nonexistent")
    return Path(environment.get("XDG_CACHE_HOME") or home / ".cache") / "holdfast"


def key_of(entrypoint: Entrypoint) -> str:
    """What the same script, of the same content, under the same interpreter has alone.

    What had to be left where other threads were kept from starting is tried again.
    """
    whole = hashlib.blake2b(digest_size=16)
    target = entrypoint.argv[0]
    terms = repr(sorted(SINGLE_THREADED.items()))
    for part in (terms, sys.version, sys.prefix, entrypoint.kind.value, os.path.abspath(target)):
        whole.update(f"{part}\0".encode("utf-8", "surrogateescape"))
    with contextlib.suppress(OSError):  # a module's name, which the worker looks up
        whole.update(Path(target).read_bytes())
    return whole.hexdigest()
