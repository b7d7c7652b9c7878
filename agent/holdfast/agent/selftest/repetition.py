"""How often a check must be repeated: a faulty device computes wrongly now and then, so one pass proves nothing.

Pure. A fault that strikes each run on its own with probability p is seen in K runs with P = 1 - (1 - p)^K, because
one digest that differs from the others is enough. The light level catches a device that computes wrongly one time
in fifty: 1 - (49/50)^149 = 95.1 %.

Source for one in fifty: a GPU that diverged in 1 of 50 runs, "Safeguarding LLM Training at Scale", OSDI '26.
"""

import math
from collections.abc import Mapping
from typing import Final

from holdfast.api.selftest import TestLevel

CONFIDENCE: Final = 0.95
CAUGHT_ONE_IN: Final[Mapping[TestLevel, int]] = {TestLevel.LIGHT: 50, TestLevel.FULL: 500}
"""The rarest fault each level is made for: wrong in one run of so many."""


def chance_to_catch(probability: float, repeats: int) -> float:
    """The chance that at least one of `repeats` runs is wrong when each is with `probability`."""
    return 1.0 - (1.0 - probability) ** repeats


def repeats_to_catch(probability: float, confidence: float = CONFIDENCE) -> int:
    """The fewest repeats that catch a fault of `probability` per run with `confidence`. Both between 0 and 1."""
    return math.ceil(math.log1p(-confidence) / math.log1p(-probability))


def repeats_of(level: TestLevel) -> int:
    """How often each check of `level` runs."""
    return repeats_to_catch(1.0 / CAUGHT_ONE_IN[level])


def promise(level: TestLevel, repeats: int) -> str:
    """What `repeats` runs are good for, in words."""
    one_in = CAUGHT_ONE_IN[level]
    chance = chance_to_catch(1.0 / one_in, repeats)
    return f"a device that computes wrongly one time in {one_in} is seen with {chance:.1%}"
