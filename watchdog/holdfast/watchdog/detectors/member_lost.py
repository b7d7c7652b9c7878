"""A launcher is gone: its connection closed without a word, or it fell silent.

A closed connection is proof at once. Silence is counted only while the watchdog itself was awake: a watchdog
that was paused, starved or swapped out finds every member silent, and none of them is dead. It asks to be woken
several times per `lost_after_s`; when a wakeup comes late, every deadline moves by the lag.

What nodes share (a switch, a rack, the way to the watchdog) takes many within moments. The first is told at once,
so that it is healed at once; who follows is told of together, as one fault of nobody's. Told one by one, each of
12,500 would be decided about as if it were the last.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors.round_in_force import RoundInForce
from holdfast.watchdog.sample import (
    Connected,
    Disconnected,
    Expected,
    Heard,
    Left,
    RoundStarted,
    RoundStopped,
    Sample,
)
from holdfast.watchdog.wording import in_words

# A stall of the watchdog goes unseen for one wakeup interval and one tolerance: together a third of
# `lost_after_s`, which with the default beats (1 s of 3 s) leaves another third before a live member is lost.
WAKEUPS_PER_DEADLINE = 6
LAG_TOLERATED = 1 / 6
# After the first, closed connections are told of once in this time.
GATHER_S = 0.25
# Two are a coincidence.
TOGETHER_MIN = 3


@dataclass(slots=True)
class _Watch:
    node: str
    heard_at: float
    deadline: float


class MemberLostDetector:
    """Watches every connected member and every member of the round. One entry each; none after it is lost.

    A lost member is watched again from its next `Connected`, or when a round counts on it all the same.
    """

    heeds = (Heard, Connected, Expected, Disconnected, Left, RoundStarted, RoundStopped)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._lost_after_s = policy.lost_after_s
        self._round = RoundInForce(policy.job)
        # In order of deadline: every renewal goes to the end, so the first one is always the next to expire. Only
        # members expected back after a restart have more time, and the others wait with them until they are.
        self._watched: OrderedDict[str, _Watch] = OrderedDict()
        self._expected_by: float | None = None
        self._closed: dict[str, Finding] = {}  # by member: closed since the last were told of
        self._tell_at = float("-inf")

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Renew, begin or end a watch; a finding at once for the first connection that closed."""
        self._forgive_own_lag(now)
        if isinstance(sample, Heard):  # with every message of a launcher
            if (watch := self._watched.get(sample.member)) is not None:
                watch.heard_at, watch.deadline = now, now + self._lost_after_s
                self._watched.move_to_end(sample.member)
            return ()
        self._round.follow(sample)
        match sample:
            case Connected(member=member, node=node):
                self._renew(member, node, now)
            case Expected(member=member, node=node, by=by):
                self._renew(member, node, now)
                self._watched[member].deadline = max(by, self._watched[member].deadline)
            case Left(member=member):
                self._watched.pop(member, None)
            case Disconnected(member=member):
                if (watch := self._watched.pop(member, None)) is not None:
                    self._closed[member] = self._closed_on(member, watch, now)
                    return self._told(now)
            case RoundStarted(round=started):
                for share in started.ranks:
                    if share.member not in self._watched and share.member not in self._closed:
                        self._renew(share.member, share.node, now)
            case _:
                pass
        return ()

    def elapse(self, now: float) -> Sequence[Finding]:
        """What is found of members that have been silent for `lost_after_s`, and of those that closed since."""
        self._forgive_own_lag(now)
        findings: list[Finding] = []
        while self._watched:
            member, watch = next(iter(self._watched.items()))
            if watch.deadline > now:
                break
            del self._watched[member]
            findings.append(self._silent(member, watch, now))
        return [*self._told(now), *self._together(findings)]

    def next_wakeup(self) -> float | None:
        wakeups = [self._tell_at] if self._closed else []
        if self._watched and self._expected_by is not None:
            wakeups += [self._expected_by, next(iter(self._watched.values())).deadline]
        return min(wakeups, default=None)

    def _told(self, now: float) -> Sequence[Finding]:
        """Who closed, once it is time to tell."""
        if not self._closed or now < self._tell_at:
            return ()
        findings, self._closed = tuple(self._closed.values()), {}
        self._tell_at = now + GATHER_S
        return self._together(findings)

    def _together(self, findings: Sequence[Finding]) -> Sequence[Finding]:
        """The same findings, or one where they are too many to be a coincidence."""
        if len(findings) < TOGETHER_MIN:
            return findings
        members = tuple(each.subject for each in findings)
        says = f"nodes {in_words(str(each.node) for each in members)}: {findings[0].cause}"
        evidence = Evidence(f"connections of {len(members)} members", says, findings[-1].evidence[0].at)
        together = msgspec.structs.replace(
            findings[0],
            subject=Subject(self._job),
            also=members,
            cause=f"{len(members)} members lost at once",
            evidence=(evidence,),
            confidence=Confidence.UNKNOWN,
            began_at=min(each.began_at for each in findings),
            round=max((each.round for each in findings if each.round is not None), default=None),
        )
        return (together,)

    def _renew(self, member: str, node: str, now: float) -> None:
        self._closed.pop(member, None)  # back before anybody was told
        self._watched[member] = _Watch(node, heard_at=now, deadline=now + self._lost_after_s)
        self._watched.move_to_end(member)

    def _forgive_own_lag(self, now: float) -> None:
        """Move the deadlines by however much later than asked the watchdog runs."""
        lag_s = now - self._expected_by if self._expected_by is not None else 0.0
        if lag_s > self._lost_after_s * LAG_TOLERATED:
            for watch in self._watched.values():
                watch.deadline += lag_s
        self._expected_by = now + self._lost_after_s / WAKEUPS_PER_DEADLINE

    def _closed_on(self, member: str, watch: _Watch, now: float) -> Finding:
        says = f"closed without a word, last heard of {now - watch.heard_at:.1f} s before"
        return self._finding(
            Subject(self._job, node=watch.node, member=member),
            cause="connection closed",
            evidence=Evidence(f"connection of {member}", says, now),
            confidence=Confidence.CERTAIN,
            began_at=now,
        )

    def _silent(self, member: str, watch: _Watch, now: float) -> Finding:
        cause = f"silent for {now - watch.heard_at:.1f} s"
        return self._finding(
            Subject(self._job, node=watch.node, member=member),
            cause=cause,
            evidence=Evidence(f"connection of {member}", f"open, but {cause}", now),
            confidence=Confidence.PROBABLE,
            began_at=watch.heard_at,
        )

    def _finding(
        self, subject: Subject, *, cause: str, evidence: Evidence, confidence: Confidence, began_at: float
    ) -> Finding:
        in_round = subject.member is not None and self._round.has(subject.member)
        return Finding(
            kind=FindingKind.MEMBER_LOST,
            subject=subject,
            cause=cause,
            evidence=(evidence,),
            confidence=confidence,
            began_at=began_at,
            round=self._round.number if in_round else None,
        )
