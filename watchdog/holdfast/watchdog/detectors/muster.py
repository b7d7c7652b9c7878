"""Who has told of the step that is looked at: of each rank its first sample at or after it.

One rank's word moves no other: how far the job is, how long a step takes and until when the rest are waited for is
what most of those say who told first. A rank that is a whole look ahead of them is not heard of.
"""

from bisect import bisect_right
from collections.abc import Callable, Sequence
from statistics import median_low
from typing import NamedTuple

from holdfast.api.telemetry import RankSample, StepWork

LATE_S, LATE_STEPS = 3.0, 2.0  # ranks that are not heard of are waited for no longer
RANKS_THAT_TELL = 15


class Told(NamedTuple):
    """What ranks said of about the same step, by rank (None: not heard of, and 0 steps). `newest` is the step of
    whoever is furthest, `step_before` what the script calls the step before the first, `step_s` how long one took.
    """

    works: list[StepWork | None]
    steps: list[int]
    missing: int
    newest: int
    step_before: int
    step_s: float


class Muster:
    """Takes samples until all have told of step `target`, of those that followed the round's first."""

    def __init__(self, world_size: int) -> None:
        self.target = 1
        self._size = world_size
        # So many say how far the job is: most of a small world.
        self._tellers = min(RANKS_THAT_TELL, world_size, max(2, (world_size + 1) // 2))
        self._begin()

    def _begin(self) -> None:
        self._taken: list[StepWork | None] = [None] * self._size
        self._missing = self._size
        self._until = float("inf")
        self._first: list[tuple[int, float]] = []  # of those who told first: the step before, a step's seconds

    def take(self, samples: Sequence[RankSample], now: float) -> bool:
        """Samples of one node. True: everybody has told, or is waited for no longer."""
        if not samples:
            return now >= self._until
        target, first, last = self.target, samples[0].work, samples[-1].work
        if first is not None and last is not None and first.steps < target and last.steps < target:
            return now >= self._until  # ranks of a node are at one step, or tell of it a report later
        taken = self._taken
        for each in samples:
            work = each.work
            if work is not None and work.steps >= target and taken[each.rank] is None:
                taken[each.rank] = work
                self._missing -= 1
                if len(self._first) < self._tellers:
                    self._tell((each.step or work.steps) - work.steps, work.wall_s / work.steps, now)
        return not self._missing or now >= self._until

    def _tell(self, step_before: int, step_s: float, now: float) -> None:
        self._first.append((step_before, step_s))
        if len(self._first) == self._tellers:
            self._until = now + max(LATE_S, LATE_STEPS * self._step_s())

    def end(self, look_steps: Callable[[float], int]) -> Told:
        """What they told; the next step is another. `look_steps` says how many a look takes, by their length."""
        works, missing, step_s = self._taken, self._missing, self._step_s()
        step_before = median_low([each for each, _ in self._first])
        self._begin()
        steps = [0 if each is None else each.steps for each in works]
        known = sorted(steps)[missing:]
        ahead = look_steps(step_s)
        limit = median_low(known) + ahead
        newest = known[bisect_right(known, limit) - 1]
        if known[-1] > limit:
            works = [None if each is None or each.steps > limit else each for each in works]
            steps = [0 if each is None else each.steps for each in works]
            missing = works.count(None)
        self.target = newest + ahead
        return Told(works, steps, missing, newest, step_before, step_s)

    def _step_s(self) -> float:
        return median_low([each for _, each in self._first])
