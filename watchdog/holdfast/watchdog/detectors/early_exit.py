"""A rank that ended with success while the others went on training.

Its process has done nothing that looks like a fault: what breaks are the collectives of the others, which wait for
it in vain. That a rank ends before the others proves nothing by itself, since rank 0 may save or evaluate for
long; a collective that fails after it does. The script decides when a rank ends, so no node is to blame for it.
"""

from collections.abc import Sequence

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors.detector import (
    CollectiveBroke,
    Detector,
    Exited,
    RoundStarted,
    RoundStopped,
    Sample,
)
from holdfast.watchdog.detectors.round_in_force import RoundInForce
from holdfast.watchdog.detectors.user_code import PEER

# What the same way of failing is known by, from one round to the next.
ALIKE = "a rank ended early"
# A process that ends closes its connections first, and is gone once its memory and devices are released.
ENDING_S = 1.0


class EarlyExitDetector(Detector):
    """Judges `Exited` with code 0 by what breaks after it in its round: others may go on for long without that."""

    subscribes_to: tuple[type[Sample], ...] = (CollectiveBroke, Exited, RoundStarted, RoundStopped)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._ended: tuple[float, int] | None = None  # the first to end with success: when, and which rank
        self._broke: dict[int, float] = {}  # when ranks missed a peer
        self._found = False

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """A finding as soon as both are known, in whatever order they are told."""
        if self._round.follow(sample):
            self._ended, self._found = None, False
            self._broke.clear()
            return ()
        if isinstance(sample, CollectiveBroke) and self._round.counts(sample.failure.round):
            self._broke.setdefault(sample.failure.rank, now - max(0.0, sample.failure.age_s))
        elif isinstance(sample, Exited) and self._round.counts(sample.exit.round):
            exit, at = sample.exit, now - max(0.0, sample.exit.age_s)
            if exit.exit_code == 0:
                self._ended = (at, exit.rank) if self._ended is None else min(self._ended, (at, exit.rank))
            elif PEER.told_by.search(exit.error):
                self._broke.setdefault(exit.rank, at)
        if self._found or self._ended is None or not self._broke:
            return ()
        ended_at, rank = self._ended
        broke_at, other = min((at, other) for other, at in self._broke.items())
        if rank in self._broke or broke_at < ended_at - ENDING_S:
            return ()  # it was a victim itself, and gave up
        self._found = True
        broke = Evidence(f"rank {other}", "it went on, and its collective failed", broke_at)
        return (early_exit(self._job, (rank,), self._round.number, ended_at, broke),)


def early_exit(job: str, ranks: Sequence[int], round: int | None, at: float, *evidence: Evidence) -> Finding:
    """The finding that `ranks` ended with success at `at`, while the others of `round` waited for them."""
    named = ", ".join(map(str, ranks))
    word = "rank" if len(ranks) == 1 else "ranks"
    says = "it ended with exit code 0, which the script alone decides: no node is to blame"
    return Finding(
        kind=FindingKind.USER_CODE,
        subject=Subject(job, rank=ranks[0]),
        cause=f"{word} {named} ended with exit code 0 while others went on",
        evidence=(Evidence(f"launcher of rank {ranks[0]}", says, at), *evidence),
        confidence=Confidence.CERTAIN,
        began_at=at,
        round=round,
        also=tuple(Subject(job, rank=rank) for rank in ranks[1:]),
        alike=ALIKE,
    )
