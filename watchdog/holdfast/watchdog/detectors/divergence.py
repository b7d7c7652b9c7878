"""A loss that rises and stays: of most ranks, which is a divergence, or of one rank alone.

A spike that passes is no fault: PaLM and OPT-175B saw dozens and went back only for those from which the loss did
not return. So what counts is the median over the ranks, against what it was while all was well, and for how many
steps it has been too high. A rank of its own is compared with the others of the same time: above them by a bad
shard, a kernel or a link, below them by a shard that repeats and is learned by heart.

A step is seen now and then, not each: the loss may have begun to rise at the step after the last one at which it
was as usual. What is usual is learned from the job itself, in its first looks and ever after. A watchdog that has
just started learns it anew, and takes for usual what it finds.
Sources: https://arxiv.org/abs/2204.02311 section 5.1; https://arxiv.org/abs/2205.01068 section 2.5
"""

from collections import deque
from collections.abc import Iterator, Sequence
from math import gcd, isfinite
from statistics import median

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import LossPolicy, Policy, XidAction
from holdfast.api.telemetry import RankSample
from holdfast.watchdog.detectors.detector import ROUNDS, Detector, Reported, RoundInForce, Sample

# Of so many ranks the median is taken, at even distances: of 1,024 it is as good as of 100,000.
LOOKED_AT_MAX = 1024
# A loss falls, fast at first. So a look is compared with the median of so many before it, the newest that were as
# usual, and how far it is from that with how far those of before were; until both are known, nothing is judged.
# With fewer looks a rise of a minute or two would be taken for usual as it goes on. With so many, a rise within
# reach still would: so what was usual at so many places before, so many looks apart, counts too, the lowest.
# With more places the swings of a sound loss would be taken for a rise (bench/divergence.py).
LOOKS_KEPT = 48
PLACES_KEPT = 4
LOOKS_APART = 16
CHANGES_THAT_TELL = 16
CHANGES_KEPT = 64
# Too high: beyond what is usual by so many standard deviations (by way of the median absolute deviation, which an
# odd value does not move), and by this share of it, whatever the deviation.
DEVIATIONS = 6.0
SHARE = 0.1
# One rank is apart from the others by more: they have other data. How far ranks are from each other is taken of
# many looks, for of three ranks that are two numbers.
DEVIATIONS_APART = 8.0
SHARE_APART = 0.25
APART_TOLD_MAX = 8  # of a round
LEAST = 1e-6  # a loss of nothing at all may become that of a rounding error
TO_SIGMA = 1.4826  # of a normal distribution: its standard deviation over its median absolute deviation


