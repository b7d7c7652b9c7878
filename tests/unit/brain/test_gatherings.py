"""Which places are named for the faults behind them, and which are not."""

import itertools
import random

import pytest

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind, Subject
from holdfast.api.place import FaultFamily, Place
from holdfast.watchdog.brain.gatherings import (
    QUIET_S,
    Exposure,
    Located,
    behind,
    binomial,
    family_of,
    gatherings,
    merged,
    nodes_of,
    upper_tail,
)

HOUR = 3600.0
NOW = 30 * 86400.0
NETWORK, SUPPLY = FaultFamily.NETWORK, FaultFamily.SUPPLY
NODES, BEHIND_ONE = 128, 8


def places(node: int) -> tuple[Place, ...]:
    """Sixteen switches of eight nodes, whose racks are the same nodes, and two spines above them."""
    leaf = node // BEHIND_ONE
    return Place("rack", f"r{leaf}"), Place("spine", f"s{leaf // 8}"), Place("switch", f"l{leaf}")


def exposure() -> Exposure:
    behind: dict[Place, float] = {}
    for node in range(NODES):
        for place in places(node):
            behind[place] = behind.get(place, 0.0) + 1.0
    return Exposure(behind, dict.fromkeys(("rack", "spine", "switch"), float(NODES)))


def faults(*nodes: int | tuple[int, int], family: FaultFamily = NETWORK) -> list[Located]:
    """One every three hours, the last one now."""
    ends = [each if isinstance(each, tuple) else (each,) for each in nodes]
    first = NOW - 3 * HOUR * (len(ends) - 1)
    return [
        Located(first + 3 * HOUR * turn, family, {f"n{node}": places(node) for node in named})
        for turn, named in enumerate(ends)
    ]


BEHIND_L2 = (16, 17, 18, 19, 20, 21)
ELSEWHERE = (0, 30, 50, 70, 90, 110)


def test_a_switch_behind_which_half_of_the_hangs_gather_is_named_and_nothing_above_or_beside_it() -> None:
    (found,) = gatherings(faults(*BEHIND_L2, *ELSEWHERE, 16), exposure(), NOW)
    assert found.place == Place("switch", "l2")
    assert (found.faults, found.total, found.share) == (7, 13, 1 / 16)
    assert found.nodes == ("n16", "n17", "n18", "n19", "n20", "n21")
    assert found.also == (Place("rack", "r2"),)  # the very same nodes: nobody can tell them apart
    assert "7 of 13 network faults gather behind switch l2 or rack r2" in found.says


def test_of_lost_nodes_the_rack_is_told_first() -> None:
    (found,) = gatherings(faults(*BEHIND_L2, *ELSEWHERE, 16, family=SUPPLY), exposure(), NOW)
    assert (found.place, found.family) == (Place("rack", "r2"), SUPPLY)


def test_families_are_judged_apart() -> None:
    """Lost nodes all over the fleet hide no hangs behind one switch."""
    lost = faults(*(5 * node % NODES for node in range(100)), family=SUPPLY)
    (found,) = gatherings([*faults(*BEHIND_L2, *ELSEWHERE, 16), *lost], exposure(), NOW)
    assert (found.place.kind, found.total) == ("switch", 13)


@pytest.mark.parametrize(
    "nodes",
    [
        (16, 17, 18),  # too few
        (16,) * 20,  # one node that hangs again and again is a bad node
        (16, 17) * 10,  # nor are two a switch
        tuple(range(0, NODES, 5)),  # all over the fleet
        (16, *(16,) * 12, 17, 18, *ELSEWHERE),  # its worst node counts as the next worst does
    ],
)
def test_no_place_is_named_for(nodes: tuple[int, ...]) -> None:
    assert gatherings(faults(*nodes), exposure(), NOW) == ()


