"""Which part of each step's batch came from which replica group: what groups promise of a job's samples."""

from dataclasses import dataclass

from holdfast.api.round import Round

Group = tuple[int, str]
"""A replica group: the round in which it was formed, and its first member."""


@dataclass(frozen=True, slots=True)
class Given:
    """One step's batch: into how many shares it was divided, which are in the step, and how many groups were lost
    while it was made.
    """

    count: int
    shares: tuple[int, ...]
    lost: int


class Shares:
    """`given` is by step, of the history that is kept."""

    def __init__(self) -> None:
        self.given: dict[int, Given] = {}
        self._count = self._lost = 0
        self._of: dict[Group, int] = {}  # by group: which share of the step in flight it has

    def begin(self, round: Round) -> None:
        """The groups that train in the round divide the next step's batch among themselves, as they are shown."""
        self._of, self._lost = {}, 0
        for share in round.ranks[: round.training]:
            seat = round.seat_of(share.member)
            assert seat is not None
            assert seat.group is not None
            assert seat.group.index is not None
            self._count = seat.group.count
            if seat.group.first_rank == share.first_rank:
                self._of[seat.group.epoch, share.member] = seat.group.index

    def go_on(self, round: Round) -> None:
        """The step in flight is completed in the round: by those that are left, with what they have."""
        firsts = {share.first_rank: share.member for share in round.ranks[: round.training]}
        there = {
            (seat.group.epoch, firsts[seat.group.first_rank])
            for seat in map(round.seat_of, firsts.values())
            if seat is not None and seat.group is not None
        }
        left = {group: index for group, index in self._of.items() if group in there}
        self._of, self._lost = left, self._lost + len(self._of) - len(left)

    def complete(self, step: int) -> None:
        """The step counts."""
        self.given[step] = Given(self._count, tuple(sorted(self._of.values())), self._lost)

    def give_up(self, step: int) -> None:
        """What was made behind that step is made anew."""
        self.given = {each: given for each, given in self.given.items() if each <= step}
