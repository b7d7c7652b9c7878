"""What the agent sends, and when. Pure: readings, acknowledgements and `now` go in, reports come out.

Telemetry describes the present: only the newest is ever sent, and none of it is kept. Events happened once:
each is kept until the watchdog says it has the report that carried it, and goes out again, in a report of the
same number, on every new connection until then.
"""

from collections import Counter, defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import StrEnum
from itertools import groupby
from typing import Final, TypeVar

from msgspec.structs import replace

from holdfast.agent.conditions.book import CLEARED_KEPT_S
from holdfast.agent.reading import Reading
from holdfast.api.condition import AllClear, ConditionState
from holdfast.api.telemetry import (
    NodeEvent,
    NodeReport,
    Pace,
    ParametersChanged,
    ProcessState,
    RankSample,
    Statement,
    Unreadable,
)

_WORTH_A_REPORT = (ProcessState.STOPPED, ProcessState.GONE)
# A sample takes 0.8 KiB at most, without its member's name: together less than half of what the watchdog accepts.
RANKS_MAX: Final = 512
UNREADABLE_MAX: Final = 256
Said = TypeVar("Said")
# A node whose GPUs fall over raises some dozen errors. Past the bound the newest are dropped, as the first
# error is the one that names the cause.
EVENTS_KEPT_MAX: Final = 256
# A statement is of use only as long as those of other ranks are: of them the oldest are dropped, without a word.
STATEMENTS_PER_RANK_MAX: Final = 16  # of a kind
EVENTS_PER_REPORT_MAX: Final = 64  # keeps the largest report far below what the watchdog accepts
INTERVAL_S_MIN: Final = 0.1  # the records are looked at no more often
INTERVAL_S_MAX: Final = 60.0
# It changes by the minute at most; whoever missed it, or is new, hears it soon enough.
ALL_CLEAR_EVERY_S: Final = 30.0
_UNSENT: Final = 0


class Urgent(StrEnum):
    """Why a report goes out early. It chooses when to send; the watchdog alone judges what it means."""

    EVENT = "an event happened"
    CONDITION = "a condition was raised"
    STALLED = "a rank made no progress for long enough to be looked at"
    FIRST_STEP = "a rank completed its first step of a round"
    NOT_FINITE = "a loss or gradient norm is not finite"
    PROCESS = "a rank's process stopped or is gone"


@dataclass(frozen=True, slots=True)
class _Seen:
    stepped: bool = False
    stalled: bool = False
    process: ProcessState = ProcessState.UNKNOWN
    odd: int = 0  # whether a step was not finite, and how many were skipped


