"""Whether something keeps going beyond a limit, or did so by chance: Page's test on how often it does.

What is healthy goes beyond a limit now and then, and how often is learned from the job itself. Each look at which
something is beyond is evidence that it is so nearly always, by the ratio of the two chances; each look at which it
is not is evidence against that. What the evidence for it has outweighed by `CERTAIN` is no chance. Where noise
seldom goes beyond, four looks in a row are enough; where it often does, it takes as many more as that asks for.
One burst that passes is forgotten, bursts that come again and again are not.

Source: E. S. Page, Continuous inspection schemes, Biometrika 41 (1954), https://doi.org/10.1093/biomet/41.1-2.100
"""

from collections.abc import Iterable
from math import log

import msgspec

CERTAIN = log(1e10)  # of 1e10 things that are looked at and healthy, one is taken for what it is not
BEYOND_MOSTLY = 0.9  # of the looks, where something is wrong
# What is taken for usual before anything is known: once in a thousand looks. It weighs as much as so many looks.
LOOKS_BEFORE, BEYOND_BEFORE = 500.0, 0.5
LOOKS_REMEMBERED = 100_000.0


class Mark(msgspec.Struct, frozen=True, gc=False):
    """When something was looked at: the step, and the watchdog's clock in seconds."""

    step: int
    at: float


class Suspicion(msgspec.Struct, gc=False):
    """What speaks against one that has been beyond the limit lately. `since` is when it first was."""

    since: Mark
    evidence: float = 0.0
    last: Mark | None = None  # the newest look at which it was beyond


class Exceedances:
    """Follows who is beyond, by a number each. Remembers nobody who is not under suspicion."""

    def __init__(self) -> None:
        self.suspects: dict[int, Suspicion] = {}
        self._looks, self._beyond = LOOKS_BEFORE, BEYOND_BEFORE
        self._newest: Mark | None = None

    @property
    def rate(self) -> float:
        """Of the looks at what is healthy, the share in which it is beyond."""
        return min(0.5, self._beyond / self._looks)

    def take(self, beyond: Iterable[int], looked_at: int, mark: Mark) -> list[int]:
        """One look at so many, of which these are `beyond`; those of them for which it is no chance any more."""
        rate = self.rate
        for_it, against = log(BEYOND_MOSTLY / rate), log((1.0 - BEYOND_MOSTLY) / (1.0 - rate))
        known = self.suspects
        self._looks, self._newest = self._looks + looked_at, mark
        for each in beyond:
            if (suspicion := known.get(each)) is None:
                suspicion = known[each] = Suspicion(mark)
                self._beyond += 1.0  # that it goes on is what is tested
            suspicion.evidence, suspicion.last = min(suspicion.evidence + for_it, 2.0 * CERTAIN), mark
        for each in [each for each, suspicion in known.items() if suspicion.last is not mark]:
            known[each].evidence += against
            if known[each].evidence <= 0.0:
                del known[each]
        if self._looks > LOOKS_REMEMBERED:
            self._looks, self._beyond = self._looks / 2.0, self._beyond / 2.0
        return self.certain()

    def is_beyond(self, each: int) -> bool:
        """Whether it was beyond in the newest look."""
        return each in self.suspects and self.suspects[each].last is self._newest

    def forget(self, known: Iterable[int]) -> None:
        """Nothing speaks against these any more."""
        for each in known:
            self.suspects.pop(each, None)

    def certain(self) -> list[int]:
        """Those for whom it is no chance any more."""
        return [each for each, suspicion in self.suspects.items() if suspicion.evidence >= CERTAIN]

    def suspected(self) -> list[int]:
        """Those for whom it is half-way certain."""
        return [each for each, suspicion in self.suspects.items() if suspicion.evidence >= CERTAIN / 2.0]
