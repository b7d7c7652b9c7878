"""A rank that is late for the first step of a round, judged by the job's earlier starts and by the other ranks.

Before the first step nothing tells how long it may take: imports, the process group, a restore, compiling. But a
job starts again after each fault, and its ranks start together. A rank is late when three things hold:

- at least half of those that start with it are further: they publish in this round and it does not, or they have
  issued more collectives, or wait in a later phase;
- so much time has passed since the start:

      max(30 s, 5 x the longest such start before, 5 x what the slowest of the others took to get there)

- nobody has come further for 30 s.

Twice as much where none of the others comes as slowly, such as the one new process among those that go on: then
they know nothing of how slow storage is.

What all wait for alike (storage, a larger world) stops or slows all of them, and names nobody. Such a start is one
of the same `Coming`; of what follows the entry, one that restores from the same tier as well. A quicker kind that
was not seen yet counts as the next slower one, so that a node which is new to the job has the time that the first
round took. Nothing is known of a first start: it has the policy's start-up time-out (`hang.py`), which also bounds
all others. A finding after which no start succeeds doubles the time.

A replica group that is being formed starts by itself, and its ranks are compared with each other.

*A stopped process* is named at once, with certainty, where `hang.py` does not see it: its record is of the round
before, or its replica group is being formed.

Source: of five times what was observed, `safety_factor` in
https://nvidia.github.io/nvidia-resiliency-ext/fault_tolerance/api/config.html
"""

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from enum import IntEnum

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Entry, MemberRanks, Round, Tier
from holdfast.api.telemetry import NodeReport, ProcessState, RankSample
from holdfast.watchdog.detectors.detector import ROUNDS, Connected, Detector, Reported, RoundInForce, Sample
from holdfast.watchdog.detectors.hang import (
    CHECKPOINT_S_MIN,
    NOT_ENTERED,
    Named,
    Seen,
    evidence_of,
    moved_at,
    name_the_behind,
    name_the_missing,
)

LATE_S_MIN = 30.0
STARTS_ALLOWED = 5.0
STARTS_KEPT = 8
# A worker that does not leave its round in time is replaced by its launcher, stopped or not.
STOPPED_S = 3.0
LOOK_AGAIN_S = 1.0
# A worker whose replica group goes on may still publish for one of the rounds before.
ROUNDS_KEPT = 8
MEMBERS_KEPT = 4  # for each member of a round


class Coming(IntEnum):
    """How a rank comes into a round, quickest first."""

    ON = 0  # its member had ranks in the round before, and its process may go on
    ANEW = 1  # a new process on a node that is known
    NEW = 2  # on a node where none has come so far yet, or whose launcher is new: its caches are cold


@dataclass(slots=True, eq=False)
class Start:
    """Ranks that start together, `first` and those behind it: all that train, or a replica group being formed.

    `epoch` is that of such a group. `coming` is how each rank comes to its entry, and `behind_it` how the slowest
    comes from there to its first step; `is_vague`: some count as new that were shown a round before, so that
    nobody knows what they have done in it, and what they take measures nothing. `tier` is where they restore from;
    None: what follows the entry is not compared, because replica groups issue collectives of their own. By place,
    which is the rank less `first`: when each entered, what was seen of it since, and before that; since when its
    process has been seen stopped; who has trained.
    """

    first: int
    members: frozenset[str]
    coming: tuple[Coming, ...]
    behind_it: Coming
    is_vague: bool
    began_at: float
    tier: Tier | None
    epoch: int | None = None
    entered_at: dict[int, float] = field(default_factory=dict)
    seen: dict[int, Seen] = field(default_factory=dict)
    earlier: dict[int, Seen] = field(default_factory=dict)
    stopped_at: dict[int, float] = field(default_factory=dict)
    trained: set[int] = field(default_factory=set)
    look_at: float = -math.inf
    is_found: bool = False

    @property
    def size(self) -> int:
        return len(self.coming)


@dataclass(frozen=True, slots=True)
class Lag:
    """Who is behind the others of a start: how they come, who else got how far in `others_s` since it began, and
    since when nobody has moved.
    """

    named: Named
    coming: Coming
    tier: Tier | None
    others_s: float
    still_since: float
    has_peers: bool  # some of the others come as slowly


