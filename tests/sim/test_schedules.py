"""Seeded random schedules of faults against the real brain, detectors and journal.

A failure prints its seed; see it again with `SIM_SEED=N make test-sim`.
"""

import multiprocessing
import os
import traceback

import pytest
from invariants import Broken
from smallworld import SmallWorld
from vocabulary import FAULTS, PLANNED

from holdfast.api.selftest import TestLevel

SCHEDULES = 300
BATCH = 25
FAULTS_MAX = 8
TEST_PATIENCE_S = 125.0  # a member that never answers a self-test is waited for so long
FULL_TEST_PATIENCE_S = 905.0
LINKS_PATIENCE_S = 85.0  # two leads that are silent, one after the other


def patience_s(world: SmallWorld) -> float:
    """For how long tests that nobody answers may keep a job waiting."""
    devices_s = 0.0 if world.policy.preflight is None else TEST_PATIENCE_S
    return devices_s + (0.0 if world.policy.links is None else LINKS_PATIENCE_S)


def live_through(seed: int) -> SmallWorld:
    """One schedule: a job starts, faults fall on it, then it is left alone until everything must be well."""
    world = SmallWorld(seed)
    world.run(10.0)
    for _ in range(world.draw.randint(1, FAULTS_MAX)):
        world.run(world.draw.choice((0.0, 0.05, 0.5, 3.0, 8.0)))
        fault = world.draw.choice(FAULTS)
        world.note(f"fault {fault.__name__}")
        fault(world)
    world.run(90.0 + patience_s(world))
    if any(each.bars and each.level is TestLevel.FULL for each in world.job.state.trials.values()):
        world.run(FULL_TEST_PATIENCE_S)
    world.invariants.settled()
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
    return world


def first_broken(seeds: range) -> str | None:
    """What the first schedule of the batch that broke a promise says, None when all kept theirs."""
    for seed in seeds:
        try:
            live_through(seed)
        except Broken as broken:
            return str(broken)
        except Exception:
            return f"seed {seed} failed:\n{traceback.format_exc()}"
    return None


@pytest.mark.timeout(1200)
def test_every_schedule_keeps_every_promise() -> None:
    if seed := os.environ.get("SIM_SEED"):
        live_through(int(seed))
        return
    batches = [range(first, first + BATCH) for first in range(0, SCHEDULES, BATCH)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken = [says for says in pool.imap_unordered(first_broken, batches) if says]
    assert not broken, "\n\n".join(broken[:3])


def test_a_schedule_is_the_same_every_time_it_is_lived_through() -> None:
    assert live_through(7).log == live_through(7).log


def test_a_promise_that_is_broken_prints_its_seed() -> None:
    world = SmallWorld(3)
    with pytest.raises(Broken, match="seed 3"):
        world.invariants.require(False, "nothing holds")  # noqa: FBT003 - the promise under test


@pytest.mark.timeout(600)
def test_planned_changes_are_no_incidents() -> None:
    """What is announced is no incident: nodes drained, pods told to end, suspensions, checkpoints on request."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken = [says for says in pool.imap_unordered(changes_break, range(150), chunksize=10) if says]
    assert not broken, "\n\n".join(broken[:3])


def changes_break(seed: int) -> str | None:
    """What a schedule of changes broke, None when nothing."""
    try:
        world = live_through_changes(seed)
    except Broken as broken:
        return str(broken)
    except Exception:
        return f"seed {seed} failed:\n{traceback.format_exc()}"
    incidents = world.job.state.incidents
    return f"seed {seed}: {incidents[0]}\n" + "\n".join(world.log[-30:]) if incidents else None
