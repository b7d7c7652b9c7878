"""A counter of errors that is judged by how fast it grows."""

from collections import deque
from dataclasses import dataclass, field
from typing import Final

WINDOW_S: Final = 600.0
QUIET_S: Final = 3600.0
QUIET_SHARE: Final = 0.1  # of the growth that raises
_SAMPLE_EVERY_S: Final = 30.0
_GAP_S_MAX: Final = 60.0


@dataclass(slots=True)
class Rate:
    """Pure. Too fast is `too_many` in ten minutes, quiet an hour of which each ten minutes had less than a tenth.

    A counter that shrinks was reset and starts again. `grown` and `over_s` say what was judged last.
    """

    too_many: int
    grown: int = 0
    over_s: float = 0.0
    _holds: bool | None = None
    _window: deque[tuple[float, int]] = field(default_factory=deque)
    _quiet_since: float | None = None
    _seen_at: float = float("-inf")

    def observe(self, count: int | None, now: float) -> bool | None:
        """Take in the counter. True: it grows too fast; False: it has been quiet; None: neither yet."""
        if count is None:
            return self._holds
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
        self._judge(now)
        return self._holds

    def _judge(self, now: float) -> None:
        if self.grown >= self.too_many:
            self._holds = True
        if self.grown >= QUIET_SHARE * self.too_many:
            self._quiet_since = None
        elif self._quiet_since is None:
            self._quiet_since = now
        elif now - self._quiet_since >= QUIET_S:
            self._holds = False
