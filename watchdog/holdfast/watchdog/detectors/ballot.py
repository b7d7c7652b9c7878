"""One vote of the replicas: what every rank says its parameters are after one step.

Ranks of one group hold the same parameters, so whoever says something else than more than half of the group is
wrong. That holds as well when some have not voted: they are counted as if all of them were against.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass


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
        self._groups: dict[int, dict[int, list[int]]] = {}  # by group and value, the ranks

    def cast(self, rank: int, group: int, value: int) -> None:
        """Count a vote. Of several votes of one rank the first counts."""
        if self._voted[rank]:
            return
        self._voted[rank] = 1
        self.missing -= 1
        self._groups.setdefault(group, {}).setdefault(value, []).append(rank)

    @property
    def compares(self) -> bool:
        """Whether any two ranks had to say the same: a group of one agrees with itself, which proves nothing."""
        return any(sum(len(ranks) for ranks in sides.values()) > 1 for sides in self._groups.values())

    def disputes(self) -> Iterator[Dispute]:
        """The groups whose ranks differ."""
        for group, sides in self._groups.items():
            if len(sides) > 1:
                largest_first = sorted(sides.items(), key=lambda side: -len(side[1]))
                told = {value: tuple(sorted(ranks)) for value, ranks in largest_first}
                yield Dispute(group, told, self.majority_of(group))

    def majority_of(self, group: int) -> int | None:
        """What more than half of the group says; None when that is not proved."""
        sides = self._groups.get(group, {})
        votes = sum(len(ranks) for ranks in sides.values()) + self.missing
        return next((value for value, ranks in sides.items() if 2 * len(ranks) > votes), None)

    def ranks_for(self, group: int, value: int) -> tuple[int, ...]:
        """Who of the group says `value`."""
        return tuple(self._groups.get(group, {}).get(value, ()))
