"""Where the wall time of a job went: what the effective training time ratio (ETTR) is made of.

ETTR is the useful training time over the wall time since the first round was shown; the time the job was suspended
counts for neither. Time is useful while every rank makes steps that were not made before.
Source: "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", section II,
https://arxiv.org/abs/2410.21680
"""

import msgspec

from holdfast.api.status import JobPhase


class Spent(msgspec.Struct, frozen=True):
    """Seconds since the first round: of steps made for good, of everything else, and suspended."""

    useful_s: float
    lost_s: float
    held_s: float


class Ledger(msgspec.Struct, frozen=True):
    """Times are seconds on the watchdog's clock. `useful_s` and `held_s` are of the spells that have ended."""

    began_at: float | None = None
    useful_s: float = 0.0
    useful_since: float | None = None
    held_s: float = 0.0
    held_since: float | None = None

    def follow(self, phase: JobPhase, *, ended_at: float, now: float) -> "Ledger":
        """The ledger in `phase`. `ended_at`, not after `now`, is when the spell before it truly ended: what broke
        the training may have been found later than it happened."""
        useful_s, held_s = self.useful_s, self.held_s
        if self.useful_since is not None and phase is not JobPhase.RUNNING:
            useful_s += max(0.0, min(now, ended_at) - self.useful_since)
        if self.held_since is not None and phase is not JobPhase.SUSPENDED:
            held_s += max(0.0, now - self.held_since)
        return Ledger(
            began_at=self.began_at,
            useful_s=useful_s,
            useful_since=_since(self.useful_since, phase is JobPhase.RUNNING, now),
            held_s=held_s,
            held_since=_since(self.held_since, phase is JobPhase.SUSPENDED, now),
        )

    def begin(self, now: float) -> "Ledger":
        """The ledger once a round was shown."""
        return self if self.began_at is not None else msgspec.structs.replace(self, began_at=now)

    def redo(self, lost_steps: int, steps: int) -> "Ledger":
        """Count `lost_steps` of the `steps` made so far as not useful: they are made again."""
        if steps <= 0:
            return self
        return msgspec.structs.replace(self, useful_s=self.useful_s * max(0.0, 1.0 - lost_steps / steps))

    def ettr(self, now: float) -> float | None:
        """The ratio at `now`, None before the first round."""
        spent = self.spent(now)
        if spent is None:
            return None
        wall_s = spent.useful_s + spent.lost_s
        return spent.useful_s / wall_s if wall_s > 0 else None

    def spent(self, now: float) -> Spent | None:
        """Where the time up to `now` went, None before the first round."""
        if self.began_at is None:
            return None
        held_s = self.held_s + (now - self.held_since if self.held_since is not None else 0.0)
        wall_s = max(0.0, now - self.began_at - held_s)
        useful_s = self.useful_s + (now - self.useful_since if self.useful_since is not None else 0.0)
        useful_s = min(wall_s, useful_s)
        return Spent(useful_s=useful_s, lost_s=wall_s - useful_s, held_s=held_s)


def _since(before: float | None, goes_on: bool, now: float) -> float | None:
    if not goes_on:
        return None
    return now if before is None else before
