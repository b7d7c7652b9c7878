"""How far the ranks of the round are: what readers see, and what tells the brain that a round trains."""

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from holdfast.api.event import RoundProgressed
from holdfast.api.policy import Policy
from holdfast.api.round import Round
from holdfast.api.status import RankStatus, reading
from holdfast.api.telemetry import BatchTaken, ProcessState, RankSample
from holdfast.watchdog.detectors.detector import ROUNDS, Reported, RoundInForce, RoundStarted, Sample

# Often enough to know what a fault costs. Few of them are lines in the journal: see heldprogress.py.
EVENT_INTERVAL_S = 1.0


class Newest(msgspec.Struct, frozen=True):
    """The newest sample of each rank heard of, and when each came (watchdog clock, seconds).

    `world_size` is how many ranks there are to hear of.
    """

    samples: Sequence[RankSample] = ()
    heard_at: Sequence[float] = ()
    world_size: int = 0


@dataclass(slots=True)
class _Heard:
    """A round, the newest sample of its ranks by rank, and when that came."""

    round: RoundInForce
    newest: dict[int, RankSample] = field(default_factory=dict)
    at: dict[int, float] = field(default_factory=dict)
    batches: dict[int, int] = field(default_factory=dict)  # the newest step whose batch the rank told of

    def ranks(self, now: float, *, stale_after_s: float = math.inf) -> tuple[RankStatus, ...]:
        """Every rank in order, as it was last seen. One not heard of, or not lately, is Unknown."""
        ranks = []
        for share in self.round.round.ranks if self.round.round else ():
            for rank in range(share.first_rank, share.first_rank + share.local_size):
                sample = self.newest.get(rank)
                if sample is None:
                    ranks.append(RankStatus(rank, share.member, share.node, ProcessState.UNKNOWN))
                    continue
                heard_age_s = max(0.0, now - self.at[rank])
                seen = RankStatus(
                    rank=rank,
                    member=share.member,
                    node=share.node,
                    process=sample.process if heard_age_s <= stale_after_s else ProcessState.UNKNOWN,
                    phase=sample.phase,
                    step=sample.step,
                    loss=reading(sample.loss),
                    grad_norm=reading(sample.grad_norm),
                    step_time_s=sample.step_time_s,
                    progress_age_s=sample.progress_age_s,
                    heard_age_s=heard_age_s,
                    pid=sample.pid,
                    local_grad_norm=reading(sample.local_grad_norm),
                    batch_step=self.batches.get(rank),
                    waited_s=sample.work.waited_s if sample.work is not None else None,
                    tokens=sample.work.tokens if sample.work is not None else None,
                )
                ranks.append(seen)
        return tuple(ranks)


