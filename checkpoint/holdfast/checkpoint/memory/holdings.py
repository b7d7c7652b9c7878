"""What lies in a node's memory folder: the arenas of its own workers and the copies it keeps for others."""

import os
import re
from collections.abc import Iterable, Sequence
from pathlib import Path

from holdfast.api.errors import Damaged
from holdfast.checkpoint.manifest import BLOCK_BYTES
from holdfast.checkpoint.memory.arena import Arena, Held
from holdfast.checkpoint.memory.protocol import Item, Which
from holdfast.checkpoint.memory.shelf import slot_of

_COPY = re.compile(r"rank-(\d{5,9})\.(\d)\.copy")


def copy_name(rank: int, number: int) -> str:
    return f"rank-{rank:05d}.{number}.copy"


def copied_rank(name: str) -> int | None:
    """The rank whose copy has this file name, None for any other name."""
    match = _COPY.fullmatch(name)
    return int(match[1]) if match else None


class Holding:
    """One arena of the folder."""

    def __init__(self, arena: Arena) -> None:
        self.arena = arena
        self.slot = slot_of(arena.path.name)
        self._version = (-1, -1, -1)
        self._held: Held | None = None

    @property
    def is_copy(self) -> bool:
        return self.slot is None

    def held(self) -> Held | None:
        """What is in it now; read again only when that has changed."""
        version = self.arena.version
        if version != self._version:
            self._version, self._held = version, self.arena.read()
        return self._held


class Holdings:
    """The folder as it was at the last `look`. Only snapshots of `owner` count."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder = folder
        self.owner = owner
        self._found: dict[str, Holding] = {}

    def look(self) -> None:
        """Take what came, drop what went. Raises FileNotFoundError when the folder itself is gone."""
        names = {name for name in os.listdir(self.folder) if _is_arena(name)}
        for name in set(self._found) - names:
            del self._found[name]
        for name in sorted(names):
            known = self._found.get(name)
            if known is None or not known.arena.is_at_path:
                self._take(name)

    def add(self, arena: Arena) -> Holding:
        """One that was made here."""
        self._found[arena.path.name] = holding = Holding(arena)
        return holding

    def all(self) -> list[tuple[Holding, Held]]:
        """Every complete snapshot of this owner, newest first, own ones before copies."""
        pairs = [(holding, held) for holding in self._found.values() if (held := holding.held())]
        pairs = [pair for pair in pairs if pair[1].record.owner == self.owner]
        return sorted(pairs, key=lambda pair: (pair[1].record.age, not pair[0].is_copy), reverse=True)

    def strays(self) -> list[Holding]:
        """What counts for nobody: another owner's, and copies that never were complete."""
        return [each for each in self._found.values() if self._is_stray(each)]

    def find(self, which: Which) -> tuple[Holding, Held] | None:
        for holding, held in self.all():
            if which_of(held) == which:
                return holding, held
        return None

    def find_block(self, wanted: str) -> memoryview | None:
        """A block of a sealed image, by its hash. What is there is for the asker to verify."""
        for holding, held in self.all():
            if held.blocks is not None and wanted in held.blocks:
                return block_of(holding.arena, held.blocks.index(wanted), held.record.image_bytes)
        return None

    def copies_of(self, rank: int) -> list[Holding]:
        return [each for name, each in self._found.items() if copied_rank(name) == rank]

    def drop(self, holdings: Iterable[Holding]) -> None:
        """Give the memory back. Whoever still reads one of them reads on; the memory goes when it is done."""
        for each in holdings:
            each.arena.path.unlink(missing_ok=True)
            self._found.pop(each.arena.path.name, None)

    def items(self) -> tuple[Item, ...]:
        return tuple(_item(holding, held) for holding, held in self.all())

    def _take(self, name: str) -> None:
        try:
            self.add(Arena.open(self.folder / name))
        except (Damaged, OSError):
            self._found.pop(name, None)

    def _is_stray(self, holding: Holding) -> bool:
        held = holding.held()
        if held is None:
            return holding.is_copy
        return held.record.owner != self.owner


def which_of(held: Held) -> Which:
    return Which(rank=held.record.rank, round=held.record.round, step=held.record.step)


def outdated(pairs: Iterable[tuple[Holding, Held]]) -> list[Holding]:
    """Snapshots of rounds that are over for good: two steps of a newer round are held here, with their copies
    where copies are made. Until then the older ones may still be the newest that a lost node does not take along.

    A worker's own arenas stay while it has any of the newest round: its next snapshots go there.
    """
    pairs = list(pairs)
    newest = max((held.record.round for _, held in pairs), default=0)
    current = [(holding, held) for holding, held in pairs if held.record.round == newest]
    if len(_settled_steps(current)) < 2:
        return []
    alive = {holding.slot for holding, _ in current}
    return [
        holding
        for holding, held in pairs
        if held.record.round < newest and (holding.is_copy or holding.slot not in alive)
    ]


def _settled_steps(pairs: Sequence[tuple[Holding, Held]]) -> set[int]:
    is_copied = any(holding.is_copy or held.record.keepers for holding, held in pairs)
    return {held.record.step for holding, held in pairs if not is_copied or holding.is_copy or held.copies}


def block_of(arena: Arena, number: int, image_bytes: int) -> memoryview:
    start = number * BLOCK_BYTES
    return arena.image[start : min(start + BLOCK_BYTES, image_bytes)]


def _is_arena(name: str) -> bool:
    return slot_of(name) is not None or copied_rank(name) is not None


def _item(holding: Holding, held: Held) -> Item:
    record = held.record
    return Item(
        round=record.round,
        step=record.step,
        rank=record.rank,
        world_size=record.world_size,
        image_bytes=record.image_bytes,
        is_copy=holding.is_copy,
        is_sealed=held.blocks is not None,
        copies=held.copies,
        parent=record.parent,
        healthy=record.healthy,
    )
