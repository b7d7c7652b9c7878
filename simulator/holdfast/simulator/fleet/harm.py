"""What faults have done to a fleet and nothing has mended yet, and which fault it was."""

from collections.abc import Iterable, Mapping

from holdfast.api.round import Round
from holdfast.simulator.fault import Fault
from holdfast.simulator.fleet.books import PLANNED
from holdfast.simulator.world.member import SimulatedMember


class Harm:
    """Faults are known by their names."""

    def __init__(self, members: Mapping[str, SimulatedMember]) -> None:
        self._members = members
        self.wrong: dict[str, str] = {}  # by member whose parameters differ from its replicas': what made them
        self.struck: dict[str, str] = {}  # by node: what hit it last
        self.gone: dict[str, list[Fault]] = {}  # by node: what took it away though nothing is wrong with it
        self.cut: dict[object, frozenset[str]] = {}  # members that cannot be reached by others now, and why
        self.owed: dict[int, str] = {}  # by epoch: for what a replica group is formed

    def is_apart(self, members: Iterable[SimulatedMember]) -> bool:
        """Whether some of them cannot reach the others."""
        away = set().union(*self.cut.values())
        return bool(away) and any(each.name in away for each in members)

    def is_cut(self, round: Round) -> bool:
        """Whether some of those that train in the round cannot reach the others."""
        return any(round.trains(name) for names in self.cut.values() for name in names)

    def cut_off(self, round: Round) -> list[object]:
        """What holds up nobody who trains in the round, though it is not over."""
        return [what for what, names in self.cut.items() if not any(round.trains(name) for name in names)]

    def wrong_in(self, round: Round) -> list[str]:
        """The members of the round whose parameters are not what they should be."""
        return [name for name in self.wrong if name in round.names and name in self._members]

    def copied(self, members: Iterable[SimulatedMember]) -> None:
        """They have another state now, and a good one: what was wrong with theirs is gone."""
        for member in members:
            member.wrong.clear()
            self.wrong.pop(member.name, None)

    def owe(self, round: Round, cause: str) -> None:
        """The round is shown: a group that is formed for it is, for that fault; other groups are as they were."""
        if round.goes_on and any(each.epoch == round.number for each in round.groups):
            self.owed[round.number] = cause
        there = {each.epoch for each in round.groups}
        self.owed = {epoch: owed for epoch, owed in self.owed.items() if epoch in there}

    def fault_of_newcomers(self, round: Round) -> str:
        """For which fault a replica group had to be formed that comes in with the round."""
        came = [self.owed.pop(each.epoch) for each in round.groups if each.trains and each.epoch in self.owed]
        return came[0] if came else PLANNED
