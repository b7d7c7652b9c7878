"""A rank's snapshots in its node's memory: when they are taken, where they go, and what they say of themselves."""

import logging
import shutil
import threading
import time
from collections.abc import Mapping
from math import ceil
from pathlib import Path

from holdfast.api.control import Assignment
from holdfast.api.errors import Damaged, HoldfastError
from holdfast.api.memory import NodeMemory
from holdfast.checkpoint.capture.image import Snapshot
from holdfast.checkpoint.capture.savegroup import SaveGroup
from holdfast.checkpoint.memory.nodesnapshots import own_name
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.sharedbuffer import HeldSnapshot, SharedBuffer, capacity_for

_LOG = logging.getLogger(__name__)

BUFFERS = 3
"""The newest snapshot, the newest that has its copies, and one to write to."""

SPARES = 2
"""More of them while copies take longer than the time between two snapshots, and while a durable save reads one. A
rank that left a snapshot out would have no step in common with those that did not.
"""

SETTLED_AFTER = 8
"""After so many steps of a round their time is known, and how long copies take."""

_RECORD_BYTES = 512  # Of one tensor: its name and how it is nested, its dtype, shape and place.
_STRIDE_MAX = 1000
_SLACK = 1.25  # Copies do not all take alike long.


class SnapshotSchedule:
    """A snapshot after every `every_steps` steps; copies of each of them, or of some: the same on all ranks.

    A lost node's part is restored from its copy, the others' from their own memory. So the copies must be of a
    step that everybody still holds. Where a copy takes longer than the steps between two snapshots, each rank's
    copies would be of steps of its own; the ranks then agree on which steps are copied, each before the next of
    them comes.
    """

    def __init__(self, group: SaveGroup, every_steps: int) -> None:
        self._group = group
        self._every_steps = every_steps
        self._stride = 1
        self._since: tuple[int, float] | None = None

    @property
    def copies_apart_steps(self) -> int:
        """How many steps lie between two snapshots that are copied."""
        return self._every_steps * self._stride

    def is_due(self, step: int) -> bool:
        """Whether a snapshot is to be taken after `step`."""
        return step % self._every_steps == 0

    def is_copied(self, step: int) -> bool:
        """Whether the snapshot after `step` is to be copied."""
        return step % self.copies_apart_steps == 0

    def agree(self, *, copy_s: float, step: int, now_s: float) -> None:
        """Collective, after `step` at `now_s`; the step time is that since the last time. `copy_s` is how long
        this rank's last copy took, 0 when none was made: a keeper that is dead slows nobody down.
        """
        stride = self._stride  # Until there is something new to go by, as when one step is saved twice.
        if self._since is not None and step > self._since[0]:
            apart_s = self._every_steps * (now_s - self._since[1]) / (step - self._since[0])
            stride = max(1, ceil(min(_SLACK * copy_s / max(apart_s, 1e-6), _STRIDE_MAX)))
        self._since = (step, now_s)
        self._stride = max(int(said) for said in self._group.exchange(str(stride).encode()))


