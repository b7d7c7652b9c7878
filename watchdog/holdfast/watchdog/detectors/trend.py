"""Where a temperature is going, from the last minute of it.

Under a new load, and when its cooling fails, a GPU warms up towards a new equilibrium: ever slower, by the same
factor in equal times. So two lines are laid through the two halves of the last minute, and the second half's slope
goes on to shrink as it did from the first. A steady rise is a line, as a limiting case. While a rise still grows
steeper it has only begun, and nothing is said yet.

Source: Newton's law of cooling, https://en.wikipedia.org/wiki/Newton%27s_law_of_cooling
"""

import math
from array import array

EVERY_S = 10.0
POINTS = 7  # a minute
POINTS_MIN = 5
# Sensors read whole degrees and waver by one: a rise of less may be noise, in a minute, and in less than that.
RISE_C_MIN = 5.0
RISE_C_MIN_SHORT = 10.0


class Trend:
    """Margins below a limit, in degrees Celsius, every `EVERY_S` seconds or slower."""

    __slots__ = ("_at", "_margins")

    def __init__(self) -> None:
        self._at = array("d")
        self._margins = array("f")

    def take(self, margin_c: float, at: float) -> bool:
        """Keep a point; False when the last one is too recent to keep another."""
        if self._at and at - self._at[-1] < EVERY_S:
            return False
        self._at.append(at)
        self._margins.append(margin_c)
        if len(self._at) > POINTS:
            del self._at[0]
            del self._margins[0]
        return True

    def clear(self) -> None:
        """What was before is not known to lead to what comes."""
        del self._at[:]
        del self._margins[:]

    def rises_by(self, within_s: float) -> float | None:
        """By how much the temperature is about to rise in `within_s`; None when it does not rise steadily."""
        if len(self._at) < POINTS_MIN or self._margins[0] - self._margins[-1] < RISE_C_MIN:
            return None
        rise_c_min = RISE_C_MIN if len(self._at) == POINTS else RISE_C_MIN_SHORT
        middle = len(self._at) // 2
        half_s = (self._at[-1] - self._at[0]) / 2
        first, second = -self._slope(0, middle + 1), -self._slope(middle, len(self._at))
        if second <= 0 or second > first or (first + second) * half_s < rise_c_min:
            return None
        shrinks, halves = second / first, within_s / half_s
        if shrinks == 1:
            return second * within_s
        return second * half_s * shrinks * (1 - math.pow(shrinks, halves)) / (1 - shrinks)

    def _slope(self, start: int, end: int) -> float:
        """Of the line with the least squares through some of the points, in degrees per second."""
        at, margins = self._at[start:end], self._margins[start:end]
        mean_at, mean_margin = sum(at) / len(at), sum(margins) / len(margins)
        spread = sum((each - mean_at) ** 2 for each in at)
        return sum((x - mean_at) * (y - mean_margin) for x, y in zip(at, margins, strict=True)) / spread
