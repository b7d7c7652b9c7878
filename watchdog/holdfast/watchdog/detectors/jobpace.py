"""What a step of the job usually takes, and whether it has taken longer for a while: the job beside itself.

Counted is what no rank can hold against another: what most are busy, and how long the slowest waits for the
network. Where nobody knows how long ranks wait, it is the whole step.
"""

from collections import deque
from collections.abc import Iterable
from statistics import median
from typing import NamedTuple

from holdfast.watchdog.detectors.exceedances import Mark
from holdfast.watchdog.detectors.peers import MATTERS, Compared
from holdfast.watchdog.detectors.slowcause import Parts, all_told, of_peers, parts

RANKS_THAT_TELL = 15
# The median of the newest looks is compared with that of those before them, at least and at most so many.
NEWEST_LOOKS = 16
USUAL_LOOKS, USUAL_LOOKS_KEPT = 32, 64
# Longer than usual by a share, and than nine in ten of those that were usual.
LONGER, MOST = 0.15, 0.9


class Pace(NamedTuple):
    """A step of one look: seconds that were no checkpoint and not idle, and what they were made of on most ranks.
    `is_told`: the waiting of all ranks is known.
    """

    step_s: float
    of: Parts
    is_told: bool


class Slower(NamedTuple):
    """All ranks are slower than they were before `since`."""

    usual: Pace
    now: Pace
    since: Mark


def pace_of(compared: Compared) -> Pace | None:
    """The pace between two looks. What it is made of is that of some ranks: what all share shows in each."""
    then_all, now_all = compared.before.works, compared.now.works
    stride = max(1, len(now_all) // RANKS_THAT_TELL)
    pairs = zip(then_all[::stride], now_all[::stride], strict=True)
    known = [(then, now) for then, now in pairs if then is not None and now is not None]
    of = of_peers(parts(then, now) for then, now in known)
    if of is None:
        return None
    is_told, step_s = all_told(now for _, now in known), compared.step_s
    if is_told:
        step_s -= max(each for each in compared.busy_s if each is not None) - median(compared.usual_s)
    idle_s = median((now.idle_s - then.idle_s) / max(1, now.steps - then.steps) for then, now in known)
    return Pace(step_s - idle_s - of.checkpoint, of, is_told)


class JobPace:
    """Learns what is usual from the looks before the newest. What changes slowly is usual."""

    def __init__(self) -> None:
        self._usual: deque[Pace] = deque(maxlen=USUAL_LOOKS_KEPT)
        self._newest: deque[tuple[Pace, Mark]] = deque()

    def take(self, pace: Pace, mark: Mark) -> Slower | None:
        """One more look. None: as usual, or not yet longer for long. What lasts is usual from then on, and so are
        steps that have more tokens.
        """
        self._newest.append((pace, mark))
        if len(self._newest) <= NEWEST_LOOKS:
            return None
        self._usual.append(self._newest.popleft()[0])
        if len(self._usual) < USUAL_LOOKS:
            return None
        steps_s = sorted(each.step_s for each in self._usual)
        usual_s = median(steps_s)
        limit_s = max((1.0 + LONGER) * usual_s, steps_s[int(MOST * len(steps_s))])
        newest = [each for each, _ in self._newest]
        if median(each.step_s for each in newest) <= limit_s:
            return None
        usual = Pace(usual_s, _median(self._usual), pace.is_told)
        now = Pace(median(each.step_s for each in newest), _median(newest), pace.is_told)
        since = next(at for each, at in self._newest if each.step_s > limit_s)
        self._usual.clear()
        self._newest.clear()
        has_more = usual.of.tokens and now.of.tokens > (1.0 + MATTERS) * usual.of.tokens
        return None if has_more else Slower(usual, now, since)


def _median(paces: Iterable[Pace]) -> Parts:
    return Parts(*map(median, zip(*(each.of for each in paces), strict=True)))
