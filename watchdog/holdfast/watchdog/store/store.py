"""The port every store fills: the journal, the snapshots and the incidents of all jobs, behind one fence.

A store is written by one watchdog at a time. Whoever starts claims the fence and holds a token; every write
carries it and is refused with `Fenced` once somebody else has claimed. Writes are atomic, and survive the death
of the process when the call returns; `harden` makes them survive the machine's. Calls are synchronous and short:
they run between receiving an event and acting on it.

Every call raises `Unavailable` when the store cannot be used now (locked, disk full, permission), `Damaged`
when what it holds is not what was written; both leave what is stored as it was.
"""

from collections.abc import Iterator, Sequence
from typing import NewType, Protocol

import msgspec

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


class Journal(Protocol):
    """Every event of a job, in order, without a gap: offsets are 1, 2, 3, …"""

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        """Add `events` behind the line `after`, all or none; return them with their places.

        Called before an event is applied. Raises Fenced when the fence is lost or `after` is not the last line.
        """
        ...

    def harden(self, *, fence: Fence) -> None:
        """Make everything written so far survive a power cut. Raises Fenced when the fence is lost.

        Called after a decision was shown: a round number that was given must not be given again. What leads to
        no decision (most events) is not worth the wait for the disk.
        """
        ...

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        """The lines behind `after`, in order. Raises Damaged at the first line that is missing or unreadable."""
        ...

    def last(self, job: str) -> int:
        """The offset of the last line, `START` when there is none."""
        ...


class Snapshots(Protocol):
    """The newest snapshot of each job: a shortcut, never the truth. The journal alone gives the same state."""

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        """Replace the job's snapshot. Raises Fenced when the fence is lost."""
        ...

    def load(self, job: str) -> Snapshot | None:
        """The newest snapshot, None when there is none."""
        ...


class Archive(Protocol):
    """Incidents for readers, also those that the state no longer holds. Derived: the journal gives them again."""

    def file(self, incident: Incident, *, fence: Fence) -> None:
        """Put the incident in place of its older version. Raises Fenced when the fence is lost."""
        ...

    def incidents(self, job: str, *, limit: int) -> tuple[Incident, ...]:
        """The newest `limit` incidents, oldest first."""
        ...


class Answers(Protocol):
    """What every intervention was answered, for whoever asks again: an answer once given stands."""

    def note_answer(self, job: str, outcome: InterventionOutcome, *, fence: Fence) -> None:
        """Keep the answer; the first one to an id stays. Raises Fenced when the fence is lost."""
        ...

    def answer(self, job: str, id: str) -> InterventionOutcome | None:
        """What the intervention was answered, None when it was not."""
        ...


class Store(Journal, Snapshots, Archive, Answers, Protocol):
    """All four, and who may write."""

    def claim(self) -> Fence:
        """Take the fence from whoever holds it. Called once, at start."""
        ...

    def jobs(self) -> tuple[str, ...]:
        """Every job with a journal, by name."""
        ...

    def forget(self, job: str, *, fence: Fence) -> None:
        """Remove everything of a job that is gone for good; nothing where there is none. Raises Fenced."""
        ...

    def close(self) -> None:
        """Release what is held. No call follows."""
        ...
