"""Something that counts only when it lasts, and is over only when its absence lasts."""

from dataclasses import dataclass
from typing import Final

# Looks come every second. What was not looked at for longer may have changed meanwhile.
GAP_S_MAX: Final = 5.0


@dataclass(slots=True)
class Lasting:
    """Pure; times in seconds. It holds after `raise_after_s` of being seen and is over after `clear_after_s`.

    What happened between two looks that are further apart than `gap_s_max` is Unknown.
    """

    raise_after_s: float
    clear_after_s: float
    gap_s_max: float = GAP_S_MAX
    holds: bool | None = None  # None: neither has lasted
    _sees: bool | None = None
    _lasted_s: float = 0.0
    _at: float = 0.0

    def observe(self, sees: bool | None, now: float) -> bool | None:
        """Take in what is seen at `now`; None stops the time. True: it holds; False: it is over; None: Unknown."""
        if sees is None:
            self._at = float("-inf")
            return self.holds
        if sees != self._sees:
            self._sees, self._lasted_s = sees, 0.0
        elif now - self._at <= self.gap_s_max:
            self._lasted_s += now - self._at
        self._at = now
        if self._lasted_s >= (self.raise_after_s if sees else self.clear_after_s):
            self.holds = sees
        return self.holds
