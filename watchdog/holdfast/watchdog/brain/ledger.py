"""Where the wall time and the GPU time of a job went: what its ETTR and its money are made of.

Time counts from when the first member joined, because GPUs are held from then on; the time the job was suspended
counts for nothing. With u(s) the useful time and t(s) the time when step s was complete on every rank,

    u(s) = u(r) + t(s) - t(r)    r the step before s that was reported, of the same round
    u(s) = u(s - 1)              s the first step of its round: start-up, preflight and restore are lost
    ETTR = u(n) / (t(n) - joined - suspended)    n the newest step; now in place of t(n) while no round trains

A restore of step s takes the useful time back to u(s): what was made beyond it is discarded, and lost. u is known
at marks: exactly at the newest steps that were reported (one a minute, and the newest before any event) and at
checkpoints, in proportion between two marks otherwise. GPU time is the same, times the world size there was at
that time.
Source: "Revisiting Reliability in Large-Scale Machine Learning Research Clusters", section II,
https://arxiv.org/abs/2410.21680
"""

from collections.abc import Sequence

import msgspec

from holdfast.api.policy import GpuHour
from holdfast.api.status import JobPhase

# Beyond this many, every second one of the older half goes, but for those of the newest checkpoints.
MARKS_MAX = 64
SAVED_MARKS_MAX = 16
PACE_MARKS = 8
HOUR_S = 3600.0


class Mark(msgspec.Struct, frozen=True):
    """Useful time and GPU time, in seconds, once `step` was complete. `saved`: a checkpoint holds that step."""

    step: int
    useful_s: float
    useful_gpu_s: float
    saved: bool = False


class Spent(msgspec.Struct, frozen=True):
    """Seconds since the first member joined: of steps that are kept, of everything else, and suspended.

    `gpu_s` is all GPU time, `cost` its money; both only grow. What a round has done since its newest complete step
    is neither useful nor lost yet.
    """

    useful_s: float
    lost_s: float
    held_s: float
    gpu_s: float
    useful_gpu_s: float
    lost_gpu_s: float
    cost: float


