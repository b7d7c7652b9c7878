"""What a step of the job usually takes, and whether it has taken longer for a while: compared with the job itself."""

from collections import deque
from statistics import median
from typing import NamedTuple

from holdfast.watchdog.detectors.exceedances import Mark
from holdfast.watchdog.detectors.peers import MATTERS, Look
from holdfast.watchdog.detectors.slowcause import TOLD_PEERS_MAX, Parts, all_told, of_peers, parts

# The median of the looks that were as usual, at least and at most so many.
USUAL_LOOKS, USUAL_LOOKS_KEPT = 16, 48
LONGER, LONGER_DEVIATIONS = 0.15, 3.0
LONGER_FOR_LOOKS = 16
TO_SIGMA = 1.4826  # of a normal distribution: its standard deviation over its median absolute deviation


class Pace(NamedTuple):
    """A step of one look: seconds that were no checkpoint and not idle, and what they were made of on most ranks.
    `is_told`: the waiting of all ranks is known.
    """

    wall_s: float
    of: Parts
    is_told: bool


class Slower(NamedTuple):
    """All ranks are slower than they were before `since`."""

    usual: Pace
    now: Pace
    since: Mark


def pace_between(last: Look, look: Look) -> Pace | None:
    """The pace from one look to the next, by some ranks: what all share shows in each. None: of none it is known."""
    stride = max(1, len(look.works) // TOLD_PEERS_MAX)
    pairs = zip(last.works[::stride], look.works[::stride], strict=True)
    known = [(then, now) for then, now in pairs if then is not None and now is not None]
    of = of_peers(parts(then, now) for then, now in known)
    if of is None:
        return None
    training_s = (
        (now.wall_s - then.wall_s - (now.idle_s - then.idle_s)) / max(1, now.steps - then.steps)
        for then, now in known
    )
    return Pace(median(training_s) - of.checkpoint, of, all_told(now for _, now in known))


class JobPace:
    """Learns what is usual from the looks that are."""

    def __init__(self) -> None:
        self._usual: deque[Pace] = deque(maxlen=USUAL_LOOKS_KEPT)
        self._since: Mark | None = None
        self._looks = 0

    def take(self, pace: Pace, mark: Mark) -> Slower | None:
        """One more look. None: as usual, or not yet longer for long. What lasts is usual from then on, and so are
        steps that have more tokens.
        """
        if len(self._usual) < USUAL_LOOKS:
            self._usual.append(pace)
            return None
        usual_s = median(each.wall_s for each in self._usual)
        spread_s = TO_SIGMA * median(abs(each.wall_s - usual_s) for each in self._usual)
        if pace.wall_s <= usual_s + max(LONGER * usual_s, LONGER_DEVIATIONS * spread_s):
            self._looks = max(0, self._looks - 2)
            if not self._looks:
                self._since = None
                self._usual.append(pace)
            return None
        of = Parts(*map(median, zip(*(each.of for each in self._usual), strict=True)))
        self._since = since = self._since or mark
        self._looks += 1
        if of.tokens and pace.of.tokens > (1.0 + MATTERS) * of.tokens:
            self._forget()
        elif self._looks >= LONGER_FOR_LOOKS:
            self._forget()
            return Slower(Pace(usual_s, of, pace.is_told), pace, since)
        return None

    def _forget(self) -> None:
        self._usual.clear()
        self._since, self._looks = None, 0
