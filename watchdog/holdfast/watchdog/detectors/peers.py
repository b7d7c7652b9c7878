"""The ranks of a round compared with their peers: how long each was busy in a step, beyond what they were.

In synchronous training a step takes equally long on all ranks, for the others wait for the slowest. So what counts
is how long a rank was busy: all of the step but its waiting. Peers are the ranks with the same place in the model,
as tensor and pipeline parallelism divide it; places have different work, and are compared as a whole.

How far ranks are apart while all is well is measured in each look, on the side of those that are less busy: what
is slow does not move that, be it half of the ranks, as one of two nodes. The fewer peers there are, the less that
says: then some percent, by which GPUs of one make differ, are taken for usual too.
Source: https://arxiv.org/abs/2208.11035 (how far GPUs of one make and cluster are apart)
"""

from collections import deque
from collections.abc import Sequence
from math import sqrt
from statistics import median
from typing import NamedTuple

from holdfast.api.finding import SHORTEST_STEP_S
from holdfast.api.policy import StragglerPolicy
from holdfast.api.telemetry import StepWork
from holdfast.watchdog.detectors.exceedances import Exceedances, Mark

MATTERS = 0.05  # of a step: what costs the job less is no fault
DEVIATIONS = 4.0  # beyond what is usual; how often that happens by chance is learned
QUARTILE = 0.6745  # of a normal distribution: how far it is from the middle, over its standard deviation
PEERS_THAT_TELL = 8
SPREAD_OF_FEW = 0.025  # of a step
SPREADS_KEPT = 15


class Look(NamedTuple):
    """All ranks at about the same step: sums since the round began, by rank. None: not heard of."""

    mark: Mark
    works: Sequence[StepWork | None]
    busy_s: Sequence[float]
    steps: Sequence[int]


def is_told(work: StepWork) -> bool:
    """Whether it is known how long the rank waited for others."""
    return work.waited_s is not None


def busy_s(work: StepWork) -> float:
    """For how many seconds the rank was busy, or stopped.

    Where nobody knows how long it waited, as on a GPU, these are the seconds in which it certainly did not.
    """
    if work.waited_s is None:
        return work.data_s + work.checkpoint_s + work.collected_s + work.stopped_s
    return work.wall_s - work.idle_s - max(0.0, work.waited_s - work.stopped_s)


def busy_of(works: Sequence[StepWork | None]) -> list[float]:
    """`busy_s` of each, 0.0 of None."""
    if None in works or not all(each.waited_s and not each.stopped_s for each in works if each):
        return [0.0 if each is None else busy_s(each) for each in works]
    return [
        each.wall_s - each.idle_s - (each.waited_s or 0.0) for each in works if each
    ]  # the most, thrice as fast


class Compared(NamedTuple):
    """What one comparison came to. `busy_s` is in seconds a step by rank (None: not compared); `usual_s` is what
    the peers of each place are busy, `step_s` how long a step took.
    """

    peers: "Peers"
    before: Look
    now: Look
    step_s: float
    busy_s: Sequence[float | None]
    usual_s: Sequence[float]
    slow: Sequence[int]
    slow_places: Sequence[int]


