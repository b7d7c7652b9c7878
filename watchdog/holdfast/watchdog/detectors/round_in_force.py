"""The round that counts: what every detector of round-bound faults must know about it."""

from collections.abc import Iterable

from holdfast.api.finding import Subject
from holdfast.api.round import MemberRanks, Round
from holdfast.watchdog.sample import RoundStarted, RoundStopped, Sample


class RoundInForce:
    """Follows the rounds shown. Whatever carries another round's number is fenced: it is evidence of nothing."""

    def __init__(self, job: str) -> None:
        self._job = job
        self._number: int | None = None
        self._round: Round | None = None
        self._shares: dict[int, MemberRanks] = {}

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
        shares = started.ranks if started else ()
        self._shares = {share.first_rank + local: share for share in shares for local in range(share.local_size)}
        return True

    @property
    def number(self) -> int | None:
        """The number of the round that runs, None while none does."""
        return self._round.number if self._round else None

    @property
    def world_size(self) -> int:
        """How many ranks it has; 0 while none runs."""
        return len(self._shares)

    @property
    def members(self) -> Iterable[MemberRanks]:
        return self._round.ranks if self._round else ()

    def counts(self, number: int) -> bool:
        """Whether something said of round `number` is about the round that runs."""
        return self._round is not None and self._round.number == number

    def share_of(self, rank: int) -> MemberRanks | None:
        """Who runs `rank`, None when it is outside the world. Constant time, unlike `Round.member_of`."""
        return self._shares.get(rank)

    def subject(self, rank: int) -> Subject:
        """`rank` with the member and node that run it."""
        share = self._shares.get(rank)
        if share is None:
            return Subject(self._job, rank=rank)
        return Subject(self._job, node=share.node, member=share.member, rank=rank)
