"""What the watchdog counts about itself."""

from collections import Counter
from enum import StrEnum


class Count(StrEnum):
    """Counters, by what they count. Each has a metric of its name."""

    BAD_MESSAGES = "bad_messages"
    DROPPED_STRANGERS = "dropped_strangers"
    DUPLICATE_MESSAGES = "duplicate_messages"
    DUPLICATE_REPORTS = "duplicate_reports"
    FENCED_MESSAGES = "fenced_messages"
    REPORTS = "reports"
    REFUSED_REQUESTS = "refused_requests"
    REPLACED_CONNECTIONS = "replaced_connections"


class Tally:
    """Counters since the program started. Written from one thread."""

    def __init__(self) -> None:
        self._counts: Counter[Count] = Counter()

    def add(self, what: Count) -> None:
        self._counts[what] += 1

    def __getitem__(self, what: Count) -> int:
        return self._counts[what]