class Peers:
    """Compares over so many looks at a time."""

    def __init__(self, model_ranks: int, world_size: int, wanted: StragglerPolicy, *, every: int) -> None:
        self.every = every
        self.ranks, self.places = Exceedances(), Exceedances()
        self._world_size = world_size
        # With one rank of each place nobody has peers: all are compared, each with what it was beside the others.
        self._is_single = world_size <= model_ranks
        self._model_ranks = 1 if self._is_single else model_ranks
        self._peers = world_size // self._model_ranks
        self._wanted = wanted.slower_than
        self._before: Look | None = None
        self._spreads: deque[float] = deque(maxlen=SPREADS_KEPT)
        self._beside: list[list[float]] = []  # of a single model: what each rank was beyond the others
        self._last_beyond: list[float] = []

    def take(self, look: Look) -> Compared | None:
        """One more look. None: it is the first, or ranks that are alone are not known yet."""
        before, self._before = self._before, look
        if before is None:
            return None
        spent = self._spent(before, look)
        walls = [
            (now.wall_s - then.wall_s) / (now.steps - then.steps)
            for now, then in zip(look.works[:SPREADS_KEPT], before.works[:SPREADS_KEPT], strict=True)
            if now is not None and then is not None and now.steps > then.steps
        ]
        step_s = median(walls) if walls else 0.0
        if step_s < SHORTEST_STEP_S:
            return None
        if self._is_single:
            alone = self._beside_itself(spent)
            if alone is None:
                return None
            spent = alone
        places = range(self._model_ranks)
        known = [sorted(x for x in spent[place :: len(places)] if x is not None) for place in places]
        usual = [self._middle(each) for each in known]
        limit_s = self._limit(spent, known, usual, step_s) * step_s
        slow = [
            place + index * len(places)
            for place in places
            if known[place] and known[place][-1] > usual[place] + limit_s  # seldom
            for index, x in enumerate(spent[place :: len(places)])
            if x is not None and x > usual[place] + limit_s
        ]
        slow = self.ranks.take(slow, self._world_size, look.mark)
        slow_places: list[int] = []
        if len(places) > 1:
            middle = sorted(usual)[(len(usual) - 1) // 2]
            beyond = [place for place in places if usual[place] > middle + limit_s]
            slow_places = self.places.take(beyond, len(places), look.mark)
        return Compared(self, before, look, step_s, spent, usual, slow, slow_places)

    def of(self, rank: int) -> range:
        """All ranks of its place, itself included."""
        return range(rank % self._model_ranks, self._world_size, self._model_ranks)

    def place_of(self, rank: int) -> int:
        """Its place in the model."""
        return rank % self._model_ranks

    def _spent(self, before: Look, look: Look) -> list[float | None]:
        if None in look.works or None in before.works:
            return [
                (b - a) / (n - m) if now is not None and then is not None and n > m else None
                for a, b, m, n, then, now in zip(
                    before.busy_s, look.busy_s, before.steps, look.steps, before.works, look.works, strict=True
                )
            ]
        sums = zip(before.busy_s, look.busy_s, before.steps, look.steps, strict=True)
        return [(b - a) / (n - m) for a, b, m, n in sums]

    def _middle(self, ordered: Sequence[float]) -> float:
        """What these peers are busy: of two, or two halves, the less, for one of them may be slow."""
        return ordered[(len(ordered) - 1) // 2] if ordered else 0.0

    def _limit(
        self,
        spent: Sequence[float | None],
        known: Sequence[Sequence[float]],
        usual: Sequence[float],
        step_s: float,
    ) -> float:
        """How far beyond its peers a rank may be, as a share of the step."""
        if self._wanted is not None:
            return self._wanted / (1.0 + self._wanted)  # of a step that is longer by that much
        if self._peers >= PEERS_THAT_TELL:
            quartiles = (self._middle(each) - each[len(each) // 4] for each in known if each)
            spread = median(quartiles) / QUARTILE / step_s
            least = SPREAD_OF_FEW * sqrt(PEERS_THAT_TELL / self._peers)
        else:
            spread, least = self._spread_of_few(spent, usual, step_s), SPREAD_OF_FEW
        self._spreads.append(spread)
        return max(MATTERS, DEVIATIONS * max(least, spread, median(self._spreads)))

    def _spread_of_few(self, spent: Sequence[float | None], usual: Sequence[float], step_s: float) -> float:
        """All places together; of few ranks in all, how each differs from itself a look ago."""
        beyond = [
            (x - usual[rank % self._model_ranks]) / step_s if x is not None else 0.0
            for rank, x in enumerate(spent)
        ]
        if self._world_size >= PEERS_THAT_TELL and not self._is_single:
            beyond.sort()
            # Of each two one is zero, and the other is beyond it.
            return (beyond[5 * len(beyond) // 8] if self._peers == 2 else -beyond[len(beyond) // 4]) / QUARTILE
        last, self._last_beyond = self._last_beyond, beyond
        return median(abs(x - y) for x, y in zip(beyond, last, strict=True)) / QUARTILE if last else 0.0

    def _beside_itself(self, spent: Sequence[float | None]) -> list[float | None] | None:
        """What each rank was busy beyond what it was before, where it has no peers. None: still learning that."""
        known = [x for x in spent if x is not None]
        middle = median(known) if known else 0.0
        beside = [x - middle if x is not None else 0.0 for x in spent]
        if len(self._beside) < (8 if self.every == 1 else 2):
            self._beside.append(beside)
            return None
        usual = [median(each) for each in zip(*self._beside, strict=True)]
        return [x - y if x is not None else None for x, y in zip(spent, usual, strict=True)]
