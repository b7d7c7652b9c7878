"""Seeded random schedules of faults against the real brain, detectors and journal.

A failure prints its seed; see it again with `SIM_SEED=N make test-sim`.
"""

import multiprocessing
import os
import traceback
from collections.abc import Callable

import msgspec
import pytest
from invariants import Broken
from member import SimulatedMember
from world import JOB, World

from holdfast.api.event import InterventionRequested
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.telemetry import GpuDisappeared, XidRaised

SCHEDULES = 1500
BATCH = 50
FAULTS_MAX = 6
TEST_PATIENCE_S = 125.0  # a member that never answers a self-test is waited for so long


def _member(world: World) -> SimulatedMember | None:
    there = [member for member in world.members.values() if member.alive]
    return world.random.choice(sorted(there, key=lambda each: each.name)) if there else None


def kill_worker(world: World) -> None:
    if (member := _member(world)) is not None and member.workers:
        error = world.random.choice(("", "", "ValueError: bad batch"))
        member.kill_worker(world.random.randrange(len(member.workers)), error)


def stop_worker(world: World) -> None:
    if (member := _member(world)) is not None and member.workers:
        member.stop_worker(world.random.randrange(len(member.workers)))


def kill_node(world: World) -> None:
    if (member := _member(world)) is not None:
        world.remove_node(member, "power")


def restart_launcher(world: World) -> None:
    if (member := _member(world)) is not None:
        member.restart_launcher()


def break_connection(world: World) -> None:
    if (member := _member(world)) is not None:
        member.disconnect(told=True)


def partition(world: World) -> None:
    if (member := _member(world)) is not None:
        member.partition(world.jitter(0.5, 8.0))


def raise_xid(world: World) -> None:
    if (member := _member(world)) is not None:
        code = world.random.choice((13, 31, 43, 45, 48, 63, 79, 94, 95))
        member.report((XidRaised(f"GPU-{member.name}", code, 0.01),))


def lose_gpu(world: World) -> None:
    if (member := _member(world)) is not None:
        member.report((GpuDisappeared(f"GPU-{member.name}", 0.01),))


def flip_bit(world: World) -> None:
    if (member := _member(world)) is not None:
        member.flip_bit()


def kill_watchdog(world: World) -> None:
    world.kill_watchdog(world.jitter(0.1, 5.0))


def leave(world: World) -> None:
    if (member := _member(world)) is not None:
        member.leave()


def drain(world: World) -> None:
    if (member := _member(world)) is not None:
        world.drain(member)
        if world.random.random() < 0.3:
            world.after(world.jitter(0.5, 30.0), lambda: world.call_off(member.node))


def end_pod(world: World) -> None:
    if (member := _member(world)) is not None:
        member.told_to_end(world.jitter(1.0, 30.0))


def suspend_for_a_while(world: World) -> None:
    policy = world.policy
    if policy.suspend:
        return
    world.submit(msgspec.structs.replace(policy, suspend=True, generation=policy.generation + 1))
    resumed = msgspec.structs.replace(policy, generation=policy.generation + 2)
    world.after(world.jitter(0.5, 25.0), lambda: world.submit(resumed))


def ask_for_a_checkpoint(world: World) -> None:
    if world.up:
        id = f"c{world.random.random()}"
        request = InterventionRequest(id, JOB, InterventionAction.CHECKPOINT, "test")
        world.carry_out(world.job.record(InterventionRequested(request), world.now))


PLANNED: tuple[Callable[[World], None], ...] = (
    drain,
    end_pod,
    suspend_for_a_while,
    ask_for_a_checkpoint,
)
FAULTS: tuple[Callable[[World], None], ...] = (
    kill_worker,
    kill_worker,
    stop_worker,
    kill_node,
    restart_launcher,
    break_connection,
    partition,
    raise_xid,
    lose_gpu,
    flip_bit,
    kill_watchdog,
    leave,
    *PLANNED,
)


def live_through(seed: int) -> World:
    """One schedule: a job starts, faults fall on it, then it is left alone until everything must be well."""
    world = World(seed)
    world.run(10.0)
    for _ in range(world.random.randint(1, FAULTS_MAX)):
        world.run(world.random.choice((0.0, 0.05, 0.5, 3.0, 8.0)))
        fault = world.random.choice(FAULTS)
        world.note(f"fault {fault.__name__}")
        fault(world)
    world.run(90.0 if world.policy.preflight is None else 90.0 + TEST_PATIENCE_S)
    world.invariants.settled()
    return world


def live_through_changes(seed: int) -> World:
    """One schedule without a fault: a job whose nodes are drained, whose pods are moved, that is suspended."""
    world = World(seed, sound=True)
    world.run(20.0)
    for _ in range(world.random.randint(1, 3)):
        change = world.random.choice(PLANNED)
        world.note(f"change {change.__name__}")
        change(world)
        world.run(world.random.choice((0.5, 30.0, 60.0)))
    world.run(120.0 if world.policy.preflight is None else 120.0 + TEST_PATIENCE_S)
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
    world = World(3)
    with pytest.raises(Broken, match="seed 3"):
        world.invariants.require(False, "nothing holds")  # noqa: FBT003 - the promise under test


@pytest.mark.timeout(600)
def test_planned_changes_are_no_incidents() -> None:
    """What is announced is no incident: nodes drained, pods told to end, suspensions, checkpoints on request."""
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken = [says for says in pool.imap_unordered(changes_break, range(300), chunksize=20) if says]
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
