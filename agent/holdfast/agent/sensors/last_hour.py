"""How much was counted in the last hour, to the minute."""

from collections import deque
from typing import Final

HOUR_S: Final = 3600.0
_MINUTE_S: Final = 60.0


class LastHour:
    """Pure: `now` is CLOCK_MONOTONIC in seconds and never goes back. Holds 61 minutes at most."""

    def __init__(self) -> None:
        self._minutes: deque[tuple[float, int]] = deque()
        self._total = 0

    def add(self, count: int, now: float) -> None:
        """`count` more happened by `now`."""
        if count == 0:
            return
        minute = now // _MINUTE_S
        if self._minutes and self._minutes[-1][0] == minute:
            self._minutes[-1] = (minute, self._minutes[-1][1] + count)
        else:
            self._minutes.append((minute, count))
        self._total += count

    def total(self, now: float) -> int:
        """What was counted in the hour up to `now`, and at most a minute more."""
        while self._minutes and (self._minutes[0][0] + 1) * _MINUTE_S <= now - HOUR_S:
            self._total -= self._minutes.popleft()[1]
        return self._total
