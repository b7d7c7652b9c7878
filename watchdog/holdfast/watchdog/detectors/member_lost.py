"""A launcher is gone: its connection closed without a word, or it fell silent.

A closed connection is proof at once. Silence is counted only while the watchdog itself was awake: a watchdog
that was paused, starved or swapped out finds every member silent, and none of them is dead. It asks to be woken
several times per `lost_after_s`; when a wakeup comes late, every deadline moves by the lag.

What nodes share (a switch, a rack, the way to the watchdog) takes many within moments. The first few are told at
once, so that they are healed at once; who follows is told of together, as one fault of nobody's. Told one by one,
each of 12,500 would be decided about as if it were the last. Who is back before it was told of was never gone.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass

import msgspec

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.watchdog.detectors.detector import (
    ROUNDS,
    Connected,
    Detector,
    Disconnected,
    Expected,
    Heard,
    Left,
    RoundInForce,
    RoundStarted,
    Sample,
)
from holdfast.watchdog.wording import in_words

# A stall of the watchdog goes unseen for one wakeup interval and one tolerance: together a third of
# `lost_after_s`, which with the default beats (1 s of 3 s) leaves another third before a live member is lost.
WAKEUPS_PER_DEADLINE = 6
LAG_TOLERATED = 1 / 6
# So many are told at once. Those that follow, until for so long nobody has, are told of once in this time. It is
# less than a broken round waits for the rest, so that they are healed in the same round.
ALONE_MAX = 4
GATHER_S = 0.2


@dataclass(slots=True)
class _Watch:
    member: str
    node: str
    heard_at: float
    deadline: float


class MemberLostDetector(Detector):
    """Watches every connected member and every member of the round. One entry each; none after it is lost.

    A lost member is watched again from its next `Connected`, or when a round counts on it all the same.
    """

    subscribes_to: tuple[type[Sample], ...] = (Heard, Connected, Expected, Disconnected, Left, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._lost_after_s = policy.lost_after_s
        self._round = RoundInForce(policy.job)
        # In order of deadline: every renewal goes to the end, so the first one is always the next to expire. Only
        # members expected back after a restart have more time, and the others wait with them until they are.
        self._watched: OrderedDict[str, _Watch] = OrderedDict()
        self._expected_by: float | None = None
        self._untold: dict[str, Finding] = {}  # by member: gone since the last were told of
        self._alone = 0  # how many in a row were told of at once
        self._gathered_at = float("-inf")

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Renew, begin or end a watch; a finding at once when a connection closed, unless many do."""
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
                    says = f"closed without a word, last heard of {now - watch.heard_at:.1f} s before"
                    return self._gone(Confidence.CERTAIN, "connection closed", says, watch, now)
            case RoundStarted(round=started):
                for share in started.ranks:
                    if share.member not in self._watched and share.member not in self._untold:
                        self._renew(share.member, share.node, now)
        return ()

    def elapse(self, now: float) -> Sequence[Finding]:
        """A finding for each member that has been silent for `lost_after_s`, or one of many that are gone."""
        self._forgive_own_lag(now)
        findings = list(self._told(now))
        while self._watched:
            watch = next(iter(self._watched.values()))
            if watch.deadline > now:
                break
            del self._watched[watch.member]
            cause = f"silent for {now - watch.heard_at:.1f} s"
            findings += self._gone(Confidence.PROBABLE, cause, f"open, but {cause}", watch, now)
        return findings

    def next_wakeup(self) -> float | None:
        wakeups = [self._gathered_at + GATHER_S] if self._untold else []
        if self._watched and self._expected_by is not None:
            wakeups += [self._expected_by, next(iter(self._watched.values())).deadline]
        return min(wakeups, default=None)

    def _gone(self, sure: Confidence, cause: str, says: str, watch: _Watch, now: float) -> Sequence[Finding]:
        """The finding, or nothing yet where many are gone."""
        told = self._told(now)
        is_in_round = self._round.round is not None and watch.member in self._round.round.names
        finding = Finding(
            kind=FindingKind.MEMBER_LOST,
            subject=Subject(self._job, node=watch.node, member=watch.member),
            cause=cause,
            evidence=(Evidence(f"connection of {watch.member}", says, now),),
            confidence=sure,
            began_at=now if sure is Confidence.CERTAIN else watch.heard_at,
            round=self._round.number if is_in_round else None,
        )
        if now >= self._gathered_at + GATHER_S:
            self._gathered_at, self._alone = now, 0
        if self._alone < ALONE_MAX:
            self._alone += 1
            return (*told, finding)
        self._untold[watch.member] = finding
        return told

    def _told(self, now: float) -> Sequence[Finding]:
        """Who is gone and was not told of, once it is time; more that follow are gathered anew."""
        if not self._untold or now < self._gathered_at + GATHER_S:
            return ()
        findings, self._untold = tuple(self._untold.values()), {}
        self._gathered_at = now
        if len(findings) == 1:
            return findings
        members = tuple(each.subject for each in findings)
        says = f"nodes {in_words(str(each.node) for each in members)}: {findings[0].cause}"
        together = msgspec.structs.replace(
            findings[0],
            subject=Subject(self._job),
            also=members,
            cause="many members lost at once",
            evidence=(Evidence(f"connections of {len(members)} members", says, findings[-1].evidence[0].at),),
            confidence=Confidence.UNKNOWN,
            began_at=min(each.began_at for each in findings),
            round=max((each.round for each in findings if each.round is not None), default=None),
        )
        return (together,)

    def _renew(self, member: str, node: str, now: float) -> None:
        self._untold.pop(member, None)
        self._watched[member] = _Watch(member, node, heard_at=now, deadline=now + self._lost_after_s)
        self._watched.move_to_end(member)

    def _forgive_own_lag(self, now: float) -> None:
        """Move the deadlines by however much later than asked the watchdog runs."""
        lag_s = now - self._expected_by if self._expected_by is not None else 0.0
        if lag_s > self._lost_after_s * LAG_TOLERATED:
            for watch in self._watched.values():
                watch.deadline += lag_s
        self._expected_by = now + self._lost_after_s / WAKEUPS_PER_DEADLINE
