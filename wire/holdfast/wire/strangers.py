"""Connections of whoever has not said yet who it is, on any port: so many, for so long. Pure.

Who listens takes everybody in, and somebody always gives way when there are too many: the oldest of the source
that has too many, or the most. So whoever speaks at once is heard, however many others come and say nothing.
"""

from collections.abc import Hashable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

HELLO_S: Final = 10.0
"""What proves who calls is sent with the connection's first bytes; a node short of CPU is slower than a second."""

K = TypeVar("K", bound=Hashable)


@dataclass(slots=True)
class Strangers(Generic[K]):
    """At most `at_most`, and of one source address `of_one_source`, each for `patience_s`. Keys: connections."""

    at_most: int
    of_one_source: int
    patience_s: float = HELLO_S
    _came: dict[K, tuple[str, float]] = field(default_factory=dict)  # in the order in which they came
    _of: dict[str, dict[K, None]] = field(default_factory=dict)

    def __len__(self) -> int:
        return len(self._came)

    def come(self, key: K, source: str, now: float) -> K | None:
        """One more; returns who gives way to it, and is forgotten."""
        self._came[key] = source, now
        siblings = self._of.setdefault(source, {})
        siblings[key] = None
        if len(siblings) <= self.of_one_source:
            if len(self._came) <= self.at_most:
                return None
            siblings = max(self._of.values(), key=len)
        oldest = next(iter(siblings))
        self.forget(oldest)
        return oldest

    def forget(self, key: K) -> None:
        """It has proved who it is, or is gone."""
        came = self._came.pop(key, None)
        if came is not None:
            siblings = self._of[came[0]]
            del siblings[key]
            if not siblings:
                del self._of[came[0]]

    def overdue(self, now: float) -> list[K]:
        """Whose time is over."""
        late: list[K] = []
        for key, (_, at) in self._came.items():
            if at + self.patience_s > now:
                break
            late.append(key)
        return late

    def next_wakeup(self) -> float | None:
        """When the time of the oldest is over."""
        return next((at + self.patience_s for _, at in self._came.values()), None)
