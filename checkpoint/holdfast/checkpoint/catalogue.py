"""What a storage of checkpoints holds, for people: every committed name, how it stands, and why it is kept."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from math import prod

from holdfast.api.checkpoint import Health, health_of, restore_order
from holdfast.api.errors import Damaged, InvalidInput, Problem
from holdfast.checkpoint.commit.discovery import committed_at, committed_step, discover, lineage
from holdfast.checkpoint.commit.retention import Need, Retention, Why, judge
from holdfast.checkpoint.commit.storage import Storage
from holdfast.checkpoint.format.index import Stored, StoredTensor


class Place(StrEnum):
    """What a checkpoint is to the next restore."""

    NEWEST = "newest"  # it is tried first
    KEPT = "kept"  # it is tried when those after it are damaged
    UNHEALTHY = "unhealthy"  # passed over, unless nothing healthy is left and it is below what the job refuses
    GIVEN_UP = "given up"  # of a history that a rewind has left: never tried
    UNREADABLE = "unreadable"  # passed over


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One committed name. Where it cannot be read, all but `name`, `step` and `place` may be None, and `reason`
    says why.

    `size_bytes` is that of all files the manifest lists, `committed_at` Unix time in seconds. `verified` is
    whether its replicas are known to have been equal, None: nobody has compared. `kept` is why the job's next
    deletion leaves it, empty: it goes then, or only its number among the newest could tell and no job has said how
    many it keeps.
    """

    name: str
    step: int
    place: Place
    health: Health = Health.UNKNOWN
    verified: bool | None = None
    kept: tuple[Why, ...] = ()
    round: int | None = None
    world_size: int | None = None
    parent: int | None = None
    size_bytes: int | None = None
    committed_at: float | None = None
    reason: str | None = None


@dataclass(frozen=True, slots=True)
class Catalogue:
    """Every committed checkpoint, highest step first, by what the job has left in the storage (`need`). `trouble`
    is why that cannot be read: then nothing is known of what the job found unhealthy, verified or keeps.
    """

    entries: tuple[Entry, ...]
    need: Need
    trouble: str = ""


def catalogue(storage: Storage) -> Catalogue:
    """What is there. Raises OSError when the storage fails."""
    need, trouble = Need(), ""
    try:
        need = storage.commits.entered().need
    except Damaged as damage:
        trouble = str(damage)
    found, unreadable = discover(storage)
    names = [each.name for each in found] + [each.name for each in unreadable]
    dates = {name: committed_at(storage, name) for name in names}
    keep = need.keep or len(found) or 1
    retention = Retention(keep, need.compared_every, need.verified, unhealthy_from=need.unhealthy_from)
    kept = judge(found, unreadable, retention, dates.get).kept
    if not need.keep:  # Which are the newest the job keeps is not known where none has said how many.
        kept = {name: tuple(why for why in said if why is not Why.NEWEST) for name, said in kept.items()}
    line = lineage(found)
    order = [each.name for each in restore_order(line, need.unhealthy_from)]
    going_on = {each.name for each in line}
    entries = [
        Entry(
            name=each.name,
            step=committed_step(each.name) or 0,
            place=Place.UNREADABLE,
            kept=kept.get(each.name, ()),
            committed_at=dates[each.name],
            reason=each.reason,
        )
        for each in unreadable
    ]
    for each in found:
        manifest, is_past = each.manifest, each.name not in going_on
        # What the job knows is of the history that goes on.
        health = health_of(each, None if is_past else need.unhealthy_from)
        place = Place.UNHEALTHY if health is Health.UNHEALTHY else Place.KEPT
        if is_past:
            place = Place.GIVEN_UP
        elif each.name in order[:1]:
            place = Place.NEWEST
        entries.append(
            Entry(
                name=each.name,
                step=manifest.step,
                place=place,
                health=health,
                verified=None if need.verified is None or is_past else manifest.step <= need.verified,
                kept=kept.get(each.name, ()),
                round=manifest.round,
                world_size=manifest.world_size,
                parent=manifest.parent,
                size_bytes=sum(record.size_bytes for record in manifest.files.values()),
                committed_at=dates[each.name],
            )
        )
    return Catalogue(tuple(sorted(entries, key=lambda each: (each.step, each.name), reverse=True)), need, trouble)


def choose(entries: Sequence[Entry], step: int | None = None) -> Entry:
    """The checkpoint of `step`, by default the one that a restore would try first.

    Raises InvalidInput, with what there is, when there is none.
    """
    if step is None:
        # Where a job refuses all there is, people still want to look at the newest.
        for place in (Place.NEWEST, Place.UNHEALTHY):
            for each in entries:
                if each.place is place:
                    return each
    for each in entries:
        if each.step == step:
            return each
    steps = sorted(each.step for each in entries)
    there = f"the steps there are {', '.join(map(str, steps))}" if steps else "no checkpoint is there"
    raise InvalidInput(Problem(field="step", value="newest" if step is None else step, fix=there))


def size_of(stored: Stored) -> int:
    """The bytes of an entry's archives, each chunk once."""
    if isinstance(stored, StoredTensor):
        return sum(chunk.length_bytes for chunk in stored.chunks)
    return stored.length_bytes


def elements(entries: Mapping[str, Stored]) -> int:
    """How many numbers the tensors hold together."""
    return sum(prod(stored.shape) for stored in entries.values() if isinstance(stored, StoredTensor))
