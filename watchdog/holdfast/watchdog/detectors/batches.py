"""Wrong data: one batch on two ranks, a batch that comes again, a round that begins at the wrong sample.

Ranks tell of some of their steps by what prints their batches have. Of the same step,

    two data-parallel ranks with one print   train with the same samples: their shards are one, or both read all,
                                             where the same two go on doing so with batch after batch
    the sum over all ranks                   is the print of the whole batch, in a world of any size. A step that
                                             is trained again has the batch that it had, unless batches were passed
                                             over on purpose; another step's batch says how far off the data are

and a process that takes a batch a second time within an epoch says so itself. It may be on purpose, as where there
are several steps with each batch, so that it is never certain.

Ranks that hold parts of one model rightly have the same batch. Which these are depends on the order in which a
script counts its ranks: neighbours, or with the pipeline outermost. What is right in one of the two is right.
A job need not say how it splits its model: where all ranks are in groups of one size that share a batch, they may
be such parts. A single sample may be one that fills a place. What is told of these is probable, and so is what not
all ranks have told of.

Padding follows from who else is in a rank's batch, so that in a world of another size the sums are compared only
where there are as many samples and tokens as before.

A round begins at the wrong sample where batch after batch is that of a step so far off. What loads data may change
samples at random: a step that is trained again differs then as well, and that is told only of a job that had steps
again exactly as they were. A round whose first steps are new ones may rightly begin a further epoch of the same
order, so that it is certain only of steps that were trained before.
"""

from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from typing import Final, NamedTuple

import msgspec

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.rankrecord import UNKNOWN_INT
from holdfast.api.telemetry import BatchAgain, BatchTaken
from holdfast.watchdog.detectors.detector import ROUNDS, Detector, Reported, RoundInForce, Sample
from holdfast.watchdog.detectors.occurrences import Occurrences
from holdfast.watchdog.detectors.replica_vote import SUBJECTS_NAMED
from holdfast.watchdog.wording import ranks_in_words

SAME, AGAIN, OFFSET = "the same batch on two ranks", "a batch comes again", "restart at the wrong sample"
# Steps that not all ranks have told of: at least and at most so many, and prints in all of them.
OPEN_MIN: Final = 8
OPEN_MAX: Final = 32
OPEN_PRINTS: Final = 1 << 17
STEPS_KEPT: Final = 4096  # at one a second for more than an hour: what a restart may train again
# Two ranks with the same samples may be chance: samples that are drawn with replacement, a set smaller than the
# world, a batch that fills a place. A shard goes on being one: in most of so many steps, each time another batch.
STEPS_ALIKE: Final = 8
AGAIN_S: Final = 2.0  # other ranks are waited for, which may have said the same by then
# So many of the first steps of a round say how it began, and so many of them that agree: one may be chance.
FIRST_STEPS: Final = 16
STEPS_AGREE: Final = 3
STEPS_EXACT: Final = 8  # in a row that had again what they had: their samples are not changed at random
_TWINS_MAX: Final = 1024
_Pairs = dict[tuple[int, int], int]
"""Two ranks with the print that they share in a step."""


class _Whole:
    """A step's batch, as far as ranks have told of it."""

    __slots__ = ("count", "first", "round", "samples", "tokens", "twins", "value", "world")

    def __init__(self, round: int, world: int) -> None:
        self.round, self.world = round, world
        self.count = self.value = self.samples = 0
        self.tokens: int | None = 0
        # By print, the first rank that told it and its samples; by rank, the print of the others that share one.
        self.first: dict[int, tuple[int, int]] = {}
        self.twins: dict[int, int] = {}

    def take(self, event: BatchTaken) -> None:
        """What one rank tells."""
        self.count += 1
        self.value = (self.value + event.value) % 2**64
        self.samples += event.samples or 0
        self.tokens = None if self.tokens is None or event.tokens is None else self.tokens + event.tokens
        if event.samples:
            first, _ = self.first.setdefault(event.value, (event.rank, event.samples))
            if first != event.rank:
                self.twins[event.rank] = event.value

    def sharing(self) -> dict[int, list[int]]:
        """The ranks that share a print, in order, by their print."""
        groups: dict[int, list[int]] = {}
        for rank, value in self.twins.items():
            groups.setdefault(value, [self.first[value][0]]).append(rank)
        return {value: sorted(ranks) for value, ranks in groups.items()}

    def is_comparable(self, other: "_Whole") -> bool:
        """Whether both are to be the same where the data are."""
        return self.world == other.world or (self.samples, self.tokens) == (other.samples, other.tokens)


