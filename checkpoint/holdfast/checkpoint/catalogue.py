"""What a directory of checkpoints holds, for people: every committed name, and what became of its history."""

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.checkpoint import index
from holdfast.checkpoint.dating import committed_at
from holdfast.checkpoint.discovery import Found, discover, lineage
from holdfast.checkpoint.index import Index, Stored, StoredTensor
from holdfast.checkpoint.manifest import Manifest
from holdfast.checkpoint.naming import committed_step
from holdfast.checkpoint.storage import Files
from holdfast.checkpoint.verified import VerifiedFile


class Standing(StrEnum):
    """What a checkpoint is to the next restore."""

    NEWEST = "newest"  # it is tried first
    KEPT = "kept"  # it is tried when those after it are damaged
    GIVEN_UP = "given up"  # of a history that a rewind has left: never tried
    UNREADABLE = "unreadable"  # passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One committed name. Where it cannot be read, all but `name`, `step` and `standing` may be None, and `reason`
    says why.

    `size_bytes` is that of all files the manifest lists, `committed_at` Unix time in seconds.
    """

    name: str
    step: int
    standing: Standing
    round: int | None = None
    world_size: int | None = None
    parent: int | None = None
    size_bytes: int | None = None
    committed_at: float | None = None
    reason: str | None = None


def catalogue(files: Files) -> list[Entry]:
    """Every committed checkpoint, highest step first. Raises OSError when the storage fails."""
    found, unreadable = discover(files)
    line = [each.name for each in lineage(found)]
    entries = [_entry(files, each, _standing(each.name, line)) for each in found]
    entries += [
        Entry(
            name=each.name,
            step=committed_step(each.name) or 0,
            standing=Standing.UNREADABLE,
            committed_at=committed_at(files, each.name),
            reason=each.reason,
        )
        for each in unreadable
    ]
    return sorted(entries, key=lambda entry: (entry.step, entry.name), reverse=True)


def choose(files: Files, step: int | None = None) -> str:
    """The name of the checkpoint of `step`, by default of the one that a restore would try first.

    Raises InvalidInput, with what there is, when there is none.
    """
    found, unreadable = discover(files)
    if step is None and found:
        return lineage(found)[0].name
    names = [each.name for each in found] + [each.name for each in unreadable]
    chosen = [name for name in names if committed_step(name) == step]
    if chosen:
        return chosen[0]
    steps = sorted(committed_step(name) or 0 for name in names)
    there = f"the steps there are {', '.join(map(str, steps))}" if steps else "no checkpoint is there"
    raise InvalidInput(Problem(field="step", value="newest" if step is None else step, fix=there))


def read_index(files: Files, name: str, manifest: Manifest) -> Index:
    """The verified index of a checkpoint. Raises Damaged, or OSError when the storage fails."""
    record = manifest.files.get(index.FILE_NAME)
    if record is None:
        raise Damaged(f"the manifest of {name} does not list {index.FILE_NAME}")
    whole = VerifiedFile(files, f"{name}/{index.FILE_NAME}", record).read(0, record.size_bytes)
    return index.decode(bytes(whole))


def size_of(stored: Stored) -> int:
    """The bytes of an entry's archives, each chunk once."""
    if isinstance(stored, StoredTensor):
        return sum(chunk.length_bytes for chunk in stored.chunks)
    return stored.length_bytes


def elements(entries: Mapping[str, Stored]) -> int:
    """How many numbers the tensors hold together."""
    return sum(prod(stored.shape) for stored in entries.values() if isinstance(stored, StoredTensor))


def _standing(name: str, line: list[str]) -> Standing:
    if name not in line:
        return Standing.GIVEN_UP
    return Standing.NEWEST if name == line[0] else Standing.KEPT


def _entry(files: Files, found: Found, standing: Standing) -> Entry:
    manifest = found.manifest
    return Entry(
        name=found.name,
        step=manifest.step,
        standing=standing,
        round=manifest.round,
        world_size=manifest.world_size,
        parent=manifest.parent,
        size_bytes=sum(record.size_bytes for record in manifest.files.values()),
        committed_at=committed_at(files, found.name),
    )
