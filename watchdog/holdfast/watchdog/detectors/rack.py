"""Nodes that share their cooling: which of them were hot lately, and which are getting hot."""

import math
from collections.abc import Iterator
from itertools import islice

# What heats a whole rack reaches its nodes within this time of each other.
TOGETHER_S = 120.0
# For so long it must have been calm before it is over, or before it counts as a new one.
CALM_S = 300.0
# Two hot nodes are a coincidence, or neighbours of one hot spot.
NODES_MIN = 3


class Recent:
    """Nodes by when each was seen last, the most recent last. O(1) each."""

    def __init__(self) -> None:
        self._at: dict[str, float] = {}

    def see(self, node: str, at: float) -> None:
        self._at.pop(node, None)
        self._at[node] = at

    def forget(self, node: str) -> None:
        self._at.pop(node, None)

    def since(self, at: float) -> Iterator[str]:
        """The nodes seen at that time or later, the most recent first."""
        for node in reversed(self._at):
            if self._at[node] < at:
                return
            yield node

    def drop_before(self, at: float) -> int:
        """Forget who was seen longer ago; how many are left."""
        while self._at and self._at[next(iter(self._at))] < at:
            del self._at[next(iter(self._at))]
        return len(self._at)

    def __contains__(self, node: str) -> bool:
        return node in self._at


class Rack:
    """One rack, or all nodes of which no rack is known: then `name` is empty."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.found: str | None = None  # the hottest node when the whole rack was found hot
        self.rising = Recent()
        self._reporting = Recent()
        self._hot = Recent()

    def look(self, node: str, *, hot: bool, at: float) -> None:
        """Count a node that tells how hot its GPUs are."""
        self._reporting.see(node, at)
        if hot:
            self._hot.see(node, at)

    def forget(self, node: str) -> None:
        """The node is somewhere else."""
        for each in (self._reporting, self._hot, self.rising):
            each.forget(node)

    def hot_nodes(self, now: float) -> tuple[str, ...]:
        return tuple(self._hot.since(now - TOGETHER_S))

    def reporting(self, now: float) -> int:
        """How many nodes tell how hot they are."""
        return self._reporting.drop_before(now - TOGETHER_S)

    def is_hot(self, now: float) -> bool:
        """Whether so many nodes are hot that it is not the nodes'."""
        self._hot.drop_before(now - CALM_S)
        needed = max(NODES_MIN, math.ceil(self.reporting(now) / 2))
        return sum(1 for _ in islice(self._hot.since(now - TOGETHER_S), needed)) >= needed

    def is_calm(self, now: float) -> bool:
        """Whether for a while only so few were hot that each may be judged by itself."""
        return self._hot.drop_before(now - CALM_S) < NODES_MIN

    def may_become_hot(self, node: str, now: float) -> bool:
        """Whether others in the rack are hot as well, or will be: then it is worth a wait to tell which it is."""
        if not self.name:
            return False  # in a large job there is always somebody
        others = (*self._hot.since(now - TOGETHER_S), *self.rising.since(now - TOGETHER_S))
        return any(other != node for other in others)

    def begins_to_rise(self, node: str, now: float) -> bool:
        """Whether a rise on a node is worth a word: the first of its episode, and not all of a rack at once."""
        others = self.rising.drop_before(now - CALM_S)
        known = node in self.rising
        self.rising.see(node, now)
        return not known and others < NODES_MIN
