"""A loss or gradient norm that is NaN or infinite: at which step, and on which rank it began.

The all-reduce of the gradients carries a NaN from one rank to all within one step: then every gradient norm is
NaN, while only the rank where it began has a loss that is none. So a fault is judged once all ranks have been
heard of as it is now, or shortly after: of the earliest step that was not finite, the one rank that was first
is the culprit. Where several were, or a rank was not heard of, nobody is blamed.

A step that all ranks agreed to leave out did no harm; it is told as skipped.

Ranks that finish say so with their last word on their values: no report comes after it, and the job must not be
taken for done with what the last step left.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Odd
from holdfast.api.telemetry import NonFinite, RankSample, SkippedSteps
from holdfast.watchdog.detectors.detector import ROUNDS, Detector, Finished, Reported, RoundInForce, Sample
from holdfast.watchdog.wording import ranks_in_words

# Every agent reports within an interval, at once when it is news. One that is late by more is not waited for.
LATE_INTERVALS = 1.5
# A device's values are published a step late; a rank that is this far beyond the fault has none.
LATE_STEPS = 2
EVIDENCE_MAX = 16
# torch's own scaler is known to the trainer, whose steps left out are not told as faults.
_OVERFLOWS = (
    "An infinite norm beside a finite loss is what half precision gives where its loss is scaled too much. What "
    "torch.amp.GradScaler leaves out is known; of another scaler say it: run.step(..., skipped=True)"
)


@dataclass(frozen=True, slots=True)
class _Seen:
    """What one rank said: its first step that was not finite, and about when that was."""

    told: NonFinite
    at: float


@dataclass(slots=True)
class _Skip:
    """A step that was left out: who had a value that was not finite, by rank. Judged at `due_at` at the latest."""

    step: int
    at: float
    due_at: float
    values: dict[int, SkippedSteps]


class NonFiniteDetector(Detector):
    """Judges what the rank records keep of the round in force. At most one fault a round; each skip once."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Finished, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._patience_s = LATE_INTERVALS * policy.heartbeat_interval_s
        self._round = RoundInForce(policy.job)
        self._begin()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Take a report; a round that ends with a fault not judged yet is judged by what is known."""
        if isinstance(sample, Reported):
            for each in self._round.samples_in(sample):
                if each.skipped is not None or each.nonfinite is not None or self._due_at is not None:
                    self._take(each, now)
            return self._judge(now)
        if isinstance(sample, Finished):
            running = self._round.round
            share = running.share_of(sample.member) if running and sample.round == running.number else None
            if share is not None and not self._is_told:
                ranks = range(share.first_rank, share.first_rank + share.local_size)
                for last in sample.nonfinite:
                    if last.rank in ranks:
                        self._take_first(last.rank, last.nonfinite, now)
                self._done.update(ranks)
                self._settled.update(ranks)
            return self._judge(now)
        before = self._judge(now, late=True)
        if self._round.follow(sample):
            self._begin()
        return before

    def elapse(self, now: float) -> Sequence[Finding]:
        """Judge without those who have not been heard of in time."""
        return self._judge(now)

    def next_wakeup(self) -> float | None:
        skip_due_at = None if self._skip is None else self._skip.due_at
        return min((at for at in (self._due_at, skip_due_at) if at is not None), default=None)

    def _begin(self) -> None:
        self._first: dict[int, _Seen] = {}  # by rank
        self._heard: dict[int, int] = {}  # by rank: the newest step, heard of since the first fault
        self._earliest: float = math.inf  # the first step of any rank that was not finite
        self._settled: set[int] = set()  # ranks that cannot turn out to have been earlier
        self._done: set[int] = set()  # ranks that have finished, and said so
        self._due_at: float | None = None
        self._is_told = False
        self._skips_told: dict[int, int] = {}  # by rank: how many skipped steps of it were told of
        self._skip: _Skip | None = None

    def _take(self, sample: RankSample, now: float) -> None:
        rank, skipped = sample.rank, sample.skipped
        if skipped is not None and skipped.count > self._skips_told.get(rank, 0):
            self._skips_told[rank] = skipped.count
            if self._skip is None or skipped.step > self._skip.step:
                due_at = now + self._patience_s if self._skip is None else self._skip.due_at
                self._skip = _Skip(skipped.step, now, due_at, {})
            if skipped.step == self._skip.step:
                self._skip.values[rank] = skipped
        if self._is_told or (sample.nonfinite is None and self._due_at is None):
            return
        if sample.step is not None:
            self._heard[rank] = sample.step
        if sample.nonfinite is not None:
            self._take_first(rank, sample.nonfinite, now)
        if rank in self._first or (sample.step or 0) >= self._earliest + LATE_STEPS:
            self._settled.add(rank)

    def _take_first(self, rank: int, told: NonFinite, now: float) -> None:
        if rank in self._first:
            return
        self._first[rank] = _Seen(told, now - max(0.0, told.age_s))
        self._earliest = min(self._earliest, told.step)
        if self._due_at is None:
            self._due_at = now + self._patience_s

    def _judge(self, now: float, *, late: bool = False) -> Sequence[Finding]:
        """What can be judged now; `late`: there will be no more.

        Asked with every report, of which a large job sends thousands a second: nothing is counted anew.
        """
        findings: list[Finding] = []
        world, skip = self._round.world_size, self._skip
        if skip is not None and (late or len(skip.values) >= world or now >= skip.due_at):
            self._skip = None
            findings.append(self._skipped(skip))
        if self._due_at is not None and (late or now >= self._due_at or len(self._settled) >= world):
            self._due_at, self._is_told = None, True
            findings.append(self._fault())
        return tuple(findings)

    def _fault(self) -> Finding:
        earliest, world = min(seen.told.step for seen in self._first.values()), self._round.world_size
        # Whether every rank has told of a fault of its own, or was at the earliest one without a word of it.
        heard = {rank for rank, step in self._heard.items() if rank in self._first or step >= self._earliest}
        all_heard = len(heard | self._done) >= world
        there = {rank: seen for rank, seen in self._first.items() if seen.told.step == earliest}
        # A loss shows where a NaN began; gradients have been all over when their norm is taken.
        with_loss = [rank for rank, seen in there.items() if seen.told.loss]
        # One of a row of steps left out may itself have had finite values.
        suspects = with_loss or [rank for rank, seen in there.items() if seen.told.grad_norm] or list(there)
        subject, confidence = self._blamed(suspects[0] if len(suspects) == 1 and all_heard else None)
        if with_loss:
            error = f"the loss of {ranks_in_words(with_loss)} of {world} is not finite"
            error += "" if all_heard else "; not every rank was heard of"
        elif all(seen.told.parameters for seen in there.values()):
            error = f"no loss tells of it, but the parameters of {ranks_in_words(there)} are not finite"
        else:
            error = f"no loss is, but the gradient norm of {ranks_in_words(there)} is not finite"
            if all(seen.told.grad_norm == Odd.INFINITE.word for seen in there.values()):
                error += f". {_OVERFLOWS}"
        first = sorted(self._first.items(), key=lambda each: (each[1].told.step, each[0]))
        lines = [
            (f"rank {rank}: {_fault_in_words(seen.told)} at step {seen.told.step}", seen.at)
            for rank, seen in first[:EVIDENCE_MAX]
        ]
        if len(first) > EVIDENCE_MAX:
            lines.append((f"{len(first) - EVIDENCE_MAX} more ranks", first[EVIDENCE_MAX][1].at))
        missing = world - len(self._heard.keys() | self._first.keys() | self._done)
        if missing > 0:
            lines.append((f"{missing} ranks were not heard of since step {earliest}", first[0][1].at))
        return Finding(
            kind=FindingKind.NON_FINITE,
            subject=subject,
            cause=_fault_in_words(there[suspects[0]].told),
            evidence=tuple(Evidence("rank record", says, at) for says, at in lines),
            confidence=confidence,
            began_at=min(seen.at for seen in there.values()),
            round=self._round.number,
            error=f"at step {earliest}: {error}",
            step=earliest,
        )

    def _skipped(self, skip: _Skip) -> Finding:
        own = [rank for rank, told in skip.values.items() if told.loss or told.grad_norm]
        with_loss = [rank for rank in own if skip.values[rank].loss]
        suspects = with_loss or own
        complete = len(skip.values) >= self._round.world_size
        values = skip.values[suspects[0]] if suspects else None
        what = _in_words(values.loss, values.grad_norm) if values is not None else "not finite on some rank"
        who = f"{ranks_in_words(suspects)}: " if suspects else ""
        says = f"{who}{what} at step {skip.step}"
        subject, confidence = self._blamed(suspects[0] if len(suspects) == 1 and complete else None)
        return Finding(
            kind=FindingKind.NON_FINITE,
            subject=subject,
            cause=what,
            evidence=(Evidence("rank record", f"{says}; all ranks left the step out", skip.at),),
            confidence=confidence,
            began_at=skip.at,
            round=self._round.number,
            step=skip.step,
            skipped=True,
        )

    def _blamed(self, culprit: int | None) -> tuple[Subject, Confidence]:
        if culprit is None:
            return Subject(self._job), Confidence.UNKNOWN
        return self._round.subject(culprit), Confidence.PROBABLE


def _fault_in_words(told: NonFinite) -> str:
    return "the parameters are not finite" if told.parameters else _in_words(told.loss, told.grad_norm)


def _in_words(loss: str, grad_norm: str) -> str:
    """Which value is what: "loss is nan"."""
    told = [f"{name} is {word}" for name, word in (("loss", loss), ("gradient norm", grad_norm)) if word]
    return " and ".join(told) or "a value is not finite on some rank"
