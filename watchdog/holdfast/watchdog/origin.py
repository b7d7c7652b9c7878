"""Where the lines of a journal are applied from: a state that was kept, or the journal's beginning."""

import logging
from collections.abc import Callable

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed
from holdfast.watchdog.state import JobState
from holdfast.watchdog.store.store import START, Extent, Snapshot, Store
from holdfast.watchdog.turn import Brain

logger = logging.getLogger(__name__)


class Origin(msgspec.Struct, frozen=True):
    """A job's state after the line `offset`, which was written at `at`; kept, it takes `size` bytes."""

    state: JobState
    offset: int = START
    at: float = 0.0
    size: int = 0


def newest(store: Store, job: str, *, brain: Brain) -> Origin:
    """The newest snapshot that can be read, else the journal's beginning. Raises Unavailable, Damaged."""
    for load in (store.load, store.earlier):
        if (kept := _readable(load, job)) is not None:
            return kept
    return _beginning(store.extent(job), job, brain=brain)


def oldest(store: Store, job: str, *, brain: Brain) -> Origin:
    """The journal's beginning; where that was compacted, the earlier snapshot. Raises Unavailable, Damaged."""
    extent = store.extent(job)
    kept = None if extent.is_whole else _readable(store.earlier, job)
    return kept if kept is not None else _beginning(extent, job, brain=brain)


def _beginning(extent: Extent, job: str, *, brain: Brain) -> Origin:
    if extent.is_whole:
        return Origin(brain.initial(job))
    raise Damaged(
        f"lines before {extent.first} of the journal of {job} were compacted, and this version of the program can"
        " read no state that was kept from then on"
    )


def _readable(load: Callable[[str], Snapshot | None], job: str) -> Origin | None:
    """The snapshot's state; None where there is none, it is torn, or another version of the program wrote it."""
    try:
        snapshot = load(job)
        if snapshot is None:
            return None
        state = decode_msgpack(snapshot.state, JobState)
    except (Malformed, Damaged) as error:
        logger.warning("a snapshot is not readable, going back further job=%s reason=%s", job, error)
        return None
    return Origin(state, snapshot.offset, snapshot.at, len(snapshot.state))
