"""Who keeps the copies of whose snapshots.

A copy in the same failure domain dies with the original, so each member's keepers are in other racks where there
are any, and always on other nodes. Copies are spread evenly: a keeper holds as many as it gives.
"""

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence

from holdfast.api.memory import MemoryRound
from holdfast.api.policy import MemoryPolicy
from holdfast.watchdog.roster import Member


def plan_copies(
    policy: MemoryPolicy, seats: Sequence[Member], racks: Mapping[str, str], *, since_round: int
) -> MemoryRound:
    """What the round of `seats` (in rank order) says of snapshots. `racks` knows some nodes' failure domains."""
    serving = [place for place, member in enumerate(seats) if member.transfer]
    rack_of = [racks.get(member.node, "") for member in seats]
    keepers: list[tuple[int, ...]] = [() for _ in seats]
    for rack in {rack_of[place] for place in serving}:
        inside = [place for place in serving if rack_of[place] == rack]
        outside = [place for place in serving if rack_of[place] != rack]
        # Members of the racks that come after this one first, so that no rank's copies are everybody's choice.
        start = bisect_left(outside, inside[0])
        for position, place in enumerate(inside):
            others = _from(outside, start + position) if outside else _from(inside, position + 1)
            keepers[place] = _on_other_nodes(others, seats, place, policy.replicas)
    return MemoryRound(policy.every_steps, since_round, tuple(each.transfer for each in seats), tuple(keepers))


def _from(places: Sequence[int], start: int) -> Iterator[int]:
    """All of `places`, beginning at index `start` and going round."""
    return (places[(start + step) % len(places)] for step in range(len(places)))


def _on_other_nodes(places: Iterator[int], seats: Sequence[Member], place: int, count: int) -> tuple[int, ...]:
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