class DivergenceDetector(Detector):
    """Watches the losses of a job whose spec says what to do about them; of another job it sees nothing."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._wanted: LossPolicy | None = policy.loss
        self._sustained = policy.loss.rewind_after if policy.loss is not None else 0
        self._every_s = policy.heartbeat_interval_s
        self._model_ranks = policy.model_ranks
        self._round = RoundInForce(policy.job)
        # Over all rounds, of looks that were as usual: the losses, and what each was beyond those before it.
        self._usual: deque[float] = deque(maxlen=LOOKS_KEPT)
        self._changes: deque[float] = deque(maxlen=CHANGES_KEPT)
        self._spreads: deque[float] = deque(maxlen=CHANGES_KEPT)  # of the ranks in one look
        self._places: deque[float] = deque(maxlen=PLACES_KEPT)
        self._looks = 0  # as usual, in all
        self._looks_at = 0.0
        self._learned_to = -1  # the newest step of a look that was as usual
        self._begin()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Take a report, and look at the job once in an interval."""
        if self._wanted is None:
            return ()
        if not isinstance(sample, Reported):
            if self._round.follow(sample):
                self._begin()
            return ()
        found = [*self._apart(sample, now)]
        if now >= self._looks_at:
            self._looks_at = now + self._every_s
            found += self._look(now)
        return found

    def _begin(self) -> None:
        self._stride = max(1, -(-self._round.world_size // LOOKED_AT_MAX))
        while gcd(self._stride, self._model_ranks) != 1:
            self._stride += 1  # or it would be the same stage of the pipeline each time, which may have no loss
        self._newest: dict[int, tuple[int, float]] = {}  # by rank looked at: step and loss
        self._mute: set[int] = set()  # ranks looked at that have no loss, as all stages of a pipeline but the last
        self._step = -1  # of the newest look
        self._usual_at: int | None = None  # the newest step at which the loss was as usual
        self._high_since: float | None = None
        self._is_told = False
        # For one rank, by the newest look: no lower and no higher than these.
        self._near: tuple[float, float] | None = None
        self._compared_from: int | None = None  # the step of the first look by which ranks were compared
        self._apart_since: dict[int, int] = {}  # by rank: the first step seen
        self._apart_told: set[int] = set()

    def _apart(self, sample: Reported, now: float) -> Iterator[Finding]:
        """Take the samples of a report; the ranks that have been apart from the others for long enough."""
        near, stride = self._near, self._stride
        for each in self._round.samples_in(sample):
            step, loss = each.step, each.loss
            if step is None:
                continue
            is_looked_at = each.rank % stride == 0
            if loss is None:
                self._mute.update((each.rank,) if is_looked_at else ())
                continue
            if not isfinite(loss):
                continue
            if is_looked_at:
                self._mute.discard(each.rank)
                self._newest[each.rank] = (step, loss)
            if near is None or near[0] <= loss <= near[1]:
                self._apart_since.pop(each.rank, None)
            elif step - self._apart_since.setdefault(each.rank, step) >= self._sustained:
                yield from self._one_rank(each, loss, now)

    def _look(self, now: float) -> Iterator[Finding]:
        """Compare the job's loss as it is with what it was."""
        with_loss = len(range(0, self._round.world_size, self._stride)) - len(self._mute)
        if not self._newest or 2 * len(self._newest) <= with_loss:
            return  # of most ranks nothing is known in this round yet
        step = int(median(step for step, _ in self._newest.values()))
        if step <= self._step:
            return
        self._step = step
        losses = [loss for _, loss in self._newest.values()]
        loss = median(losses)
        self._spreads.append(_deviation(losses))
        if len(losses) > 2 and len(self._spreads) >= CHANGES_THAT_TELL:
            apart = max(DEVIATIONS_APART * median(self._spreads), SHARE_APART * abs(loss), LEAST)
            self._near = (loss - apart, loss + apart)
            self._compared_from = step if self._compared_from is None else self._compared_from
        before = median(self._usual) if len(self._usual) == LOOKS_KEPT else loss
        # A loss falls as it did; that it rises is never usual, or a slow rise would become so as it goes on.
        usual = before + (min(0.0, median(self._changes)) if self._changes else 0.0)
        # No lower than it ever was: a line drawn on goes below what a loss can be, such as 0 of a cross-entropy.
        usual = max(usual, min(self._usual, default=usual))
        usual = min((usual, *self._places))
        known = len(self._changes) >= CHANGES_THAT_TELL
        # What is trained again has the loss of that time, which is higher than what was usual last.
        is_again = step <= self._learned_to
        if is_again or not known or loss <= usual + _reach(self._changes, usual, DEVIATIONS, SHARE):
            if not is_again:
                if len(self._usual) == LOOKS_KEPT:
                    self._changes.append(loss - before)
                self._usual.append(loss)
                self._looks += 1
                if len(self._usual) == LOOKS_KEPT and self._looks % LOOKS_APART == 0:
                    self._places.append(median(self._usual))
                self._learned_to = step
            self._usual_at, self._high_since, self._is_told = step, None, False
            return
        if self._high_since is None:
            self._high_since = now
            # In a round that has been so from its start on, it was so in the one before.
            self._usual_at = step - 1 if self._usual_at is None else self._usual_at
        first = (self._usual_at or 0) + 1
        if self._is_told or step - first + 1 < self._sustained:
            return
        self._is_told = True
        yield Finding(
            kind=FindingKind.DIVERGENCE,
            subject=Subject(self._job),
            cause="the loss rose and stays",
            evidence=(
                Evidence("rank records", f"{loss:.4g} at step {step}, {usual:.4g} as usual before", now),
                *self._each_of_two(now),
            ),
            confidence=Confidence.UNKNOWN,
            began_at=self._high_since,
            round=self._round.number,
            error=f"the median loss of {len(losses)} ranks is {loss:.4g} at step {step}; up to step {first - 1}"
            f" {usual:.4g} was usual",
            step=first,
        )

    def _each_of_two(self, now: float) -> Iterator[Evidence]:
        """Two ranks are no measure of each other: what each of them said is for a human to compare."""
        if len(self._newest) == 2:
            for rank, (step, loss) in sorted(self._newest.items()):
                yield Evidence("rank record", f"rank {rank}: {loss:.4g} at step {step}", now)

    def _one_rank(self, sample: RankSample, loss: float, now: float) -> Iterator[Finding]:
        """Of all ranks together nothing is said by this, and the other way round.

        A rank that came to be apart from the others, alone, had something happen to it, and is gone back for. One
        that was so from the start of the round has other data, or nobody knows since when.
        """
        told = self._apart_told
        if sample.rank in told or len(told) >= APART_TOLD_MAX or self._high_since is not None:
            return
        told.add(sample.rank)
        first = self._apart_since[sample.rank]
        assert self._near is not None
        assert self._compared_from is not None
        lowest, highest = self._near
        side, limit = ("above", highest) if loss > highest else ("below", lowest)
        came = first - self._compared_from >= self._sustained and len(self._apart_since) == 1
        says = f"{loss:.4g} at step {sample.step}, and no other would be {side} {limit:.4g}"
        # What brought it there began before it showed, as a shard that repeats: as long before as it has to last.
        since = max(1, first - self._sustained) if came else first
        yield Finding(
            kind=FindingKind.DIVERGENCE,
            subject=self._round.subject(sample.rank),
            cause=f"the loss of one rank is {side} the others'",
            evidence=(Evidence("rank record", says, now),),
            confidence=Confidence.PROBABLE,
            began_at=now,
            round=self._round.number,
            error=f"rank {sample.rank}: {says}; since step {first}",
            asks=None if came else XidAction.WATCH,
            step=since,
        )


def _reach(values: Sequence[float], of: float, deviations: float, share: float) -> float:
    """How far from its like a value may be: as these are from each other, and a share of `of` in any case."""
    return max(deviations * _deviation(values), share * abs(of), LEAST)


def _deviation(values: Sequence[float]) -> float:
    """The standard deviation, by way of the median absolute one."""
    middle = median(values)
    return TO_SIGMA * median(abs(each - middle) for each in values)