class _Began(NamedTuple):
    """How a round began that did not begin right: `step` has the samples of `like`; None: others than it had.

    `was_trained`: in a round before the step was trained, with other samples.
    """

    step: int
    like: int | None
    was_trained: bool


class _Beginning:
    """The first steps of a round, compared with those of the rounds before."""

    def __init__(self, history: Mapping[int, _Whole], *, had_exact: bool, comes_again: bool) -> None:
        """`had_exact`: steps that were trained again had exactly what they had; `comes_again`: batches do, so that
        those of new steps prove nothing.
        """
        self._history, self._had_exact, self._comes_again = dict(history), had_exact, comes_again
        self._looked_at = 0
        self._off: list[_Began] = []  # as far off as each other
        self._others: list[_Began] = []

    def take(self, step: int, whole: _Whole) -> _Began | None:
        """All ranks have told of `step`: what is wrong with how the round began, once that is known."""
        known = self._history.get(step)
        is_comparable = not self._comes_again if known is None else known.is_comparable(whole)
        if self._looked_at >= FIRST_STEPS or not is_comparable:
            return None
        self._looked_at += 1
        if known is not None and known.value == whole.value:
            self._looked_at = FIRST_STEPS
            return None
        like = self._step_like(step, whole, is_new=known is None)
        one = _Began(step, like, known is not None)
        if like is not None:
            is_as_far = bool(self._off) and self._off[0].step - (self._off[0].like or 0) == step - like
            self._off = [*self._off, one] if is_as_far else [one]
        elif known is not None and known.world == whole.world:
            self._others.append(one)
        if len(self._off) >= STEPS_AGREE:
            self._looked_at = FIRST_STEPS
            return self._off[0]
        is_last = self._looked_at == FIRST_STEPS
        return self._others[0] if is_last and self._had_exact and len(self._others) >= STEPS_AGREE else None

    def _step_like(self, step: int, whole: _Whole, *, is_new: bool) -> int | None:
        """The one step of rounds before that had this batch. None: none had, or data repeat themselves and prove
        nothing.
        """
        history = self._history
        alike = [each for each, other in history.items() if other.value == whole.value]
        if len(alike) != 1:
            return None
        behind = step - alike[0]
        before = ((other, history.get(each - behind)) for each, other in history.items())
        # So far behind were batches before the restart too: that is how long an epoch is.
        if is_new and any(old is not None and old.value == other.value for other, old in before):
            return None
        return alike[0]


