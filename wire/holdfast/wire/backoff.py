"""How long to wait before trying again."""

import random


class Backoff:
    """Doubles from `first_s` to `most_s`, each drawn from its upper half so that peers do not fall into step."""

    def __init__(self, first_s: float, most_s: float) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._failures = 0

    @property
    def failures(self) -> int:
        """In a row."""
        return self._failures

    def next_s(self) -> float:
        """After one more failure."""
        # The exponent is bounded: a float overflows after a thousand failures.
        wait_s = min(self._most_s, self._first_s * 2.0 ** min(self._failures, 30))
        self._failures += 1
        return wait_s * random.uniform(0.5, 1.0)

    def reset(self) -> None:
        """It went well."""
        self._failures = 0
