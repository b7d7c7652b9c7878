"""A collective failed while every process lives: as a rule the symptom of somebody else's fault.

The cause, an exit or a closed connection, is usually heard within milliseconds. So a failed collective waits a
short while for one; only when none shows does it become a finding of its own, which names who reported it and
claims to know nothing of the culprit. Where ranks of one replica group say so and others only that it failed
between groups, the former are believed; where all say the latter, it names nobody. A hang or an XID found
meanwhile ends the round, and the wait with it.
"""

from collections.abc import Sequence

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors.detector import (
    ROUNDS,
    CollectiveBroke,
    Connected,
    Detector,
    Disconnected,
    Exited,
    RoundInForce,
    Sample,
)

# Fifty times what survivors of a killed peer were seen to need (7-27 ms with gloo), and little against the
# time-out of minutes that a training script would otherwise wait.
PATIENCE_S = 1.0


class CollectiveFailedDetector(Detector):
    """Judges `CollectiveBroke` by what else happens in its round."""

    subscribes_to: tuple[type[Sample], ...] = (CollectiveBroke, Exited, Connected, Disconnected, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._round = RoundInForce(policy.job)
        self._broke: dict[int, tuple[float, CollectiveBroke]] = {}  # when it happened and who said so, by rank
        self._patience_ends: float | None = None
        self._away: set[str] = set()  # members whose connection closed: the cause, unless they come back
        self._settled = False  # the cause is known, or the finding made

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Start to wait, or stop because the cause is there."""
        if self._round.follow(sample):
            self._broke.clear()
            self._away.clear()
            self._patience_ends, self._settled = None, False
        running = self._round.round
        if running is None:
            return ()
        match sample:
            case Disconnected(member=member) if member in running.names:
                self._away.add(member)
            case Connected(member=member) if member in self._away:
                self._away.remove(member)  # a connection that only blinked was not the cause
                if self._broke:
                    self._patience_ends = now + PATIENCE_S
            case Exited(exit=exit) if exit.round == running.number:
                # One whose training was over after its own collective failed is not why it did.
                self._settled = self._settled or not exit.is_end or exit.rank not in self._broke
            case CollectiveBroke(failure=failure) if failure.round == running.number:
                self._broke.setdefault(failure.rank, (now - max(0.0, failure.age_s), sample))
                if self._patience_ends is None:
                    self._patience_ends = now + PATIENCE_S
        return ()

    def elapse(self, now: float) -> Sequence[Finding]:
        """The finding, once the patience is over and no cause has shown."""
        due = self.next_wakeup()
        if due is None or now < due:
            return ()
        self._settled = True
        reports = sorted(self._broke.values(), key=lambda each: (each[0], each[1].failure.rank))
        within = [each for each in reports if not each[1].failure.across]
        began_at, first = (within or reports)[0]
        subject, *also = [self._round.subject(broke.failure.rank) for _, broke in within] or [Subject(self._job)]
        evidence = tuple(
            Evidence(f"launcher {broke.member}", f"rank {broke.failure.rank} lives and its collective failed", at)
            for at, broke in reports[:16]
        )
        silence = Evidence("collective failed", f"no exit and no lost member within {PATIENCE_S:.0f} s", began_at)
        finding = Finding(
            kind=FindingKind.COLLECTIVE_FAILED,
            subject=subject,
            cause="collective failed" if within else "collective between replica groups failed",
            evidence=(*evidence, silence),
            confidence=Confidence.UNKNOWN,
            began_at=began_at,
            round=first.failure.round,
            error=first.failure.error,
            also=tuple(also),
        )
        return (finding,)

    def next_wakeup(self) -> float | None:
        return None if self._settled or self._away else self._patience_ends
