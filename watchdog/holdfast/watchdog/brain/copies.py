"""Who keeps the copies of whose snapshots.

A copy in the same failure domain dies with the original, so each member's keepers are in other racks as far as
those have nodes, then in its own, and always on other nodes. Copies are spread evenly, whatever order the ranks
are in: a keeper holds as many as it gives, unless one rack has more members than all others together.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, groupby

from holdfast.api.memory import MemoryRound
from holdfast.api.policy import MemoryPolicy
from holdfast.watchdog.brain.roster import Member


def plan_copies(
    policy: MemoryPolicy, seats: Sequence[Member], racks: Mapping[str, str], *, since_round: int
) -> MemoryRound:
    """What the round of `seats` (in rank order) says of snapshots. `racks` knows some nodes' failure domains."""
    keepers: list[tuple[int, ...]] = [() for _ in seats]
    circle, others = _others(seats, racks)
    for place, outside, own in others:
        first, start, count = outside if outside[-1] else own
        nearest = circle[(first + start % count) % len(circle)]
        if policy.replicas == 1 and seats[nearest].node != seats[place].node:
            keepers[place] = (nearest,)  # nearly always so, of thousands
        else:
            better = chain(_round_from(circle, *outside), _round_from(circle, *own))
            keepers[place] = _on_other_nodes(better, seats, place, policy.replicas)
    return MemoryRound(policy.every_steps, since_round, tuple(each.transfer for each in seats), tuple(keepers))


Arc = tuple[int, int, int]
"""Of a circle: the index where it begins, at which of its places to start, and how many it has."""


def _others(
    seats: Sequence[Member], racks: Mapping[str, str]
) -> tuple[Sequence[int], Iterator[tuple[int, Arc, Arc]]]:
    """The places of all who serve, as a circle; and each of them with who may keep its copies, the best first:
    those of other racks, and those of its own.

    In a circle of racks, who is as far on as the widest rack is wide is in another one, and no two have the same.
    """
    rack_of = [racks.get(member.node, "") for member in seats]
    circle = sorted((place for place, member in enumerate(seats) if member.transfer), key=rack_of.__getitem__)
    inside = [list(places) for _, places in groupby(circle, key=rack_of.__getitem__)]
    return circle, _arcs(circle, inside)


def _arcs(circle: Sequence[int], inside: Sequence[Sequence[int]]) -> Iterator[tuple[int, Arc, Arc]]:
    widest = max(map(len, inside), default=0)
    end = 0  # of the rack, in the circle
    for rack in inside:
        end += len(rack)
        outside = len(circle) - len(rack)
        for position, place in enumerate(rack):
            own = end - len(rack), position + 1, len(rack)
            yield place, (end, position + widest - len(rack), outside), own


def _round_from(circle: Sequence[int], first: int, start: int, count: int) -> Iterator[int]:
    """The `count` from index `first` on, as a circle of their own that begins with the one at `start`."""
    return (circle[(first + (start + step) % count) % len(circle)] for step in range(count))


def _on_other_nodes(places: Iterable[int], seats: Sequence[Member], place: int, count: int) -> tuple[int, ...]:
    """The first `count` that are on nodes of their own."""
    nodes = {seats[place].node}
    chosen: list[int] = []
    for each in places:
        if len(chosen) >= count:
            break
        if seats[each].node not in nodes:
            nodes.add(seats[each].node)
            chosen.append(each)
    return tuple(chosen)
