"""How one of the two runs is started again: its command, its code, its environment, as its manifest has them.

Code is taken from where the run had it, as long as the files there are still those that it ran, and the work tree
is at the same commit with the same diff; without a commit the files of the script's folder are all that is known.
Else, the commit and the diff are laid out in a folder of their own; nothing is written to the work tree.

Where the code is somewhere else than where it ran, the recorded paths of it are read as paths in the new place.
"""

import hashlib
import os
import re
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from holdfast.api.errors import HoldfastError, InvalidInput, Problem
from holdfast.api.runmanifest import DIFF_BYTES_MAX, GIT_DIFF, Code, RunManifest, Section, is_recorded
from holdfast.api.secrecy import LEFT_OUT, without_secrets

_COMMIT: Final = re.compile(r"[0-9a-f]{40}|[0-9a-f]{64}")
_GIT_PATIENCE_S: Final = 120.0
RANKS_MAX: Final = 8
"""More are started only when somebody says so: this is one machine."""
_OF_THE_MACHINE: Final = ("CUDA_VISIBLE_DEVICES",)
_NAMES_SHOWN: Final = 4
_KEPT: Final = ("HOLDFAST_CHECKPOINT_KEY_FILE",)


@dataclass(frozen=True, slots=True)
class Program:
    """What is started, for each of `ranks` ranks. `name` is A or B. `others` are the files of the code that are
    not as they were recorded.
    """

    name: str
    command: tuple[str, ...]
    directory: Path
    environment: Mapping[str, str]
    ranks: int
    others: tuple[str, ...] = ()


class NotThere(HoldfastError):
    """The code of a run cannot be laid out; why."""


def program_of(
    name: str,
    manifest: RunManifest,
    *,
    scratch: Path,
    directory: Path | None,
    command: Sequence[str],
    ranks: int | None,
) -> Program:
    """Run `name` as `manifest` says. `directory` and `command` are what the user says instead, if anything;
    `scratch` is for code that has to be laid out.

    Raises InvalidInput, with what to say, when the manifest does not tell enough.
    """
    words = list(command or manifest.command)
    if not words or any(LEFT_OUT in word for word in words):
        fix = f"say it with --{name.lower()}-command: what was recorded is not whole, or a secret was left out"
        raise InvalidInput(Problem(field=f"command of {name}", value=" ".join(words), fix=fix))
    if not command and shutil.which(words[0]) is None:
        words[0] = sys.executable
    others: tuple[str, ...] = ()
    if directory is None:
        place, words = _where(name, manifest.code, words, scratch)
    elif command or not manifest.code.directory:
        place = directory.absolute()
    else:
        place, words, others = _elsewhere(name, manifest.code, words, directory.absolute())
    if not place.is_dir():
        fix = f"say with --{name.lower()}-directory where it is to be started"
        raise InvalidInput(Problem(field=f"directory of {name}", value=str(place), fix=fix))
    if command:
        others = tuple(_named_others(manifest.code, place, words))
    environment = _environment(manifest, os.environ)
    return Program(name, tuple(words), place, environment, ranks or _recorded_ranks(name, manifest), others)


def _recorded_ranks(name: str, manifest: RunManifest) -> int:
    said = manifest.of(Section.TOPOLOGY).get("world_size", "1")
    ranks = int(said) if said.isdigit() else 1
    if not 1 <= ranks <= RANKS_MAX:
        fix = f"say how many ranks to start here (--ranks); in another world than that of {name} bits differ"
        raise InvalidInput(Problem(field="world size", value=said, fix=fix))
    return ranks


def _environment(manifest: RunManifest, around: Mapping[str, str]) -> dict[str, str]:
    """This process's, but those that are recorded of a run are as they were, also where they were not set; what
    names devices of that machine is this one's.
    """
    kept = {
        name: value
        for name, value in around.items()
        if name in _KEPT or name in _OF_THE_MACHINE or not (name.startswith("HOLDFAST_") or is_recorded(name))
    }
    recorded = {
        name: value
        for name, value in manifest.of(Section.ENVIRONMENT).items()
        if LEFT_OUT not in value and name not in _OF_THE_MACHINE and not name.endswith(("_IFNAME", "_HCA"))
    }
    return {**kept, **recorded, "PYTHONDONTWRITEBYTECODE": "1"}


def is_as_recorded(code: Code, directory: Path) -> bool:
    """Whether every file that the run had of its own is in `directory` as it was."""
    return bool(code.files) and not any(True for _ in _others(code, directory))


def _others(code: Code, directory: Path) -> Iterator[str]:
    """The files of the run that are not in `directory`, or not as they were."""
    for name, wanted in code.files.items():
        try:
            found = hashlib.sha256((directory / name).read_bytes()).hexdigest()
        except OSError:
            found = ""
        if found != wanted:
            yield name


