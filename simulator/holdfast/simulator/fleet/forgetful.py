"""A store for a journal that nobody will read: every line is taken, numbered and forgotten."""

from collections.abc import Iterator, Sequence

from holdfast.api.event import Event, Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.watchdog.store.store import START, Extent, Fence, Snapshot, placed


class Forgetful:
    """Fills the watchdog's `Store` port for one run in virtual time."""

    def __init__(self) -> None:
        self._last = START

    def claim(self) -> Fence:
        """The only one there will be."""
        return Fence(1)

    def jobs(self) -> tuple[str, ...]:
        """None: nothing is kept."""
        return ()

    def forget(self, job: str, *, fence: Fence) -> None:
        """It is forgotten."""

    def close(self) -> None:
        """Nothing is open."""

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        """The lines as they would have been written."""
        lines = placed(events, at, after)
        self._last = lines[-1].offset if lines else self._last
        return lines

    def harden(self, *, fence: Fence) -> None:
        """Nothing outlasts this process."""

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        """Nothing is kept."""
        return iter(())

    def extent(self, job: str) -> Extent:
        """Nothing is there."""
        return Extent(self._last + 1)

    def last(self, job: str) -> int:
        """The newest line's number."""
        return self._last

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        """No snapshot is kept."""

    def load(self, job: str) -> Snapshot | None:
        """There is none."""
        return None

    def earlier(self, job: str) -> Snapshot | None:
        """There is none."""
        return None

    def file(self, incident: Incident, *, fence: Fence) -> None:
        """No incident is filed."""

    def incidents(self, job: str, *, limit: int) -> tuple[Incident, ...]:
        """None was filed."""
        return ()

    def note_answer(self, job: str, outcome: InterventionOutcome, *, fence: Fence) -> None:
        """No answer is kept."""

    def answer(self, job: str, id: str) -> InterventionOutcome | None:
        """None is kept."""
        return None
