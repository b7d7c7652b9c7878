"""Scenarios reduced to what a formula knows: one kind of fault, and times that never vary."""

import math
from typing import Any

from holdfast.api.policy import (
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    MemoryPolicy,
    Policy,
    RestartBudget,
)
from holdfast.simulator.fault import FaultRate, Happening, Spread, Symptom
from holdfast.simulator.live import live
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario, Times

NODES = 8
STEP_S = 1.0
AT_ONCE = Spread(0.0)
RARELY = CheckpointInterval(seconds=1e9)
SEED = 2
"""Of which 121 faults come where 120 are to: chance is to say little of what is compared with a formula."""


def lost_node(between_failures_s: float) -> FaultRate:
    """A node with ranks that goes, every so often."""
    rate = 1000.0 * DAY_S / (between_failures_s * NODES)
    return FaultRate("node lost", Symptom.NODE_LOST, rate=rate, infrastructure=0.0, repair=AT_ONCE)


def unlimited(nodes_min: int, nodes_max: int, **settings: Any) -> Policy:
    """What may go on for ever, with a spare for each node, and compares nothing."""
    return Policy(
        "sim/closed",
        nodes_min,
        nodes_max,
        spares=nodes_max,
        startup_timeout_s=DAY_S,
        checkpoint_uri="/ckpt",
        corruption=CorruptionPolicy(fingerprint_every=0),
        restarts=RestartBudget(count=10**6),
        evictions=EvictionBudget(count=10**6),
        **settings,
    )


def lived(
    *,
    restart_s: float,
    days: float,
    between_failures_s: float = math.inf,
    every_s: int = 0,
    stall_s: float = 0.0,
    at_s: tuple[float, ...] = (),
    seed: int = SEED,
) -> Outcome:
    """A node goes every `between_failures_s` on average, or `at_s`; each time all restart, in `restart_s`, from
    the newest checkpoint. One is saved after every `every_s` of training, for which all stand still for `stall_s`;
    without `every_s` no step is lost, because memory has all.
    """
    policy = unlimited(
        NODES,
        NODES,
        memory=None if every_s else MemoryPolicy(replicas=NODES - 2),
        interval=CheckpointInterval(steps=every_s) if every_s else RARELY,
    )
    times = Times(
        stop_s=0.0,
        reenter_s=0.0,
        start_s=0.0,
        start_cold_s=0.0,
        join_s=0.0,
        join_per_doubling_s=0.0,
        load_s=restart_s,
        load_memory_s=restart_s,
        first_step_s=0.0,
        provision=Spread(10.0),
        save_stall_s=stall_s,
        save_took_s=0.0,
    )
    fault = lost_node(between_failures_s)
    scenario = Scenario(
        policy,
        Fleet(NODES, spares=NODES, free=NODES),
        () if math.isinf(between_failures_s) else (fault,),
        days,
        STEP_S,
        times,
        happenings=tuple(Happening(at, fault) for at in at_s),
    )
    return live(scenario, seed)


def lived_in_groups(
    *, groups: int, away_s: float, stall_s: float, at_s: tuple[float, ...], days: float
) -> Outcome:
    """A node goes `at_s`, and with it its replica group, of one node, for `away_s`. All others stand still for
    `stall_s` each time: a quarter of it when the group is gone, the rest when it comes back.
    """
    policy = unlimited(1, groups, replica_nodes=1, interval=RARELY)
    times = Times(
        stop_s=0.0,
        reenter_s=0.0,
        start_s=away_s - 0.75 * stall_s - STEP_S,
        join_s=0.0,
        join_per_doubling_s=0.0,
        load_s=0.0,
        first_step_s=0.0,
        regroup_s=0.25 * stall_s,
        regroup_per_1000_ranks_s=0.0,
        copy_s=0.5 * stall_s,
        provision=Spread(10.0),
        save_stall_s=0.0,
    )
    fault = lost_node(math.inf)
    fleet = Fleet(groups, spares=groups, free=groups, rack=1)
    happenings = tuple(Happening(at, fault) for at in at_s)
    return live(Scenario(policy, fleet, (), days, STEP_S, times, happenings=happenings), 1)
