"""Virtual time: what is due, in its order. Nothing sleeps, and nothing reads a clock."""

import heapq
from collections.abc import Callable
from typing import Final

from holdfast.simulator.world.tempo import Tempo

BEGINS_AT: Final = 1000.0


class Agenda:
    """`tempo` says how long things take. Whatever else is drawn is drawn from the same numbers, `draw`."""

    def __init__(self, tempo: Tempo) -> None:
        self.tempo, self.draw = tempo, tempo.draw
        self.now = BEGINS_AT
        self.log: list[str] = []
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do something later; of what is due at the same time, what was said first."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay_s, self._count, what))

    def run(self, seconds: float) -> None:
        """Let virtual time pass."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, what = heapq.heappop(self._due)
            what()
            self.happened()
        self.now = end

    def happened(self) -> None:
        """Something has happened; so after each thing that does."""

    def note(self, what: str) -> None:
        """A line of the story, for whoever wants to know how it came to something."""
        self.log.append(f"{self.now:9.3f} {what}")
