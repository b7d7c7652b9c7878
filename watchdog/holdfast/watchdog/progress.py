"""How far the ranks of the round are: what readers see, and what tells the brain that a round trains."""

import math
from collections.abc import Sequence

import msgspec

from holdfast.api.event import RoundProgressed
from holdfast.api.policy import Policy
from holdfast.api.round import MemberRanks
from holdfast.api.status import RankStatus
from holdfast.api.telemetry import NodeReport, ProcessState, RankSample
from holdfast.watchdog.detectors.round_in_force import RoundInForce
from holdfast.watchdog.sample import Reported, Sample

# Each event is a line in the journal: often enough to know what a fault costs, seldom enough not to matter.
EVENT_INTERVAL_S = 1.0


class _Newest(msgspec.Struct, frozen=True, gc=False):
    """A rank's newest sample, when it arrived, and about when the rank's first step of the round was complete."""

    sample: RankSample
    at: float
    first_step_at: float | None


class Progress:
    """Keeps the newest sample of each rank of the round that runs. Samples of older rounds are fenced."""

    def __init__(self, policy: Policy) -> None:
        self._stale_after_s = policy.lost_after_s
        self._round = RoundInForce(policy.job)
        self._newest: dict[int, _Newest] = {}
        self._stepped = 0  # ranks that completed a step of the round
        self._told_step: int | None = None
        self._told_at = -math.inf

    def observe(self, sample: Sample, now: float) -> Sequence[RoundProgressed]:
        """Take a sample. An event when the round's first step is complete everywhere, at most one a second later.

        `age_s` of the first event reaches back to when the last rank completed its first step, as far as the
        samples tell.
        """
        if self._round.follow(sample):
            self._newest.clear()
            self._stepped, self._told_step, self._told_at = 0, None, -math.inf
        if not isinstance(sample, Reported):
            return ()
        self._take(sample.report, now)
        return self._event(now)

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the round, in order. A rank not heard of, or not lately, is Unknown."""
        return tuple(
            self._status(share, rank, now)
            for share in self._round.shares
            for rank in range(share.first_rank, share.first_rank + share.local_size)
        )

    def step(self) -> int | None:
        """The last step complete on every rank; None while that is Unknown of one."""
        steps = [each.sample.step for each in self._newest.values()]
        known = [step for step in steps if step is not None]
        return min(known) if known and len(known) == self._round.world_size else None

    def loss(self) -> float | None:
        """The mean over the ranks that know theirs: each has its own share of the batch, and with pipeline
        parallelism only the last stage has one."""
        return _mean([each.sample.loss for each in self._newest.values() if each.sample.loss is not None])

    def step_time_s(self) -> float | None:
        """The slowest rank's newest step, because it is the one that the others wait for."""
        return max(
            (each.sample.step_time_s for each in self._newest.values() if each.sample.step_time_s is not None),
            default=None,
        )

    def _take(self, report: NodeReport, now: float) -> None:
        for sample in self._round.samples_in(report):
            before = self._newest.get(sample.rank)
            first_step_at = before.first_step_at if before else None
            if first_step_at is None and sample.step is not None:
                first_step_at = now - max(0.0, sample.progress_age_s)
                self._stepped += 1
            self._newest[sample.rank] = _Newest(sample, now, first_step_at)

    def _event(self, now: float) -> Sequence[RoundProgressed]:
        number = self._round.number
        if number is None or self._stepped < self._round.world_size or now < self._told_at + EVENT_INTERVAL_S:
            return ()
        step = self.step()
        if step is None or (self._told_step is not None and step <= self._told_step):
            return ()
        age_s = self._age_of_first_step_s(now) if self._told_step is None else self._age_of_step_s(step, now)
        self._told_step, self._told_at = step, now
        return (RoundProgressed(number, step, age_s),)

    def _age_of_first_step_s(self, now: float) -> float:
        known = [each.first_step_at for each in self._newest.values() if each.first_step_at is not None]
        return max(0.0, now - max(known))

    def _age_of_step_s(self, step: int, now: float) -> float:
        """Since the newest publication of a rank that is at `step`: the last to get there."""
        there = [each for each in self._newest.values() if each.sample.step == step]
        return max(0.0, min(now - each.at + each.sample.progress_age_s for each in there))

    def _status(self, share: MemberRanks, rank: int, now: float) -> RankStatus:
        newest = self._newest.get(rank)
        if newest is None:
            return RankStatus(rank, share.member, share.node, ProcessState.UNKNOWN)
        sample, heard_age_s = newest.sample, max(0.0, now - newest.at)
        return RankStatus(
            rank=rank,
            member=share.member,
            node=share.node,
            process=ProcessState.UNKNOWN if heard_age_s > self._stale_after_s else sample.process,
            phase=sample.phase,
            step=sample.step,
            loss=sample.loss,
            grad_norm=sample.grad_norm,
            step_time_s=sample.step_time_s,
            progress_age_s=sample.progress_age_s,
            heard_age_s=heard_age_s,
            pid=sample.pid,
        )


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
