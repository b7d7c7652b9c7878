"""Where a round's state comes from: the nodes' memory where that is newer, else the storage."""

import gc
import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from holdfast.api.control import Assignment
from holdfast.api.round import Tier
from holdfast.checkpoint import candidate
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.memory.recollect import LIMIT, recollect
from holdfast.checkpoint.opening import Opening
from holdfast.checkpoint.restore import Position, Restorer
from holdfast.checkpoint.state import TrainingState
from holdfast.checkpoint.storage import Storage

_LOG = logging.getLogger(__name__)


def restore_newest(
    state: TrainingState, council: Council, assignment: Assignment, *, storage: Storage | None, opening: Opening
) -> Position:
    """Apply the newest state that the round may have and that is intact. Collective; raises as `Restorer` does.

    A round that may not go on from memory still has damaged blocks from there: their hashes say what they are.
    """
    with _uncollected():
        return _restore_newest(state, council, assignment, storage, opening)


def _restore_newest(
    state: TrainingState, council: Council, assignment: Assignment, storage: Storage | None, opening: Opening
) -> Position:
    stored = [candidate.committed(storage, name) for name in opening.candidates] if storage is not None else []
    may_remember = assignment.restore.tier is Tier.MEMORY
    recollection = recollect(council, assignment, after=opening.newest, limit=LIMIT if may_remember else 0)
    try:
        restorer = Restorer(council, state, blocks=recollection)
        position = restorer.restore([*recollection.candidates, *stored], skipped=opening.unreadable)
    finally:
        recollection.close()
    return replace(position, skipped=(*position.skipped, *_unhealthy(opening, position)))


def _unhealthy(opening: Opening, position: Position) -> list[str]:
    """What is said of the checkpoints that were not finite when they were saved: passed over, or all there is."""
    newer = [
        (name, step) for name, step in opening.last_resort if position.step is not None and step >= position.step
    ]
    said = [f"{name}: not finite when it was saved" for name, step in newer if step != position.step]
    if position.tier is Tier.CHECKPOINT and len(said) < len(newer):
        _LOG.warning(
            "nothing healthy is left to restore, this was not finite when it was saved step=%d", position.step
        )
        said.append(f"every healthy one: none is left, and that of step {position.step} was not finite when saved")
    return said


@contextmanager
def _uncollected() -> Iterator[None]:
    """A restore makes many small objects and few cycles. Python would look through all that the process holds for
    them, torch's own hundreds of thousands again and again.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            gc.enable()