class Urgency:
    """Remembers the last reading, so that each stall, condition, first step and process change is urgent once."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], _Seen] = {}
        self._raised: frozenset[tuple[str, str, str]] = frozenset()

    def of(self, reading: Reading, *, stalled_after_s: float | None) -> frozenset[Urgent]:
        """What is urgent in `reading` that was not in the one before; empty when it can wait."""
        # A statement says nothing before those it is compared with are there as well: it can wait.
        faults = [event for event in reading.events if not isinstance(event, Statement)]
        urgent = {Urgent.EVENT} if faults else set()
        conditions = (each for each in reading.conditions if each.state is ConditionState.RAISED)
        raised = frozenset((each.kind, each.gpu, each.device) for each in conditions)
        if raised - self._raised:
            urgent.add(Urgent.CONDITION)
        seen = {}
        for rank in reading.ranks:
            before = self._before.get((rank.round, rank.rank), _Seen())
            current = seen[rank.round, rank.rank] = _Seen(
                stepped=rank.step is not None,
                stalled=stalled_after_s is not None and rank.progress_age_s > stalled_after_s,
                process=rank.process,
                odd=(rank.nonfinite is not None) + (0 if rank.skipped is None else rank.skipped.count),
            )
            if current.stepped and not before.stepped:
                urgent.add(Urgent.FIRST_STEP)
            if current.stalled and not before.stalled:
                urgent.add(Urgent.STALLED)
            if current.odd > before.odd:
                urgent.add(Urgent.NOT_FINITE)
            if current.process != before.process and current.process in _WORTH_A_REPORT:
                urgent.add(Urgent.PROCESS)
        self._before, self._raised = seen, raised
        return frozenset(urgent)


@dataclass(slots=True)
class _KeptEvent:
    event: NodeEvent
    happened_at: float
    sequence: int = _UNSENT  # of the report that carried it

    @property
    def stated(self) -> tuple[type, str, int] | None:
        """What kind of word of a pod it is, which pod's, and of which rank; None when it is the agent's own."""
        event = self.event
        if isinstance(event, Statement | ParametersChanged):
            return type(event), event.member, event.rank
        return None


class Outbox:
    """One run of the agent's reports, numbered from 1."""

    def __init__(self, *, node: str, boot: str, interval_s: float) -> None:
        self._node = node
        self._boot = boot
        self._interval_s = interval_s
        self._stalled_after_s: float | None = None
        self._urgency = Urgency()
        self._sequence = 0
        self._reading = Reading()
        self._read_at = 0.0
        self._due_at = float("-inf")
        self._all_clear_due_at = float("-inf")
        self._kept: list[_KeptEvent] = []
        self._dropped = 0
        self.dropped_ever = 0  # events, for want of room

    @property
    def reports(self) -> int:
        return self._sequence

    def observe(self, reading: Reading, now: float) -> None:
        """Take in the newest reading, made at `now`."""
        self._reading, self._read_at = reading, now
        for event in reading.events:
            self._keep(_KeptEvent(event, happened_at=now - event.age_s))
        if self._urgency.of(reading, stalled_after_s=self._stalled_after_s):
            self._due_at = min(self._due_at, now)

    def keep_pace(self, pace: Pace, now: float) -> None:
        """Follow the watchdog's wish, within what makes sense."""
        self._interval_s = min(max(INTERVAL_S_MIN, pace.interval_s), INTERVAL_S_MAX)  # NaN: the minimum
        self._stalled_after_s = pace.stalled_after_s
        self._due_at = min(self._due_at, now + self._interval_s)

    def is_due(self, now: float) -> bool:
        """Whether `take` would give a report."""
        return now >= self._due_at

    def take(self, now: float) -> NodeReport | None:
        """The next report, or None while none is due. A report taken counts as sent."""
        if not self.is_due(now):
            return None
        self._sequence += 1
        unsent = [kept for kept in self._kept if kept.sequence == _UNSENT]
        carried = unsent[:EVENTS_PER_REPORT_MAX]
        for kept in carried:
            kept.sequence = self._sequence
        if len(carried) == len(unsent):
            # Regular reports stay on their grid, as a look comes somewhat later than the moment it is due for.
            self._due_at = max(self._due_at + self._interval_s, now + self._interval_s / 2)
        by_s = max(0.0, now - self._read_at)
        older = (replace(one, age_s=one.age_s + by_s) for one in self._reading.conditions)
        ranks, left_out = fitting_ranks(self._reading.ranks)
        if by_s > 0.0:
            ranks = tuple(
                replace(
                    rank,
                    progress_age_s=rank.progress_age_s + by_s,
                    phase_age_s=rank.phase_age_s + by_s,
                    pulse_age_s=None if rank.pulse_age_s is None else rank.pulse_age_s + by_s,
                    nonfinite=rank.nonfinite and replace(rank.nonfinite, age_s=rank.nonfinite.age_s + by_s),
                )
                for rank in ranks
            )
        unreadable = fitting_problems(self._reading.unreadable) + left_out
        if self._dropped:
            lost = f"{self._dropped} events were dropped while the watchdog was away"
            unreadable += (Unreadable("events", lost),)
        all_clear: tuple[AllClear, ...] = ()
        if now >= self._all_clear_due_at and self._reading.all_clear:
            self._all_clear_due_at = now + ALL_CLEAR_EVERY_S
            all_clear = self._reading.all_clear
        return NodeReport(
            node=self._node,
            boot=self._boot,
            sequence=self._sequence,
            ranks=ranks,
            gpus=self._reading.gpus,
            events=_aged(carried, now),
            unreadable=unreadable,
            conditions=tuple(
                one for one in older if one.state is ConditionState.RAISED or one.age_s <= CLEARED_KEPT_S
            ),
            all_clear=all_clear,
        )

    def reconnected(self, now: float) -> tuple[NodeReport, ...]:
        """A new connection stands: what to send again on it first, oldest first. A full report is due at once.

        What is sent again carries its events only. The telemetry that went with them is history, and with its
        age corrected a rank that has moved on since would look stalled.
        """
        self._due_at = self._all_clear_due_at = now
        sent = (kept for kept in self._kept if kept.sequence != _UNSENT)
        return tuple(
            NodeReport(node=self._node, boot=self._boot, sequence=sequence, events=_aged(tuple(kept), now))
            for sequence, kept in groupby(sent, key=lambda kept: kept.sequence)
        )

    def taken(self, sequence: int) -> None:
        """The watchdog has every report up to `sequence`."""
        self._kept = [kept for kept in self._kept if kept.sequence == _UNSENT or kept.sequence > sequence]
        if not self._kept:
            self._dropped = 0

    def _keep(self, new: _KeptEvent) -> None:
        statements = [kept for kept in self._kept if kept.stated is not None]
        if new.stated is not None:
            alike = [kept for kept in statements if kept.stated == new.stated]
            if len(alike) >= STATEMENTS_PER_RANK_MAX:
                self._kept.remove(alike[0])
            elif len(statements) >= EVENTS_KEPT_MAX:
                # The oldest of whichever pod says most: any pod of a namespace may leave records of its jobs.
                pods = [kept.stated[1] for kept in statements if kept.stated is not None]
                loudest, _ = Counter(pods).most_common(1)[0]
                self._kept.remove(statements[pods.index(loudest)])
        elif len(self._kept) - len(statements) >= EVENTS_KEPT_MAX:
            self._dropped += 1
            self.dropped_ever += 1
            return
        self._kept.append(new)


