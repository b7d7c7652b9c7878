"""What goes on is told once, and again where it comes back after it was over."""

from typing import Final

OVER_S: Final = 300.0
"""So long it was not seen: then it was over. Twice as long after each time that it was told, so that what comes
and goes all the time fills no page."""


class Occurrences:
    """Of one round, by cause."""

    def __init__(self) -> None:
        self._seen: dict[str, tuple[float, int]] = {}  # when last, and how often it was told

    def is_new(self, cause: str, now: float) -> bool:
        """It is seen at `now`: whether that is to be told. To be asked at every look at which it is so."""
        seen_at, told = self._seen.get(cause, (now, 0))
        is_new = told == 0 or now - seen_at >= OVER_S * 2.0 ** (told - 1)
        self._seen[cause] = now, told + is_new
        return is_new
