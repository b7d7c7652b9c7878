"""What makes steps longer, and what the steps of a round were made of because of it, as ranks tell it.

One rank is slow, and all others wait for it: a step takes as long as with the slowest. The sums are what the
detector of stragglers compares; that each rank is a little apart from the others, and none of them noisy, is ours.
"""

from typing import Final, NamedTuple

from holdfast.api.telemetry import StepWork

# Of a step in which nothing is wrong, for which all are busy; the rest they wait for each other's messages.
BUSY: Final = 0.8
# By how much ranks are apart at most, to either side. Source: https://arxiv.org/abs/2208.11035 (some percent)
APART: Final = 0.01
APART_OF: Final = 101
# For so long a slow rank and its peers are looked at: it takes some steps to find it; and where a spare may take
# its ranks, ten minutes and 35 looks, at steps or seconds, to know that it lasts.
FOUND_STEPS: Final = 20.0
LASTS_S: Final = 780.0
LASTS_STEPS: Final = 40.0


class SlowRank(NamedTuple):
    """A rank that is slow wherever it is: it has more to do than the others."""

    rank: int


class Slowness:
    """Who is slow now, by what is to blame (a machine, or a rank), and sums since the round began, in steps."""

    def __init__(self) -> None:
        self.now: dict[object, tuple[str, float]] = {}  # its cause, and how many times longer a step takes
        self._made = self._walls = 0.0
        self._beyond: dict[object, float] = {}

    @property
    def factor(self) -> float:
        """How many times longer a step takes."""
        return max([1.0, *(factor for _, factor in self.now.values())])

    @property
    def cause(self) -> str:
        """What the slowest is slow for."""
        return max(self.now.values(), key=lambda each: each[1], default=("", 1.0))[0]

    def begin(self) -> None:
        """A round begins, of which no step is made."""
        self._made = self._walls = 0.0
        self._beyond.clear()

    def make(self, steps: float) -> None:
        """So many steps more were made, and parts of one."""
        self._made += steps
        self._walls += steps * self.factor
        for what, (_, factor) in self.now.items():
            self._beyond[what] = self._beyond.get(what, 0.0) + steps * (factor - 1.0)

    def work(self, rank: int, step_s: float, *blamed: object) -> StepWork | None:
        """What the steps of a rank were made of that is as slow as each of `blamed`; None before the first."""
        steps = int(self._made + 1e-7)
        if not steps:
            return None
        part = max(0.0, self._made - steps)  # of the step that is being made
        wall = self._walls - part * self.factor
        beyond = 0.0
        for what in blamed:
            factor = self.now[what][1] if what in self.now else 1.0
            beyond += self._beyond.get(what, 0.0) - part * (factor - 1.0)
        apart = APART * (2.0 * (rank * 37 % APART_OF) / (APART_OF - 1) - 1.0)
        busy = steps * BUSY * (1.0 + apart) + beyond
        return StepWork(steps, wall * step_s, 0.0, 0.0, 0.0, 0.0, waited_s=max(0.0, wall - busy) * step_s)
