"""Replica groups under random schedules of faults: the real brain and detectors, every step made.

A failure prints its seed; see it again with `SIM_SEED=N make test-sim`.
"""

from collections.abc import Callable

import pytest
from schedule import all_keep_their_promises, leave_alone
from smallworld import SmallWorld
from vocabulary import FAULTS, kill_node, kill_worker

from holdfast.api.status import JobPhase
from holdfast.simulator.fault import Symptom
from holdfast.simulator.recorded import recorded
from holdfast.simulator.world.member import SimulatedMember
from holdfast.watchdog import brain
from holdfast.watchdog.journal.replay import walk

SCHEDULES = 60
BATCH = 15
FAULTS_MAX = 6
WITH_A_GROUP_TO_LOSE = 7  # the seed of a job with one more than it needs


def live_through(seed: int) -> SmallWorld:
    """One schedule: faults fall on a job of replica groups, then it is left alone until all must be well."""
    world = SmallWorld(seed, in_groups=True)
    world.run(15.0)
    for _ in range(world.draw.randint(1, FAULTS_MAX)):
        world.run(world.draw.choice((0.0, 0.05, 0.5, 3.0, 8.0)))
        fault = world.draw.choice((*FAULTS, *[kill_worker, kill_node] * 4))
        world.note(f"fault {fault.__name__}")
        fault(world)
    leave_alone(world)
    world.invariants.samples_are_taken_once()
    return world


@pytest.mark.timeout(1200)
def test_every_schedule_keeps_what_replica_groups_promise() -> None:
    all_keep_their_promises(live_through, SCHEDULES, BATCH)


FAULTS_OF_ONE: dict[str, Callable[[SmallWorld, SimulatedMember], None]] = {
    "a worker dies": lambda world, member: member.kill_worker(0),
    "a node goes": lambda world, member: world.remove_node(member, "power"),
    "a launcher starts anew": lambda world, member: member.restart_launcher(),
}


@pytest.mark.parametrize("fault", FAULTS_OF_ONE)
def test_a_fault_costs_the_other_groups_no_step_and_its_group_comes_back(fault: str) -> None:
    world = SmallWorld(WITH_A_GROUP_TO_LOSE, sound=True, in_groups=True)
    world.run(30.0)
    before, first = world.training.shares.given.copy(), world.job.state.round
    assert before
    assert first is not None
    assert first.training >= world.policy.nodes_min + world.policy.replica_nodes
    FAULTS_OF_ONE[fault](world, world.members[first.ranks[-1].member])
    world.run(60.0)
    given, now = world.training.shares.given, world.job.state.round
    assert world.job.state.phase is JobPhase.RUNNING
    assert now is not None
    assert before.items() <= given.items(), "no step that was made was given up"
    assert [each.lost for each in given.values() if each.lost] == [1], "one group, in one step"
    assert all(group.trains for group in now.groups)
    assert len(now.groups) == len(first.groups)
    assert len({group.epoch for group in now.groups}) == 2, "the others are in the group that they were in"
    world.invariants.samples_are_taken_once()


def test_a_run_of_groups_that_was_is_lived_through_again_with_its_own_times() -> None:
    world = SmallWorld(WITH_A_GROUP_TO_LOSE, sound=True, in_groups=True)
    world.run(60.0)
    world.remove_node(world.members[next(iter(world.job.state.ranked()))], "power")
    world.run(60.0)
    found = recorded(walk(world.store, world.job.name, brain=brain))
    assert found.policy.replica_nodes == world.policy.replica_nodes
    assert [each.fault.symptom for each in found.happenings] == [Symptom.NODE_LOST]
    assert 0.0 < found.times.copy_s == 2.0 * found.times.load_s
    assert found.times.regroup_s == found.times.start_s
