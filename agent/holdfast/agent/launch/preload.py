"""What a warm parent is to import: the list it is given in a file, which also says what it has to leave and why.

The file outlives the process: one that finds a module it must not hold starts itself anew with that written down,
and of one that dies while it imports, the next one finds what it was about to import.
"""

import importlib.util
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec

from holdfast.agent.launch.importlog import NAME, NAMES_MAX
from holdfast.api.bounds import NAME_LENGTH_MAX
from holdfast.api.decoding import decode_json
from holdfast.api.errors import Malformed
from holdfast.api.stacks import is_own

BROUGHT: Final = frozenset({"torch", "numpy", "holdfast"})
"""What every warm parent holds."""
LEFT_MAX: Final = 8
"""Each thing that is left costs a start; a script with more of them is left alone."""
UNIT_LIMIT_S: Final = 120.0
"""One package may take so long; on a busy machine transformers was seen to take 35 s."""

SINGLE_THREADED: Final[Mapping[str, str]] = {
    "OMP_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What keeps libraries from starting threads when they are imported: with more than one, forking is not safe.

The last is for pyarrow, which transformers imports where `datasets` is installed: one of its allocators has a
thread that gives memory back, and without it does that as memory is asked for.
Source: https://jemalloc.net/jemalloc.3.html (background_thread)
"""


class PreloadList(msgspec.Struct, frozen=True):
    """`modules` in the order of their import, `left` what is not imported, by unit, and why. `proven`: a process
    has worked through these units once, so that the next one is done as soon as a worker would be. `changed` are
    variables of the environment that were others in the script by the time of an import.
    """

    modules: tuple[str, ...] = ()
    left: dict[str, str] = {}
    proven: bool = False
    changed: tuple[str, ...] = ()

    def leaving(self, unit: str, why: str) -> "PreloadList":
        """The list without that unit."""
        return msgspec.structs.replace(self, left={**self.left, unit: why})

    def learning(self, names: Iterable[str], changed: Iterable[str] = ()) -> "PreloadList":
        """The list with those names after its own."""
        known = tuple(dict.fromkeys((*self.modules, *names)))[:NAMES_MAX]
        others = tuple(dict.fromkeys((*self.changed, *changed)))[:NAMES_MAX]
        grown = msgspec.structs.replace(self, modules=known, changed=others)
        is_known = grown.units().keys() <= self.units().keys()
        return msgspec.structs.replace(grown, proven=self.proven and is_known)

    def units(self) -> dict[str, tuple[str, ...]]:
        """The modules by top-level package, in the order of the first of each, without what is left."""
        found: dict[str, list[str]] = {}
        for name in self.modules:
            if len(name) <= NAME_LENGTH_MAX and NAME.fullmatch(name) and name != "__main__":
                found.setdefault(name.partition(".")[0], []).append(name)
        return {unit: tuple(names) for unit, names in found.items() if unit not in self.left}


def single_threaded(environment: Mapping[str, str]) -> dict[str, str]:
    """The environment of a process that imports beforehand. Of jemalloc's options the user's stay beside ours."""
    name = "JE_ARROW_MALLOC_CONF"
    options = ",".join(filter(None, (environment.get(name), SINGLE_THREADED[name])))
    return {**environment, **SINGLE_THREADED, name: options}


def write_list(path: Path, wanted: PreloadList) -> None:
    """Put the list there in one piece. Raises OSError."""
    fresh = path.with_name(f"{path.name}.{os.getpid()}")
    fresh.write_bytes(msgspec.json.encode(wanted))
    os.replace(fresh, path)


def read_list(path: Path) -> PreloadList:
    """The list there; an empty one when there is none that can be read."""
    try:
        return decode_json(path.read_bytes(), PreloadList)
    except (OSError, Malformed):
        return PreloadList()


def trying_file(path: Path) -> Path:
    """Where the process that works through the list at `path` says what it is about to import."""
    return path.with_suffix(".trying")


def leave_what_killed(path: Path) -> None:
    """Have the next process leave what the one before died of, or was ended over. Raises OSError."""
    try:
        unit = trying_file(path).read_text()
    except OSError:
        return
    trying_file(path).unlink(missing_ok=True)
    write_list(path, read_list(path).leaving(unit, "the process that imported it died, or it took too long"))


def stamp_of(files: Sequence[str]) -> str:
    """What changes when one of these packages is installed anew: inode, size and time of it and of its folder."""
    seen = []
    for file in files:
        for path in (file, os.path.dirname(file)):
            try:
                about = os.stat(path)
            except OSError:
                seen.append("gone")
            else:
                seen.append(f"{about.st_ino}:{about.st_size}:{about.st_mtime_ns}")
    return " ".join(seen)


def loaded_files() -> tuple[str, ...]:
    """The files of the installed packages that this process has imported, one for each."""
    packages = (module for name, module in tuple(sys.modules.items()) if "." not in name)
    files = {getattr(module, "__file__", None) for module in packages}
    return tuple(sorted(file for file in files if file and "-packages" in file))


def is_installed(unit: str) -> bool:
    """Whether a top-level package is installed, or Python's; what is the user's own may be edited."""
    if unit in sys.builtin_module_names:
        return True
    try:
        found = importlib.util.find_spec(unit)
    except (ImportError, ValueError, AttributeError):
        return False
    if found is None:
        return False
    places = (
        [found.origin] if found.has_location and found.origin else list(found.submodule_search_locations or ())
    )
    return all(not is_own(f"{place}/") for place in places) if places else found.origin in ("built-in", "frozen")
