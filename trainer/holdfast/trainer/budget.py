"""How often something may be done after a step so that it takes no more than a share of the step time. Pure."""

import math
from collections import deque
from statistics import median
from typing import Final

# What all proofs together may take of the step time is half a percent; they share it like this.
BLOCK_SHARE: Final = 0.0015
LOOK_SHARE: Final = 0.003
NORM_SHARE: Final = 0.0005
_REMEMBERED: Final = 9  # measures, so that one that was held up by something else does not count


def steps_between(cost_s: float, step_s: float, share: float) -> int:
    """At least how many steps lie between two of what takes `cost_s`, so that it is at most `share` of them."""
    if cost_s <= 0.0:
        return 1
    if step_s <= 0.0:
        raise ValueError(f"step_s is {step_s}, a step takes more than no time")
    return max(1, math.ceil(cost_s / (share * step_s)))


class Budget:
    """What one kind of proof took so far, and how rare it has to be.

    The first one finds its memory and loads its kernels: it does not count.
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._costs_s: deque[float] = deque(maxlen=_REMEMBERED)
        self._steps_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.is_warm = False  # one was done

    def spent(self, cost_s: float) -> None:
        """One was done."""
        if self.is_warm:
            self._costs_s.append(cost_s)
        self.is_warm = True

    def stepped(self, step_s: float) -> None:
        """A step took so long, with what was done after it."""
        if step_s > 0.0:
            self._steps_s.append(step_s)

    @property
    def share(self) -> float | None:
        """What one takes of one step; None while nothing is measured."""
        if not (self._costs_s and self._steps_s):
            return None
        return median(self._costs_s) / median(self._steps_s)

    def every(self, wanted: int) -> int:
        """Every how many steps: `wanted`, or as many times two as are needed.

        All that this ever says divide each other, so ranks that measure differently still do it at common steps.
        """
        share = self.share
        needed = 1 if share is None else steps_between(share, 1.0, self._share)
        return wanted << max(0, math.ceil(math.log2(needed / wanted)))
