"""How fast a run is lived through in virtual time, in how much memory, and what comes of Holdfast's defaults.

    make bench NAME=simulate
    python bench/simulate.py [--days-16k 54] [--days-100k 90] [--days-groups 2] [--seeds 2]

Runs are of 2,048 and 12,500 nodes of eight GPUs, with what failed in Llama 3's training
(https://arxiv.org/abs/2407.21783, table 5), under the policy of a TrainingJob that says no more than it must; then
of 12,500 with a fault every 18 minutes, without and with replica groups (https://arxiv.org/abs/2602.00277); then
two of the smaller ones at once. Each runs in a process of its own, whose memory is told.
The law of large numbers: each kind of fault comes as often as its rate says, within four standard
deviations: of 18 kinds the farthest is beyond three by chance alone once in twenty runs.
"""

import argparse
import math
import multiprocessing
import os
import resource
import time
from dataclasses import dataclass

from figure import Figure, Goal, measured, publish

from holdfast.api.trainingjob import policy_of, read_trainingjob
from holdfast.simulator.failuretable import preset, rates_of
from holdfast.simulator.live import live
from holdfast.simulator.outcome import Outcome
from holdfast.simulator.scenario import DAY_S, Fleet, Scenario

SMALL_NODES, LARGE_NODES = 2_048, 12_500
SMALL_S, LARGE_S = 60.0, 600.0
SMALL_ETTR, LARGE_ETTR = 0.97, 0.90
MEMORY_MB = 2_048.0
MIX = "llama3"
# A fault every 18 minutes, and as many nodes in a replica group that the job has 20 of them.
GROUPS_MIX, GROUP_NODES = "ft-hsdp-100k", 625


@dataclass(frozen=True)
class Run:
    """One run: what came of it, and what it took."""

    outcome: Outcome
    cpu_s: float
    memory_mb: float


def scenario(nodes: int, days: float, mix: str = MIX, group: int = 0) -> Scenario:
    """A job of so many nodes, and what a user gets who says nothing else; one spare for every 64 nodes. With
    replica groups half of them have to train.
    """
    spares = nodes // 64
    least = nodes // group // 2 * group if group else nodes - nodes // 16
    job = {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "simulated"},
        "spec": {
            "entrypoint": ["train.py"],
            "nodes": {"min": least, "max": nodes, "spares": spares},
            "processesPerNode": 8,
            **({"parallelism": {"replicaGroupNodes": group}} if group else {}),
        },
    }
    fleet = Fleet(nodes, spares=spares, free=spares)
    return Scenario(policy_of(read_trainingjob(job)), fleet, rates_of(preset(mix), mix), days)


def lived(nodes: int, days: float, seed: int, mix: str = MIX, group: int = 0) -> Run:
    """One run in this process."""
    began = time.process_time()
    outcome = live(scenario(nodes, days, mix, group), seed)
    memory_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024.0
    return Run(outcome, time.process_time() - began, memory_mb)


def alone(nodes: int, days: float, seed: int, mix: str = MIX, group: int = 0) -> Run:
    """One run in a process of its own."""
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        return pool.apply(lived, (nodes, days, seed, mix, group))


def all_at_once(days: float, workers: int) -> float:
    """How long as many small runs as workers take side by side."""
    began = time.perf_counter()
    with multiprocessing.get_context("spawn").Pool(workers) as pool:
        pool.starmap(lived, [(SMALL_NODES, days, seed) for seed in range(workers)])
    return time.perf_counter() - began


def figures_of(name: str, runs: list[Run], days: float, most_s: float, least: float) -> list[Figure]:
    """Speed, memory and share of useful time of runs of one size."""
    took = [run.cpu_s for run in runs]
    speed = ", ".join(f"{days / each:.1f}" for each in took)
    return [
        measured(
            f"{name}, {days:g} days: processor time ({speed} days a second)",
            ours=took,
            other=[most_s],
            unit="s",
            target=1.0,
        ),
        measured(
            f"{name}: memory", ours=[run.memory_mb for run in runs], other=[MEMORY_MB], unit="MB", target=1.0
        ),
        measured(
            f"{name}: share of useful time with the defaults",
            ours=[run.outcome.ettr for run in runs],
            other=[least],
            unit="of the time",
            target=1.0,
            goal=Goal.AT_LEAST,
        ),
    ]


