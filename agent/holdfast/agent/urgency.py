"""When a reading should not wait for the next report interval. Pure: it compares readings."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from holdfast.agent.sensors.sensor import Reading
from holdfast.api.condition import Condition, ConditionState
from holdfast.api.telemetry import ProcessState, RankSample, Statement


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
    stepped: bool
    stalled: bool
    process: ProcessState
    odd: int = 0  # whether a step was not finite, and how many were skipped


_NOTHING_SEEN = _Seen(stepped=False, stalled=False, process=ProcessState.UNKNOWN)
_WORTH_A_REPORT = (ProcessState.STOPPED, ProcessState.GONE)


class Urgency:
    """Remembers the last reading, so that each stall, condition, first step and process change is urgent once."""

    def __init__(self) -> None:
        self._before: dict[tuple[int, int], _Seen] = {}
        self._raised: frozenset[tuple[str, str, str]] = frozenset()

    def of(self, reading: Reading, *, stalled_after_s: float | None) -> frozenset[Urgent]:
        """What is urgent in `reading` that was not in the one before; empty when it can wait."""
        seen = {(sample.round, sample.rank): _seen(sample, stalled_after_s) for sample in reading.ranks}
        # A statement says nothing before those it is compared with are there as well: it can wait.
        faults = [event for event in reading.events if not isinstance(event, Statement)]
        urgent = {Urgent.EVENT} if faults else set()
        raised = frozenset(_raised(reading.conditions))
        if raised - self._raised:
            urgent.add(Urgent.CONDITION)
        self._raised = raised
        for rank, current in seen.items():
            urgent |= _news(self._before.get(rank, _NOTHING_SEEN), current)
        self._before = seen
        return frozenset(urgent)


def _raised(conditions: Iterable[Condition]) -> Iterator[tuple[str, str, str]]:
    return ((one.kind, one.gpu, one.device) for one in conditions if one.state is ConditionState.RAISED)


def _seen(sample: RankSample, stalled_after_s: float | None) -> _Seen:
    return _Seen(
        stepped=sample.step is not None,
        stalled=stalled_after_s is not None and sample.progress_age_s > stalled_after_s,
        process=sample.process,
        odd=(sample.nonfinite is not None) + (0 if sample.skipped is None else sample.skipped.count),
    )


def _news(before: _Seen, current: _Seen) -> set[Urgent]:
    news = set()
    if current.stepped and not before.stepped:
        news.add(Urgent.FIRST_STEP)
    if current.stalled and not before.stalled:
        news.add(Urgent.STALLED)
    if current.odd > before.odd:
        news.add(Urgent.NOT_FINITE)
    if current.process != before.process and current.process in _WORTH_A_REPORT:
        news.add(Urgent.PROCESS)
    return news
