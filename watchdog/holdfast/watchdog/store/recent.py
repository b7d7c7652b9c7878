"""The journal's newest lines, kept by who wrote them for a while.

A Redis that writes its file once a second loses the last second with its machine. Whoever wrote those lines still
knows them, and has acted on them: it writes them again.
"""

from collections import deque
from collections.abc import Sequence

# Minutes of a busy watchdog, at about 200 bytes each.
LINES_MAX = 65_536


class RecentLines:
    """Bounded over all jobs together: the oldest go first."""

    def __init__(self, lines_max: int = LINES_MAX) -> None:
        self._lines: deque[tuple[str, int, bytes]] = deque(maxlen=lines_max)

    def keep(self, job: str, first: int, bodies: Sequence[bytes]) -> None:
        """Remember lines as they were written; the first one is at the place `first`."""
        self._lines.extend((job, place, body) for place, body in enumerate(bodies, start=first))

    def between(self, job: str, behind: int, upto: int) -> tuple[bytes, ...] | None:
        """The job's lines behind `behind` up to `upto`, None when one of them is not known any more."""
        known = {place: body for name, place, body in self._lines if name == job and behind < place <= upto}
        if len(known) != upto - behind:
            return None
        return tuple(known[place] for place in range(behind + 1, upto + 1))

    def forget(self, job: str) -> None:
        """The job's journal begins anew."""
        self._lines = deque((line for line in self._lines if line[0] != job), maxlen=self._lines.maxlen)
