"""What lies in a node's memory folder: the buffers of its own workers and the copies it keeps for others."""

import os
import re
from collections.abc import Iterable
from pathlib import Path

from holdfast.api.errors import Damaged
from holdfast.checkpoint.memory.protocol import Item, Which
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer

_OWN = re.compile(r"slot-(\d{3})\.(\d+)\.own")
_COPY = re.compile(r"rank-(\d{5,9})\.(\d)\.copy")


def own_name(slot: int, number: int) -> str:
    """The file of a worker's buffer. It is named by the worker's local rank: whatever rank it has in the next
    round, it takes over the memory that is there.
    """
    return f"slot-{slot:03d}.{number}.own"


def slot_of(name: str) -> int | None:
    """The local rank of the worker whose buffer has this file name, None for any other name."""
    match = _OWN.fullmatch(name)
    return int(match[1]) if match else None


def copy_name(rank: int, number: int) -> str:
    return f"rank-{rank:05d}.{number}.copy"


def copied_rank(name: str) -> int | None:
    """The rank whose copy has this file name, None for any other name."""
    match = _COPY.fullmatch(name)
    return int(match[1]) if match else None


class BufferFile:
    """One buffer of the folder."""

    def __init__(self, buffer: SharedBuffer) -> None:
        self.buffer = buffer
        self.slot = slot_of(buffer.path.name)
        self._version = (-1, -1, -1)
        self._held: HeldSnapshot | None = None

    @property
    def is_copy(self) -> bool:
        return self.slot is None

    def held(self) -> HeldSnapshot | None:
        """What is in it now; read again only when that has changed."""
        version = self.buffer.version
        if version != self._version:
            self._version, self._held = version, self.buffer.read()
        return self._held


class NodeSnapshots:
    """The folder as it was at the last `refresh`. Only snapshots of `owner` count."""

    def __init__(self, folder: Path, owner: str) -> None:
        self.folder = folder
        self.owner = owner
        self._found: dict[str, BufferFile] = {}

    def refresh(self) -> None:
        """Take what came, drop what went. Raises FileNotFoundError when the folder itself is gone."""
        names = {
            name for name in os.listdir(self.folder) if slot_of(name) is not None or copied_rank(name) is not None
        }
        for name in set(self._found) - names:
            del self._found[name]
        for name in sorted(names):
            known = self._found.get(name)
            if known is None or not known.buffer.is_at_path:
                try:
                    self.add(SharedBuffer.open(self.folder / name))
                except (Damaged, OSError):
                    self._found.pop(name, None)

    def add(self, buffer: SharedBuffer) -> BufferFile:
        """One that was made here."""
        self._found[buffer.path.name] = file = BufferFile(buffer)
        return file

    def all(self) -> list[tuple[BufferFile, HeldSnapshot]]:
        """Every complete snapshot of this owner, newest first, own ones before copies."""
        pairs = [(file, held) for file in self._found.values() if (held := file.held())]
        pairs = [pair for pair in pairs if pair[1].record.owner == self.owner]
        return sorted(pairs, key=lambda pair: (pair[1].record.age, not pair[0].is_copy), reverse=True)

    def strays(self) -> list[BufferFile]:
        """What counts for nobody: another owner's, and copies that never were complete."""
        return [
            file
            for file in self._found.values()
            if (file.is_copy if (held := file.held()) is None else held.record.owner != self.owner)
        ]

    def find(self, which: Which) -> tuple[BufferFile, HeldSnapshot] | None:
        for file, held in self.all():
            record = held.record
            if (record.rank, record.round, record.step) == (which.rank, which.round, which.step):
                return file, held
        return None

    def find_block(self, wanted: str) -> memoryview | None:
        """A block of a sealed image, by its hash. What is there is for the asker to verify."""
        for file, held in self.all():
            if held.blocks is not None and wanted in held.blocks:
                return file.buffer.block(held.blocks.index(wanted), held.record.image_bytes)
        return None

    def copies_of(self, rank: int) -> list[BufferFile]:
        return [each for name, each in self._found.items() if copied_rank(name) == rank]

    def drop(self, snapshots: Iterable[BufferFile]) -> None:
        """Give the memory back. Whoever still reads one of them reads on; the memory goes when it is done."""
        for each in snapshots:
            each.buffer.path.unlink(missing_ok=True)
            self._found.pop(each.buffer.path.name, None)

    def items(self) -> tuple[Item, ...]:
        return tuple(
            Item(
                round=held.record.round,
                step=held.record.step,
                rank=held.record.rank,
                world_size=held.record.world_size,
                image_bytes=held.record.image_bytes,
                is_copy=file.is_copy,
                is_sealed=held.blocks is not None,
                copies=held.copies,
                parent=held.record.parent,
                healthy=held.record.healthy,
            )
            for file, held in self.all()
        )


def outdated(pairs: Iterable[tuple[BufferFile, HeldSnapshot]]) -> list[BufferFile]:
    """Snapshots of rounds that are over for good: two steps of a newer round are held here, with their copies
    where copies are made. Until then the older ones may still be the newest that a lost node does not take along.

    A worker's own buffers stay while it has any of the newest round: its next snapshots go there.
    """
    pairs = list(pairs)
    newest = max((held.record.round for _, held in pairs), default=0)
    current = [(file, held) for file, held in pairs if held.record.round == newest]
    is_copied = any(file.is_copy or held.record.keepers for file, held in current)
    settled = {held.record.step for file, held in current if not is_copied or file.is_copy or held.copies}
    if len(settled) < 2:
        return []
    alive = {file.slot for file, _ in current}
    return [
        file for file, held in pairs if held.record.round < newest and (file.is_copy or file.slot not in alive)
    ]
