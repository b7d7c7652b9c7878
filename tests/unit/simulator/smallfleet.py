"""A fleet of arithmetic in place of the simulated one: faults by a Poisson process, and each costs its minutes.

It says of a scenario what the tests around a simulator want to know beforehand: a fault costs `LOST_S`, half an
interval more where one is fixed, and with a spare a minute less.
"""

import math
import random

from holdfast.simulator.outcome import LostTo, Outcome
from holdfast.simulator.scenario import DAY_S, Scenario

LOST_S = 300.0


def small_live(scenario: Scenario, seed: int) -> Outcome:
    """One run. The same seed has the same faults whatever the policy."""
    elapsed = scenario.days * DAY_S
    interval = scenario.policy.interval
    replay = interval.seconds / 2.0 if interval is not None and interval.seconds is not None else 0.0
    restart = LOST_S - (60.0 if scenario.fleet.spares else 0.0)
    lost, faults = {}, {}
    for fault in scenario.faults:
        chance = random.Random(f"{seed}/{fault.name}")
        count = poisson(chance, fault.rate / 1000.0 * scenario.fleet.nodes * scenario.days)
        faults[fault.name] = count
        lost[fault.name] = {LostTo.RESTART: count * restart, LostTo.REPLAY: count * replay}
    for happening in scenario.happenings:
        name = happening.fault.name
        faults[name] = faults.get(name, 0) + 1
        lost.setdefault(name, {LostTo.RESTART: 0.0})[LostTo.RESTART] += restart + replay
    gone = sum(sum(each.values()) for each in lost.values())
    return Outcome(
        seed=seed,
        elapsed_s=elapsed,
        trained_s=max(0.0, elapsed - gone),
        full_s=max(0.0, elapsed - gone),
        lost_s=lost,
        faults=faults,
        right=sum(faults.values()),
        pages=1 if scenario.policy.restarts.count == 0 else 0,
        rounds=1 + sum(faults.values()),
        recoveries_s=(restart,) * sum(faults.values()),
    )


def poisson(chance: random.Random, mean: float) -> int:
    """By the times between events."""
    count, at = 0, chance.expovariate(1.0) if mean > 0 else math.inf
    while at < mean:
        count, at = count + 1, at + chance.expovariate(1.0)
    return count
