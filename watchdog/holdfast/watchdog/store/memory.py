"""A store that forgets: for tests and for what needs no yesterday."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.api.errors import Fenced
from holdfast.api.event import Event, Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.watchdog.store.store import START, Fence, Snapshot


class MemoryStore:
    """Keeps everything in dictionaries; fills the `Store` port."""

    def __init__(self) -> None:
        self._fence = Fence(0)
        self._journals: dict[str, list[bytes]] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._incidents: dict[str, dict[str, Incident]] = {}
        self._answers: dict[str, dict[str, InterventionOutcome]] = {}

    def claim(self) -> Fence:
        self._fence = Fence(self._fence + 1)
        return self._fence

    def jobs(self) -> tuple[str, ...]:
        return tuple(sorted(self._journals))

    def append(
        self, job: str, events: Sequence[Event], *, at: float, after: int, fence: Fence
    ) -> tuple[Journaled, ...]:
        self._check(fence)
        lines = self._journals.setdefault(job, [])
        if len(lines) != after:
            raise Fenced(f"the journal of {job} goes on behind line {after}: somebody else writes it")
        added = tuple(Journaled(after + place, at, event) for place, event in enumerate(events, start=1))
        # Encoded like the real one, so that a reader meets the same types.
        lines.extend([msgspec.msgpack.encode(line) for line in added])
        return added

    def harden(self, *, fence: Fence) -> None:
        self._check(fence)

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        for line in self._journals.get(job, [])[after:]:
            yield msgspec.msgpack.decode(line, type=Journaled)

    def last(self, job: str) -> int:
        return len(self._journals.get(job, [])) or START

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        self._check(fence)
        self._snapshots[job] = snapshot

    def load(self, job: str) -> Snapshot | None:
        return self._snapshots.get(job)

    def file(self, incident: Incident, *, fence: Fence) -> None:
        self._check(fence)
        self._incidents.setdefault(incident.job, {})[incident.id] = incident

    def incidents(self, job: str, *, limit: int) -> tuple[Incident, ...]:
        kept = self._incidents.get(job, {}).values()
        return tuple(sorted(kept, key=lambda each: (each.detected_at, each.id))[-limit:])

    def note_answer(self, job: str, outcome: InterventionOutcome, *, fence: Fence) -> None:
        self._check(fence)
        self._answers.setdefault(job, {}).setdefault(outcome.id, outcome)

    def answer(self, job: str, id: str) -> InterventionOutcome | None:
        return self._answers.get(job, {}).get(id)

    def forget(self, job: str, *, fence: Fence) -> None:
        self._check(fence)
        for kept in (self._journals, self._snapshots, self._incidents, self._answers):
            kept.pop(job, None)

    def close(self) -> None:
        return

    def _check(self, fence: Fence) -> None:
        if fence != self._fence:
            raise Fenced("another watchdog has taken over this store")
