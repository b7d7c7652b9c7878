"""What the training scripts wrote down, and what it says about a fault. All times are CLOCK_MONOTONIC."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from enum import Enum
from itertools import pairwise
from pathlib import Path
from statistics import quantiles
from typing import Final

NS_PER_S: Final = 1e9


class Kind(Enum):
    """What a rank says."""

    BEGUN = "B"  # its process group stands and its state is loaded
    STEPPED = "S"


@dataclass(frozen=True, slots=True)
class Mark:
    """One line: `rank` of `world`, in process `pid`, has begun behind `step`, or completed it."""

    kind: Kind
    at_ns: int
    rank: int
    step: int
    world: int
    pid: int


def parse(line: str) -> Mark:
    """One whole line. Raises ValueError for anything else."""
    kind, *numbers = line.split()
    at_ns, rank, step, world, pid = map(int, numbers)
    return Mark(Kind(kind), at_ns, rank, step, world, pid)


class StepLog:
    """The file all ranks of a job append to, read as it grows."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset = 0
        self._rest = ""
        self._marks: list[Mark] = []

    def marks(self) -> Sequence[Mark]:
        """Everything written until now, in the order of writing."""
        if self._path.exists():
            with self._path.open() as file:
                file.seek(self._offset)
                *whole, self._rest = (self._rest + file.read()).split("\n")
                self._offset = file.tell()
            self._marks += map(parse, whole)
        return self._marks


def recovered_ns(marks: Iterable[Mark], *, after_ns: int, world: int) -> int | None:
    """When every rank of a `world` begun after `after_ns` had completed a step in it; None: not yet.

    A rank that began again since (an attempt that failed) has to complete a step again.
    """
    stepped: dict[int, bool] = {}
    for mark in sorted(marks, key=lambda mark: mark.at_ns):
        if mark.at_ns <= after_ns or mark.world != world:
            continue
        if mark.kind is Kind.BEGUN:
            stepped[mark.rank] = False
        elif mark.rank in stepped:
            stepped[mark.rank] = True
            if len(stepped) == world and all(stepped.values()):
                return mark.at_ns
    return None


def still_ns(marks: Iterable[Mark], *, after_ns: int, world: int) -> int | None:
    """How long nothing was trained when the job became `world` ranks: from the last step of another world until
    every rank of the new one has completed a step. None: it has not happened yet."""
    recovered = recovered_ns(marks, after_ns=after_ns, world=world)
    if recovered is None:
        return None
    before = [
        mark.at_ns
        for mark in marks
        if mark.kind is Kind.STEPPED and mark.world != world and mark.at_ns < recovered
    ]
    return recovered - max(before) if before else None


def lost_steps(marks: Iterable[Mark], *, fault_ns: int, recovered_at_ns: int) -> int:
    """Steps completed before the fault that were trained again after it."""
    marks = list(marks)
    done = max((mark.step for mark in marks if mark.at_ns <= fault_ns), default=0)
    begun = [mark.step for mark in marks if mark.kind is Kind.BEGUN and fault_ns < mark.at_ns <= recovered_at_ns]
    return max(0, done - begun[-1]) if begun else 0


def longest_gap_s(marks: Iterable[Mark], *, from_ns: int, to_ns: int) -> float:
    """The longest time, within the window, that any rank went without completing a step."""
    longest = 0.0
    for times in _steps_by_rank(marks).values():
        before = [at_ns for at_ns in times if at_ns <= from_ns]
        inside = [at_ns for at_ns in times if from_ns < at_ns <= to_ns]
        looked_at = [*before[-1:], *inside, to_ns]
        longest = max(longest, *((later - earlier) / NS_PER_S for earlier, later in pairwise(looked_at)))
    return longest


def p99_step_s(marks: Iterable[Mark]) -> float:
    """The 99th percentile of the time between two steps of one rank; NaN with fewer than three steps."""
    gaps = [
        (later - earlier) / NS_PER_S
        for times in _steps_by_rank(marks).values()
        for earlier, later in pairwise(times)
    ]
    return quantiles(gaps, n=100)[98] if len(gaps) > 1 else float("nan")


def newest_by_rank(marks: Iterable[Mark]) -> dict[int, Mark]:
    """The last mark of every rank."""
    return {mark.rank: mark for mark in marks}


def _steps_by_rank(marks: Iterable[Mark]) -> dict[int, list[int]]:
    by_rank: dict[int, list[int]] = {}
    for mark in marks:
        if mark.kind is Kind.STEPPED:
            by_rank.setdefault(mark.rank, []).append(mark.at_ns)
    return by_rank