class LateStartDetector(Detector):
    """Judges `Reported` until each start has come to its end. At most one finding per start."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Connected, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._round = RoundInForce(policy.job)
        self._rounds: dict[int, Round] = {}
        self._starts: list[Start] = []
        self._took_s: dict[tuple[Coming, Tier | None], deque[float]] = {}  # tier None: to the entry
        self._known: set[str] = set()  # members that were shown a round
        self._has_entered: set[str] = set()  # those that came so far since they connected
        self._has_trained: set[str] = set()
        self._node_at: dict[str, float] = {}
        self._in_vain = 0  # findings since the last start that came to its end

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Take in a report; a finding when it proves a rank late."""
        if isinstance(sample, Connected):
            self._has_entered.discard(sample.member)
            self._has_trained.discard(sample.member)
        elif self._round.follow(sample):
            self._begin(now)
        if not isinstance(sample, Reported) or not self._starts:
            return ()
        self._take(sample.report, now)
        found = [self._finding(start, now) for start in self._starts]
        return [each for each in found if each is not None]

    # starts

    def _begin(self, now: float) -> None:
        round_, before = self._round.round, self._rounds.get(max(self._rounds, default=0))
        forming = {each.epoch: each for each in self._starts if each.epoch is not None}
        self._starts = []
        if round_ is None:
            return
        self._rounds[round_.number] = round_
        while len(self._rounds) > ROUNDS_KEPT:
            del self._rounds[min(self._rounds)]
        self._node_at.clear()
        trains, place = round_.ranks[: round_.training], round_.training
        tier = round_.restore.tier if not round_.groups else None
        if trains:
            self._starts.append(self._start(round_, before, trains, now, tier))
        for group in round_.groups:
            known = forming.get(group.epoch)
            if group.trains:
                if known is not None:
                    self._note_end(known, now)
                continue
            shares = round_.ranks[place : place + group.members]
            place += group.members
            if known is None:
                known = self._start(round_, before, shares, now, Tier.PEER, group.epoch)
            known.first = shares[0].first_rank
            self._starts.append(known)
        self._known |= round_.names
        if len(self._known) > MEMBERS_KEPT * len(round_.names):
            self._known.intersection_update(round_.names)
        self._has_entered &= self._known
        self._has_trained &= self._known

    def _start(
        self,
        round_: Round,
        before: Round | None,
        shares: Sequence[MemberRanks],
        now: float,
        tier: Tier | None,
        epoch: int | None = None,
    ) -> Start:
        fresh, epochs = set(round_.fresh_ranks), round_.epochs
        coming = list[Coming]()
        for share in shares:
            ranks = range(share.first_rank, share.first_rank + share.local_size)
            if epochs.get(share.member, round_.number) < round_.number:
                coming += [Coming.ON] * len(ranks)
            elif share.member not in self._has_entered:
                coming += [Coming.NEW] * len(ranks)
            elif round_.entry is Entry.RESPAWN or before is None or share.member not in before.names:
                coming += [Coming.ANEW] * len(ranks)
            else:
                coming += [Coming.ANEW if rank in fresh else Coming.ON for rank in ranks]
        names = frozenset([share.member for share in shares])
        behind_it = max(coming) if names <= self._has_trained else Coming.NEW
        is_vague = bool((names & self._known) - self._has_trained)
        return Start(shares[0].first_rank, names, tuple(coming), behind_it, is_vague, now, tier, epoch)

    def _note_entries(self, start: Start) -> None:
        """All have entered: the next ones are judged by it."""
        longest: dict[Coming, float] = {}
        for place, at in start.entered_at.items():
            coming = start.coming[place]
            longest[coming] = max(longest.get(coming, 0.0), at - start.began_at)
        for coming, took_s in longest.items():
            if coming is not Coming.NEW or not start.is_vague:
                self._took_s.setdefault((coming, None), deque(maxlen=STARTS_KEPT)).append(took_s)
        self._has_entered |= start.members

    def _note_end(self, start: Start, now: float) -> None:
        """All have trained, or wait to."""
        if start.tier is not None and not start.is_vague:
            key = max(start.coming), start.tier
            self._took_s.setdefault(key, deque(maxlen=STARTS_KEPT)).append(now - start.began_at)
        self._has_trained |= start.members
        self._in_vain = 0

    def _longest_s(self, coming: Coming, tier: Tier | None) -> float | None:
        """What starts like this took at most; those of the next slower kind where there were none."""
        known = (self._took_s.get((each, tier)) for each in Coming if each >= coming)
        return next((max(took_s) for took_s in known if took_s), None)

    # samples

    def _take(self, report: NodeReport, now: float) -> None:
        if not any(each.source.startswith("rank") for each in report.unreadable):
            self._node_at[report.node] = now
        for start, place, sample in self._placed(report):
            has_entered = self._publishes_in(start, sample)
            is_unseen = sample.round != self._round.number or start.epoch is not None
            if sample.process is ProcessState.STOPPED and is_unseen:
                start.stopped_at.setdefault(place, now)
            else:
                start.stopped_at.pop(place, None)
            known = start.seen if has_entered else start.earlier
            known[place] = Seen(sample, now, moved_at(sample, known.get(place), now))
            if has_entered and place not in start.entered_at:
                start.entered_at[place] = now
                if len(start.entered_at) == start.size:
                    self._note_entries(start)
            if has_entered and sample.step is not None and start.epoch is None:
                start.trained.add(place)
        for start in [each for each in self._starts if len(each.trained) == each.size]:
            self._starts.remove(start)
            self._note_end(start, now)

    def _publishes_in(self, start: Start, sample: RankSample) -> bool:
        """Whether the training script itself publishes in this round: what the launcher writes has no pulse."""
        oldest = self._round.number if start.epoch is None else start.epoch
        return oldest is not None and sample.round >= oldest and sample.pulse_age_s is not None

    def _placed(self, report: NodeReport) -> Iterator[tuple[Start, int, RankSample]]:
        """The samples of processes that have ranks in this round, though they may tell of one before."""
        round_ = self._round.round
        for sample in report.ranks if round_ is not None else ():
            told_in = self._rounds.get(sample.round)
            share = None if told_in is None else told_in.member_of(sample.rank)
            now_has = None if share is None or round_ is None else round_.share_of(share.member)
            if share is None or now_has is None or not share.node == now_has.node == report.node:
                continue
            rank = now_has.first_rank + sample.rank - share.first_rank
            for start in self._starts:
                if start.first <= rank < start.first + start.size:
                    yield start, rank - start.first, sample

    # judgement

    def _finding(self, start: Start, now: float) -> Finding | None:
        if start.is_found:
            return None
        stopped = [place for place, at in start.stopped_at.items() if now >= at + STOPPED_S]
        if stopped:
            ranks = tuple(sorted(start.first + place for place in stopped))
            named = Named(ranks, Confidence.CERTAIN, "the process is stopped")
            return self._told(start, named, min(start.stopped_at[place] for place in stopped), now)
        if now < start.look_at or now < start.began_at + min(LATE_S_MIN, self._policy.startup_timeout_s):
            return None
        start.look_at = now + LOOK_AGAIN_S
        lag = self._behind(start) if len(start.entered_at) < start.size else self._lagging(start)
        longest_s = None if lag is None else self._longest_s(lag.coming, lag.tier)
        if lag is None or longest_s is None or not self._is_heard_of(start, lag.named.ranks, now):
            return None
        least_s = max(LATE_S_MIN, self._policy.hang_timeout_s or 0.0)
        starts = STARTS_ALLOWED if lag.has_peers else 2.0 * STARTS_ALLOWED
        allowed_s = max(least_s, starts * longest_s, starts * lag.others_s) * 2.0**self._in_vain
        took_s = now - start.began_at
        bound_s = self._policy.startup_timeout_s
        if took_s < min(allowed_s, bound_s) or now - lag.still_since < min(least_s, bound_s):
            return None
        says = (
            f"{took_s:.0f} s after the start: such starts took {longest_s:.1f} s at most before, "
            f"and the slowest of the others took {lag.others_s:.1f} s"
        )
        return self._told(start, lag.named, start.began_at, now, Evidence("earlier rounds", says, now))

    def _behind(self, start: Start) -> Lag | None:
        """Those that have not entered the round, when most have."""
        missing = [place for place in range(start.size) if place not in start.entered_at]
        if not start.entered_at or 2 * len(missing) > start.size:
            return None
        coming = max([start.coming[place] for place in missing])
        still_since = max(start.entered_at.values())
        named = Named(tuple([start.first + place for place in missing]), Confidence.PROBABLE, NOT_ENTERED)
        # Of a replica group that goes on, one that hangs keeps all its ranks: where they were tells which.
        before = {start.first + place: each for place in missing if (each := start.earlier.get(place)) is not None}
        if len(before) == len(missing):
            named = name_the_behind(before, self._round.groups())
        has_peers = any(start.coming[place] >= coming for place in start.entered_at)
        return Lag(named, coming, None, still_since - start.began_at, still_since, has_peers)

    def _lagging(self, start: Start) -> Lag | None:
        """Those that all others wait for, when all have entered."""
        seen = {start.first + place: each for place, each in start.seen.items()}
        named = name_the_missing(seen, ())
        gone = any(each.sample.process is ProcessState.GONE for each in seen.values())
        if start.tier is None or gone or not named.ranks or 2 * len(named.ranks) > start.size:
            return None
        phases = {seen[rank].sample.phase for rank in named.ranks}
        if Phase.IDLE in phases:
            return None  # it says that it does something else on purpose
        others = [each.progress_at for rank, each in seen.items() if rank not in named.ranks]
        still_since = max([each.progress_at for each in seen.values()])
        if Phase.CHECKPOINT in phases:
            still_since += CHECKPOINT_S_MIN - LATE_S_MIN
        late = max([start.coming[rank - start.first] for rank in named.ranks])
        has_peers = any(start.coming[rank - start.first] >= late for rank in seen if rank not in named.ranks)
        return Lag(named, start.behind_it, start.tier, max(others) - start.began_at, still_since, has_peers)

    def _is_heard_of(self, start: Start, ranks: Sequence[int], now: float) -> bool:
        """Whether the agents of these ranks' nodes report: of the others nothing is known."""
        shares = [self._round.member_of(rank) for rank in ranks]
        heard = [self._node_at.get(share.node, -math.inf) for share in shares if share is not None]
        return min(heard, default=-math.inf) >= now - self._policy.lost_after_s

    def _told(self, start: Start, named: Named, began_at: float, now: float, *more: Evidence) -> Finding:
        start.is_found = True
        self._in_vain += 1
        seen = {start.first + place: each for place, each in (start.earlier | start.seen).items()}
        subject, *also = [self._round.subject(rank) for rank in named.ranks]
        return Finding(
            kind=FindingKind.HANG,
            subject=subject,
            cause=named.cause,
            evidence=(*evidence_of(seen, named.ranks, now), *more),
            confidence=named.confidence,
            began_at=began_at,
            round=self._round.number,
            also=tuple(also),
        )
