"""Where a node is: what it shares with the nodes beside it, and places behind which faults gather."""

from enum import StrEnum
from typing import Final

import msgspec

from holdfast.api.bounds import Name

PLACES_MAX: Final = 32
"""Of one node: a switch and a rack, the switch of each of eight rails, and what is above them."""


class Place(msgspec.Struct, frozen=True, order=True):
    """One thing that nodes share: `kind` is what it is ("switch", "rack", "rail", "spine"), `name` which one."""

    kind: Name
    name: Name

    def __str__(self) -> str:
        return f"{self.kind} {self.name}"


class FaultFamily(StrEnum):
    """Faults that one thing outside of nodes can bring about. Each family is judged by itself."""

    NETWORK = "network"  # hangs and faults of links: a switch or a rail can do that
    SUPPLY = "supply"  # lost nodes and heat: power and cooling can do that


class Gathering(msgspec.Struct, frozen=True):
    """A place behind which more faults gather than chance explains: `faults` of the `total` of a family.

    `share` is the part of all GPU time that was spent behind the place, from 0 to 1; `chance` is how likely so
    many or more are behind it, or behind any other place of the fleet, when all are alike. `nodes` are those with
    faults, sorted. `also` are places behind which the very same nodes are: nobody can tell them apart.
    """

    place: Place
    family: FaultFamily
    faults: int
    total: int
    share: float
    chance: float
    nodes: tuple[str, ...] = ()
    also: tuple[Place, ...] = ()

    @property
    def named(self) -> str:
        """The place, and those that cannot be told from it."""
        return " or ".join(str(each) for each in (self.place, *self.also))

    @property
    def says(self) -> str:
        """In one sentence."""
        return (
            f"{self.faults} of {self.total} {self.family.value} faults gather behind {self.named}, which has "
            f"{self.share:.1%} of the GPU time (chance {self.chance:.1g})"
        )
