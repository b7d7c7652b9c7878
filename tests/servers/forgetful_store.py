"""A store that forgets: it fills the watchdog's `Store` port for tests that need no yesterday."""

from collections.abc import Iterator, Sequence

import msgspec

from holdfast.api.errors import Fenced
from holdfast.api.event import Event, Journaled
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome
from holdfast.watchdog.store.store import BOUND, Bound, Extent, Fence, Snapshot, placed


class MemoryStore:
    """Keeps everything in dictionaries."""

    def __init__(self, bound: Bound = BOUND) -> None:
        self._bound = bound
        self._fence = Fence(0)
        self._journals: dict[str, list[bytes]] = {}
        self._extents: dict[str, Extent] = {}
        self._snapshots: dict[str, Snapshot] = {}
        self._earlier: dict[str, Snapshot] = {}
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
        lines, extent = self._journals.setdefault(job, []), self.extent(job)
        if extent.first - 1 + len(lines) != after:
            raise Fenced(f"the journal of {job} goes on behind line {after}: somebody else writes it")
        added = placed(events, at, after)
        # Encoded like the real one, so that a reader meets the same types.
        bodies = [msgspec.msgpack.encode(line) for line in added]
        lines.extend(bodies)
        size = extent.bytes + sum(map(len, bodies))
        self._extents[job] = msgspec.structs.replace(extent, bytes=size)
        return added

    def harden(self, *, fence: Fence) -> None:
        self._check(fence)

    def tail(self, job: str, after: int) -> Iterator[Journaled]:
        extent = self.extent(job)
        extent.require(after, job)
        for line in self._journals.get(job, [])[after - extent.first + 1 :]:
            yield msgspec.msgpack.decode(line, type=Journaled)

    def last(self, job: str) -> int:
        return self.extent(job).first - 1 + len(self._journals.get(job, []))

    def extent(self, job: str) -> Extent:
        return self._extents.get(job, Extent())

    def save(self, job: str, snapshot: Snapshot, *, fence: Fence) -> None:
        self._check(fence)
        newest = self._snapshots.get(job)
        if job in self._journals and newest is not None and newest.offset < snapshot.offset:
            self._earlier[job] = newest
        self._snapshots[job] = snapshot
        extent, lines = self.extent(job), self._journals.get(job, [])
        earlier = self._earlier.get(job)
        may = min(self._bound.at_once, earlier.offset - extent.first + 1) if earlier is not None else 0
        cut, size = 0, extent.bytes
        while cut < may and (len(lines) - cut > self._bound.lines or size > self._bound.bytes):
            size -= len(lines[cut])
            cut += 1
        if cut:
            del lines[:cut]
            self._extents[job] = Extent(extent.first + cut, size, snapshot.at)

    def load(self, job: str) -> Snapshot | None:
        return self._snapshots.get(job)

    def earlier(self, job: str) -> Snapshot | None:
        return self._earlier.get(job)

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
        kept = (self._journals, self._extents, self._snapshots, self._earlier, self._incidents, self._answers)
        for each in kept:
            each.pop(job, None)

    def close(self) -> None:
        return

    def _check(self, fence: Fence) -> None:
        if fence != self._fence:
            raise Fenced("another watchdog has taken over this store")
