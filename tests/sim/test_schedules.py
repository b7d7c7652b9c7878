"""Seeded random schedules of faults against the real brain, detectors and journal.

A failure prints its seed; see it again with `SIM_SEED=N make test-sim`.
"""

import pytest
from invariants import Broken
from schedule import all_keep_their_promises, leave_alone, patience_s
from smallworld import SmallWorld
from vocabulary import FAULTS, PLANNED

SCHEDULES = 300
BATCH = 25
FAULTS_MAX = 8


def live_through(seed: int) -> SmallWorld:
    """One schedule: a job starts, faults fall on it, then it is left alone until everything must be well."""
    world = SmallWorld(seed)
    world.run(10.0)
    for _ in range(world.draw.randint(1, FAULTS_MAX)):
        world.run(world.draw.choice((0.0, 0.05, 0.5, 3.0, 8.0)))
        fault = world.draw.choice(FAULTS)
        world.note(f"fault {fault.__name__}")
        fault(world)
    leave_alone(world)
    return world


def live_through_changes(seed: int) -> SmallWorld:
    """One schedule without a fault: a job whose nodes are drained, whose pods are moved, that is suspended."""
    world = SmallWorld(seed, sound=True)
    world.run(20.0)
    for _ in range(world.draw.randint(1, 3)):
        change = world.draw.choice(PLANNED)
        world.note(f"change {change.__name__}")
        change(world)
        world.run(world.draw.choice((0.5, 30.0, 60.0)))
    world.run(120.0 + patience_s(world))
    world.invariants.settled()
    incidents = world.job.state.incidents
    world.invariants.require(not incidents, f"a change is an incident: {incidents[:1]}")
    return world


@pytest.mark.timeout(1200)
def test_every_schedule_keeps_every_promise() -> None:
    all_keep_their_promises(live_through, SCHEDULES, BATCH)


def test_a_schedule_is_the_same_every_time_it_is_lived_through() -> None:
    assert live_through(7).log == live_through(7).log


def test_a_promise_that_is_broken_prints_its_seed() -> None:
    world = SmallWorld(3)
    with pytest.raises(Broken, match="seed 3"):
        world.invariants.require(False, "nothing holds")  # noqa: FBT003 - the promise under test


@pytest.mark.timeout(600)
def test_planned_changes_are_no_incidents() -> None:
    """What is announced is no incident: nodes drained, pods told to end, suspensions, checkpoints on request."""
    all_keep_their_promises(live_through_changes, 150, 10)
