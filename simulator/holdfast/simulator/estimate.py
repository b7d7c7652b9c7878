"""What a few independent runs say of the mean of all: with Student's t, and how many more would tell.

Runs of different seeds are independent and alike, so that their mean is close to normal also where one run's
figure is not. With few seeds and rare events the interval is too narrow: a figure that was 0 in every run has no
spread, and what its mean can be at most is told by `at_most` instead.
Sources: Student, "The probable error of a mean", Biometrika 6, 1908, https://doi.org/10.1093/biomet/6.1.1;
M. Abramowitz, I. Stegun, "Handbook of mathematical functions", 26.7.3 and 26.7.4,
https://personal.math.ubc.ca/~cbm/aands/ (the distribution for a whole number of degrees of freedom);
J. Hanley, A. Lippman-Hand, "If nothing goes wrong, is everything all right?", JAMA 249, 1983,
https://doi.org/10.1001/jama.1983.03330370053031 (the rule of three)
"""

import math
from collections.abc import Sequence
from statistics import NormalDist, fmean, stdev
from typing import Final

import msgspec

CONFIDENCE: Final = 0.95
POWER: Final = 0.8
"""With how many seeds a difference would tell: so that four of five such comparisons do."""
SEEDS_MAX: Final = 1_000_000


class Estimate(msgspec.Struct, frozen=True, omit_defaults=True):
    """The mean of `seeds` runs; with 95 % confidence that of all is from `low` to `high`. One run says nothing of
    that: both are None.
    """

    mean: float
    low: float | None = None
    high: float | None = None
    seeds: int = 1

    @property
    def half(self) -> float:
        """How far the interval reaches beyond the mean; infinite where there is none."""
        return math.inf if self.high is None else self.high - self.mean

    @property
    def tells(self) -> bool:
        """Whether the interval leaves out 0."""
        return self.low is not None and self.high is not None and (self.low > 0.0 or self.high < 0.0)


def estimate(values: Sequence[float], least: float = -math.inf, most: float = math.inf) -> Estimate:
    """Of one figure of every run; there is at least one. None is below `least` or above `most`, and so no mean."""
    mean, count = fmean(values), len(values)
    if count < 2:
        return Estimate(mean)
    half = student(count - 1) * stdev(values) / math.sqrt(count)
    return Estimate(mean, max(least, mean - half), min(most, mean + half), count)


def is_beyond_noise(differences: Sequence[float], *, counts: bool = False) -> bool:
    """Whether the mean of paired differences is not 0, with 95 % confidence: by Student's t.

    Those of `counts` that are all alike, as of rare events they are, have no spread to judge by: then by the sign
    test, whether chance has so many fall to one side.
    Source: W. J. Conover, "Practical nonparametric statistics", chapter 3 (the sign test)
    """
    if not counts or len(set(differences)) > 1:
        return estimate(differences).tells
    return any(differences) and 2.0 * 0.5 ** len(differences) <= 1.0 - CONFIDENCE


def at_most(count: int) -> float:
    """What the mean of a count of rare events can be, with 95 % confidence, when `count` runs had none."""
    return -math.log(1.0 - CONFIDENCE) / count


def seeds_to_tell(differences: Sequence[float]) -> int | None:
    """About how many seeds it takes until a difference such as this is no noise, by the normal distribution.

    None where the runs do not differ at all, or no number of them would do.
    """
    if len(differences) < 2:
        return None
    mean, spread = fmean(differences), stdev(differences)
    if mean == 0.0:
        return None
    if spread == 0.0:
        return math.ceil(-math.log2((1.0 - CONFIDENCE) / 2.0))  # by the sign test
    normal = NormalDist()
    reach = normal.inv_cdf((1.0 + CONFIDENCE) / 2.0) + normal.inv_cdf(POWER)
    needed = math.ceil((reach * spread / mean) ** 2)
    return max(2, needed) if needed <= SEEDS_MAX else None


def student(freedom: int) -> float:
    """How many standard errors the interval reaches to each side, with so many degrees of freedom (1 or more)."""
    low, high = 0.0, 1000.0
    for _ in range(60):
        middle = (low + high) / 2.0
        low, high = (middle, high) if within(middle, freedom) < CONFIDENCE else (low, middle)
    return high


def within(t: float, freedom: int) -> float:
    """The probability that Student's t is from -t to t."""
    angle = math.atan(t / math.sqrt(freedom))
    cosine = math.cos(angle) ** 2
    term = math.sin(angle) if freedom % 2 == 0 else math.sin(angle) * math.cos(angle)
    total = term if freedom > 1 else 0.0
    for place in range(2 if freedom % 2 == 0 else 3, freedom - 1, 2):
        term *= cosine * (place - 1) / place
        total += term
    return total if freedom % 2 == 0 else 2.0 / math.pi * (angle + total)
