"""Who is measured with whom: rounds in which every node has a partner, and never the same one twice. Pure.

The circle method of round-robin tournaments: n nodes (one more, a place that rests, where n is odd) have n - 1
rounds of disjoint pairs, and every pair comes once. Two rounds that follow each other join all nodes into one
chain, so that even a few of them compare everybody with everybody through common partners.
Source: https://en.wikipedia.org/wiki/Round-robin_tournament#Circle_method
"""

from collections.abc import Iterable, Iterator
from typing import Final

# Two partners tell a bad node from its partner, a third tells whether it is the node or one of its paths.
PARTNERS_MIN: Final = 3

# In a larger ring a part of a bucket is so small that only its latency is measured; rings go round side by side.
RING_MAX: Final = 32

Pair = tuple[int, int]


def round_count(nodes: int) -> int:
    """How many rounds a test of so many nodes takes: log2 of their number, rounded up, and 3 at least where
    there are as many.

    As many rounds as a hypercube has dimensions, for any number of nodes. 2 nodes: 1; 3: 3; 8: 3; 1000: 10.
    """
    if nodes < 2:
        return 0
    return min(_cycle(nodes), max(PARTNERS_MIN, (nodes - 1).bit_length()))


def rounds(nodes: int, turn: int = 0) -> Iterator[tuple[Pair, ...]]:
    """The rounds of the test number `turn`: pairs of places below `nodes`, each place at most once in a round.

    An odd number of nodes leaves one out in each round, another one each time. Tests of following `turn`s go on
    where the one before ended, so that every node meets every other in time.
    """
    count = round_count(nodes)
    for number in range(turn * count, (turn + 1) * count):
        yield _round(nodes, number % _cycle(nodes))


def disjoint(pairs: Iterable[Pair]) -> Iterator[tuple[Pair, ...]]:
    """These pairs in rounds, each place at most once in a round."""
    left = list(pairs)
    while left:
        busy: set[int] = set()
        now, later = list[Pair](), list[Pair]()
        for pair in left:
            (now if busy.isdisjoint(pair) else later).append(pair)
            busy.update(pair)
        yield tuple(now)
        left = later


def groups(nodes: int) -> tuple[tuple[int, ...], ...]:
    """The rings of a test: each place in one of them, of `RING_MAX` at most and alike in size, none of one alone.

    Neighbours in the order of places, which are nodes by name, are often behind one switch: a ring takes every so
    many-th place, so that its ways go between switches.
    """
    if nodes < 2:
        return ()
    count = -(-nodes // RING_MAX)
    return tuple(tuple(range(first, nodes, count)) for first in range(count))


def _cycle(nodes: int) -> int:
    """Rounds until all pairs have been: one less than the places, which are even in number."""
    return nodes + nodes % 2 - 1


def _round(nodes: int, number: int) -> tuple[Pair, ...]:
    """Places whose sum is `number`, modulo the cycle; who would be its own partner meets the last place."""
    cycle = _cycle(nodes)
    pairs = []
    for one in range(cycle):
        other = (number - one) % cycle
        if other == one:
            other = cycle
        if one < other < nodes:
            pairs.append((one, other))
    return tuple(pairs)
