import random
from collections.abc import Callable

import pytest
from msgspec.structs import replace

from holdfast.agent.linktest.judgement import Measured, better, doubtful, judge, with_rings
from holdfast.agent.linktest.schedule import rounds
from holdfast.api.selftest import Verdict

Fault = Callable[[Measured], Measured]


def fleet(nodes: int, seed: int = 0, turn: int = 0, noise: float = 0.1) -> list[Measured]:
    """Every link of a test alike but for noise, of so many parts."""
    chance = random.Random(seed)
    return [
        Measured(
            one=f"n{one}",
            other=f"n{other}",
            latency_s=100e-6 * chance.lognormvariate(0, noise),
            rate=3e9 * chance.lognormvariate(0, noise),
            resent=chance.choice((0.0, 0.0, 1e-4)),
        )
        for pairs in rounds(nodes, turn)
        for one, other in pairs
    ]


def spoilt(measured: list[Measured], fault: Fault, *ends: str) -> list[Measured]:
    """With the fault on every link that has all of these ends."""
    return [fault(each) if set(ends) <= {each.one, each.other} else each for each in measured]


FAULTS: dict[str, Fault] = {
    "10 ms more": lambda each: replace(each, latency_s=each.latency_s + 10e-3),
    "1 % lost": lambda each: replace(each, resent=0.01),
    "half the lanes": lambda each: replace(each, rate=each.rate / 4),
    "dead": lambda each: Measured(one=each.one, other=each.other, error="no answer over it: timed out"),
}


@pytest.mark.parametrize("nodes", [4, 5, 6, 8, 9, 33, 64, 500])
@pytest.mark.parametrize("fault", FAULTS.values(), ids=FAULTS.keys())
def test_the_node_that_all_bad_links_have_in_common_is_named(nodes: int, fault: Fault) -> None:
    judged = judge(spoilt(fleet(nodes, noise=0.02), fault, "n2"))

    assert (judged.verdict, list(judged.nodes), judged.links) == (Verdict.FAILED, ["n2"], ())


def test_two_bad_nodes_are_both_named() -> None:
    judged = judge(spoilt(spoilt(fleet(16), FAULTS["dead"], "n3"), FAULTS["10 ms more"], "n11"))

    assert sorted(judged.nodes) == ["n11", "n3"]
    assert judged.links == ()


def test_one_bad_way_between_sound_nodes_is_a_link() -> None:
    judged = judge(spoilt(fleet(8), FAULTS["1 % lost"], "n2", "n5"))

    assert judged.nodes == {}
    assert [(each.one, each.other) for each in judged.links] == [("n2", "n5")]
    assert "1.00% of segments sent again" in judged.says


@pytest.mark.parametrize("noise", [0.0, 0.02, 0.1, 0.3])
def test_healthy_fleets_are_seldom_blamed(noise: float) -> None:
    """A thousand tests of 64 nodes: what is called bad is one test in a hundred at most, and no node ever."""
    judged = [judge(fleet(64, seed, seed, noise)) for seed in range(1000)]

    assert sum(each.verdict is Verdict.FAILED for each in judged) <= 10
    assert not any(each.nodes for each in judged)


def test_too_few_links_are_not_judged() -> None:
    judged = judge(spoilt(fleet(3), FAULTS["10 ms more"], "n2"))

    assert judged.verdict is Verdict.UNKNOWN
    assert "6 are needed" in judged.says


def test_few_links_are_compared_with_what_was_usual_in_the_fleet() -> None:
    usual = judge(fleet(8)).usual
    assert usual is not None
    assert judge(fleet(3), usual).verdict is Verdict.PASSED
    for fault in FAULTS.values():
        judged = judge(spoilt(fleet(3), fault, "n2"), usual)
        assert (judged.verdict, list(judged.nodes)) == (Verdict.FAILED, ["n2"])
        assert judged.usual is None, "of a few links nothing is usual"


def test_what_is_dead_is_named_without_a_comparison() -> None:
    assert list(judge(spoilt(fleet(3), FAULTS["dead"], "n2")).nodes) == ["n2"]
    (link,) = judge(spoilt(fleet(2), FAULTS["dead"])).links
    assert (link.one, link.other, link.says) == ("n0", "n1", "no answer over it: timed out")


def ring(nodes: int, bad: int | None = None, fault: Fault | None = None) -> list[Measured]:
    """The ways of a ring, alike but for noise; those to and from node `bad` with the fault, or only from it."""
    chance = random.Random(0)
    ways = []
    for place in range(nodes):
        one, other = f"n{place}", f"n{(place + 1) % nodes}"
        took_s = 0.1 * chance.lognormvariate(0, 0.02)
        ways.append(Measured(one=one, other=other, latency_s=took_s, rate=3e6 / took_s, stall_s=2 * took_s))
    return ways if fault is None else spoilt(ways, fault, *(() if bad is None else (f"n{bad}",)))