def beside_groups(days: float, seeds: int) -> list[Figure]:
    """What replica groups buy at 100,000 GPUs, and how fast they are lived through."""
    whole = [alone(LARGE_NODES, days, seed, GROUPS_MIX) for seed in range(seeds)]
    groups = [alone(LARGE_NODES, days, seed, GROUPS_MIX, GROUP_NODES) for seed in range(seeds)]
    table("100,000 GPUs, a fault every 18 minutes", whole[0].outcome)
    table(f"the same in replica groups of {GROUP_NODES} nodes", groups[0].outcome)
    name = f"100,000 GPUs in {LARGE_NODES // GROUP_NODES} replica groups, {days:g} days, a fault every 18 minutes"
    return [
        measured(
            f"{name}: goodput, beside the same without groups",
            ours=[run.outcome.full_s / (days * DAY_S) for run in groups],
            other=[run.outcome.full_s / (days * DAY_S) for run in whole],
            unit="of the time",
            target=1.0,
            goal=Goal.AT_LEAST,
        ),
        measured(
            f"{name}: processor time",
            ours=[run.cpu_s for run in groups],
            other=[LARGE_S * days / 90.0],
            unit="s",
            target=1.0,
        ),
    ]


def rates_come_out(outcome: Outcome, nodes: int, days: float) -> float:
    """How far the kind of fault that is farthest from its rate is from it, in standard deviations."""
    wanted = {rate.name: rate.rate * nodes * days / 1000.0 for rate in rates_of(preset(MIX), MIX)}
    return max(abs(outcome.faults[name] - count) / math.sqrt(max(1.0, count)) for name, count in wanted.items())


def table(name: str, outcome: Outcome) -> None:
    """Where the time went, for whoever looks at the bench."""
    print(f"{name}: ETTR {outcome.ettr:.4f}, {sum(outcome.faults.values())} faults, {outcome.rounds} rounds,")
    print(f"  evicted {outcome.right} rightly and {outcome.wrong} wrongly, {outcome.pages} pages")
    causes = sorted(outcome.lost_s.items(), key=lambda each: -sum(each[1].values()))
    for cause, phases in causes[:6]:
        told = ", ".join(
            f"{phase.value} {seconds / 60.0:.0f}" for phase, seconds in phases.items() if seconds >= 30.0
        )
        print(f"  lost to {cause or 'nobody'}, minutes: {told}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--days-16k", type=float, default=54.0)
    parser.add_argument("--days-100k", type=float, default=90.0)
    parser.add_argument("--days-groups", type=float, default=2.0)
    parser.add_argument("--seeds", type=int, default=1)
    arguments = parser.parse_args()
    small = [alone(SMALL_NODES, arguments.days_16k, seed) for seed in range(arguments.seeds)]
    large = [alone(LARGE_NODES, arguments.days_100k, seed) for seed in range(arguments.seeds)]
    table("16,384 GPUs", small[0].outcome)
    table("100,000 GPUs", large[0].outcome)
    figures = figures_of("16,384 GPUs", small, arguments.days_16k, SMALL_S, SMALL_ETTR)
    figures += figures_of("100,000 GPUs", large, arguments.days_100k, LARGE_S, LARGE_ETTR)
    off = [rates_come_out(run.outcome, LARGE_NODES, arguments.days_100k) for run in large]
    figures.append(
        measured("rates come out as given", ours=off, other=[4.0], unit="standard deviations", target=1.0)
    )
    figures += beside_groups(arguments.days_groups, arguments.seeds)
    workers = min(2, os.cpu_count() or 1)
    took_s = all_at_once(arguments.days_16k, workers)
    speed = workers * arguments.days_16k / took_s
    name = f"{workers} runs of 16,384 GPUs at once, {speed:.1f} days a second: beside one after the other"
    figures.append(measured(name, ours=[took_s], other=[small[0].cpu_s * workers], unit="s", target=1.0))
    publish("simulate", figures)


if __name__ == "__main__":
    main()
