"""Replicas that must hold the same parameters do not: one of them computes wrong, and nothing else told of it.

Every rank says every so many steps what its parameters are, as a fingerprint. When all have, or when a later step
is complete already, the ranks of a group are compared:

    all say the same              they agreed: what was saved by then is verified
    less than half say otherwise  those are wrong. On more than `NODES_OF_ONE_FAULT` nodes at once it is no broken
                                  device but the software, and is only reported
    nobody is in the majority     the group is named, nobody is convicted, and what each one said is remembered.
                                  When a later round does the step again, and it comes to what one side had said,
                                  by the word of somebody else too, the other sides were wrong

A rank that says nothing is Unknown; that it is missing is for the hang detector to judge.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from holdfast.api.event import ReplicasAgreed
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import ParametersFingerprinted
from holdfast.watchdog.detectors.detector import ASKS, ROUNDS, Detector, Reported, RoundInForce, Sample
from holdfast.watchdog.wording import in_words, ranks_in_words

# The cause of what doing a step again proves: the replicas agree by then, so it is no disagreement of its own.
REPLAY = "fingerprint replay"
TIE = "fingerprint tie"

NODES_OF_ONE_FAULT = 2
# Reports of two nodes may be seconds apart. Short steps are many in that time, those of a large world are few.
BALLOTS_MIN = 8
BALLOTS_MAX = 1024
VOTES_KEPT = 1 << 20
# A vote still incomplete after so long, with so many later ones begun, is counted without those who are missing.
LATE_S = 30.0
LATE_BALLOTS = 3
AGREEMENTS_KEPT = 64
DISPUTES_KEPT = 8
FINDINGS_PER_ROUND = 16
SUBJECTS_NAMED = 64
SIDES_SHOWN = 8


# One vote of the replicas: what every rank says its parameters are after one step.
#
# Ranks of one group hold the same parameters, so whoever says something else than more than half of the group is
# wrong. That holds as well when some have not voted: they are counted as if all of them were against.


@dataclass(frozen=True, slots=True)
class Dispute:
    """A group whose ranks differ. `sides` are the ranks by what they say, the largest first."""

    group: int
    sides: Mapping[int, tuple[int, ...]]
    majority: int | None  # what more than half of them say; None when nobody is in the majority

    @property
    def minority(self) -> tuple[int, ...]:
        """The ranks that are wrong; none while that is not proved."""
        if self.majority is None:
            return ()
        return tuple(rank for value, ranks in self.sides.items() if value != self.majority for rank in ranks)


class Ballot:
    """The votes after `step`. Casting is O(1), because a hundred thousand ranks do it at once."""

    def __init__(self, step: int, world_size: int, began_at: float) -> None:
        self.step = step
        self.began_at = began_at
        self.missing = world_size  # how many have not voted
        self._voted = bytearray(world_size)
        self.groups: dict[int, dict[int, list[int]]] = {}  # by group and value, the ranks

    def cast(self, rank: int, group: int, value: int) -> None:
        """Count a vote. Of several votes of one rank the first counts."""
        if self._voted[rank]:
            return
        self._voted[rank] = 1
        self.missing -= 1
        self.groups.setdefault(group, {}).setdefault(value, []).append(rank)

    @property
    def compares(self) -> bool:
        """Whether any two ranks had to say the same: a group of one agrees with itself, which proves nothing."""
        return any(sum(len(ranks) for ranks in sides.values()) > 1 for sides in self.groups.values())

    def disputes(self) -> Iterator[Dispute]:
        """The groups whose ranks differ."""
        for group, sides in self.groups.items():
            if len(sides) > 1:
                largest_first = sorted(sides.items(), key=lambda side: -len(side[1]))
                told = {value: tuple(sorted(ranks)) for value, ranks in largest_first}
                yield Dispute(group, told, self.majority_of(group))

    def majority_of(self, group: int) -> int | None:
        """What more than half of the group says; None when that is not proved."""
        sides = self.groups.get(group, {})
        votes = sum(len(ranks) for ranks in sides.values()) + self.missing
        return next((value for value, ranks in sides.items() if 2 * len(ranks) > votes), None)


@dataclass(frozen=True, slots=True)
class _Unsettled:
    """What was said after a step when nobody was in the majority: by group and value, the nodes that said it."""

    round: int
    sides: Mapping[int, Mapping[int, frozenset[str]]]
    evidence: tuple[Evidence, ...]


@dataclass(frozen=True, slots=True)
class _Verdict:
    """What a vote comes to."""

    cause: str
    confidence: Confidence
    asks: XidAction
    culprits: tuple[Subject, ...]
    error: str


class ReplicaVoteDetector(Detector):
    """Judges the fingerprints in `Reported`; proves agreement as well."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._asks = ASKS[policy.corruption.action]
        self._round = RoundInForce(policy.job)
        self._agreed: list[int] = []  # steps of the line the job is on, ascending
        self._unsettled: dict[int, _Unsettled] = {}  # by step
        self._begin()

    def _begin(self) -> None:
        self._ballots: dict[int, Ballot] = {}  # by step, all of them after `_judged`
        self._judged = -1
        self._told: set[tuple[str, tuple[Subject, ...]]] = set()  # since all agreed last
        self._findings = 0
        self._ballots_max = min(BALLOTS_MAX, max(BALLOTS_MIN, VOTES_KEPT // max(1, self._round.world_size)))

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ReplicasAgreed]:
        """Count the votes of a report; what it completes is judged."""
        if isinstance(sample, Reported) and not sample.report.events:
            return ()  # nearly every one
        if self._round.follow(sample):
            self._begin()
        number = self._round.number
        if not isinstance(sample, Reported) or number is None:
            return ()
        proofs: list[Finding | ReplicasAgreed] = []
        ranks = self._round.ranks_on(sample.report.node)
        for event in sample.report.events:
            if not isinstance(event, ParametersFingerprinted):
                continue
            if event.round != number or event.rank not in ranks or event.step <= self._judged:
                continue
            ballot = self._ballots.get(event.step)
            if ballot is None:
                # What was agreed on at this step and later was on a line that the job has gone back on.
                while self._agreed and self._agreed[-1] >= event.step:
                    self._agreed.pop()
                ballot = Ballot(event.step, self._round.world_size, now - max(0.0, event.age_s))
                self._ballots[event.step] = ballot
                # Votes that are too many, or wait for too long with others begun, are judged without the missing.
                steps = sorted(self._ballots)
                surplus = steps[: max(0, len(steps) - self._ballots_max)]
                late = [step for step in steps[:-LATE_BALLOTS] if self._ballots[step].began_at <= now - LATE_S]
                proofs.extend(self._judge_up_to(max((*surplus, *late), default=-1), number, now))
            ballot.cast(event.rank, event.group, event.value)
            if not ballot.missing:
                proofs.extend(self._judge_up_to(event.step, number, now))
        return proofs

    def _judge_up_to(self, step: int, number: int, now: float) -> Iterator[Finding | ReplicasAgreed]:
        """Judge the votes up to a step: after it nobody votes on an earlier one, except who was lost."""
        for each in sorted(each for each in self._ballots if each <= step):
            yield from self._judge(self._ballots.pop(each), number, now)
            self._judged = each

    def _judge(self, ballot: Ballot, number: int, now: float) -> Iterator[Finding | ReplicasAgreed]:
        disputes = tuple(ballot.disputes())
        if ballot.compares and not disputes and not ballot.missing:
            self._agreed = [*self._agreed, ballot.step][-AGREEMENTS_KEPT:]
            self._told.clear()
            yield ReplicasAgreed(number, ballot.step)
        verdict = self._verdict(disputes, complete=not ballot.missing)
        evidence = _evidence(disputes, ballot)
        # Replicas that differ go on differing: each verdict is a finding once, until all agree again.
        key = verdict and (verdict.cause, verdict.culprits)
        if verdict and key and key not in self._told and self._findings < FINDINGS_PER_ROUND:
            self._told.add(key)
            self._findings += 1
            yield self._finding(verdict, ballot, evidence)
            if verdict.cause == TIE:
                said = {
                    each.group: {value: self._nodes(ranks) for value, ranks in each.sides.items()}
                    for each in disputes
                }
                self._unsettled.pop(ballot.step, None)
                self._unsettled[ballot.step] = _Unsettled(number, said, evidence)
                while len(self._unsettled) > DISPUTES_KEPT:
                    del self._unsettled[next(iter(self._unsettled))]
        if (replayed := self._replayed(ballot, number)) is not None:
            evidence = (*self._unsettled.pop(ballot.step).evidence, Evidence("replay", replayed.error, now))
            yield self._finding(replayed, ballot, evidence)

    def _verdict(self, disputes: Sequence[Dispute], *, complete: bool) -> _Verdict | None:
        wrong = sorted(rank for dispute in disputes for rank in dispute.minority)
        if wrong:
            culprits = tuple(self._round.subject(rank) for rank in wrong)
            nodes, members = {each.node for each in culprits}, {each.member for each in culprits}
            if len(culprits) > 1 and len(nodes) == 1:  # several ranks that are all on one node are the node
                member = members.pop() if len(members) == 1 else None
                culprits = (Subject(self._job, node=nodes.pop(), member=member),)
            return self._conviction("fingerprint vote", culprits, ranks_in_words(wrong))
        if not disputes or not complete:
            return None
        ranks = sorted(rank for dispute in disputes for side in dispute.sides.values() for rank in side)
        named = tuple(self._round.subject(rank) for rank in ranks[:SUBJECTS_NAMED])
        error = f"{ranks_in_words(ranks)} differ and none is in the majority"
        return _Verdict(TIE, Confidence.UNKNOWN, self._asks, named, error)

    def _conviction(self, cause: str, culprits: tuple[Subject, ...], who: str) -> _Verdict:
        nodes = {culprit.node for culprit in culprits}
        if len(nodes) <= NODES_OF_ONE_FAULT:
            return _Verdict(cause, Confidence.CERTAIN, self._asks, culprits, f"{who} computed something else")
        error = (
            f"{who} on {len(nodes)} nodes differ from the majority: devices do not fail together, "
            "so the software is suspect (something that depends on the rank)"
        )
        named = culprits[:SUBJECTS_NAMED]
        return _Verdict("fingerprint split", Confidence.UNKNOWN, XidAction.WATCH, named, error)

    def _replayed(self, ballot: Ballot, number: int) -> _Verdict | None:
        """What doing a step again proves about those who had differed on it; None while it proves nothing."""
        unsettled = self._unsettled.get(ballot.step)
        if unsettled is None or unsettled.round >= number:
            return None
        for group, sides in unsettled.sides.items():
            value = ballot.majority_of(group)
            if value is None:
                continue
            now_say = f"the replicas now say {value:#018x}"
            others = sorted(frozenset[str]().union(*(nodes for said, nodes in sides.items() if said != value)))
            named = tuple(Subject(self._job, node=node) for node in others)
            if value not in sides:
                error = (
                    f"{now_say}, which none of them had said: what was wrong had reached all of them by way of "
                    "the gradients, or the job does not repeat itself exactly or its world has changed, so "
                    "nothing is proved"
                )
                return _Verdict(REPLAY, Confidence.UNKNOWN, XidAction.WATCH, named[:SUBJECTS_NAMED], error)
            if self._nodes(ballot.groups[group][value]) <= sides[value]:
                continue  # who had said it says it again: what is broken may be so in the same way each time
            return self._conviction(REPLAY, named, f"{now_say}: {in_words(others)}, which had said otherwise,")
        return None

    def _nodes(self, ranks: Sequence[int]) -> frozenset[str]:
        shares = (self._round.member_of(rank) for rank in ranks)
        return frozenset(share.node for share in shares if share is not None)

    def _finding(self, verdict: _Verdict, ballot: Ballot, evidence: tuple[Evidence, ...]) -> Finding:
        subject, *also = verdict.culprits
        return Finding(
            kind=FindingKind.CORRUPTION,
            subject=subject,
            cause=verdict.cause,
            evidence=evidence,
            confidence=verdict.confidence,
            began_at=ballot.began_at,
            round=self._round.number,
            error=f"after step {ballot.step}: {verdict.error}",
            also=tuple(also),
            asks=verdict.asks,
            step=ballot.step,
            agreed_step=self._agreed[-1] if self._agreed else None,
        )


def _evidence(disputes: Sequence[Dispute], ballot: Ballot) -> tuple[Evidence, ...]:
    """Who said what, the largest side first."""
    sides = [(dispute, value, ranks) for dispute in disputes for value, ranks in dispute.sides.items()]
    lines = [
        f"{ranks_in_words(ranks)} of group {dispute.group} say {value:#018x} after step {ballot.step}"
        for dispute, value, ranks in sides[:SIDES_SHOWN]
    ]
    if ballot.missing:
        lines.append(f"{ballot.missing} ranks say nothing")
    return tuple(Evidence("parameter fingerprints", line, ballot.began_at) for line in lines)
