"""Where the lines of a journal are applied from: a state that was kept, or the journal's beginning."""

import contextlib
import logging

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.store.store import START, Extent, Snapshot, Store
from holdfast.watchdog.turn import Brain

logger = logging.getLogger(__name__)


class Origin(msgspec.Struct, frozen=True):
    """A job's state after the line `offset`, which was written at `at`. `passed_over`: a newer one was kept, and
    cannot be read.
    """

    state: JobState
    offset: int = START
    at: float = 0.0
    passed_over: bool = False

    def snapshot(self) -> Snapshot:
        """As it is kept."""
        return Snapshot(self.offset, self.at, msgspec.msgpack.encode(self.state))


def newest(store: Store, job: str, *, brain: Brain) -> Origin:
    """The newest snapshot that can be read, else the journal's beginning. Raises Unavailable, Damaged."""
    passed_over = False
    for load in (store.load, store.earlier):
        try:
            kept = _kept(load(job))
        except (Malformed, Damaged) as error:
            logger.warning("a snapshot is not readable, going back further job=%s reason=%s", job, error)
            passed_over = True
        else:
            if kept is not None:
                return msgspec.structs.replace(kept, passed_over=passed_over)
    return msgspec.structs.replace(_beginning(store.extent(job), job, brain=brain), passed_over=passed_over)


def oldest(store: Store, job: str, *, brain: Brain) -> Origin:
    """The journal's beginning; where that was compacted, the earlier snapshot. Raises Unavailable, Damaged."""
    extent = store.extent(job)
    if not extent.is_whole:
        with contextlib.suppress(Malformed, Damaged):
            if (kept := _kept(store.earlier(job))) is not None:
                return kept
    return _beginning(extent, job, brain=brain)


def _beginning(extent: Extent, job: str, *, brain: Brain) -> Origin:
    if extent.is_whole:
        return Origin(brain.initial(job))
    raise Damaged(
        f"lines before {extent.first} of the journal of {job} were compacted, and this version of the program can"
        " read no state that was kept from then on"
    )


def _kept(snapshot: Snapshot | None) -> Origin | None:
    """Raises Malformed when another version of the program wrote it."""
    if snapshot is None:
        return None
    return Origin(decode_msgpack(snapshot.state, JobState), snapshot.offset, snapshot.at)
