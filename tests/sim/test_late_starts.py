"""Starts of all kinds in virtual time: nobody is named who is only slow, and who hangs is named early."""

from functools import partial
from statistics import median

import pytest
from schedule import all_keep_their_promises
from startsworld import STARTUP_S, StartsWorld, hang_next

from holdfast.simulator.world.member import Worker

SEEDS = 20
BATCH = 10
STARTS = 6
HANG_SEEDS = range(20)
SOON_S = STARTUP_S / 3


def healthy(seed: int, group: int = 0) -> None:
    """A job that starts again and again, and in which nothing hangs."""
    world = StartsWorld(seed, group=group)
    assert world.run_until_all_train(2 * STARTUP_S) is not None, f"seed {seed}: it does not train"
    for _ in range(STARTS):
        world.strike()
        assert world.run_until_all_train(2 * STARTUP_S) is not None, f"seed {seed}: it trains no more"
        world.run(world.draw.uniform(1.0, 30.0))
    hangs = world.hangs()
    assert not hangs, f"seed {seed}: {[(each.cause, each.subject) for each in hangs]}"


@pytest.mark.timeout(1200)
@pytest.mark.parametrize("group", [0, 1, 2])
def test_in_starts_that_are_only_slow_nobody_is_named(group: int) -> None:
    all_keep_their_promises(partial(healthy, group=group), SEEDS, BATCH)


def hung(seed: int, how: Worker, group: int = 0) -> float:
    """Seconds until a job trains again in which a worker hangs before it enters the round of its fourth fault."""
    world = StartsWorld(seed, group=group)
    assert world.run_until_all_train(2 * STARTUP_S) is not None
    for again in range(4):
        round_ = world.job.state.round
        assert round_ is not None
        victim = round_.ranks[-1].member
        if again == 3:
            hang_next(world, victim, how)
        world.members[victim].kill_worker(0)
        took_s = world.run_until_all_train(2 * STARTUP_S)
        assert took_s is not None, f"seed {seed}: it trains no more"
        world.run(10.0)
    assert len(world.hangs()) == 1
    return took_s


@pytest.mark.parametrize(
    ("how", "group"),
    [(Worker.STUCK, 0), (Worker.STUCK, 2), (Worker.STOPPED, 0), (Worker.STOPPED, 1), (Worker.STOPPED, 2)],
    ids=["running", "running, in a group", "stopped", "stopped, alone in its group", "stopped, in a group"],
)
def test_a_worker_that_hangs_before_it_enters_a_round_costs_little(how: Worker, group: int) -> None:
    took_s = sorted(hung(seed, how, group) for seed in HANG_SEEDS)
    assert median(took_s) < SOON_S
