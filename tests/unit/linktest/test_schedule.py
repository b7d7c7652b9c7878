import math

import pytest

from holdfast.agent.linktest.schedule import RING_MAX, disjoint, groups, round_count, rounds

MANY = [*range(2, 65), 100, 255, 256, 1000, 1001, 4096]


@pytest.mark.parametrize("nodes", MANY)
def test_every_node_meets_others_in_about_log2_of_them_rounds(nodes: int) -> None:
    shown = list(rounds(nodes))

    assert len(shown) == round_count(nodes) <= max(3, math.ceil(math.log2(nodes)))
    partners: dict[int, list[int]] = {node: [] for node in range(nodes)}
    for pairs in shown:
        busy = [node for pair in pairs for node in pair]
        assert len(busy) == len(set(busy)) == nodes - nodes % 2, "one pair each, and one rests where they are odd"
        for one, other in pairs:
            partners[one].append(other)
            partners[other].append(one)
    for node, met in partners.items():
        assert len(met) == len(set(met)) >= len(shown) - nodes % 2
        assert node not in met


@pytest.mark.parametrize("nodes", MANY)
def test_a_test_joins_all_nodes(nodes: int) -> None:
    near: dict[int, set[int]] = {node: set() for node in range(nodes)}
    for pairs in rounds(nodes):
        for one, other in pairs:
            near[one].add(other)
            near[other].add(one)
    reached, edge = {0}, {0}
    while edge:
        edge = {other for node in edge for other in near[node]} - reached
        reached |= edge
    assert len(reached) == nodes


@pytest.mark.parametrize("nodes", [*range(2, 65), 255, 256])
def test_following_turns_measure_every_pair(nodes: int) -> None:
    turns = -(-(nodes - 1 + nodes % 2) // round_count(nodes))
    met = {pair for turn in range(turns) for pairs in rounds(nodes, turn) for pair in pairs}

    assert len(met) == nodes * (nodes - 1) // 2
    before = {pair for turn in range(turns - 1) for pairs in rounds(nodes, turn) for pair in pairs}
    assert len(before) < len(met), "no turn more than it takes"


def test_one_node_has_nobody_to_measure_with() -> None:
    assert list(rounds(1)) == []


@pytest.mark.parametrize("nodes", [0, 1, 2, 3, 8, 32, 33, 64, 65, 1000])
def test_every_node_is_in_one_ring_and_none_is_in_a_ring_alone(nodes: int) -> None:
    rings = groups(nodes)

    assert sorted(place for ring in rings for place in ring) == (list(range(nodes)) if nodes > 1 else [])
    assert all(2 <= len(ring) <= RING_MAX for ring in rings)
    assert len({len(ring) for ring in rings}) <= 2


def test_links_in_doubt_are_measured_again_each_node_with_one_partner_at_a_time() -> None:
    assert list(disjoint([(0, 1), (1, 2), (3, 4), (2, 0)])) == [((0, 1), (3, 4)), ((1, 2),), ((2, 0),)]
    assert list(disjoint([])) == []
