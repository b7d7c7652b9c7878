"""The round that counts: what every detector of round-bound faults must know about it."""

from collections.abc import Container, Sequence

from holdfast.api.finding import Subject
from holdfast.api.round import MemberRanks, Round
from holdfast.api.telemetry import RankSample
from holdfast.watchdog.detectors.detector import Reported, RoundStarted, RoundStopped, Sample


class RoundInForce:
    """Follows the rounds shown. Whatever carries another round's number is fenced: it is evidence of nothing.

    A new round is on its way to the launchers while this is told of it, so that following costs next to nothing;
    what is asked for with every report is built when it is first asked for.
    """

    def __init__(self, job: str) -> None:
        self._job = job
        self._number: int | None = None
        self._round: Round | None = None
        self._ranks_of_node: dict[str, Container[int]] | None = None
        self.world_size = 0  # 0 while none runs

    def follow(self, sample: Sample) -> bool:
        """Take one sample; True when it began or ended a round, so that all that was known before is void."""
        if not isinstance(sample, RoundStarted | RoundStopped):
            return False
        started = sample.round if isinstance(sample, RoundStarted) else None
        number = sample.round.number if isinstance(sample, RoundStarted) else sample.number
        late = self._number is not None and number < self._number
        if late or (number, started) == (self._number, self._round):
            return False
        self._number, self._round = number, started
        self._ranks_of_node = None
        self.world_size = started.world_size if started else 0
        return True

    @property
    def number(self) -> int | None:
        """The number of the round that runs, None while none does."""
        return self._round.number if self._round else None

    @property
    def shares(self) -> Sequence[MemberRanks]:
        """Its members with their ranks, in rank order; none while none runs."""
        return self._round.ranks if self._round else ()

    def counts(self, number: int) -> bool:
        """Whether something said of round `number` is about the round that runs."""
        return self._round is not None and self._round.number == number

    def has(self, member: str) -> bool:
        """Whether `member` has ranks in the round that runs."""
        return self._round is not None and member in self._round.names

    def samples_in(self, reported: Reported) -> Sequence[RankSample]:
        """The samples of a report that count: of this round, and of ranks that its node runs."""
        if self._round is None:
            return ()
        if (known := reported.counted) is not None and known[0] is self._round:
            return known[1]
        report, number = reported.report, self._round.number
        ranks = self.ranks_on(report.node)
        samples = [sample for sample in report.ranks if sample.round == number and sample.rank in ranks]
        reported.counted = self._round, samples  # several detectors ask, thousands of times a second
        return samples

    def ranks_on(self, node: str) -> Container[int]:
        """The ranks that `node` runs in the round, none while none runs."""
        if self._round is None:
            return ()
        if self._ranks_of_node is None:
            self._ranks_of_node = _ranks_of_node(self._round)
        return self._ranks_of_node.get(node, ())

    def ranks_of(self, member: str) -> range:
        """The ranks that `member` runs in the round, none where it has none."""
        share = self._round.share_of(member) if self._round else None
        return range(share.first_rank, share.first_rank + share.local_size) if share else range(0)

    def member_of(self, rank: int) -> MemberRanks | None:
        """Who runs `rank`, None when it is outside the world."""
        return self._round.member_of(rank) if self._round else None

    def subject(self, rank: int) -> Subject:
        """`rank` with the member and node that run it."""
        share = self.member_of(rank)
        if share is None:
            return Subject(self._job, rank=rank)
        return Subject(self._job, node=share.node, member=share.member, rank=rank)


def _ranks_of_node(round: Round) -> dict[str, Container[int]]:
    """One member a node is the rule, and a range answers faster than a set; several members share a set."""
    ranks: dict[str, range | set[int]] = {}
    for share in round.ranks:
        mine = range(share.first_rank, share.first_rank + share.local_size)
        ranks[share.node] = {*ranks[share.node], *mine} if share.node in ranks else mine
    return dict(ranks)
