"""How a raw counter of errors grew, whatever becomes of its value: it stops at a limit, wraps or starts again."""

from typing import Final

from holdfast.agent.sensors.last_hour import LastHour

_WRAPS_AT: Final = 1 << 32
# A counter that fell from so near its top has wrapped; from anywhere else it has started again.
_NEAR_TOP: Final = _WRAPS_AT - (1 << 24)


class ErrorCount:
    """One counter. `stops_at` is the value at which it stops counting, None for one that does not stop.

    Pure: `now` is CLOCK_MONOTONIC in seconds. What it counted before the first look is not counted here.
    """

    def __init__(self, stops_at: int | None = None) -> None:
        self._stops_at = stops_at
        self._value: int | None = None
        self._readable = False
        self._hour = LastHour()

    def observe(self, value: int | None, now: float) -> int:
        """Take in the raw value, None when it cannot be read. Returns by how much it grew, at least."""
        self._readable = value is not None
        if value is None:
            return 0
        grown = 0 if self._value is None else _growth(self._value, value)
        self._value = value
        self._hour.add(grown, now)
        return grown

    def in_the_last_hour(self, now: float) -> int:
        """By how much it grew in the hour up to `now`, at least."""
        return self._hour.total(now)

    @property
    def stopped(self) -> bool:
        """Whether it stands at its limit."""
        return self._stops_at is not None and self._value is not None and self._value >= self._stops_at

    @property
    def known(self) -> bool:
        """Whether it can tell that nothing happened: it was read at the last look, and it still counts."""
        return self._readable and not self.stopped


def _growth(before: int, after: int) -> int:
    if after >= before:
        return after - before
    if _NEAR_TOP <= before < _WRAPS_AT:
        return after + _WRAPS_AT - before
    return after