class MemoryStore:
    """The buffers of one worker, found again when the worker starts anew, and which of them may be overwritten.

    Only snapshots of this `owner` and of rounds from `since_round` on are worth keeping.
    """

    def __init__(self, folder: Path, slot: int, *, owner: str, since_round: int = 0) -> None:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        self._owner = owner
        self._since_round = since_round
        self._paths = [folder / own_name(slot, number) for number in range(BUFFERS + SPARES)]
        self._buffers: list[SharedBuffer | None] = []
        for path in self._paths:
            try:
                self._buffers.append(SharedBuffer.open(path))
            except (Damaged, OSError):
                self._buffers.append(None)
        self._pinned: list[SharedBuffer] = []
        self._making = threading.Lock()
        self._spare: threading.Thread | None = None

    def prepare(self, capacity_bytes: int, *, buffers: int = 1, record_bytes: int = 0) -> None:
        """Make that many of the missing buffers now, so that no snapshot has to wait for it. For a background
        thread; raises as `free` does.
        """
        for number in range(min(buffers, len(self._paths))):
            with self._making:
                if self._buffers[number] is None:
                    self._with_room(number, capacity_bytes, record_bytes)

    def free(
        self, capacity_bytes: int, *, now_s: float, keepers: int = 0, record_bytes: int = 0
    ) -> SharedBuffer | None:
        """A buffer with at least that room that may be overwritten; None when none may be now: the snapshot is
        then left out, since training waits for no network. Memory for the spares is made meanwhile.

        `now_s` is the machine's monotonic clock. Never given: the newest complete one; one pinned or held by
        somebody who reads it; with `keepers`, the newest that has its copies, and the newest that is to have them.
        Of the others one without copies goes first. Raises OSError (ENOSPC) when there is no memory for it.
        """
        with self._making:
            # What was deleted under a worker would take snapshots that nobody finds.
            self._buffers = [
                buffer if buffer is not None and buffer.is_at_path else None for buffer in self._buffers
            ]
            held = {}
            for number, buffer in enumerate(self._buffers):
                found = None if buffer is None else buffer.read()
                if found and found.record.owner == self._owner and found.record.round >= self._since_round:
                    held[number] = found
            self._give_way(held, now_s)
            kept = _kept(held, keepers)
            spent = [
                number
                for number, buffer in enumerate(self._buffers)
                if buffer is not None and not (number in kept or buffer in self._pinned or buffer.is_held(now_s))
            ]
            if spent:
                # Given up first: what counts for nothing, then what has no copies, then what is old.
                worths = {each: (held[each].copies > 0, held[each].record.age) for each in spent if each in held}
                number = min(spent, key=lambda each: (each in worths, worths.get(each, (False, (0, 0)))))
                return self._with_room(number, capacity_bytes, record_bytes)
            missing = [number for number, buffer in enumerate(self._buffers) if buffer is None]
            if missing and missing[0] < BUFFERS:
                return self._with_room(missing[0], capacity_bytes, record_bytes)
        if missing and self._spare is None:
            self._spare = threading.Thread(
                target=self._make_spare, args=(missing[0], capacity_bytes, record_bytes), daemon=True
            )
            self._spare.start()
        return None

    def _give_way(self, held: dict[int, HeldSnapshot], now_s: float) -> None:
        """Give up snapshots, the newest last, while less is free than one takes: whoever else needs the file
        system, as the workers of a loader do, is killed where it is full.
        """
        there = {number: buffer for number, buffer in enumerate(self._buffers) if buffer is not None}
        for number in sorted(there, key=lambda each: held[each].record.age if each in held else (-1, -1)):
            buffer = there[number]
            free = shutil.disk_usage(buffer.path.parent).free
            if free >= buffer.capacity_bytes:
                return
            if buffer in self._pinned or buffer.is_held(now_s):
                continue
            _LOG.warning("a snapshot in memory gives way to others free_bytes=%d", free)
            self._buffers[number] = None
            held.pop(number, None)
            buffer.close()
            buffer.path.unlink(missing_ok=True)

    @property
    def copy_s(self) -> float:
        """How long the longest of the last copies of these buffers took; 0 when none was made."""
        return max((buffer.copy_s for buffer in self._buffers if buffer is not None), default=0.0)

    def pin(self, buffer: SharedBuffer) -> None:
        """Until `unpin` the buffer is not given away: a durable save reads it."""
        self._pinned.append(buffer)

    def unpin(self, buffer: SharedBuffer) -> None:
        self._pinned.remove(buffer)

    def _make_spare(self, number: int, capacity_bytes: int, record_bytes: int) -> None:
        """Without holding anybody up. When there is no memory for a spare, it is not tried again."""
        try:
            made = SharedBuffer.create(self._paths[number], capacity_bytes, record_bytes)
        except OSError as error:
            _LOG.warning("no spare buffer, so snapshots are left out while copies are slow reason=%s", error)
            return
        with self._making:
            self._buffers[number] = made
        self._spare = None

    def _with_room(self, number: int, capacity_bytes: int, record_bytes: int) -> SharedBuffer:
        buffer = self._buffers[number]
        if (
            buffer is not None
            and buffer.capacity_bytes >= capacity_bytes
            and buffer.record_room_bytes >= record_bytes
        ):
            return buffer
        if buffer is not None:  # Gone before its successor is made: both may not fit.
            self._buffers[number] = None
            buffer.close()
            self._paths[number].unlink(missing_ok=True)
        made = SharedBuffer.create(self._paths[number], capacity_bytes, record_bytes)
        self._buffers[number] = made
        return made


