"""Where a round's state comes from: the nodes' memory where that is newer, else the storage."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager

from holdfast.api.control import Assignment
from holdfast.api.round import Tier
from holdfast.checkpoint import candidate
from holdfast.checkpoint.council import Council
from holdfast.checkpoint.memory.recollect import LIMIT, recollect
from holdfast.checkpoint.opening import Opening
from holdfast.checkpoint.restore import Position, Restorer
from holdfast.checkpoint.state import TrainingState
from holdfast.checkpoint.storage import Storage


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
        return restorer.restore([*recollection.candidates, *stored], skipped=opening.unreadable)
    finally:
        recollection.close()


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
