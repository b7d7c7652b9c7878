"""Counters of errors, judged by how fast they grow. Pure: `now` is CLOCK_MONOTONIC in seconds."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

HOUR_S: Final = 3600.0
_MINUTE_S: Final = 60.0

WINDOW_S: Final = 600.0
QUIET_S: Final = 3600.0
QUIET_SHARE: Final = 0.1  # of the growth that raises
_SAMPLE_EVERY_S: Final = 30.0
_GAP_S_MAX: Final = 60.0

_WRAPS_AT: Final = 1 << 32
# A counter that fell from so near its top has wrapped; from anywhere else it has started again.
_NEAR_TOP: Final = _WRAPS_AT - (1 << 24)


@dataclass(slots=True)
class Rate:
    """Too fast is `too_many` in ten minutes, quiet an hour of which each ten minutes had less than a tenth.

    A counter that shrinks was reset and starts again. `holds` is True: it grows too fast; False: it has been
    quiet; None: neither yet. `grown` and `over_s` say what was judged last.
    """

    too_many: int
    holds: bool | None = None
    grown: int = 0
    over_s: float = 0.0
    _window: deque[tuple[float, int]] = field(default_factory=deque)
    _quiet_since: float | None = None
    _seen_at: float = float("-inf")

    def observe(self, count: int | None, now: float) -> bool | None:
        """Take in the counter, None while it is Unknown. Returns `holds`."""
        if count is None:
            return self.holds
        if now - self._seen_at > _GAP_S_MAX or (self._window and count < self._window[-1][1]):
            self._window.clear()
            self._quiet_since = None
        self._seen_at = now
        while self._window and now - self._window[0][0] > WINDOW_S:
            self._window.popleft()
        if not self._window or now - self._window[-1][0] >= _SAMPLE_EVERY_S:
            self._window.append((now, count))
        began, first = self._window[0]
        self.grown, self.over_s = count - first, now - began
        if self.grown >= self.too_many:
            self.holds = True
        if self.grown >= QUIET_SHARE * self.too_many:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since >= QUIET_S:
            self.holds = False
        return self.holds


class LastHour:
    """How much was counted in the last hour, to the minute. Holds 61 minutes at most."""

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


class ErrorCount:
    """How a raw counter of errors grew, whatever becomes of its value: it stops at a limit, wraps or starts again.

    `stops_at` is the value at which it stops counting, None for one that does not stop. What it counted before the
    first look is not counted here.
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
        before = value if self._value is None else self._value
        self._value = value
        if value >= before:
            grown = value - before
        else:
            grown = value + _WRAPS_AT - before if _NEAR_TOP <= before < _WRAPS_AT else value
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
