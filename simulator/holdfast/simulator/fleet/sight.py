"""What the detectors are shown of a large fleet: a few of its members, as if they were all.

Twelve thousand healthy members that report every second would say the same twelve thousand times. So the detectors
watch a round of those that are in sight, with ranks of its own, counted from zero as in any other; what they find
names the ranks of the real one. Nobody else is watched, and so nobody else's silence is a loss.
"""

from collections import Counter
from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Finding, Subject
from holdfast.api.policy import Policy
from holdfast.api.round import MemberRanks, ReplicaGroup, Round
from holdfast.api.telemetry import NodeEvent, NodeReport, RankSample
from holdfast.watchdog.brain.groups import by_group
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import CollectiveBroke, Exited, Reported, RoundStarted, Sample
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.senses import Senses


class Sight(Senses):
    """The senses of one job, and who is in sight. Whoever moves the sight shows them the round again."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(detectors_for(policy), Progress(policy))
        self._seen: tuple[str, ...] = ()
        self._ours: dict[int, int] = {}  # by a rank of the real round: ours
        self._real: dict[int, int] = {}

    def look_at(self, members: Sequence[str]) -> None:
        """From the next round that is shown on, or from the same shown again, these are all that is seen of it."""
        self._seen = tuple(members)

    def observe(self, sample: Sample, now: float) -> tuple[Event, ...]:
        """What one sample proves, told of the ranks of the real round."""
        return tuple([self._really(each) for each in super().observe(self._narrowed(sample), now)])

    def elapse(self, now: float) -> tuple[Event, ...]:
        """What silence up to `now` proves, told of the ranks of the real round."""
        return tuple([self._really(each) for each in super().elapse(now)])

    def _narrowed(self, sample: Sample) -> Sample:
        match sample:
            case RoundStarted(round=shown):
                return RoundStarted(self._of_those_in_sight(shown))
            case Reported(report=report):
                return Reported(self._report(report))
            case Exited(exit=exit):
                return replace(sample, exit=replace(exit, rank=self._ours.get(exit.rank, exit.rank)))
            case CollectiveBroke(failure=failure):
                return replace(sample, failure=replace(failure, rank=self._ours.get(failure.rank, failure.rank)))
            case _:
                return sample

    def _of_those_in_sight(self, shown: Round) -> Round:
        self._ours.clear()
        self._real.clear()
        shares: list[MemberRanks] = []
        seen = [share for share in map(shown.share_of, self._seen) if share is not None]
        for share in sorted(seen, key=_first_rank):
            first = len(self._real)
            for local in range(share.local_size):
                self._ours[share.first_rank + local] = first + local
                self._real[first + local] = share.first_rank + local
            shares.append(replace(share, first_rank=first))
        groups = tuple(_groups_of_those_in_sight(shown, seen)) if shown.groups else ()
        return replace(shown, ranks=tuple(shares), memory=None, fresh_ranks=(), groups=groups)

    def _report(self, report: NodeReport) -> NodeReport:
        ours = self._ours
        ranks = tuple([_with_rank(each, ours[each.rank]) for each in report.ranks if each.rank in ours])
        events = tuple([_of_rank(each, ours) for each in report.events]) if report.events else ()
        return replace(report, ranks=ranks, events=events)

    def _really(self, event: Event) -> Event:
        if not isinstance(event, FindingMade):
            return event
        finding = event.finding
        also = tuple([self._subject(each) for each in finding.also])
        told: Finding = replace(finding, subject=self._subject(finding.subject), also=also)
        return FindingMade(told)

    def _subject(self, subject: Subject) -> Subject:
        if subject.rank is None:
            return subject
        return replace(subject, rank=self._real.get(subject.rank, subject.rank))


def _first_rank(share: MemberRanks) -> int:
    return share.first_rank


def _groups_of_those_in_sight(shown: Round, seen: Sequence[MemberRanks]) -> Iterator[ReplicaGroup]:
    """The replica groups of the round of which somebody is in sight, with so many members."""
    seats = [seat.group for seat in (shown.seat_of(share.member) for share in seen) if seat is not None]
    members = Counter([seat.first_rank for seat in seats if seat is not None])
    first = 0
    for group, shares in by_group(shown):
        if count := members[first]:
            yield replace(group, members=count)
        first += sum([each.local_size for each in shares])


def _with_rank(sample: RankSample, rank: int) -> RankSample:
    return replace(sample, rank=rank)


def _of_rank(event: NodeEvent, ours: dict[int, int]) -> NodeEvent:
    rank = getattr(event, "rank", None)
    return event if rank is None or rank not in ours else replace(event, rank=ours[rank])
