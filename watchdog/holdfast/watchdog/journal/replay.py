"""Feed a journal to the brain again: it must reach the state that the watchdog had.

From its first line; where that was compacted, from the earlier of the two states that are kept.
"""

import contextlib
import logging
from collections.abc import Iterator
from enum import Enum

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Damaged, Malformed
from holdfast.api.event import Journaled
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Brain, Effect, Reason, turn
from holdfast.watchdog.store.store import START, Extent, Snapshot, Store

logger = logging.getLogger(__name__)


# Where the lines of a journal are applied from: a state that was kept, or the journal's beginning.


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


def recalled(store: Store, job: str, *, brain: Brain) -> Origin:
    """The job as it was left: the newest snapshot with the lines behind it. Raises Unavailable, Damaged."""
    origin = newest(store, job, brain=brain)
    state, offset, at = origin.state, origin.offset, origin.at
    for line in store.tail(job, origin.offset):
        state, offset, at = turn(brain, state, line.event, line.at).state, line.offset, line.at
    return Origin(state, offset, at)


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


class Replayed(msgspec.Struct, frozen=True):
    """One line of the journal and what the brain made of it."""

    line: Journaled
    effects: tuple[Effect, ...]
    reason: Reason
    state: JobState


class Verdict(Enum):
    """Whether the journal leads to the state that was kept."""

    EQUAL = "equal"
    DIFFERENT = "different"
    NOTHING_KEPT = "nothing kept"  # no snapshot was written yet


class Replay(msgspec.Struct, frozen=True):
    """The outcome of a whole replay. `compared_at` is the offset of the snapshot compared with, `begun_at` that of
    the snapshot it began with, 0 from the first line.
    """

    job: str
    lines: int
    state: JobState
    verdict: Verdict
    compared_at: int | None = None
    differences: tuple[str, ...] = ()
    begun_at: int = START


def walk(store: Store, job: str, *, brain: Brain) -> Iterator[Replayed]:
    """Every line of the job's journal from its oldest origin on, applied in order. Raises Unavailable, Damaged."""
    origin = oldest(store, job, brain=brain)
    state = origin.state
    for line in store.tail(job, origin.offset):
        step = turn(brain, state, line.event, line.at)
        state = step.state
        yield Replayed(line, step.effects, step.reason, state)


def replay(store: Store, job: str, *, brain: Brain) -> Replay:
    """Replay the job and compare with its newest snapshot, byte for byte. Raises Unavailable, Damaged."""
    snapshot = store.load(job)
    verdict, differences = Verdict.NOTHING_KEPT, tuple[str, ...]()
    origin = oldest(store, job, brain=brain)
    state, lines = origin.state, origin.offset
    for each in walk(store, job, brain=brain):
        state, lines = each.state, each.line.offset
        if snapshot is not None and lines == snapshot.offset:
            is_equal = msgspec.msgpack.encode(state) == snapshot.state
            verdict = Verdict.EQUAL if is_equal else Verdict.DIFFERENT
            differences = () if is_equal else _differences(state, snapshot)
    if snapshot is not None and snapshot.offset > lines:
        differences = (f"the snapshot is of line {snapshot.offset}, the journal ends at {lines}",)
        verdict = Verdict.DIFFERENT
    compared_at = snapshot.offset if snapshot else None
    return Replay(job, lines, state, verdict, compared_at, differences, origin.offset)


def _differences(replayed: JobState, snapshot: Snapshot) -> tuple[str, ...]:
    try:
        kept = decode_msgpack(snapshot.state, JobState)
    except Malformed as error:
        return (f"the snapshot is not readable: {error}",)
    values = [(name, getattr(replayed, name), getattr(kept, name)) for name in JobState.__struct_fields__]
    unequal = [(name, ours, theirs) for name, ours, theirs in values if ours != theirs]
    return tuple(f"{name}: the journal gives {ours!r}, kept was {theirs!r}" for name, ours, theirs in unequal)
