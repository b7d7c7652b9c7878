"""What the API server said of tokens and of rights, remembered by their hashes: bounded in number and in time."""

import hashlib
from dataclasses import dataclass

from holdfast.watchdog.access.auth import Caller

# A token that is taken back (its pod is gone), or a right, works for this much longer at most.
ACCEPTED_S = 60.0
# Whoever is refused asks again; it may have been given its rights in between.
REFUSED_S = 5.0
# While the API server is away: long enough for its upgrade, during which what runs must go on.
LAST_RESORT_S = 600.0
# Twice the largest cluster planned for.
ACCEPTED_MAX = 65_536
REFUSED_MAX = 4_096


@dataclass(frozen=True)
class Verdict:
    """Who was accepted, None when nobody; as said at `at`, and never true at `expires_at` or later."""

    caller: Caller | None
    at: float
    expires_at: float = float("inf")


class Verdicts:
    """Times are seconds on one clock that reads like the wall clock: tokens expire by it."""

    def __init__(self, *, accepted_max: int = ACCEPTED_MAX, refused_max: int = REFUSED_MAX) -> None:
        # Apart, so that a flood of made-up tokens pushes nobody out who was accepted.
        self._accepted: dict[bytes, Verdict] = {}
        self._refused: dict[bytes, Verdict] = {}
        self._accepted_max = accepted_max
        self._refused_max = refused_max

    def put(self, key: str, verdict: Verdict) -> None:
        """Remember; the oldest goes when there are too many."""
        hashed = _hash(key)
        self._accepted.pop(hashed, None)
        self._refused.pop(hashed, None)
        kept, most = (
            (self._refused, self._refused_max) if verdict.caller is None else (self._accepted, self._accepted_max)
        )
        kept[hashed] = verdict
        if len(kept) > most:
            del kept[next(iter(kept))]

    def get(self, key: str, now: float, accepted_s: float = ACCEPTED_S) -> Verdict | None:
        """The verdict, None when there is none that may still be trusted: an acceptance for `accepted_s`."""
        hashed = _hash(key)
        if (refused := self._refused.get(hashed)) is not None:
            return refused if now < refused.at + REFUSED_S else None
        known = self._accepted.get(hashed)
        if known is None or now >= min(known.at + accepted_s, known.expires_at):
            return None
        return known


def _hash(key: str) -> bytes:
    """Tokens themselves are not kept."""
    return hashlib.sha256(key.encode("utf-8", "surrogateescape")).digest()
