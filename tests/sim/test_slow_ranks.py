"""A slow rank in a fleet of many nodes is found by the real detector, and the policy says what comes of it."""

import pytest

from holdfast.api.policy import CheckpointInterval, Policy, SlowAction, StragglerPolicy
from holdfast.simulator.fault import Fault, Happening, Spread, Symptom
from holdfast.simulator.fleet.fleetworld import FleetWorld
from holdfast.simulator.fleet.hazards import Hazards
from holdfast.simulator.outcome import LostTo
from holdfast.simulator.scenario import Fleet, Scenario
from holdfast.watchdog.brain.state import SlowStage

NODES, HOUR_S = 32, 3600.0
BEGINS_S, LASTS_S, FACTOR = HOUR_S, 2.0 * HOUR_S, 1.5
ALL_OF_IT_S = LASTS_S * (1.0 - 1.0 / FACTOR)


def slowed(action: SlowAction, infrastructure: float = 1.0, processes: int = 8) -> FleetWorld:
    """A rank of the eighth machine is slow for two hours of four."""
    policy = Policy(
        "sim/slow",
        NODES,
        NODES,
        spares=2,
        processes_per_node=processes,
        checkpoint_uri="/ckpt",
        interval=CheckpointInterval(seconds=600.0),
        straggler=StragglerPolicy(action=action),
    )
    slow = Fault("slow", Symptom.SLOW, infrastructure=infrastructure, lasts=Spread(LASTS_S), factor=FACTOR)
    given = (Happening(BEGINS_S, slow, 7),)
    scenario = Scenario(policy, Fleet(NODES, spares=2), (), 1.0, tests_find=0.0, happenings=given)
    world = FleetWorld(scenario, 1)
    Hazards(world, scenario, 1)
    world.begin()
    world.run(4.0 * HOUR_S)
    world.training.advance()
    return world


def lost_to_slowness(world: FleetWorld) -> float:
    return world.books.lost_s["slow"][LostTo.SLOW]


def test_what_is_only_reported_slows_everybody_for_as_long_as_it_lasts() -> None:
    world = slowed(SlowAction.REPORT)
    (incident,) = world.job.state.incidents
    assert (incident.kind.value, incident.culprit.node) == ("Straggler", "n7")
    assert incident.detected_at - 1000.0 - BEGINS_S < 300.0
    assert lost_to_slowness(world) == pytest.approx(ALL_OF_IT_S, rel=0.01)
    assert world.rounds == 1


@pytest.mark.parametrize("processes", [1, 8])
def test_a_spare_that_takes_its_ranks_ends_it_in_a_quarter_of_an_hour(processes: int) -> None:
    world = slowed(SlowAction.SWAP, processes=processes)
    assert lost_to_slowness(world) < ALL_OF_IT_S / 8.0
    assert (world.rounds, world.spares_used) == (2, 1)
    (slow,) = world.job.state.slow
    assert slow.stage is SlowStage.STAYED


def test_what_follows_its_rank_is_moved_once_and_the_node_is_innocent() -> None:
    world = slowed(SlowAction.EVICT, infrastructure=0.0)
    assert lost_to_slowness(world) == pytest.approx(ALL_OF_IT_S, rel=0.03)
    assert world.spares_used == 1
    assert "node n7 is exonerated" in world.job.state.incidents[0].note
    assert world.job.state.avoided == ()
