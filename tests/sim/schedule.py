"""Random schedules of faults: many are lived through side by side, and what the first that broke said is told."""

import multiprocessing
import os
import traceback
from collections.abc import Callable
from functools import partial

from invariants import Broken
from smallworld import SmallWorld

from holdfast.api.selftest import TestLevel

TEST_PATIENCE_S = 125.0  # a member that never answers a self-test is waited for so long
FULL_TEST_PATIENCE_S = 905.0
LINKS_PATIENCE_S = 85.0  # two leads that are silent, one after the other

Schedule = Callable[[int], object]
"""Lives through the one of a seed. Raises Broken."""


def patience_s(world: SmallWorld) -> float:
    """For how long tests that nobody answers may keep a job waiting."""
    devices_s = 0.0 if world.policy.preflight is None else TEST_PATIENCE_S
    return devices_s + (0.0 if world.policy.links is None else LINKS_PATIENCE_S)


def leave_alone(world: SmallWorld) -> None:
    """No fault comes any more, until everything must be well."""
    world.run(90.0 + patience_s(world))
    if any(each.bars and each.level is TestLevel.FULL for each in world.job.state.trials.values()):
        world.run(FULL_TEST_PATIENCE_S)
    world.invariants.settled()


def first_broken(schedule: Schedule, seeds: range) -> str | None:
    """What the first of these seeds that broke a promise says, None when all kept theirs."""
    for seed in seeds:
        try:
            schedule(seed)
        except Broken as broken:
            return str(broken)
        except Exception:
            return f"seed {seed} failed:\n{traceback.format_exc()}"
    return None


def all_keep_their_promises(schedule: Schedule, count: int, batch: int) -> None:
    """The seeds below `count`, so many of them in a process after one another; or that of SIM_SEED alone."""
    if seed := os.environ.get("SIM_SEED"):
        schedule(int(seed))
        return
    batches = [range(first, first + batch) for first in range(0, count, batch)]
    with multiprocessing.get_context("spawn").Pool(os.cpu_count()) as pool:
        broken = [says for says in pool.imap_unordered(partial(first_broken, schedule), batches) if says]
    assert not broken, "\n\n".join(broken[:3])
