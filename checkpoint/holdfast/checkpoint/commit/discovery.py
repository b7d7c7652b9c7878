"""The names a checkpoint directory holds, and which committed checkpoints a round may restore, newest first.

step-00000012                     committed
step-00000012.7-<token>_<attempt> committed by round 7 in an object store, also where it was copied from there
step-00000012.tmp-7-<token>       being written by round 7
step-00000012.old-<token>         set aside while its successor takes its place
step-00000012.gone-<token>        being deleted
fence, fence.lock                 the highest round that entered, and what guards it

Newest is not the highest step: a round that went back to step 8 and committed 9 gave up the 12 of the round before
it. Each manifest names its round and the step that round had restored, so the line of descent is known.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.errors import Damaged
from holdfast.checkpoint.format import index, manifest
from holdfast.checkpoint.format.files import Files
from holdfast.checkpoint.format.index import Index, require_whole
from holdfast.checkpoint.format.manifest import Manifest
from holdfast.checkpoint.format.verifiedfile import VerifiedFile

_COMMITTED = re.compile(r"step-(\d{8,})(?:\.\d+-\w+)?")
_STAGED = re.compile(r"step-\d{8,}\.tmp-(\d+)-(\w+)")
_SET_ASIDE = re.compile(r"(step-\d{8,})\.old-\w+")
_DOOMED = re.compile(r"step-\d{8,}\.gone-\w+")


def committed_name(step: int) -> str:
    return f"step-{step:08d}"


def staged_name(step: int, *, round: int, token: str) -> str:
    return f"{committed_name(step)}.tmp-{round}-{token}"


def set_aside_name(committed: str, token: str) -> str:
    return f"{committed}.old-{token}"


def doomed_name(committed: str, token: str) -> str:
    return f"{committed}.gone-{token}"


def committed_step(name: str) -> int | None:
    """The step of a committed checkpoint's name, None for any other name."""
    match = _COMMITTED.fullmatch(name)
    return int(match[1]) if match else None


def staged_by(name: str) -> tuple[int, str] | None:
    """The round and the token of who stages under this name, None for any other name."""
    match = _STAGED.fullmatch(name)
    return (int(match[1]), match[2]) if match else None


def set_aside_from(name: str) -> str | None:
    """The committed name that was set aside under this one, None for any other name."""
    match = _SET_ASIDE.fullmatch(name)
    return match[1] if match else None


def is_doomed(name: str) -> bool:
    return _DOOMED.fullmatch(name) is not None


def manifest_path(name: str) -> str:
    return f"{name}/{manifest.FILE_NAME}"


def committed_at(files: Files, name: str) -> float | None:
    """Unix time in seconds, None where nobody can tell. The manifest is the last file before the commit."""
    try:
        return files.modified_at(manifest_path(name))
    except OSError:
        return None


@dataclass(frozen=True, slots=True)
class Found:
    """A committed checkpoint whose manifest could be read and whose files have the sizes it says."""

    name: str
    manifest: Manifest

    @property
    def step(self) -> int:
        return self.manifest.step

    @property
    def healthy(self) -> bool | None:
        return self.manifest.healthy


@dataclass(frozen=True, slots=True)
class Unreadable:
    """A committed name that is none."""

    name: str
    reason: str


def read_manifest(files: Files, name: str) -> Manifest:
    """The manifest of the checkpoint `name`.

    Raises Damaged when it or a file it lists is missing or cut, OSError when the storage cannot tell now.
    """
    try:
        path = manifest_path(name)
        size = min(files.size_bytes(path), manifest.BYTES_MAX + 1)
        found = manifest.decode(files.read(path, 0, size), files.keys)
        if found.step != committed_step(name.partition(".")[0]):
            raise Damaged(f"its manifest is of step {found.step}")
        for file, record in found.files.items():
            size = files.size_bytes(f"{name}/{file}")
            if size != record.size_bytes:
                raise Damaged(f"{file} has {size} bytes instead of {record.size_bytes}")
    except (FileNotFoundError, NotADirectoryError) as error:
        raise Damaged(f"{error.strerror or error} ({error.filename})") from error
    return found


def read_index(files: Files, name: str, manifest: Manifest) -> Index:
    """The verified index of a checkpoint, which says of its files what they can hold. Raises Damaged, or OSError
    when the storage fails.
    """
    record = manifest.files.get(index.FILE_NAME)
    if record is None:
        raise Damaged(f"the manifest of {name} does not list {index.FILE_NAME}")
    if record.size_bytes > index.BYTES_MAX:
        raise Damaged(
            f"the index of {name} has {record.size_bytes} bytes, more than the {index.BYTES_MAX} allowed"
        )
    whole = VerifiedFile(files, f"{name}/{index.FILE_NAME}", record).read(0, record.size_bytes)
    found = index.decode(bytes(whole))
    require_whole(found, manifest)
    return found


def discover(files: Files) -> tuple[list[Found], list[Unreadable]]:
    """Everything committed, in no order that matters, and what only looks so. Raises OSError when the storage
    fails: what cannot be read now may be intact, and counting it as damaged would cost it its place.
    """
    found, unreadable = [], []
    for name in files.names():
        if committed_step(name) is None:
            continue
        try:
            found.append(Found(name=name, manifest=read_manifest(files, name)))
        except Damaged as damage:
            unreadable.append(Unreadable(name=name, reason=str(damage)))
    return found, unreadable


def lineage(found: Sequence[Found], *, limit: int | None = None) -> list[Found]:
    """One line of descent, newest first, from the newest that is not above step `limit` (None: any).

    A round's checkpoints descend from what it had restored: of the rounds before it, only those up to that
    step are kept, and none at all when it had started afresh.
    """
    highest: float = float("inf") if limit is None else limit
    line: list[Found] = []
    for each in sorted(found, key=lambda each: (each.manifest.round, each.manifest.step), reverse=True):
        if line and each.manifest.round < line[-1].manifest.round:
            parent = line[-1].manifest.parent
            highest = min(highest, -1 if parent is None else parent)
        if each.manifest.step <= highest:
            line.append(each)
    return line
