"""Where the time of a simulated run went. What is trained and what is lost add up to what has passed."""

from collections import deque
from typing import Final

from holdfast.simulator.outcome import LostTo

PLANNED: Final = ""
# How often the number of those that train changes between a checkpoint and the one before it, and far beyond that.
MADE_KEPT: Final = 10_000


class Books:
    """Time is in one phase at a time, of one cause; that of training is told of as steps.

    `cause` is the fault that the time from now on is lost to, `PLANNED` where it is no fault's.
    """

    def __init__(self, now: float) -> None:
        self.began_at = now
        self.cause = PLANNED
        self.trained_s = self.full_s = 0.0
        self.share = 1.0  # of the nodes that are wanted, those that have ranks
        self.lost_s: dict[str, dict[LostTo, float]] = {}
        self.recoveries_s: list[float] = []
        self.phase: LostTo | None = LostTo.RESTART  # None: it trains
        self._since = now
        self._broken_at: float | None = None
        self._made: deque[tuple[float, float]] = deque(maxlen=MADE_KEPT)  # how much with which share

    def turn(self, phase: LostTo | None, now: float) -> None:
        """From now on the time is lost to that; None: it trains."""
        if self.phase is not None:
            cause = PLANNED if self.phase is LostTo.SAVE else self.cause
            self.lose(cause, self.phase, now - self._since)
        self.phase, self._since = phase, now

    def broke(self, now: float, cause: str) -> None:
        """Training stands still for that from now on, or goes on doing so for another cause."""
        self.turn(self.phase if self.phase in (LostTo.DETECT, LostTo.WAIT) else LostTo.DETECT, now)
        self.cause = cause
        if self._broken_at is None and cause != PLANNED:
            self._broken_at = now

    def trains(self, now: float, first_step_s: float) -> None:
        """All make steps from now on, the first in so long: whatever it was is over."""
        self.turn(None, now)
        if self._broken_at is not None:
            self.recoveries_s.append(now + first_step_s - self._broken_at)
        self.cause, self._broken_at = PLANNED, None

    def shrink(self, unmade_s: float, share: float) -> None:
        """Fewer train from now on; so much of the step that is being made was theirs as well, and is lost."""
        self._give_up(unmade_s)
        self.share = share
        self._make(unmade_s)

    def regroup(self, now: float, cause: str) -> None:
        """Those that train wait for some that come in, whom that fault had taken out."""
        self.turn(LostTo.RESTART, now)
        self.cause = cause

    def train(self, useful_s: float, slow_s: float, slow: str) -> None:
        """So much of steps was made, which took longer than they should by `slow_s`, for that cause."""
        self._make(useful_s)
        if slow_s > 0.0:
            self.lose(slow, LostTo.SLOW, slow_s)

    def discard(self, useful_s: float) -> None:
        """So much of steps that were made is to be made again."""
        self._give_up(useful_s)
        self.lose(self.cause, LostTo.REPLAY, useful_s)

    def _make(self, useful_s: float) -> None:
        if not self._made or self._made[-1][1] != self.share:
            self._made.append((0.0, self.share))
        self._made[-1] = self._made[-1][0] + useful_s, self.share
        self.trained_s += useful_s
        self.full_s += useful_s * self.share

    def _give_up(self, useful_s: float) -> None:
        """The newest so much, with the share that made it."""
        self.trained_s -= useful_s
        while useful_s > 0.0 and self._made:
            made_s, share = self._made.pop()
            given_up_s = min(made_s, useful_s)
            useful_s -= given_up_s
            self.full_s -= given_up_s * share
            if given_up_s < made_s:
                self._made.append((made_s - given_up_s, share))

    def lose(self, name: str, phase: LostTo, seconds: float) -> None:
        """So much is lost."""
        phases = self.lost_s.setdefault(name, {})
        phases[phase] = phases.get(phase, 0.0) + seconds
