"""How far the ranks of the round are: what readers see, and what tells the brain that a round trains."""

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import msgspec

from holdfast.api.event import RoundProgressed
from holdfast.api.policy import Policy
from holdfast.api.round import MemberRanks
from holdfast.api.status import RankStatus, reading
from holdfast.api.telemetry import ProcessState, RankSample
from holdfast.watchdog.detectors.detector import Reported, RoundInForce, RoundStarted, RoundStopped, Sample

# Often enough to know what a fault costs. Few of them are lines in the journal: see heldprogress.py.
EVENT_INTERVAL_S = 1.0


class Newest(msgspec.Struct, frozen=True):
    """The newest sample of each rank heard of, and when each came (watchdog clock, seconds).

    `world_size` is how many ranks there are to hear of.
    """

    samples: Sequence[RankSample] = ()
    heard_at: Sequence[float] = ()
    world_size: int = 0


@dataclass(frozen=True, slots=True)
class _Heard:
    """A round with the newest sample of its ranks, and when that came."""

    round: RoundInForce
    newest: dict[int, RankSample]
    at: dict[int, float]


class Progress:
    """Keeps the newest sample of each rank of the round that runs. Samples of older rounds are fenced."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, RoundStarted, RoundStopped)

    def __init__(self, policy: Policy) -> None:
        self._stale_after_s = policy.lost_after_s
        self._round = RoundInForce(policy.job)
        self._newest_round = RoundInForce(policy.job)  # also when it has ended
        self._last: _Heard | None = None  # the last round before the one that runs that was heard of
        # By rank: its newest sample, when that came, and about when its first step of the round was complete.
        self._newest: dict[int, RankSample] = {}
        self._at: dict[int, float] = {}
        self._first_step_at: dict[int, float] = {}
        self._ranks_at: Counter[int] = Counter()  # how many ranks are at a step, by the steps there are
        self._told_step: int | None = None
        self._told_at = -math.inf

    def observe(self, sample: Sample, now: float) -> Sequence[RoundProgressed]:
        """Take a sample. An event when the round's first step is complete everywhere, at most one a second later.

        `age_s` of the first event reaches back to when the last rank completed its first step, as far as the
        samples tell.
        """
        if self._round.follow(sample):
            self._begin_anew(sample)
        if not isinstance(sample, Reported):
            return ()
        if self._round.number is None:
            self._take_last(sample, now)
            return ()
        self._take(sample, now)
        return self._event(now)

    def _begin_anew(self, sample: Sample) -> None:
        if self._newest:
            self._last = _Heard(self._newest_round, self._newest, self._at)
        self._newest, self._at = {}, {}
        if isinstance(sample, RoundStarted):
            self._newest_round = RoundInForce(sample.round.job)
            self._newest_round.follow(sample)
        self._first_step_at.clear()
        self._ranks_at.clear()
        self._told_step, self._told_at = None, -math.inf

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the round, in order. A rank not heard of, or not lately, is Unknown."""
        return tuple(self._status(share, rank, now) for share, rank in _seats(self._round))

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the newest round that was heard of, in order, as it was last seen."""
        there = _Heard(self._newest_round, self._newest, self._at)
        last = there if self._newest or self._last is None else self._last
        return tuple(
            _seen(share, rank, last.newest.get(rank), now - last.at.get(rank, now))
            for share, rank in _seats(last.round)
        )

    def newest(self) -> Newest:
        """The newest sample of every rank of the round heard of."""
        return Newest(tuple(self._newest.values()), tuple(self._at.values()), self._round.world_size)

    def step(self) -> int | None:
        """The last step complete on every rank; None while that is Unknown of one."""
        if not self._ranks_at or self._ranks_at.total() < self._round.world_size:
            return None
        return min(self._ranks_at)

    def loss(self) -> float | None:
        """The mean over the ranks that know theirs: each has its own share of the batch, and with pipeline
        parallelism only the last stage has one. One that is not finite makes the mean so: it is not left out."""
        ended = self._round.number is None and self._last is not None
        newest = self._last.newest if ended and self._last is not None else self._newest
        return mean([sample.loss for sample in newest.values() if sample.loss is not None])

    def step_time_s(self) -> float | None:
        """The slowest rank's newest step, because it is the one that the others wait for."""
        return max(
            [sample.step_time_s for sample in self._newest.values() if sample.step_time_s is not None],
            default=None,
        )

    def _take(self, reported: Reported, now: float) -> None:
        ranks_at = self._ranks_at
        for sample in self._round.samples_in(reported):
            rank, step = sample.rank, sample.step
            before = self._newest.get(rank)
            stepped_before = None if before is None else before.step
            self._newest[rank] = sample
            self._at[rank] = now
            if step == stepped_before:
                continue  # nearly every sample of a step that takes longer than the interval of the reports
            if stepped_before is not None:
                ranks_at[stepped_before] -= 1
                if not ranks_at[stepped_before]:
                    del ranks_at[stepped_before]
            if step is not None:
                ranks_at[step] += 1
                if rank not in self._first_step_at:
                    self._first_step_at[rank] = now - max(0.0, sample.progress_age_s)

    def _take_last(self, reported: Reported, now: float) -> None:
        """What the ranks of the newest round say last comes after its end."""
        for sample in self._newest_round.samples_in(reported):
            if self._last is None or self._last.round is not self._newest_round:
                self._last = _Heard(self._newest_round, {}, {})
            self._last.newest[sample.rank], self._last.at[sample.rank] = sample, now

    def _event(self, now: float) -> Sequence[RoundProgressed]:
        number = self._round.number
        if number is None or now < self._told_at + EVENT_INTERVAL_S:
            return ()
        if len(self._first_step_at) < self._round.world_size:
            return ()
        step = self.step()
        if step is None or (self._told_step is not None and step <= self._told_step):
            return ()
        if self._told_step is None:
            age_s = now - max(self._first_step_at.values())
        else:  # since the newest publication of a rank that is at `step`: the last to get there
            there = [(rank, sample) for rank, sample in self._newest.items() if sample.step == step]
            age_s = min([now - self._at[rank] + sample.progress_age_s for rank, sample in there])
        self._told_step, self._told_at = step, now
        return (RoundProgressed(number, step, max(0.0, age_s)),)

    def _status(self, share: MemberRanks, rank: int, now: float) -> RankStatus:
        sample = self._newest.get(rank)
        if sample is None:
            return _seen(share, rank, None, 0.0)
        heard_age_s = max(0.0, now - self._at[rank])
        known = _seen(share, rank, sample, heard_age_s)
        is_stale = heard_age_s > self._stale_after_s
        return msgspec.structs.replace(known, process=ProcessState.UNKNOWN) if is_stale else known