class BatchDetector(Detector):
    """Compares the batches that ranks tell of, in one round and with those of rounds before."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._model_ranks, self._inner = policy.model_ranks, policy.tensor * policy.context
        self._round = RoundInForce(policy.job)
        self._history: dict[int, _Whole] = {}  # by step: of the history that goes on, and of what it left behind
        self._comes_again = False  # a batch did, in a round before
        self._exact = 0  # steps in a row that were trained again with what they had
        self._sound_to: int | None = None  # the newest step before a batch came again in the round; None: none did
        self._begin()

    def _begin(self) -> None:
        if self._sound_to is not None:
            self._forget_from(self._sound_to + 1)  # done again, and right, these steps have other samples
            self._sound_to = None
            self._comes_again = True
        shown = self._round.round
        self._passes_over = shown is not None and (
            bool(shown.restore.skip_batches) or shown.restore.skip_until is not None
        )
        self._begins = _Beginning(
            self._history, had_exact=self._exact >= STEPS_EXACT, comes_again=self._comes_again
        )
        self._newest: dict[int, BatchTaken] = {}  # by rank
        self._open: dict[int, _Whole] = {}
        self._open_max = max(OPEN_MIN, min(OPEN_MAX, OPEN_PRINTS // max(1, self._round.world_size)))
        self._dropped = UNKNOWN_INT  # no step up to this is open any more
        self._alike: deque[_Pairs] = deque(maxlen=STEPS_ALIKE)  # of the newest steps that were looked at
        self._again: dict[int, BatchAgain] = {}  # by rank: the first, and how many there were since
        self._again_at: float | None = None  # when it is told
        self._counts: dict[int, int] = {}  # by rank: how many came again, as told last
        self._occurrences = Occurrences()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Take what a report tells of batches."""
        if not isinstance(sample, Reported):
            if self._round.follow(sample):
                self._begin()
            return ()
        report = sample.report
        for each in self._round.samples_in(sample):
            if each.again is not None:
                self._take_again(each.rank, each.again, now)
        if not report.events or self._round.number is None:
            return ()
        found: list[Finding] = []
        ranks, number = self._round.ranks_on(report.node), self._round.number
        for event in report.events:
            if isinstance(event, BatchTaken) and event.round == number and event.rank in ranks:
                found.extend(self._take(event, now))
        return found

    def elapse(self, now: float) -> Sequence[Finding]:
        """Tell of batches that came again, once all nodes have had time to."""
        if self._again_at is None or now < self._again_at:
            return ()
        self._again_at = None
        found = tuple(self._repeated(now))
        self._again.clear()
        return found

    def next_wakeup(self) -> float | None:
        return self._again_at

    def _take_again(self, rank: int, again: BatchAgain, now: float) -> None:
        self._sound_to = again.first if self._sound_to is None else min(again.first, self._sound_to)
        if again.count <= self._counts.get(rank, 0):
            return
        self._counts[rank] = again.count
        is_told_yet = self._again_at is None and not self._occurrences.is_new(AGAIN, now)
        if is_told_yet:
            return
        self._again[rank] = msgspec.structs.replace(self._again.get(rank, again), count=again.count)
        self._again_at = now + AGAIN_S if self._again_at is None else self._again_at

    def _take(self, event: BatchTaken, now: float) -> Iterator[Finding]:
        """Take what one rank tells of one step."""
        newest = self._newest.get(event.rank)
        if newest is not None and event.step <= newest.step:
            return  # told before, by an agent that was not sure whether it was heard
        if not self._newest and self._passes_over:
            self._forget_from(event.step)
        self._newest[event.rank] = event
        step = event.step
        if step <= self._dropped:
            return
        if (whole := self._open.get(step)) is None:
            whole = self._open[step] = _Whole(event.round, self._round.world_size)
            if len(self._open) > self._open_max:
                self._dropped = min(self._open)
                yield from self._look_for_twins(self._dropped, self._open.pop(self._dropped), now)
                if step == self._dropped:
                    return
        whole.take(event)
        if whole.count == whole.world:
            del self._open[step]
            yield from self._look_for_twins(step, whole, now)
            yield from self._complete(step, whole, now)

    def _hold_one_model(self, rank: int, other: int) -> bool:
        if self._model_ranks == 1:
            return False
        replicas, inner = max(1, self._round.world_size // self._model_ranks), self._inner
        neighbours = rank // self._model_ranks == other // self._model_ranks
        return neighbours or (rank // inner) % replicas == (other // inner) % replicas

    def _look_for_twins(self, step: int, whole: _Whole, now: float) -> Iterator[Finding]:
        """Whether ranks share the batch of `step`, of which no more will be told, as they do in most steps."""
        groups, told = whole.sharing(), whole.first
        whole.first, whole.twins = {}, {}
        if not told:
            return
        pairs: _Pairs = {}
        for value, (first, *others) in groups.items():
            mates = [rank for rank in others if not self._hold_one_model(first, rank)]
            pairs |= {(first, rank): value for rank in mates[: _TWINS_MAX - len(pairs)]}
        self._alike.append(pairs)
        shared = {each: {known[each] for known in self._alike if each in known} for each in pairs}
        alike = [each for each, values in shared.items() if 2 * len(values) > STEPS_ALIKE]
        if not alike or not self._occurrences.is_new(SAME, now):
            return
        sizes = {len(ranks) for ranks in groups.values()}
        may_be_one_model = len(groups) == len(told) and len(sizes) == 1
        _, samples = min((told[pairs[each]] for each in alike), key=lambda first: first[1])
        is_sure = samples > 1 and whole.count == whole.world and not may_be_one_model
        ranks = sorted({rank for pair in alike for rank in pair})
        error = (
            f"{ranks_in_words(ranks)} took a batch of {samples} samples for step {step} that another of them "
            f"took, too, and so in most of the last {STEPS_ALIKE} steps that were told of"
        )
        if may_be_one_model:
            error += "; if they hold parts of one model, the job does not say so (spec.parallelism)"
        confidence = Confidence.CERTAIN if is_sure else Confidence.PROBABLE
        yield from self._finding(SAME, ranks, error, step, now, confidence)

    def _repeated(self, now: float) -> Iterator[Finding]:
        ranks = sorted(self._again)
        rank = min(ranks, key=lambda each: self._again[each].step)
        one, told = self._again[rank], self._newest.get(rank)
        of = f" of {told.samples} samples" if told is not None and told.samples else ""
        error = (
            f"{ranks_in_words(ranks)} took a batch{of} a second time within an epoch: rank {rank} that of step "
            f"{one.first} for step {one.step}, {one.count} in all"
        )
        yield from self._finding(AGAIN, ranks, error, one.step, now, Confidence.PROBABLE)

    def _complete(self, step: int, whole: _Whole, now: float) -> Iterator[Finding]:
        """All ranks have told of `step`."""
        if not whole.samples:
            return  # of no samples nothing is known
        known = self._history.get(step)
        if not self._passes_over:
            yield from self._judge(step, whole, now)
        if known is not None and known.world == whole.world:
            self._exact = self._exact + 1 if known.value == whole.value else 0
        self._history.pop(step, None)
        self._history[step] = whole
        if len(self._history) > STEPS_KEPT:
            del self._history[next(iter(self._history))]

    def _judge(self, step: int, whole: _Whole, now: float) -> Iterator[Finding]:
        """Whether the round began with the samples that it should have begun with."""
        began = self._begins.take(step, whole)
        if began is None:
            return
        of = f"step {began.step}, of {whole.samples} samples on all {whole.world} ranks, has"
        if began.like is None:
            told = (
                "other samples than it had before, though steps that were trained again earlier had the same: "
                "they are others, or changed at random as they are loaded"
            )
            yield from self._finding(OFFSET, (), f"{of} {told}", began.step, now, Confidence.UNKNOWN)
            return
        steps, way = abs(began.like - began.step), "too early" if began.like < began.step else "too late"
        after = "are trained with again" if began.like < began.step else "were passed over"
        told = (
            f"the samples of step {began.like}: the data begin {steps} steps {way}, so that about "
            f"{steps * whole.samples} samples {after}"
        )
        is_sure = began.was_trained and whole.samples > 1
        if not began.was_trained:
            told += ", unless a further epoch begins there"
        confidence = Confidence.CERTAIN if is_sure else Confidence.PROBABLE
        yield from self._finding(OFFSET, (), f"{of} {told}", began.step, now, confidence)

    def _forget_from(self, step: int) -> None:
        """No step from here on has the samples that it had, and rightly so."""
        self._history = {each: whole for each, whole in self._history.items() if each < step}

    def _finding(
        self, cause: str, ranks: Sequence[int], error: str, step: int, now: float, confidence: Confidence
    ) -> Iterator[Finding]:
        subject, *also = [self._round.subject(rank) for rank in ranks[:SUBJECTS_NAMED]] or [Subject(self._job)]
        yield Finding(
            kind=FindingKind.DATA,
            subject=subject,
            cause=cause,
            evidence=(Evidence("prints of the batches", error, now),),
            confidence=confidence,
            began_at=now,
            round=self._round.number,
            error=error,
            also=tuple(also),
            asks=XidAction.WATCH,
            step=step,
        )
