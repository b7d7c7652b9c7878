"""How soon training goes on after a fault: stock torchrun and Holdfast, the same scripts, taking turns.

    python bench/recovery.py [--only NAME] [--n 5] [--quick]

Every run starts its own nodes (processes of this machine, on loopback), lets them train, puts one fault into them
and reads from what the ranks wrote down when all of them had completed a step again. Nothing is taken from
Holdfast's own accounts except whom it blames.
"""

import argparse
import os
from collections.abc import Sequence
from statistics import median
from typing import Final

from drill import faults, regrouping, replicagroups
from drill.exercise import Contestant, Effort, Entry, Exercise, Outcomes, carry_out
from drill.fleet import Shape
from drill.outcome import Outcome, against, within
from figure import Figure, Goal, measured, publish, unmeasured

QUICK: Final = Effort(runs=2, rare_runs=1, cap_s=20.0)
RARE_RUNS: Final = 2  # of what ends at its cap, or takes most of a minute
PAIR: Final = Shape(nodes_min=2, nodes_max=2, local_size=1)
TWO_BY_TWO: Final = Shape(nodes_min=2, nodes_max=2, local_size=2)
ELASTIC: Final = Shape(nodes_min=1, nodes_max=2, local_size=1)

REPLICA_GROUPS: Final = "replica-groups"  # of two groups of two
REGROUPING: Final = "regrouping"  # in place, which Holdfast does not do

STOCK, TUNED, JOINABLE = Contestant.STOCK, Contestant.TUNED, Contestant.JOINABLE
HOLDFAST, REENTERED, REMEMBERED = Contestant.HOLDFAST, Contestant.REENTERED, Contestant.REMEMBERED


def worker_killed(shape: Shape) -> Exercise:
    """A worker dies. Stock torchrun's default often hangs afterwards, hence the cap."""
    event = f"worker killed, {shape} ranks"

    def judge(outcomes: Outcomes) -> list[Figure]:
        ours, reentered = outcomes[HOLDFAST], outcomes[REENTERED]
        unmodified = f"{event}, unmodified script, to the first new step"
        in_process = f"{event}, re-entered, to the first new step"
        return [
            against(unmodified, ours, outcomes[STOCK], name=STOCK.value, target=1 / 30),
            against(unmodified, ours, outcomes[TUNED], name=TUNED.value, target=1 / 30),
            within(unmodified, ours, limit_s=0.25),
            against(in_process, reentered, outcomes[TUNED], name=TUNED.value, target=1 / 30),
            within(in_process, reentered, limit_s=0.1),
            *([steps_lost("worker killed", outcomes[REMEMBERED])] if REMEMBERED in outcomes else []),
        ]

    return Exercise(
        name=f"worker-killed-{shape}",
        fault=faults.worker_killed,
        shape=shape,
        nodes=2,
        entries=(
            Entry(STOCK, 30.0, rarely="hangs until its cap"),
            Entry(TUNED, 45.0),
            Entry(HOLDFAST, 20.0),
            Entry(REENTERED, 20.0),
            *([Entry(REMEMBERED, 20.0)] if shape == PAIR else []),
        ),
        judge=judge,
    )


def node_killed() -> Exercise:
    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "node killed, to the first new step"
        ours = outcomes[HOLDFAST]
        return [
            against(figure, ours, outcomes[STOCK], name=STOCK.value, target=1 / 15),
            against(figure, ours, outcomes[TUNED], name=TUNED.value, target=1 / 3),
            steps_lost("node killed with its memory", outcomes[REMEMBERED]),
        ]

    entries = (
        Entry(STOCK, 75.0, rarely="takes most of a minute"),
        Entry(TUNED, 45.0),
        Entry(HOLDFAST, 20.0),
        Entry(REMEMBERED, 20.0),
    )
    return Exercise(
        name="node-killed", fault=faults.node_killed, shape=ELASTIC, nodes=2, entries=entries, judge=judge
    )


def node_silent() -> Exercise:
    def judge(outcomes: Outcomes) -> list[Figure]:
        return [within("node silent, connections open, until it is named", outcomes[HOLDFAST], limit_s=3.0)]

    entries = (Entry(HOLDFAST, 20.0),)
    return Exercise(
        name="node-silent", fault=faults.node_silenced, shape=ELASTIC, nodes=2, entries=entries, judge=judge
    )


def store_host_killed() -> Exercise:
    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "jobs that survive the loss of the node with the store, of all such jobs"
        ours, stock = outcomes[HOLDFAST], outcomes[STOCK]
        if not ours:
            return [unmeasured(figure, unit="share", target=1.0, goal=Goal.AT_LEAST, reason="no job started")]
        share = [float(outcome.seconds is not None) for outcome in ours]
        told = f"{figure}; stock torchrun: {survivors(stock)}"
        low = [sum(share) / len(share)]
        return [measured(told, ours=low * len(share), other=[1.0], unit="share", target=1.0, goal=Goal.AT_LEAST)]

    entries = (Entry(STOCK, 15.0, rarely="dies"), Entry(HOLDFAST, 20.0))
    return Exercise(
        name="store-host-killed",
        fault=faults.host_killed,
        shape=ELASTIC,
        nodes=2,
        entries=entries,
        judge=judge,
    )


