"""Feed a journal to the brain again: it must reach the state that the watchdog had.

From its first line; where that was compacted, from the earlier of the two states that are kept.
"""

from collections.abc import Iterator
from enum import Enum

import msgspec

from holdfast.api.decoding import decode_msgpack
from holdfast.api.errors import Malformed
from holdfast.api.event import Journaled
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import Effect, Reason
from holdfast.watchdog.origin import oldest
from holdfast.watchdog.store.store import START, Snapshot, Store
from holdfast.watchdog.turn import Brain, turn


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
    origin = oldest(store, job, brain=brain)
    state, lines = origin.state, origin.offset
    compared: tuple[Verdict, tuple[str, ...]] = (Verdict.NOTHING_KEPT, ())
    for each in walk(store, job, brain=brain):
        state, lines = each.state, each.line.offset
        if snapshot is not None and lines == snapshot.offset:
            compared = _compare(state, snapshot)
    if snapshot is not None and snapshot.offset > lines:
        compared = Verdict.DIFFERENT, (f"the snapshot is of line {snapshot.offset}, the journal ends at {lines}",)
    verdict, differences = compared
    compared_at = snapshot.offset if snapshot else None
    return Replay(job, lines, state, verdict, compared_at, differences, origin.offset)


def _compare(state: JobState, snapshot: Snapshot) -> tuple[Verdict, tuple[str, ...]]:
    if msgspec.msgpack.encode(state) == snapshot.state:
        return Verdict.EQUAL, ()
    try:
        kept = decode_msgpack(snapshot.state, JobState)
    except Malformed as error:
        return Verdict.DIFFERENT, (f"the snapshot is not readable: {error}",)
    return Verdict.DIFFERENT, tuple(_differences(state, kept))


def _differences(replayed: JobState, kept: JobState) -> Iterator[str]:
    for name in JobState.__struct_fields__:
        ours, theirs = getattr(replayed, name), getattr(kept, name)
        if ours != theirs:
            yield f"{name}: the journal gives {ours!r}, kept was {theirs!r}"
