"""How long this job's steps take: the distribution that a hang is judged against."""

import math
from bisect import bisect_left, insort
from collections import deque

STEPS_KEPT = 512
# Before the job has trained so many steps beyond a round's first one, nothing is known of how long they take.
STEPS_NEEDED = 3
QUANTILE = 0.99


class StepTimes:
    """The slowest rank's time of each of the last `STEPS_KEPT` steps seen, over rounds.

    Steps are seen at the pace of the reports, so short ones are a sample. The first step seen of each round is
    left out: it pays for compilation, lazy imports and cold caches, and would hide a hang for as long.
    """

    def __init__(self) -> None:
        self._recent: deque[float] = deque()
        self._sorted: list[float] = []
        self._first: int | None = None
        self._newest: int | None = None
        self._slowest = math.inf  # of the newest step; infinite while that is the first, which does not count
        self._trained = 0  # steps completed beyond the first of each round, seen or not

    def begin_round(self) -> None:
        """Steps are counted anew: a round may train steps again."""
        self._first = self._newest = None
        self._slowest = math.inf

    def take(self, step: int, time_s: float) -> None:
        """One rank completed `step` in `time_s` seconds."""
        if step == self._newest and time_s <= self._slowest:
            return  # nearly every sample: all but the slowest rank of a step
        if self._first is None or self._newest is None:
            self._first = self._newest = step
        if step <= self._first or step < self._newest or not 0.0 < time_s < math.inf:
            return
        if step == self._newest:
            self._forget(self._recent.pop())
        elif len(self._recent) == STEPS_KEPT:
            self._forget(self._recent.popleft())
        self._trained += step - self._newest
        self._newest, self._slowest = step, time_s
        self._recent.append(time_s)
        insort(self._sorted, time_s)

    def p99_s(self) -> float | None:
        """The time 99% of the steps take at most, in seconds; None while too few were trained."""
        if self._trained < STEPS_NEEDED:
            return None
        return self._sorted[math.ceil(QUANTILE * len(self._sorted)) - 1]

    def _forget(self, time_s: float) -> None:
        del self._sorted[bisect_left(self._sorted, time_s)]
