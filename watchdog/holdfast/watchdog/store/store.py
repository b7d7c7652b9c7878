"""The port every store fills: the journal, the snapshots and the incidents of all jobs, behind one fence.

A store is written by one watchdog at a time. Whoever starts claims the fence and holds a token; every write
carries it and is refused with `Fenced` once somebody else has claimed. Writes are atomic, and survive the death
of the process when the call returns; `harden` makes them survive the machine's. Calls are synchronous and short:
they run between receiving an event and acting on it.

Every call raises `Unavailable` when the store cannot be used now (locked, disk full, permission), `Damaged`
when what it holds is not what was written; both leave what is stored as it was.
"""

from collections.abc import Iterator, Sequence
from typing import Final, NewType, Protocol

import msgspec

from holdfast.api.errors import Damaged
from holdfast.api.event import Event, Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome

Fence = NewType("Fence", int)

PAGE_LINES = 512  # journal lines fetched at once: bounds memory while a long journal is read
START = 0  # the offset before the first line


class Snapshot(msgspec.Struct, frozen=True):
    """A job's state, as msgpack, after the line at `offset`; `at` is that line's time on the watchdog's clock."""

    offset: int
    at: float
    state: bytes


class Bound(msgspec.Struct, frozen=True):
    """How much of a job's journal is kept: its newest lines, up to `lines` of them and up to `bytes` together.

    Lines behind the earlier snapshot are kept however many they are. At most `at_once` go with one snapshot, so
    that none waits long for an old journal to become short.
    """

    lines: int = 10_000
    bytes: int = 64 * 1024 * 1024
    at_once: int = 8_192


BOUND: Final = Bound()


class Extent(msgspec.Struct, frozen=True):
    """What there is of a job's journal: from line `first` on, `bytes` together.

    The lines before it were compacted at `compacted_at` (watchdog clock, seconds), None while none were.
    """

    first: int = START + 1
    bytes: int = 0
    compacted_at: float | None = None

    @property
    def is_whole(self) -> bool:
        """Whether no line was compacted."""
        return self.first == START + 1

    def require(self, after: int, journal: str) -> None:
        """Raises Damaged when lines behind `after` are not there any more."""
        if after + 1 < self.first:
            raise Damaged(f"lines before {self.first} of the journal of {journal} were compacted")


def placed(events: Sequence[Event], at: float, after: int) -> tuple[Journaled, ...]:
    """The events as lines behind the line `after`."""
    return tuple(Journaled(after + place, at, event) for place, event in enumerate(events, start=1))


class Store(Protocol):
    """The journals, snapshots, incidents and answers of all jobs, and who may write."""

    def claim(self) -> Fence:
        """Take the fence from whoever holds it. Called once, at start."""

    def jobs(self) -> tuple[str, ...]:
        """Every job with a journal, by name."""

    def forget(self, job: str, *, fence: Fence) -> None:
        """Remove everything of a job that is gone for good; nothing where there is none. Raises Fenced."""

    def close(self) -> None:
        """Release what is held. No call follows."""

    # The journal: a job's newest events, in order, without a gap: offsets are 1, 2, 3, … from the first kept.

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        """Add `events` behind the line `after`, all or none; return them with their places.

        Called before an event is applied. Raises Fenced when the fence is lost or `after` is not the last line.
        """

    def harden(self, *, fence: Fence) -> None:
        """Make everything written so far survive a power cut. Raises Fenced when the fence is lost.

        Called after a decision was shown: a round number that was given must not be given again. What leads to
        no decision (most events) is not worth the wait for the disk.
        """

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        """The lines behind `after`, in order. Raises Damaged at the first line that is missing, compacted or
        unreadable.
        """

    def extent(self, job: str) -> Extent:
        """What there is of the job's journal."""

    def last(self, job: str) -> int:
        """The offset of the last line, `START` when there is none."""

    # The newest snapshot of each job, and the one before it, from which the journal gives the same state.

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        """Make it the job's newest snapshot and compact the journal, all or nothing. Raises Fenced when the fence
        is lost.

        Where the job has a journal, the snapshot that was the newest becomes the earlier one, unless it is of the
        same line; lines up to that one's go, the oldest first, while there are more than the store's bound.
        """

    def load(self, job: str) -> Snapshot | None:
        """The newest snapshot, None when there is none. Raises Damaged when it is torn."""

    def earlier(self, job: str) -> Snapshot | None:
        """The one before the newest, None when there is none. Raises Damaged when it is torn."""

    # Incidents for readers, also those that the state no longer holds. Derived: the journal gives them again.

    def file(self, incident: Incident, *, fence: Fence) -> None:
        """Put the incident in place of its older version. Raises Fenced when the fence is lost."""

    def incidents(self, job: str, *, limit: int) -> tuple[Incident, ...]:
        """The newest `limit` incidents, oldest first."""

    # What every intervention was answered, for whoever asks again: an answer once given stands.

    def note_answer(self, job: str, outcome: InterventionOutcome, *, fence: Fence) -> None:
        """Keep the answer; the first one to an id stays. Raises Fenced when the fence is lost."""

    def answer(self, job: str, id: str) -> InterventionOutcome | None:
        """What the intervention was answered, None when it was not."""