def _elsewhere(name: str, code: Code, words: list[str], said: Path) -> tuple[Path, list[str], tuple[str, ...]]:
    """Where to start what somebody says is in `said`: the folder that stands there for the recorded directory, the
    words with their paths in it, and the files that are not as they were recorded. `said` may be a copy of that
    directory, of its work tree, or of the script's folder. Raises InvalidInput when it is none.
    """
    directory = Path(code.directory)
    paths = {os.path.normpath(directory / each): wanted for each, wanted in code.files.items()}
    originals = [directory, Path(code.root or directory)]
    if paths:
        originals.append(Path(os.path.commonpath([os.path.dirname(path) for path in paths])))
    found = []
    for original in originals:
        moved = Code(files={_below(original, path): wanted for path, wanted in paths.items()})
        if all((said / each).is_file() for each in moved.files):
            found.append((original, tuple(_others(moved, said))))
    if not found:
        fix = (
            f"{', '.join([*code.files][:_NAMES_SHOWN])} is not in it: name a copy of the folder it was started in"
        )
        raise InvalidInput(Problem(field=f"directory of {name}", value=str(said), fix=fix))
    original, others = min(found, key=lambda each: len(each[1]))
    place = said / directory.relative_to(original) if directory.is_relative_to(original) else said
    return place, [_moved(word, original, said, directory) for word in words], others


def _named_others(code: Code, place: Path, words: Sequence[str]) -> Iterator[str]:
    """Of a command that somebody said: the files that it names, and that are not as they were recorded."""
    for name, wanted in code.files.items():
        for word in words:
            path = place / word
            if path.name == Path(name).name:
                yield from _others(Code(files={path.name: wanted}), path.parent)


def _below(original: Path, path: str) -> str:
    return os.path.relpath(path, original)


def _is_tree_as_recorded(code: Code) -> bool:
    """Whether the work tree is at the commit, with the diff: what the script takes from other folders as well."""
    root, limit = Path(code.root), DIFF_BYTES_MAX
    try:
        head = _git(root, "rev-parse", "HEAD").decode().strip()
        diff = _git(root, *GIT_DIFF)[:limit].decode(errors="replace")
    except NotThere:
        return False
    return head == code.commit and without_secrets(diff)[:limit] == code.diff


def _where(name: str, code: Code, words: list[str], scratch: Path) -> tuple[Path, list[str]]:
    directory = Path(code.directory)
    if is_as_recorded(code, directory) and (not code.commit or _is_tree_as_recorded(code)):
        return directory, words
    fix = f"check the code of {name} out somewhere and say where (--{name.lower()}-directory)"
    if not code.commit or code.left_out:
        why = (code.left_out and f"its diff is not all ({code.left_out})") or code.unknown or "no commit is known"
        raise InvalidInput(
            Problem(field=f"code of {name}", value=code.directory, fix=f"{fix}: it has changed since, {why}")
        )
    try:
        root = lay_out(code, scratch / f"code-{name}")
    except (NotThere, OSError) as error:
        raise InvalidInput(Problem(field=f"code of {name}", value=code.commit, fix=f"{fix}: {error}")) from error
    original = Path(code.root)
    place = root / directory.relative_to(original) if directory.is_relative_to(original) else root
    if not is_as_recorded(code, place):
        problem = Problem(
            field=f"code of {name}", value=code.commit, fix=f"{fix}: files are not tracked, or differ"
        )
        raise InvalidInput(problem)
    return place, [_moved(word, original, root, directory) for word in words]


def _moved(word: str, original: Path, copy: Path, directory: Path) -> str:
    """A path into `original`, as the one into `copy`, where that has it; also as the value of an option. A
    relative one stays what it is where the program is started at the same place in the copy.
    """
    option, equals, value = word.partition("=") if word.startswith("-") else ("", "", word)
    path = Path(value)
    if not value or not (path.is_absolute() or not directory.is_relative_to(original)):
        return word
    for each in (Path(os.path.normpath(directory / path)), (directory / path).resolve()):
        if each.is_relative_to(original) and (there := copy / each.relative_to(original)).exists():
            return f"{option}{equals}{there}"
    return word


def lay_out(code: Code, target: Path) -> Path:
    """The files of the commit with the diff applied, in `target`, which must not exist. Raises NotThere."""
    if not _COMMIT.fullmatch(code.commit):
        raise NotThere(f"{code.commit!r} is no commit")
    target.mkdir(parents=True)
    archive = target.with_suffix(".tar")
    _git(Path(code.root), "archive", "--format=tar", f"--output={archive}", code.commit)
    with tarfile.open(archive) as packed:
        packed.extractall(target, filter="data")
    archive.unlink()
    if code.diff:
        patch = target.with_suffix(".diff")
        patch.write_text(code.diff)
        _git(target, "apply", "--whitespace=nowarn", str(patch))
        patch.unlink()
    return target


def _git(directory: Path, *words: str) -> bytes:
    # Outside of any work tree `git apply` writes to the folder it is in; the ceiling keeps it from finding one.
    around = {**os.environ, "GIT_TERMINAL_PROMPT": "0", "GIT_CEILING_DIRECTORIES": str(directory.parent)}
    try:
        done = subprocess.run(
            ["git", "-C", str(directory), *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_GIT_PATIENCE_S,
            env=around,
            check=False,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise NotThere(f"git {words[0]} does not answer ({type(error).__name__})") from error
    if done.returncode:
        raise NotThere(f"git {words[0]}: {done.stderr.decode(errors='replace').strip()[-200:]}")
    return done.stdout
