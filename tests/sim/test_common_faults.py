"""Faults come by their rates, each kind and each machine by numbers of its own, whatever becomes of them."""

import math
from collections import Counter
from statistics import NormalDist, fmean, median

import pytest

from holdfast.api.policy import CheckpointInterval, MemoryPolicy, Policy
from holdfast.simulator.failuretable import preset, preset_names, rates_of
from holdfast.simulator.fault import Fault, FaultRate, Reach, Spread, Symptom
from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.hazards import Hazards, blocks
from holdfast.simulator.fleet.machines import Machine
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario

NODES = 12
SEED = 5
COUNT = 2000
"""Of each kind, as its rate says; it is this many within so many standard deviations:"""
DEVIATIONS = 4.0


class Listed(Hazards):
    """What comes, and to whom, while no job runs: when, what, on which machine, and whether that is to blame."""

    def __init__(self, world: FleetWorld, scenario: Scenario, seed: int) -> None:
        self.told: list[tuple[float, str, int, bool]] = []
        super().__init__(world, scenario, seed)

    def _befall(self, fault: Fault, machine: Machine, *, infrastructure: bool, comes_again: bool = True) -> None:
        self.told.append((self._world.now, fault.name, machine.number, infrastructure))


def listed(faults: tuple[FaultRate, ...], days: float, *, nodes: int = NODES, spares: int = 0) -> Listed:
    policy = Policy("sim/faults", nodes, nodes, spares=spares)
    world = FleetWorld(scenario := Scenario(policy, Fleet(nodes, spares=spares), faults, days), SEED)
    hazards = Listed(world, scenario, SEED)
    world.run(days * DAY_S)
    return hazards


def test_blocks_have_every_machine_once_and_are_the_same_of_a_larger_fleet() -> None:
    for count in (1, 7, 8, 9, 64, 1000):
        numbers = [number for block in blocks(count) for number in block]
        assert numbers == list(range(len(numbers)))
        assert count <= len(numbers) <= max(8, 2 * count)
    assert list(blocks(1000))[:3] == list(blocks(20))


@pytest.mark.parametrize("name", preset_names())
def test_each_kind_of_a_table_comes_as_often_as_the_law_of_large_numbers_wants(name: str) -> None:
    """Each for so long that it is to come the same number of times."""
    for kind in rates_of(preset(name), name):
        told = listed((kind,), COUNT * 1000.0 / (kind.rate * NODES)).told
        assert len(told) == pytest.approx(COUNT, abs=DEVIATIONS * math.sqrt(COUNT)), kind.name
        to_blame = sum(infrastructure for *_, infrastructure in told)
        wanted = kind.infrastructure * len(told)
        spread = math.sqrt(wanted * (1.0 - kind.infrastructure))
        assert to_blame == pytest.approx(wanted, abs=DEVIATIONS * spread + 1e-6), kind.name
        every = Counter(number for _, _, number, _ in told)
        share = COUNT / NODES
        assert set(every) == set(range(NODES))
        assert all(abs(count - share) < DEVIATIONS * math.sqrt(share) for count in every.values()), kind.name


def test_a_machine_of_a_larger_fleet_fails_when_it_does_in_a_smaller_one() -> None:
    kinds = rates_of(preset("llama3"), "llama3")
    small, large = (listed(kinds, 3000.0, spares=spares).told for spares in (0, 9))
    assert len(large) > len(small) > 50
    assert [each for each in large if each[2] < NODES] == small


@pytest.mark.parametrize("sigma", [0.5, 1.0, 2.17])
def test_times_have_the_median_the_mean_and_the_tail_that_they_are_given(sigma: float) -> None:
    """A lognormal's logarithm is normal: its median, its mean, and what one in a hundred exceeds."""
    machine, spread = Machine(SEED, 3, 0, 0), Spread(600.0, sigma)
    logs = sorted(math.log(spread.drawn(machine.draw) / 600.0) for _ in range(10_000))
    assert median(logs) == pytest.approx(0.0, abs=0.05 * sigma)
    assert fmean(logs) == pytest.approx(0.0, abs=0.05 * sigma)
    assert logs[9900] == pytest.approx(sigma * NormalDist().inv_cdf(0.99), rel=0.06)


def test_a_machine_draws_the_same_whatever_the_fleet() -> None:
    one, again, other = Machine(SEED, 3, 0, 0), Machine(SEED, 3, 1, 2), Machine(SEED, 4, 0, 0)
    assert one.draw.random() == again.draw.random() != other.draw.random()


@pytest.mark.parametrize("infrastructure", [0.0, 1.0])
def test_all_behind_a_place_break_together_and_each_is_broken_until_it_is_repaired(infrastructure: float) -> None:
    fault = FaultRate("hot aisle", Symptom.HOT, Reach.RACK, infrastructure, rate=0.0)
    policy = Policy("sim/faults", NODES, NODES)
    world = FleetWorld(scenario := Scenario(policy, Fleet(NODES), (fault,), 1.0), SEED)
    world.cluster.all[6].away = True
    Hazards(world, scenario, SEED)._befall(fault, world.cluster.all[6], infrastructure=infrastructure > 0.0)
    broken = [each.number for each in world.cluster.all if each.defects]
    assert broken == ([4, 5, 7] if infrastructure else [])


@pytest.mark.parametrize("symptom", [Symptom.FALSE_ALARM, Symptom.STORAGE_SLOW])
def test_what_is_of_no_machine_breaks_none(symptom: Symptom) -> None:
    """Though a table says nothing of whose doing it is."""
    fault = FaultRate("nobody's", symptom, rate=0.0)
    world = FleetWorld(scenario := Scenario(Policy("sim/faults", NODES, NODES), Fleet(NODES), (fault,), 1.0), SEED)
    Hazards(world, scenario, SEED)._befall(fault, world.cluster.all[0], infrastructure=True)
    assert not any(each.defects for each in world.cluster.all)


def test_the_watchdog_knows_the_rack_of_every_node_that_has_come_since() -> None:
    lost = FaultRate("lost", Symptom.NODE_LOST, rate=20_000.0, repair=Spread(60.0))
    policy = Policy("sim/faults", 2, NODES, memory=MemoryPolicy(), interval=CheckpointInterval())
    world = FleetWorld(scenario := Scenario(policy, Fleet(NODES), (lost,), 0.1), SEED)
    Hazards(world, scenario, SEED)
    world.begin()
    world.run(0.1 * DAY_S)
    there = {each.node for each in world.members.values()}
    assert int(max(world.members, key=lambda name: int(name[1:]))[1:]) > NODES
    assert there <= set(world.job.state.racks)