class Progress:
    """Keeps the newest sample of each rank of the round that runs. Samples of older rounds are fenced."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._stale_after_s = policy.lost_after_s
        self._round = RoundInForce(policy.job)
        self._newest = _Heard(RoundInForce(policy.job))  # of the newest round, also when it has ended
        self._before: _Heard | None = None  # of the last round before that one that was heard of
        self._first_step_at: dict[int, float] = {}  # by rank: about when its first step of the round was complete
        self._ranks_at: Counter[int] = Counter()  # how many ranks are at a step, by the steps there are
        self._told_step: int | None = None
        self._told_at = -math.inf

    def observe(self, sample: Sample, now: float) -> Sequence[RoundProgressed]:
        """Take a sample. An event when the round's first step is complete everywhere, at most one a second later.

        `age_s` of the first event reaches back to when the last rank completed its first step, as far as the
        samples tell.
        """
        if self._round.follow(sample):
            self._first_step_at.clear()
            self._ranks_at.clear()
            self._told_step, self._told_at = None, -math.inf
            if isinstance(sample, RoundStarted):
                self._before = self._newest if self._newest.newest else self._before
                self._newest = _Heard(RoundInForce(sample.round.job))
                self._newest.round.follow(sample)
        if not isinstance(sample, Reported):
            return ()
        self._take(sample, now)
        number, world = self._round.number, self._round.world_size
        if number is None or now < self._told_at + EVENT_INTERVAL_S or len(self._first_step_at) < world:
            return ()
        step = self.step()
        if step is None or (self._told_step is not None and step <= self._told_step):
            return ()
        if self._told_step is None:
            age_s = now - max(self._first_step_at.values())
        else:  # since the newest publication of a rank that is at `step`: the last to get there
            there = [(rank, each) for rank, each in self._newest.newest.items() if each.step == step]
            age_s = min([now - self._newest.at[rank] + each.progress_age_s for rank, each in there])
        self._told_step, self._told_at = step, now
        return (RoundProgressed(number, step, max(0.0, age_s)),)

    def _take(self, reported: Reported, now: float) -> None:
        heard, ranks_at, is_over = self._newest, self._ranks_at, self._round.number is None
        for event in reported.report.events:
            if not isinstance(event, BatchTaken) or event.round != heard.round.number:
                continue
            if event.rank in heard.round.ranks_on(reported.report.node):
                heard.batches[event.rank] = event.step
        for sample in heard.round.samples_in(reported):
            rank, step = sample.rank, sample.step
            before = heard.newest.get(rank)
            stepped_before = None if before is None else before.step
            heard.newest[rank] = sample
            heard.at[rank] = now
            if is_over or step == stepped_before:
                continue  # nearly every sample of a step that takes longer than the interval of the reports
            if stepped_before is not None:
                ranks_at[stepped_before] -= 1
                if not ranks_at[stepped_before]:
                    del ranks_at[stepped_before]
            if step is not None:
                ranks_at[step] += 1
                if rank not in self._first_step_at:
                    self._first_step_at[rank] = now - max(0.0, sample.progress_age_s)

    def ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the round, in order. A rank not heard of, or not lately, is Unknown."""
        return () if self._round.number is None else self._newest.ranks(now, stale_after_s=self._stale_after_s)

    def last_ranks(self, now: float) -> tuple[RankStatus, ...]:
        """Every rank of the newest round that was heard of, in order, as it was last seen."""
        return self._last().ranks(now)

    def newest(self) -> Newest:
        """The newest sample of every rank of the round heard of."""
        if self._round.number is None:
            return Newest()
        newest = self._newest
        return Newest(tuple(newest.newest.values()), tuple(newest.at.values()), self._round.world_size)

    def heard(self) -> tuple[Round | None, Mapping[int, RankSample]]:
        """The round that runs, or the newest that was heard of, and the newest sample of its ranks heard of."""
        heard = self._newest if self._round.number is not None else self._last()
        return heard.round.round, heard.newest

    def step(self) -> int | None:
        """The last step complete on every rank; None while that is Unknown of one."""
        if not self._ranks_at or self._ranks_at.total() < self._round.world_size:
            return None
        return min(self._ranks_at)

    def loss(self) -> float | None:
        """The mean over the ranks that know theirs: each has its own share of the batch, and with pipeline
        parallelism only the last stage has one. One that is not finite makes the mean so: it is not left out."""
        heard = self._last() if self._round.number is None else self._newest
        return mean([sample.loss for sample in heard.newest.values() if sample.loss is not None])

    def step_time_s(self) -> float | None:
        """The slowest rank's newest step, because it is the one that the others wait for."""
        if self._round.number is None:
            return None
        times = [each.step_time_s for each in self._newest.newest.values() if each.step_time_s is not None]
        return max(times, default=None)

    def _last(self) -> _Heard:
        return self._newest if self._newest.newest or self._before is None else self._before


def mean(values: Sequence[float]) -> float | None:
    """The mean; of values that are not all finite, what their sum is; None of no values."""
    if not values:
        return None
    odd = {value if value == value else math.nan for value in values if not math.isfinite(value)}
    if odd:
        return odd.pop() if len(odd) == 1 else math.nan  # the sum of +inf and -inf is no number
    return math.fsum(values) / len(values)