def _aged(kept: Sequence[_KeptEvent], now: float) -> tuple[NodeEvent, ...]:
    return tuple(replace(one.event, age_s=max(0.0, now - one.happened_at)) for one in kept)


# What fits a report, shared fairly among those whose words it carries.
#
# Any pod of a namespace may leave records of its jobs, and how many is up to the pod. The watchdog takes no report
# that is too long, and with it would go what the members of the job say.


def fitting_ranks(ranks: Sequence[RankSample]) -> tuple[tuple[RankSample, ...], tuple[Unreadable, ...]]:
    """As many samples as a report holds, and a word about the others."""
    kept = _shared(ranks, RANKS_MAX, lambda each: each.member)
    if len(kept) == len(ranks):
        return kept, ()
    says = f"{len(ranks) - len(kept)} of {len(ranks)} records do not fit a report"
    return kept, (Unreadable("ranks", f"{says}: of each pod the first are told"),)


def fitting_problems(problems: Sequence[Unreadable]) -> tuple[Unreadable, ...]:
    """As many problems as a report holds, and a word about the others. A pod's begin with its name."""
    kept = _shared(problems, UNREADABLE_MAX, lambda each: each.source.partition("/")[0])
    if len(kept) == len(problems):
        return kept
    return (*kept, Unreadable("sources", f"{len(problems) - len(kept)} more cannot be read"))


def _shared(said: Sequence[Said], most: int, voice: Callable[[Said], str]) -> tuple[Said, ...]:
    """The first of each voice, `most` in all, in their order: who says little is heard whole."""
    if len(said) <= most:
        return tuple(said)
    places = defaultdict(list)
    for place, each in enumerate(said):
        places[voice(each)].append(place)
    kept: set[int] = set()
    room, voices = most, len(places)
    for own in sorted(places.values(), key=len):
        share = room // voices
        kept.update(own[:share])
        room, voices = room - min(len(own), share), voices - 1
    return tuple(said[place] for place in sorted(kept))
