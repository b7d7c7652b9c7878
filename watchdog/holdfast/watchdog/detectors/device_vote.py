"""A device computes wrong, or memory does not keep what is in it: found though nobody holds the same parameters.

Every rank now and then runs the same fixed block on its device, and says what it came to. The arithmetic is exact,
so on devices of one make there is one right answer, for ever: it is what more than half of the ranks say, those
that have not spoken counted against it. What is remembered from round to round is what two ranks have said. Of
those that say otherwise,

    one that says two things      is wrong, however often it was right before: no software does that
    two that say the same         have other software, which no broken devices have in common; it is only reported,
                                  as what comes of more than `NODES_OF_ONE_FAULT` nodes at once is
    one that always says the same may be broken or have other software: it is tested, and nobody is convicted

and where nobody is in the majority all are named, and nobody is convicted. Whoever says something else is judged
once the others have answered after the same step too: a setting that the script changes on all of them changes all
answers, and one is always the first to be heard of.

Every rank also sums up its parameters as a pause between two updates begins and as it ends. One that finds a
single bit changed in a pause has bad memory. When it was more bits, or is more than half of several ranks at once,
the script writes to them: that is reported.

Where no two ranks hold the same parameters, this is also what verifies. An answer after step N says that nothing
had changed up to step N - 1. When every rank has given the right one, confirmed by another device of its make,
what was there after step N - 1 is verified, by devices: docs/fingerprints.md says what that is worth.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from holdfast.api.event import ReplicasAgreed
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, ProvedBy, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import DeviceAnswered, ParametersChanged, ParametersFingerprinted
from holdfast.watchdog.detectors.detector import ASKS, ROUNDS, Detector, Reported, RoundInForce, Sample
from holdfast.watchdog.detectors.replica_vote import FINDINGS_PER_ROUND, LATE_S, NODES_OF_ONE_FAULT, SUBJECTS_NAMED
from holdfast.watchdog.wording import ranks_in_words

# Nodes report a change at once; those of one cause arrive within a second of each other.
CHANGES_TOGETHER_S = 2.0
# Causes. A split and what is written are the software's; of a tie nobody knows who is wrong.
MEMORY_CHANGE = "memory change"
_VOTE, _APART, _SPLIT, _TIE = "device vote", "device apart", "device split", "device tie"
_WRITTEN = "memory written"
DEVICES_KEPT = 64
VALUES_KEPT = 64  # of one make of device: one that is always wrong says something else each time


class DeviceVoteDetector(Detector):
    """Judges what ranks prove of themselves in `Reported`; proves agreement as well."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._asks = ASKS[policy.corruption.action]
        self._round = RoundInForce(policy.job)
        self._right: dict[int, int] = {}  # by device, in this and earlier rounds
        self._begin()

    def _begin(self) -> None:
        self._missing = self._round.world_size  # ranks that have not answered
        self._newest: dict[int, DeviceAnswered] = {}  # by rank
        self._answers_of: Counter[int] = Counter()  # how many each rank has given on the device of its newest
        self._confirmed: set[int] = set()  # devices of which two ranks gave the right answer
        self._sides: dict[int, dict[int, set[int]]] = {}  # by device and value, the ranks that ever said so
        self._voters: dict[int, set[int]] = {}  # by device, its ranks
        self._held: dict[int, tuple[DeviceAnswered, float]] = {}  # by device: judged once others have answered
        self._began_at = 0.0
        self._sound: dict[int, int] = {}  # by rank, the step of its newest right answer
        self._sound_at: Counter[int] = Counter()  # how many ranks have theirs at a step
        self._groups: dict[int, int] = {}  # by rank, what part of the model it holds
        self._agreed: int | None = None
        self._changes: dict[int, ParametersChanged] = {}
        self._changed_at: float | None = None
        self._is_spoiled = False  # something was found in this round: nothing of it is verified any more
        self._told: set[tuple[str, tuple[Subject, ...]]] = set()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ReplicasAgreed]:
        """Take the answers of a report; what they complete is judged."""
        if isinstance(sample, Reported) and not sample.report.events:
            return ()  # nearly every one
        if self._round.follow(sample):
            self._begin()
        if not isinstance(sample, Reported):
            return ()
        proofs: list[Finding | ReplicasAgreed] = []
        world, number = self._round.world_size, self._round.number
        ranks = self._round.ranks_on(sample.report.node)
        for event in sample.report.events:
            if not isinstance(event, DeviceAnswered | ParametersChanged | ParametersFingerprinted):
                continue
            if event.round != number or event.rank not in ranks:
                continue
            match event:
                case ParametersFingerprinted():
                    self._groups[event.rank] = event.group
                case ParametersChanged():
                    self._is_spoiled = True
                    self._changes.setdefault(event.rank, event)
                    self._changed_at = now if self._changed_at is None else self._changed_at
                case DeviceAnswered():
                    before = self._newest.get(event.rank)
                    if before is None or event.step > before.step:
                        proofs.extend(self._count(event, before, now))
        # Verified is what all say where replicas cannot tell: they see more than devices that answer right.
        tells = not self._is_spoiled and len(self._sound) >= max(1, world) and len(self._groups) >= world
        if number is not None and tells and len(set(self._groups.values())) >= world:
            step = min(self._sound_at) - 1
            if self._agreed is None or step > self._agreed:
                self._agreed = step
                proofs.append(ReplicasAgreed(number, step, by=ProvedBy.DEVICES))
        return proofs

    def elapse(self, now: float) -> Sequence[Finding | ReplicasAgreed]:
        """Judge changes once those that belong together are there. Who does not answer is Unknown."""
        found: list[Finding] = []
        if self._changed_at is not None and now >= self._changed_at + CHANGES_TOGETHER_S:
            changes, self._changes, self._changed_at = self._changes, {}, None
            ranks = sorted(changes)
            nodes = {subject.node for subject in self._subjects(ranks)}
            cause, step, why = _WRITTEN, min(change.step for change in changes.values()), ""
            if any(not change.is_flip for change in changes.values()):
                # Ranks look at different pauses: those that saw it first prove nothing of the others.
                why = ", in more than one bit: the script or a library writes to them"
            elif len(ranks) > 1 and (2 * len(ranks) > self._round.world_size or len(nodes) > NODES_OF_ONE_FAULT):
                why = ": memory does not fail together, so the script or a library writes to them"
            else:
                cause = MEMORY_CHANGE
            told = f"the parameters of {ranks_in_words(ranks)} changed after step {step}, before they were updated"
            found.extend(self._finding(cause, ranks, f"{told}{why}", step, now))
        for answer, since in list(self._held.values()):
            if now >= since + LATE_S:
                found.extend(self._verdict(answer, self._right_answer(answer.device), now))
        return found

    def next_wakeup(self) -> float | None:
        wakeups = [since + LATE_S for _, since in self._held.values()]
        if self._changed_at is not None:
            wakeups.append(self._changed_at + CHANGES_TOGETHER_S)
        return min(wakeups, default=None)

    def _count(self, answer: DeviceAnswered, before: DeviceAnswered | None, now: float) -> Iterator[Finding]:
        if not self._newest:
            self._began_at = now
        self._missing -= before is None
        if before is not None and before.device != answer.device:
            self._answers_of[answer.rank] = 0
        self._answers_of[answer.rank] += 1
        self._newest[answer.rank] = answer
        sides = self._sides.setdefault(answer.device, {})
        if answer.value in sides or len(sides) < VALUES_KEPT:
            sides.setdefault(answer.value, set()).add(answer.rank)
        self._voters.setdefault(answer.device, set()).add(answer.rank)
        right = self._right_answer(answer.device)
        if right is not None and len(sides.get(right, ())) > 1:
            # Until somebody confirmed it nobody's answer counted.
            heard = [answer.rank] if answer.device in self._confirmed else self._voters[answer.device]
            self._confirmed.add(answer.device)
            for rank in heard:
                # What is verified is what right answers say that prove that memory was looked at.
                if (sound := self._newest[rank]).value == right and sound.looks:
                    if (step := self._sound.get(rank)) is not None:
                        self._sound_at[step] -= 1
                        if not self._sound_at[step]:
                            del self._sound_at[step]
                    self._sound[rank] = sound.step
                    self._sound_at[sound.step] += 1
        yield from self._verdict(answer, right, now)

    def _right_answer(self, device: int) -> int | None:
        """What more than half of the ranks on devices of that make say; None while that is not proved."""
        votes = len(self._voters[device]) + self._missing
        sides = self._sides[device]
        now = next((value for value, ranks in sides.items() if 2 * len(ranks) > votes), None)
        if now is None or len(sides[now]) < 2:  # one alone may be the one that is wrong, also in the next round
            return self._right.get(device, now)
        self._right.pop(device, None)
        self._right[device] = now
        while len(self._right) > DEVICES_KEPT:
            del self._right[next(iter(self._right))]
        return now

    def _verdict(self, answer: DeviceAnswered, right: int | None, now: float) -> Iterator[Finding]:
        sides = self._sides[answer.device]
        if right is None:
            if self._missing == 0 and len(sides) > 1:
                self._is_spoiled = True
                ranks = sorted(self._voters[answer.device])
                who = f"{ranks_in_words(ranks)} compute different things on devices of one make"
                yield from self._finding(_TIE, ranks, f"{who}, none is in the majority", answer.step, now)
            return
        wrong = sorted({rank for value, ranks in sides.items() if value != right for rank in ranks})
        if not wrong or (self._missing and now < self._began_at + LATE_S):
            return  # whether it is many, and so the software, is told by those who have not spoken
        self._is_spoiled = True
        if answer.value != right or answer.device in self._held:
            # Devices of that make are to have answered after the step of the first that is to be judged.
            first, since = self._held.setdefault(answer.device, (answer, now))
            voters = self._voters[first.device]
            if now < since + LATE_S and any(self._newest[rank].step < first.step for rank in voters):
                return
            del self._held[answer.device]
        others = len(sides.get(right, ()))
        if len({subject.node for subject in self._subjects(wrong)}) > NODES_OF_ONE_FAULT:
            why = ": devices do not fail together, so the software is suspect"
            yield from self._finding(_SPLIT, wrong, _differ(wrong, others, answer, why), answer.step, now)
            return
        alike = {rank for value, ranks in sides.items() if value != right and len(ranks) > 1 for rank in ranks}
        apart = [rank for rank in wrong if rank not in alike]
        torn = [rank for rank in apart if sum(rank in ranks for ranks in sides.values()) > 1]
        # Those that have answered more than once on that device, as far as is known now.
        steady = [
            rank
            for rank in apart
            if rank not in torn and self._answers_of[rank] > 1 and self._newest[rank].device == answer.device
        ]
        for cause, ranks, why in (
            (_VOTE, torn, ""),
            (_SPLIT, sorted(alike), ", and the same: broken devices do not agree, so the software is suspect"),
            (_APART, steady, ", and always the same: the software is suspect, or the device"),
        ):
            if ranks:
                yield from self._finding(cause, ranks, _differ(ranks, others, answer, why), answer.step, now)

    def _subjects(self, ranks: Sequence[int]) -> tuple[Subject, ...]:
        return tuple(self._round.subject(rank) for rank in ranks[:SUBJECTS_NAMED])

    def _finding(self, cause: str, ranks: Sequence[int], error: str, step: int, now: float) -> Iterator[Finding]:
        """Once per round: who is wrong goes on being wrong."""
        subjects = self._subjects(ranks)
        key = (cause, subjects)
        if key in self._told or len(self._told) >= FINDINGS_PER_ROUND:
            return
        self._told.add(key)
        subject, *also = subjects
        yield Finding(
            kind=FindingKind.CORRUPTION,
            subject=subject,
            cause=cause,
            evidence=(Evidence("proofs of the ranks", error, now),),
            confidence=Confidence.CERTAIN if cause in (_VOTE, MEMORY_CHANGE) else Confidence.UNKNOWN,
            began_at=now,
            round=self._round.number,
            error=error,
            also=tuple(also),
            asks=XidAction.WATCH if cause in (_SPLIT, _WRITTEN) else self._asks,
            step=step,
            agreed_step=None if self._agreed is None else min(self._agreed, step - 1),
        )


def _differ(ranks: Sequence[int], others: int, answer: DeviceAnswered, why: str) -> str:
    return (
        f"{ranks_in_words(ranks)} computed something else than {others} ranks on devices of the same make, in "
        f"the block that all run, after step {answer.step}{why}"
    )
