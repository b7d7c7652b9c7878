"""A launcher that is stopped for a while, and whose connection stays open all the time."""

import msgspec
import pytest
from smallworld import SmallWorld

from holdfast.api.policy import EvictionBudget
from holdfast.api.status import JobPhase


def a_world(nodes: int) -> SmallWorld:
    world = SmallWorld(1, sound=True)
    fields = {"nodes_min": nodes, "nodes_max": nodes, "spares": 0, "generation": 2, "preflight": None, "tensor": 1}
    world.submit(msgspec.structs.replace(world.policy, **fields, evictions=EvictionBudget()))
    world.run(60.0)
    assert world.job.state.phase is JobPhase.RUNNING, world.job.state.reason
    assert len(world.job.state.round.ranks) == nodes
    return world


@pytest.mark.parametrize("nodes", [1, 3])
@pytest.mark.parametrize("seconds", [2.0, 4.0, 6.0, 30.0, 300.0])
def test_a_launcher_that_was_silent_comes_back_and_the_job_trains_on(nodes: int, seconds: float) -> None:
    world = a_world(nodes)
    frozen = next(iter(world.members.values()))
    frozen.freeze(seconds)
    world.run(seconds + 60.0)
    lost = [each.cause for each in world.job.state.incidents]
    assert bool(lost) == (seconds > world.policy.lost_after_s), lost
    world.invariants.settled()