def _kept(held: Mapping[int, HeldSnapshot], keepers: int) -> set[int]:
    """The newest complete one; with keepers also the newest that has a copy, and the newest that waits for it."""
    newest = sorted(held, key=lambda number: held[number].record.age)
    if not keepers:
        return set(newest[-1:])
    copied = [number for number in newest if held[number].copies]
    waiting = [number for number in newest if held[number].record.keepers and not held[number].copies]
    return {*newest[-1:], *copied[-1:], *waiting[-1:]}


def open_memory(assignment: Assignment, group: SaveGroup, *, parent: int | None) -> "MemoryTier | None":
    """The node's memory for the snapshots of this round; None where the round has none, or where any rank cannot
    use its own: a snapshot that lacks a part restores nothing. Collective.
    """
    memory = None
    try:
        if assignment.memory is not None:
            memory = MemoryTier(assignment, assignment.memory, group, parent=parent)
    except OSError as error:
        _LOG.warning("no snapshots in memory rank=%d reason=%s", assignment.rank, error)
    if group.any(memory is None):
        return None
    return memory


class MemoryTier:
    """Of one round. What fails here is said once and costs a snapshot, never the training."""

    def __init__(
        self, assignment: Assignment, memory: NodeMemory, group: SaveGroup, *, parent: int | None
    ) -> None:
        """`parent` is the step that the round has restored. Raises OSError when the folder cannot be used."""
        self.schedule = SnapshotSchedule(group, memory.order.every_steps)
        self._assignment = assignment
        self._keepers = memory.order.keepers
        self._parent = parent
        self._warned = ""
        self.store = MemoryStore(
            Path(memory.folder),
            assignment.local_rank,
            owner=assignment.restore.owner,
            since_round=memory.order.since_round,
        )

    def prepare(self, image_bytes: int, tensors: int) -> None:
        """Have memory in place for snapshots of about that size. For a background thread."""
        buffers = 3 if self._keepers else 2  # Where nobody keeps copies, two take turns.
        try:
            self.store.prepare(capacity_for(image_bytes), buffers=buffers, record_bytes=_RECORD_BYTES * tensors)
        except OSError as error:
            self._warn_once(error)

    def room(self, image_bytes: int, tensors: int) -> SharedBuffer | None:
        """A buffer to write to now, its old snapshot given up; None when there is none."""
        try:
            buffer = self.store.free(
                capacity_for(image_bytes),
                now_s=time.monotonic(),
                keepers=len(self._keepers),
                record_bytes=_RECORD_BYTES * tensors,
            )
        except OSError as error:
            self._warn_once(error)
            return None
        if buffer is not None:
            buffer.begin()
        return buffer

    def keep(self, buffer: SharedBuffer, snapshot: Snapshot) -> bool:
        """`snapshot` is whole in `buffer`, which `room` gave: from now on it counts."""
        record = SnapshotRecord(
            owner=self._assignment.restore.owner,
            round=self._assignment.round,
            rank=self._assignment.rank,
            world_size=self._assignment.world_size,
            step=snapshot.step,
            batches=snapshot.batches,
            file=snapshot.file,
            image_bytes=snapshot.image.nbytes,
            entries=dict(snapshot.entries),
            paths=dict(snapshot.paths),
            parent=self._parent,
            keepers=self._keepers if self.schedule.is_copied(snapshot.step) else (),
            healthy=snapshot.healthy,
            alike=dict(snapshot.alike),
        )
        try:
            buffer.complete(record)
        except HoldfastError as error:
            self._warn_once(error)
            return False
        return True

    def agree(self, *, step: int) -> None:
        """On which snapshots are copied, given how long that took. Collective, after `step`."""
        self.schedule.agree(copy_s=self.store.copy_s, step=step, now_s=time.monotonic())

    def _warn_once(self, error: Exception) -> None:
        if str(error) != self._warned:
            self._warned = str(error)
            _LOG.warning("no snapshot in memory rank=%d reason=%s", self._assignment.rank, error)
