"""Whether a rank is slow in each step, or in a few long ones, as where a script evaluates on one rank.

A machine that is slow is so all the time. What doubles a step now and then, with nothing in between, is something
that is done then, and what comes and goes may be gone for a while on any node: a swap would prove nothing. How
many of its steps a rank is slow in follows from two sums: the square of what it is beyond its peers, added up,
over as many times the sum of squares.

Source: R. J. Bell and P. Dean, Atomic vibrations in vitreous silica, Discussions of the Faraday Society 50 (1970),
https://doi.org/10.1039/DF9705000055 (the participation ratio)
"""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import msgspec

from holdfast.watchdog.detectors.peers import Compared

FEW, SOME, LARGE = 1 / 8, 1 / 2, 1.0  # of the steps; beyond what a step takes the peers
# What ends while its ranks are moved looks as if it had stayed with the node: it takes a minute or two to know the
# new round. What has lasted for many times as long does not end just then.
LASTS_LOOKS, LASTS_S = 32, 600.0
LONGEST = 100.0  # steps: who tells of a longer one shall not outweigh all others


class _Sums(msgspec.Struct, gc=False):
    """Over looks since `since`, by steps. What is beyond the peers is in steps, as long as they are without it."""

    since: float
    looks: int = 0
    steps: int = 0
    beyond: float = 0.0
    squares: float = 0.0


class Steadiness(NamedTuple):
    """Of ranks that are slow together, since they are under suspicion: for how many seconds and looks, in which
    share of their steps, and how far beyond their peers they are in these.
    """

    seconds: float
    looks: int
    share: float
    height: float

    @property
    def is_spiky(self) -> bool:
        """Whether it lies in few steps, or in some that are so long that nothing is merely slow in them."""
        return self.share <= FEW or (self.share <= SOME and self.height >= LARGE)

    @property
    def is_steady(self) -> bool:
        """Whether it is there in most steps."""
        return self.share > SOME

    @property
    def lasts(self) -> bool:
        """Whether it has been there for long."""
        return self.looks >= LASTS_LOOKS and self.seconds >= LASTS_S


UNKNOWN = Steadiness(0.0, 0, 1.0, 0.0)


class Steadinesses:
    """Follows ranks while they are under suspicion, by looks of the shortest span."""

    def __init__(self) -> None:
        self._of: dict[int, _Sums] = {}

    def take(self, compared: Compared, suspects: Iterable[int]) -> None:
        """One more look. Who is under suspicion no more is forgotten."""
        before, now = compared.before.mark, compared.now.mark
        steps, known = max(1, now.step - before.step), self._of
        self._of = {rank: known.get(rank) or _Sums(before.at) for rank in suspects}
        for rank, sums in self._of.items():
            spent = compared.busy_s[rank]
            if spent is None:
                continue
            beyond_s = max(0.0, spent - compared.usual_s[compared.peers.place_of(rank)])
            without_s = max(compared.step_s - beyond_s, compared.step_s / LONGEST)
            beyond = beyond_s / without_s
            sums.looks += 1
            sums.steps += steps
            sums.beyond += steps * beyond
            sums.squares += steps * beyond * beyond

    def of(self, ranks: Sequence[int], now: float) -> Steadiness:
        """Of these together, up to `now`."""
        known = [each for rank in ranks if (each := self._of.get(rank)) is not None and each.beyond > 0.0]
        if not known:
            return UNKNOWN
        steps = sum(each.steps for each in known)
        beyond = sum(each.beyond for each in known)
        squares = sum(each.squares for each in known)
        seconds, looks = now - max(each.since for each in known), min(each.looks for each in known)
        return Steadiness(seconds, looks, beyond * beyond / (steps * squares), squares / beyond)
