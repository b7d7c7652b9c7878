"""A rank's snapshots in its node's memory: where they go, and what they say of themselves."""

import logging
import time
from pathlib import Path

from holdfast.api.control import Assignment
from holdfast.api.errors import HoldfastError
from holdfast.api.memory import NodeMemory
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.memory.arena import Arena, capacity_for
from holdfast.checkpoint.memory.record import SnapshotRecord
from holdfast.checkpoint.memory.shelf import Shelf
from holdfast.checkpoint.rhythm import Rhythm
from holdfast.checkpoint.snapshot import Snapshot

_LOG = logging.getLogger(__name__)

_RECORD_BYTES = 512  # Of one tensor: its name and how it is nested, its dtype, shape and place.


def open_memory(assignment: Assignment, council: Council, *, parent: int | None) -> "MemoryTier | None":
    """The node's memory for the snapshots of this round; None where the round has none, or where any rank cannot
    use its own: a snapshot that lacks a part restores nothing. Collective.
    """
    memory = None
    try:
        if assignment.memory is not None:
            memory = MemoryTier(assignment, assignment.memory, council, parent=parent)
    except OSError as error:
        _LOG.warning("no snapshots in memory rank=%d reason=%s", assignment.rank, error)
    if council.any(memory is None):
        return None
    return memory


class MemoryTier:
    """Of one round. What fails here is said once and costs a snapshot, never the training."""

    def __init__(
        self, assignment: Assignment, memory: NodeMemory, council: Council, *, parent: int | None
    ) -> None:
        """`parent` is the step that the round has restored. Raises OSError when the folder cannot be used."""
        self.rhythm = Rhythm(council, memory.order.every_steps)
        self._assignment = assignment
        self._keepers = memory.order.keepers
        self._parent = parent
        self._complaint = ""
        self._shelf = Shelf(
            Path(memory.folder),
            assignment.local_rank,
            owner=assignment.restore.owner,
            since_round=memory.order.since_round,
        )

    def prepare(self, image_bytes: int, tensors: int) -> None:
        """Have memory in place for snapshots of about that size. For a background thread."""
        arenas = 3 if self._keepers else 2  # Where nobody keeps copies, two take turns.
        try:
            self._shelf.prepare(capacity_for(image_bytes), arenas=arenas, record_bytes=_RECORD_BYTES * tensors)
        except OSError as error:
            self._complain(error)

    def room(self, image_bytes: int, tensors: int) -> Arena | None:
        """An arena to write to now, its old snapshot given up; None when there is none."""
        try:
            arena = self._shelf.free(
                capacity_for(image_bytes),
                now_s=time.monotonic(),
                keepers=len(self._keepers),
                record_bytes=_RECORD_BYTES * tensors,
            )
        except OSError as error:
            self._complain(error)
            return None
        if arena is not None:
            arena.begin()
        return arena

    def keep(self, arena: Arena, snapshot: Snapshot) -> bool:
        """`snapshot` is whole in `arena`, which `room` gave: from now on it counts."""
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
            keepers=self._keepers if self.rhythm.is_copied(snapshot.step) else (),
            healthy=snapshot.healthy,
        )
        try:
            arena.complete(record)
        except HoldfastError as error:
            self._complain(error)
            return False
        return True

    def agree(self, *, step: int) -> None:
        """On which snapshots are copied, given how long that took. Collective, after `step`."""
        self.rhythm.agree(copy_s=self._shelf.copy_s, step=step, now_s=time.monotonic())

    def pin(self, arena: Arena) -> None:
        """Leave what is in the arena there until `unpin`."""
        self._shelf.pin(arena)

    def unpin(self, arena: Arena) -> None:
        self._shelf.unpin(arena)

    def _complain(self, error: Exception) -> None:
        if str(error) != self._complaint:
            self._complaint = str(error)
            _LOG.warning("no snapshot in memory rank=%d reason=%s", self._assignment.rank, error)