def test_what_several_jobs_tell_at_once_is_one_fault() -> None:
    told = [Located(NOW + n, NETWORK, {f"n{16 + n}": places(16 + n)}) for n in range(6)]
    assert len(merged(told)) == 1
    assert gatherings(told, exposure(), NOW + 6) == ()
    apart = [Located(NOW, NETWORK, {f"n{node}": places(node)}) for node in (0, 127)]
    assert len(merged(apart)) == 2


def test_a_bad_link_counts_behind_the_switches_of_both_its_ends() -> None:
    links = faults((16, 40), (17, 60), (18, 80), (19, 100), (20, 120), (21, 3))
    (found,) = gatherings([*links, *faults(*ELSEWHERE)], exposure(), NOW)
    assert found.place == Place("switch", "l2")
    assert found.faults == 6


def test_a_place_is_forgotten_a_week_after_its_last_fault() -> None:
    told = faults(*ELSEWHERE, *BEHIND_L2)
    assert gatherings(told, exposure(), NOW + QUIET_S - 1)
    assert gatherings(told, exposure(), NOW + QUIET_S) == ()


def test_two_bad_switches_are_both_named() -> None:
    other = (96, 97, 98, 99, 100, 101)
    found = gatherings(faults(*BEHIND_L2, *other, 16, 96, 17, 97, 0, 50), exposure(), NOW)
    assert {each.place for each in found} == {Place("switch", "l2"), Place("switch", "l12")}


def test_a_switch_that_had_most_of_the_gpu_time_is_expected_to_have_most_of_the_faults() -> None:
    busy = Exposure({Place("switch", "l2"): 0.6, Place("switch", "l0"): 0.4}, {"switch": 1.0})
    assert gatherings(faults(*BEHIND_L2, *ELSEWHERE), busy, NOW) == ()


def test_the_tail_is_exact() -> None:
    """Against all outcomes of five faults of one node and two of two nodes."""
    share, pair = 0.3, 1 - 0.7**2
    for many in range(8):
        chance = 0.0
        for falls in itertools.product((0, 1), repeat=7):
            each = [pair if place >= 5 else share for place in range(7)]
            p = 1.0
            for there, of in zip(falls, each, strict=True):
                p *= of if there else 1 - of
            chance += p if sum(falls) >= many else 0.0
        assert upper_tail(many, {1: 5, 2: 2}, share) == pytest.approx(chance)
    assert sum(binomial(1000, 0.01)) == pytest.approx(1.0)


def test_faults_that_fall_by_chance_name_nobody_more_often_than_is_said() -> None:
    """Each of 300 fleets is looked at once."""
    draw = random.Random(7)
    named = sum(bool(gatherings(faults(*draw.choices(range(NODES), k=40)), exposure(), NOW)) for _ in range(300))
    assert named <= 3


@pytest.mark.parametrize(
    ("kind", "peer", "cause", "family"),
    [
        (FindingKind.HANG, None, "it waits", NETWORK),
        (FindingKind.SELF_TEST, "n2", "slow link", NETWORK),
        (FindingKind.CONDITION, None, ConditionKind.LINK_FLAPPING.value, NETWORK),
        (FindingKind.CONDITION, None, ConditionKind.NVLINK_DOWN.value, None),
        (FindingKind.MEMBER_LOST, None, "silent", SUPPLY),
        (FindingKind.XID, None, "xid 79", None),
    ],
)
def test_what_a_place_can_bring_about(
    kind: FindingKind, peer: str | None, cause: str, family: FaultFamily | None
) -> None:
    culprit = Subject("team/a", node="n1", peer=peer)
    assert family_of(kind, culprit, cause) is family
    assert nodes_of(culprit) == (("n1",) if peer is None else ("n1", peer))


def test_a_node_is_behind_a_place_or_behind_one_that_cannot_be_told_from_it() -> None:
    named = gatherings(faults(*BEHIND_L2, *ELSEWHERE, 16), exposure(), NOW)
    assert behind(named, (Place("rack", "r2"),)) == named
    assert behind(named, places(0)) == ()