RING_FAULTS: dict[str, Fault] = {
    "one direction at a time": lambda each: replace(each, rate=each.rate / 2),
    "1 % lost": FAULTS["1 % lost"],
    "a stall": lambda each: replace(each, stall_s=2.0),
    "dead": FAULTS["dead"],
}


@pytest.mark.parametrize("nodes", [6, 8, 32])
@pytest.mark.parametrize("fault", RING_FAULTS.values(), ids=RING_FAULTS.keys())
def test_what_shows_only_in_a_ring_names_the_node_at_whose_both_ways_it_is(nodes: int, fault: Fault) -> None:
    judged = with_rings(judge(fleet(nodes)), ring(nodes, 2, fault))

    assert (judged.verdict, list(judged.nodes), judged.links) == (Verdict.FAILED, ["n2"], ())


def test_one_bad_way_of_a_ring_is_a_link() -> None:
    ways = ring(8)
    ways[3] = replace(ways[3], stall_s=3.0)
    judged = with_rings(judge(fleet(8)), ways)

    assert judged.nodes == {}
    assert [(each.one, each.other, each.says) for each in judged.links] == [
        ("n3", "n4", "a part took 3.00 s, most others 0.20 s")
    ]


def test_a_link_that_pairs_and_rings_find_bad_is_told_once_and_not_beside_its_node() -> None:
    dead = FAULTS["dead"]
    pairs = judge(spoilt(spoilt(fleet(8), dead, "n2", "n5"), dead, "n7"))
    judged = with_rings(pairs, spoilt(ring(8), dead, "n6", "n7"))

    assert list(judged.nodes) == ["n7"]
    assert [(each.one, each.other) for each in judged.links] == [("n2", "n5")]


def test_the_neighbour_of_a_node_that_pairs_blame_is_not_blamed_for_its_ways() -> None:
    ways = spoilt(ring(8), FAULTS["1 % lost"], "n2")
    ways[3] = replace(ways[3], stall_s=3.0)
    judged = with_rings(judge(spoilt(fleet(8), FAULTS["1 % lost"], "n2")), ways)

    assert list(judged.nodes) == ["n2"]
    assert [(each.one, each.other) for each in judged.links] == [("n3", "n4")]


def test_sound_rings_beside_too_few_pairs_pass_and_nothing_to_compare_is_unknown() -> None:
    assert with_rings(judge(fleet(8)), ring(8)).verdict is Verdict.PASSED
    nothing = with_rings(judge(fleet(3)), ring(3))
    assert nothing.verdict is Verdict.UNKNOWN
    assert nothing.says.count("6 are needed") == 2


def test_a_whole_fleet_that_is_slow_has_nothing_to_be_compared_with() -> None:
    assert judge([FAULTS["10 ms more"](each) for each in fleet(8)]).verdict is Verdict.PASSED


def test_a_link_that_was_slow_for_a_moment_is_measured_again_and_not_blamed() -> None:
    sound = fleet(8, noise=0.02)
    measured = spoilt(sound, FAULTS["half the lanes"], "n3", "n4")
    doubts = doubtful(measured, judge(measured))

    assert [(each.one, each.other) for each in doubts] == [("n3", "n4")]
    again = [each for each in sound if {each.one, each.other} == {"n3", "n4"}]
    assert judge(better(measured, again)).verdict is Verdict.PASSED


def test_a_link_that_is_bad_again_is_blamed_and_so_is_one_that_nothing_came_over() -> None:
    measured = spoilt(spoilt(fleet(8), FAULTS["1 % lost"], "n2", "n5"), FAULTS["dead"], "n0", "n1")
    judged = judge(measured)
    doubts = doubtful(measured, judged)

    assert [(each.one, each.other) for each in doubts] == [("n2", "n5")], "silence is no noise"
    assert judge(better(measured, doubts)) == judged


def test_a_node_that_all_its_links_speak_against_is_not_in_doubt() -> None:
    measured = spoilt(fleet(8), FAULTS["10 ms more"], "n2")

    assert doubtful(measured, judge(measured)) == []


def test_a_link_that_answered_once_and_then_not_is_dead() -> None:
    sound = fleet(8)
    dead = FAULTS["dead"](sound[0])

    assert better(sound[:1], [dead]) == [dead]
    assert better([dead], sound[:1]) == [dead]
