"""A worker's own arenas: which of them the next snapshot may overwrite."""

import logging
import re
import threading
from collections.abc import Mapping
from pathlib import Path

from holdfast.api.errors import Damaged
from holdfast.checkpoint.memory.arena import Arena, Held

ARENAS = 3
"""The newest snapshot, the newest that has its copies, and one to write to."""

SPARES = 2
"""More of them while copies take longer than the time between two snapshots, and while a durable save reads one. A
rank that left a snapshot out would have no step in common with those that did not.
"""

_LOG = logging.getLogger(__name__)

_OWN = re.compile(r"slot-(\d{3})\.(\d+)\.own")


def own_name(slot: int, number: int) -> str:
    """The file of a worker's arena. It is named by the worker's local rank: whatever rank it has in the next
    round, it takes over the memory that is there.
    """
    return f"slot-{slot:03d}.{number}.own"


def slot_of(name: str) -> int | None:
    """The local rank of the worker whose arena has this file name, None for any other name."""
    match = _OWN.fullmatch(name)
    return int(match[1]) if match else None


class Shelf:
    """The arenas of one worker, found again when the worker starts anew.

    Only snapshots of this `owner` and of rounds from `since_round` on are worth keeping.
    """

    def __init__(self, folder: Path, slot: int, *, owner: str, since_round: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = owner
        self._since_round = since_round
        self._paths = [folder / own_name(slot, number) for number in range(ARENAS + SPARES)]
        self._arenas = [_find(path) for path in self._paths]
        self._pinned: list[Arena] = []
        self._making = threading.Lock()
        self._spare: threading.Thread | None = None

    def prepare(self, capacity_bytes: int, *, arenas: int = 1, record_bytes: int = 0) -> None:
        """Make that many of the missing arenas now, so that no snapshot has to wait for it. For a background
        thread; raises as `free` does.
        """
        for number in range(min(arenas, len(self._paths))):
            with self._making:
                if self._arenas[number] is None:
                    self._with_room(number, capacity_bytes, record_bytes)

    def free(self, capacity_bytes: int, *, now_s: float, keepers: int = 0, record_bytes: int = 0) -> Arena | None:
        """An arena with at least that room that may be overwritten; None when none may be now: the snapshot is
        then left out, since training waits for no network. Memory for the spares is made meanwhile.

        `now_s` is the machine's monotonic clock. Never given: the newest complete one; one pinned or held by
        somebody who reads it; with `keepers`, the newest that has its copies, and the newest that is to have them.
        Of the others one without copies goes first. Raises OSError (ENOSPC) when there is no memory for it.
        """
        with self._making:
            # What was deleted under a worker would take snapshots that nobody finds.
            self._arenas = [arena if arena is not None and arena.is_at_path else None for arena in self._arenas]
            held = {number: found for number, arena in enumerate(self._arenas) if (found := self._worth(arena))}
            kept = _kept(held, keepers)
            spent = [
                number
                for number, arena in enumerate(self._arenas)
                if arena is not None and not (number in kept or arena in self._pinned or arena.is_held(now_s))
            ]
            if spent:
                number = min(spent, key=lambda each: _worth_of(held.get(each)))
                return self._with_room(number, capacity_bytes, record_bytes)
            missing = [number for number, arena in enumerate(self._arenas) if arena is None]
            if missing and missing[0] < ARENAS:
                return self._with_room(missing[0], capacity_bytes, record_bytes)
        if missing and self._spare is None:
            self._spare = threading.Thread(
                target=self._make_spare, args=(missing[0], capacity_bytes, record_bytes), daemon=True
            )
            self._spare.start()
        return None

    @property
    def copy_s(self) -> float:
        """How long the longest of the last copies of these arenas took; 0 when none was made."""
        return max((arena.copy_s for arena in self._arenas if arena is not None), default=0.0)

    def pin(self, arena: Arena) -> None:
        """Until `unpin` the arena is not given away: a durable save reads it."""
        self._pinned.append(arena)

    def unpin(self, arena: Arena) -> None:
        self._pinned.remove(arena)

    def _worth(self, arena: Arena | None) -> Held | None:
        found = None if arena is None else arena.read()
        if found is None or found.record.owner != self._owner or found.record.round < self._since_round:
            return None
        return found

    def _make_spare(self, number: int, capacity_bytes: int, record_bytes: int) -> None:
        """Without holding anybody up. When there is no memory for a spare, it is not tried again."""
        try:
            made = Arena.create(self._paths[number], capacity_bytes, record_bytes)
        except OSError as error:
            _LOG.warning("no spare arena, so snapshots are left out while copies are slow reason=%s", error)
            return
        with self._making:
            self._arenas[number] = made
        self._spare = None

    def _with_room(self, number: int, capacity_bytes: int, record_bytes: int) -> Arena:
        arena = self._arenas[number]
        if (
            arena is not None
            and arena.capacity_bytes >= capacity_bytes
            and arena.record_room_bytes >= record_bytes
        ):
            return arena
        if arena is not None:  # Gone before its successor is made: both may not fit.
            self._arenas[number] = None
            arena.close()
            self._paths[number].unlink(missing_ok=True)
        made = Arena.create(self._paths[number], capacity_bytes, record_bytes)
        self._arenas[number] = made
        return made


def _kept(held: Mapping[int, Held], keepers: int) -> set[int]:
    """The newest complete one; with keepers also the newest that has a copy, and the newest that waits for it."""
    newest = sorted(held, key=lambda number: held[number].record.age)
    if not keepers:
        return set(newest[-1:])
    copied = [number for number in newest if held[number].copies]
    waiting = [number for number in newest if held[number].record.keepers and not held[number].copies]
    return {*newest[-1:], *copied[-1:], *waiting[-1:]}


def _worth_of(held: Held | None) -> tuple[bool, bool, tuple[int, int]]:
    """What is given up first: what counts for nothing, then what has no copies, then what is old."""
    return (held is not None, held is not None and held.copies > 0, held.record.age if held else (0, 0))


def _find(path: Path) -> Arena | None:
    try:
        return Arena.open(path)
    except (Damaged, OSError):
        return None