def worker_stopped() -> Exercise:
    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "worker stopped (SIGSTOP), named and healed, over max(2 s, 5 x p99 step)"
        told = f"{figure}; stock torchrun: {survivors(outcomes[STOCK])}"
        return [
            within(f"{told}; re-entered", outcomes[REENTERED]),
            within(f"{told}; unmodified script", outcomes[HOLDFAST]),
        ]

    entries = (
        Entry(STOCK, 15.0, rarely="does not notice"),
        Entry(REENTERED, 20.0),
        Entry(HOLDFAST, 10.0, rarely="publishes no steps, so that a stop is not noticed"),
    )
    return Exercise(
        name="worker-stopped", fault=faults.worker_stopped, shape=PAIR, nodes=2, entries=entries, judge=judge
    )


def node_joins() -> Exercise:
    """The second of at most two nodes. By default torchrun waits 30 s before it begins with only the first."""

    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "node joins, training stands still"
        ours = outcomes[HOLDFAST]
        return [
            within(figure, ours, limit_s=0.3),
            against(figure, ours, outcomes[JOINABLE], name=JOINABLE.value),
            within(f"{figure}, re-entered", outcomes[REENTERED], limit_s=0.3),
        ]

    entries = (Entry(JOINABLE, 45.0), Entry(HOLDFAST, 20.0), Entry(REENTERED, 20.0))
    return Exercise(
        name="node-joins", fault=faults.node_joins, shape=ELASTIC, nodes=1, entries=entries, judge=judge
    )


def watchdog_away() -> Exercise:
    """Twice the longest gap of an equally long time before is what a noisy machine shows on its own."""

    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "watchdog killed and restarted, longest gap between steps, over twice the longest before"
        ours = outcomes[REENTERED]
        if not ours:
            return [unmeasured(figure, unit="s", target=1.0, reason="training did not start")]
        gaps = [outcome.at_least_s for outcome in ours]
        allowed = [2 * (outcome.limit_s or 0.0) for outcome in ours]
        return [measured(figure, ours=gaps, other=allowed, unit="s", target=1.0)]

    entries = (Entry(REENTERED, 20.0),)
    return Exercise(
        name="watchdog-away", fault=faults.watchdog_away, shape=PAIR, nodes=2, entries=entries, judge=judge
    )


def watchdog_restarts() -> Exercise:
    def judge(outcomes: Outcomes) -> list[Figure]:
        figure = "watchdog started again, until a worker that died meanwhile is healed"
        return [within(figure, outcomes[REENTERED], limit_s=2.0)]

    entries = (Entry(REENTERED, 20.0),)
    return Exercise(
        name="watchdog-restarts",
        fault=faults.watchdog_restarts,
        shape=PAIR,
        nodes=2,
        entries=entries,
        judge=judge,
    )


def survivors(outcomes: Sequence[Outcome]) -> str:
    good = sum(outcome.seconds is not None for outcome in outcomes)
    caps = f" within {outcomes[0].cap_s:.0f} s" if outcomes else ""
    return f"{good} of {len(outcomes)}{caps}"


def steps_lost(event: str, outcomes: Sequence[Outcome]) -> Figure:
    """The worst counts: a promise of at most one step is broken by the first failure that costs two."""
    figure = f"steps lost, {event}, snapshots in memory after every step of 0.2 s"
    lost = [outcome.lost_steps for outcome in outcomes if outcome.lost_steps is not None]
    if not lost:
        return unmeasured(figure, unit="steps", target=1.0, reason="nothing was healed in time")
    told = f"{figure} (at most; median {median(lost):.3g}, n={len(lost)})"
    return measured(told, ours=[max(lost)], other=[1.0], unit="steps", target=1.0)


EXERCISES: Final = (
    worker_killed(TWO_BY_TWO),
    worker_killed(PAIR),
    node_killed(),
    node_silent(),
    store_host_killed(),
    worker_stopped(),
    node_joins(),
    watchdog_away(),
    watchdog_restarts(),
)


def main() -> None:
    """Run the bench."""
    names = [*(exercise.name for exercise in EXERCISES), REPLICA_GROUPS, REGROUPING]
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=names, help="one exercise; may be given several times")
    parser.add_argument("--n", type=int, default=5, help="runs of everything that takes seconds")
    parser.add_argument("--quick", action="store_true", help="two runs and short caps: to see that it works")
    given = parser.parse_args()
    effort = QUICK if given.quick else Effort(given.n, min(given.n, RARE_RUNS), cap_s=75.0)
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo"}
    figures: list[Figure] = []
    for exercise in EXERCISES:
        if given.only and exercise.name not in given.only:
            continue
        figures += exercise.judge(carry_out(exercise, effort, environment))
    if not given.only or REPLICA_GROUPS in given.only:
        figures += replicagroups.figures(effort, environment)
    if not given.only or REGROUPING in given.only:
        figures += regrouping.figures(effort, environment)
    publish("recovery", figures)


if __name__ == "__main__":
    main()