def _seats(round: RoundInForce) -> Iterator[tuple[MemberRanks, int]]:
    for share in round.round.ranks if round.round else ():
        for rank in range(share.first_rank, share.first_rank + share.local_size):
            yield share, rank


def _seen(share: MemberRanks, rank: int, sample: RankSample | None, heard_age_s: float) -> RankStatus:
    """What a sample that came so long ago says of its rank; without one everything is Unknown."""
    if sample is None:
        return RankStatus(rank, share.member, share.node, ProcessState.UNKNOWN)
    return RankStatus(
        rank=rank,
        member=share.member,
        node=share.node,
        process=sample.process,
        phase=sample.phase,
        step=sample.step,
        loss=reading(sample.loss),
        grad_norm=reading(sample.grad_norm),
        step_time_s=sample.step_time_s,
        progress_age_s=sample.progress_age_s,
        heard_age_s=max(0.0, heard_age_s),
        pid=sample.pid,
        local_grad_norm=reading(sample.local_grad_norm),
    )


def mean(values: Sequence[float]) -> float | None:
    """The mean; of values that are not all finite, what their sum is; None of no values."""
    if not values:
        return None
    odd = {value if value == value else math.nan for value in values if not math.isfinite(value)}
    if odd:
        return odd.pop() if len(odd) == 1 else math.nan  # the sum of +inf and -inf is no number
    return math.fsum(values) / len(values)