class Ledger(msgspec.Struct, frozen=True):
    """Times are seconds on the watchdog's clock. `gpu_s`, `cost` and `held_s` are of the spells that have ended.

    `first_round_at` is when the first round was shown, `stepped_at` when the newest step of the round that trains
    was complete, None while none trains. `gpus` are held since `since`, each for `price`.
    """

    began_at: float | None = None
    first_round_at: float | None = None
    useful_s: float = 0.0
    useful_gpu_s: float = 0.0
    stepped_at: float | None = None
    marks: tuple[Mark, ...] = ()
    held_s: float = 0.0
    held_since: float | None = None
    gpus: int = 0
    since: float = 0.0
    gpu_s: float = 0.0
    price: GpuHour | None = None
    cost: float = 0.0

    def begin(self, now: float) -> "Ledger":
        """The ledger once a round was shown."""
        return self if self.first_round_at is not None else msgspec.structs.replace(self, first_round_at=now)

    def follow(self, phase: JobPhase, gpus: int, price: GpuHour | None, now: float) -> "Ledger":
        """The ledger in `phase`, with so many GPUs held, each of that price an hour.

        Money of one currency is not added to that of another: with a new one the cost begins anew.
        """
        held = phase is JobPhase.SUSPENDED
        trains = self.stepped_at is not None and phase is JobPhase.RUNNING
        before = (self.held_since is not None, self.stepped_at is not None, self.gpus, self.price)
        if before == (held, trains, gpus, price):
            return self
        same_money = price is None or self.price is None or price.currency == self.price.currency
        held_for_s = now - self.held_since if self.held_since is not None and not held else 0.0
        return msgspec.structs.replace(
            self,
            began_at=now if self.began_at is None and gpus else self.began_at,
            stepped_at=self.stepped_at if trains else None,
            held_s=self.held_s + max(0.0, held_for_s),
            held_since=(now if self.held_since is None else self.held_since) if held else None,
            gpus=gpus,
            since=now,
            gpu_s=self._gpu_s(now),
            price=price if price is not None else self.price,
            cost=self._cost(now) if same_money else 0.0,
        )

    def step(self, step: int, at: float) -> "Ledger":
        """Every rank of the round completed `step` at `at`."""
        newest = self.marks[-1].step if self.marks else None
        if self.stepped_at is None:
            # Nobody told of a restore, and steps are made again: they were discarded.
            known = self if newest is None or newest < step else self.back_to(step - 1)
            return known._marked(step, known.useful_s, known.useful_gpu_s, at)
        if newest is not None and step <= newest:
            return self
        at = max(at, self.stepped_at)  # a commit may be heard of before the report of its step
        took_s = at - self.stepped_at
        return self._marked(step, self.useful_s + took_s, self.useful_gpu_s + self.gpus * took_s, at)

    def reached_at(self, step: int, now: float) -> float:
        """When the round completed `step`, which it has by `now` and may have long ago: at its own pace."""
        if self.stepped_at is None or len(self.marks) < 2:
            return now
        first, newest = self.marks[max(0, len(self.marks) - PACE_MARKS)], self.marks[-1]
        pace_s = (newest.useful_s - first.useful_s) / (newest.step - first.step)
        return min(now, self.stepped_at + max(0, step - newest.step) * pace_s)

    def saved(self, step: int) -> "Ledger":
        """A checkpoint of `step` is committed: what was useful until then stays known exactly."""
        at = self._useful_at(step)
        if at is None:
            return self
        mark = msgspec.structs.replace(at, saved=True)
        before = tuple(each for each in self.marks if each.step < step)
        after = tuple(each for each in self.marks if each.step > step)
        return msgspec.structs.replace(self, marks=_bounded((*before, mark, *after)))

    def back_to(self, step: int) -> "Ledger":
        """`step` is restored: what was made beyond it is lost."""
        if not self.marks or self.marks[-1].step <= step:
            return self
        at = self._useful_at(step)
        if at is None:
            return msgspec.structs.replace(self, marks=(), useful_s=0.0, useful_gpu_s=0.0)
        kept = (*(each for each in self.marks if each.step < step), at)
        return msgspec.structs.replace(self, marks=kept, useful_s=at.useful_s, useful_gpu_s=at.useful_gpu_s)

    def ettr(self, now: float) -> float | None:
        """The ratio at `now`, None before the first member joined."""
        spent = self.spent(now)
        if spent is None:
            return None
        wall_s = spent.useful_s + spent.lost_s
        return spent.useful_s / wall_s if wall_s > 0 else None

    def spent(self, now: float) -> Spent | None:
        """Where the time up to `now` went, None before the first member joined."""
        if self.began_at is None:
            return None
        held_s = self.held_s + (now - self.held_since if self.held_since is not None else 0.0)
        unjudged_s = max(0.0, now - self.stepped_at) if self.stepped_at is not None else 0.0
        wall_s = max(0.0, now - self.began_at - held_s - unjudged_s)
        gpu_s = self._gpu_s(now)
        return Spent(
            useful_s=min(wall_s, self.useful_s),
            lost_s=max(0.0, wall_s - self.useful_s),
            held_s=held_s,
            gpu_s=gpu_s,
            useful_gpu_s=self.useful_gpu_s,
            lost_gpu_s=max(0.0, gpu_s - self.useful_gpu_s - self.gpus * unjudged_s),
            cost=self._cost(now),
        )

    def _gpu_s(self, now: float) -> float:
        return self.gpu_s + self.gpus * max(0.0, now - self.since)

    def _cost(self, now: float) -> float:
        price = self.price.amount if self.price is not None else 0.0
        return self.cost + price * self.gpus * max(0.0, now - self.since) / HOUR_S

    def _marked(self, step: int, useful_s: float, useful_gpu_s: float, at: float) -> "Ledger":
        return msgspec.structs.replace(
            self,
            useful_s=useful_s,
            useful_gpu_s=useful_gpu_s,
            stepped_at=at,
            marks=_bounded((*self.marks, Mark(step, useful_s, useful_gpu_s))),
        )

    def _useful_at(self, step: int) -> Mark | None:
        """What is known of that step, None when it lies before or after all that is."""
        before = next((each for each in reversed(self.marks) if each.step <= step), None)
        after = next((each for each in self.marks if each.step > step), None)
        if before is None or before.step == step or after is None:
            return before if before is not None and before.step == step else None
        share = (step - before.step) / (after.step - before.step)
        useful_s = before.useful_s + share * (after.useful_s - before.useful_s)
        useful_gpu_s = before.useful_gpu_s + share * (after.useful_gpu_s - before.useful_gpu_s)
        return Mark(step, useful_s, useful_gpu_s)


def _bounded(marks: Sequence[Mark]) -> tuple[Mark, ...]:
    """The newest half as it is, of the older one every second mark and those of the newest checkpoints."""
    if len(marks) <= MARKS_MAX:
        return tuple(marks)
    saved = {each.step for each in [each for each in marks if each.saved][-SAVED_MARKS_MAX:]}
    older, newer = marks[: -MARKS_MAX // 2], marks[-MARKS_MAX // 2 :]
    return (*(each for at, each in enumerate(older) if at % 2 == 0 or each.step in saved), *newer)
