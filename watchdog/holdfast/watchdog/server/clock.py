"""The watchdog's clock: seconds that never go back, neither with the wall clock nor over a restart."""

import time


class WatchdogClock:
    """Reads like seconds since 1970, but is set once, at start, and then only follows the monotonic clock.

    Times that were journaled by an earlier run must not lie in the future of this one, whatever happened to the
    wall clock in between: the start is the later of the wall clock and `not_before`, the last journaled time.
    """

    def __init__(self, *, not_before: float = 0.0) -> None:
        # The one place that reads the wall clock: it makes times comparable over restarts, and readable.
        start = max(time.time(), not_before)  # noqa: TID251
        self._base = start - time.monotonic()

    def now(self) -> float:
        """Seconds."""
        return self._base + time.monotonic()
