"""Ranks that are given different amounts of work, and data that come too slowly.

What a rank tells of its round are sums; what counts is how they grow from window to window. In each of several
windows in a row

    a rank whose tokens a step are apart from the median's by more than a share and more than noise
                          has more or less to do than others, who wait for it, or for whom it waits
    a rank that waits for its data for more than a share of its training time
                          has a loader that is too slow. Of most ranks it is too small; of a few, their machine,
                          or their shard, is slower than others

Noise is how much a rank's amount moves from one window to the next: of two ranks, or where half of them have twice
the work, the ranks among themselves say nothing about it.

A loader whose w processes make one batch in a step of which the share s is waiting would keep up with 1 / (1 - s)
as many. Where the training process reads by itself, its reading of s has to fit beside the rest of the step:
s / (1 - s) processes do.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import ceil, gcd
from statistics import median
from typing import Final

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import RankSample, StepWork
from holdfast.watchdog.detectors.detector import ROUNDS, Detector, Reported, RoundInForce, Sample
from holdfast.watchdog.detectors.occurrences import Occurrences
from holdfast.watchdog.detectors.replica_vote import SUBJECTS_NAMED
from holdfast.watchdog.wording import ranks_in_words

AMOUNTS, STARVES = "ranks have different amounts of work", "the data come too slowly"
# A window: so long and so many steps at least. So many in a row say the same.
WINDOW_S: Final = 10.0
WINDOW_STEPS: Final = 16
WINDOWS: Final = 3
STARVING: Final = 0.2  # share of the time that is spent waiting for data
SHARE_APART: Final = 0.1  # of the median amount
DEVIATIONS_APART: Final = 6.0
TO_SIGMA: Final = 1.4826  # of a normal distribution: its standard deviation over its median absolute deviation
LOOKED_AT_MAX: Final = 1024  # ranks, at even distances, that say what is usual
SHARE_MAX: Final = 0.99
ROUNDING: Final = 0.01  # of a process: no reason for one more


@dataclass(slots=True)
class _Rank:
    """What is known of one rank in the round; `mark` is what it had told when its window began."""

    mark: StepWork
    share: float = 0.0
    amount: float | None = None  # tokens a step in the newest window
    before: float | None = None  # and in the one before
    starved: int = 0  # windows in a row
    apart: int = 0

    def close(self, work: StepWork) -> bool:
        """Begin a new window where this one is long enough; whether it was."""
        mark = self.mark
        steps, wall_s = work.steps - mark.steps, work.wall_s - mark.wall_s
        if steps < 0:
            self.mark = work
        if steps < WINDOW_STEPS or wall_s < WINDOW_S:
            return False
        trained_s = wall_s - (work.checkpoint_s - mark.checkpoint_s) - (work.idle_s - mark.idle_s)
        waited_s = work.data_s - mark.data_s
        self.share = min(SHARE_MAX, max(0.0, waited_s / trained_s)) if trained_s > 0 else 0.0
        self.starved = self.starved + 1 if self.share > STARVING else 0
        is_told = work.tokens is not None and mark.tokens is not None
        self.before = self.amount
        self.amount = ((work.tokens or 0) - (mark.tokens or 0)) / steps if is_told else None
        self.mark = work
        return True


class WorkloadDetector(Detector):
    """Looks at what the steps of all ranks are made of, once in a window."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._model_ranks = policy.model_ranks
        self._round = RoundInForce(policy.job)
        self._begin()

    def _begin(self) -> None:
        self._looks_at: dict[str, float] = {}  # by node
        self._judges_at: float | None = None
        self._ranks: dict[int, _Rank] = {}
        self._usual: tuple[float, float] | None = None  # amounts from here to there
        self._occurrences = Occurrences()
        self._stride = max(1, -(-self._round.world_size // LOOKED_AT_MAX))
        while gcd(self._stride, self._model_ranks) != 1:
            self._stride += 1  # or it would be the same stage of the pipeline each time, which may have no data

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Take what a node's ranks have told, and look at the job, once in a window."""
        if not isinstance(sample, Reported):
            if self._round.follow(sample):
                self._begin()
            return ()
        node = sample.report.node
        if now < self._looks_at.get(node, 0.0):
            return ()
        for each in self._round.samples_in(sample):
            self._looks_at[node] = now + WINDOW_S
            if each.work is not None:
                self._take(each, each.work)
        if self._judges_at is None:
            self._judges_at = now + WINDOW_S
        if now < self._judges_at:
            return ()
        self._judges_at = now + WINDOW_S
        self._learn()
        return (*self._amounts(now), *self._starving(now))

    def _take(self, sample: RankSample, work: StepWork) -> None:
        known = self._ranks.get(sample.rank)
        if known is None:
            self._ranks[sample.rank] = _Rank(work)
        elif known.close(work):
            usual, amount = self._usual, known.amount
            is_apart = usual is not None and amount is not None and not usual[0] <= amount <= usual[1]
            known.apart = known.apart + 1 if is_apart else 0

    def _learn(self) -> None:
        """What amounts are usual, by some ranks."""
        looked_at = [
            self._ranks[rank] for rank in range(0, self._round.world_size, self._stride) if rank in self._ranks
        ]
        known = [
            (each.amount, each.before) for each in looked_at if each.amount is not None and each.before is not None
        ]
        if len(known) < 2 or 2 * len(known) <= len(looked_at):
            self._usual = None  # of most ranks nothing is known yet
            return
        middle = median(amount for amount, _ in known)
        # Two windows that differ by chance do so by the square root of two more than one differs from its mean.
        noise = TO_SIGMA / 2**0.5 * median(abs(amount - before) for amount, before in known)
        reach = max(SHARE_APART * middle, DEVIATIONS_APART * noise)
        self._usual = max(0.0, middle - reach), middle + reach  # no step has less than no tokens

    def _amounts(self, now: float) -> Iterator[Finding]:
        if self._usual is None:
            return
        ranks = sorted(rank for rank, each in self._ranks.items() if each.apart >= WINDOWS)
        if not ranks or not self._occurrences.is_new(AMOUNTS, now):
            return
        low, high = self._usual
        amounts = [self._ranks[rank].amount or 0.0 for rank in ranks]
        told = f"{amounts[0]:.4g}" if len(ranks) == 1 else f"from {min(amounts):.4g} to {max(amounts):.4g}"
        usual = f"{low:.4g} to {high:.4g} are usual"
        error = f"on {ranks_in_words(ranks)} a step has {told} tokens, where {usual}"
        yield self._finding(AMOUNTS, ranks, error, now)

    def _starving(self, now: float) -> Iterator[Finding]:
        ranks = sorted(rank for rank, each in self._ranks.items() if each.starved >= WINDOWS)
        # A window later than the first of them the others have told of theirs as well.
        starves = any(self._ranks[rank].starved > WINDOWS for rank in ranks)
        if not starves or not self._occurrences.is_new(STARVES, now):
            return
        share = median(self._ranks[rank].share for rank in ranks)
        is_of_all = 2 * len(ranks) > self._round.world_size
        who = f"{len(ranks)} of {self._round.world_size} ranks" if is_of_all else ranks_in_words(ranks)
        workers = [told for rank in ranks if (told := self._ranks[rank].mark.workers) is not None]
        error = f"data are waited for in {share:.0%} of the time on {who}: {_advice(share, workers)}"
        yield self._finding(STARVES, () if is_of_all else ranks, error, now)

    def _finding(self, cause: str, ranks: Sequence[int], error: str, now: float) -> Finding:
        subject, *also = [self._round.subject(rank) for rank in ranks[:SUBJECTS_NAMED]] or [Subject(self._job)]
        return Finding(
            kind=FindingKind.DATA,
            subject=subject,
            cause=cause,
            evidence=(Evidence("rank records", error, now),),
            confidence=Confidence.PROBABLE,
            began_at=now,
            round=self._round.number,
            error=error,
            also=tuple(also),
            asks=XidAction.WATCH,
        )


def _advice(share: float, workers: Sequence[int]) -> str:
    """What would do about it, for each rank."""
    if not workers:
        return f"{1 / (1 - share):.1f} times as many loader processes as now would do"
    now = int(median(workers))
    if now == 0:
        enough, have = share / (1 - share), "there is none"
    else:
        enough, have = now / (1 - share), f"there are {now}"
    return f"about {max(1, ceil(enough - ROUNDING))} loader processes for each rank would do, {have}"
