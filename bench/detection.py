"""How well slow ranks are found, and told apart by what makes them slow.

    make bench NAME=detection

Jobs of 8 to 4,096 ranks are drawn from seeds and played in virtual time, each with one kind of slowness in it or
none (tests/sim/slowness.py, which says what is drawn). Precision: of what was said of these jobs, how much is
right: the cause, and no other node. Recall: of the jobs, how many were named rightly. Steps: from the first slow
one until it is named. Of a thousand healthy days that is played in which something happens. Nobody may be taken
away who has done nothing: neither then, nor where a loader, a shape or a switch is slow, nor after a spare was
given the ranks (tests/sim/slowswaps.py, with the brain).

The cost is that of the detector's own work in one process, for the reports of nodes with eight ranks; what the
whole watchdog may use for a node and second is half a core for 12,500 nodes.
"""

import argparse
import sys
import time
from collections.abc import Iterator, Sequence
from itertools import islice
from pathlib import Path
from statistics import median

from figure import Figure, Goal, measured, publish

sys.path.append(str(Path(__file__).parents[1] / "tests" / "sim"))
sys.path.append(str(Path(__file__).parents[1] / "tests" / "unit" / "brain"))

import slowswaps
from slowness import FAULTS, Fault, Outcome, begin, draw, eventful, healthy, one_rank, play, reports

from holdfast.api.policy import Policy
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Reported
from holdfast.watchdog.detectors.straggler import StragglerDetector

NAMED = 0.9
RIGHT = 0.95
STEPS_TO_NAME = 5.0
DAY_SIZES = (8, 8, 16)
NODE_SECOND_US = 0.5e6 / 12_500
COST_RANKS = (512, 4096)


def class_figures(fault: Fault, outcomes: Sequence[Outcome]) -> Iterator[Figure]:
    """Precision, recall and steps to name of one kind of slowness."""
    name, jobs = fault.__name__.replace("_", " "), float(len(outcomes))
    said = float(sum(len(each.found) for each in outcomes))
    if outcomes[0].truth.cause is None:
        yield measured(f"{name}: findings, none is right", ours=[said], other=[jobs], unit="findings", target=0.02)
        return
    right = float(sum(len(each.right) for each in outcomes))
    named = [each for each in outcomes if each.is_named]
    at_least = {"goal": Goal.AT_LEAST}
    yield measured(f"{name}: precision", ours=[right], other=[said], unit="findings", target=RIGHT, **at_least)
    yield measured(
        f"{name}: recall", ours=[float(len(named))], other=[jobs], unit="jobs", target=NAMED, **at_least
    )
    if named:
        steps = [float(each.steps_to_name) for each in named]
        # Within five steps is promised of a rank that is slow all the time, from one step to the next.
        limit = STEPS_TO_NAME if fault is one_rank else float(max(each.job.steps for each in outcomes))
        yield measured(f"{name}: steps to name", ours=steps, other=[limit], unit="steps", target=1.0)


def innocent_figures(wrong: int, jobs: int, days: range) -> Iterator[Figure]:
    """Nodes that the ladder might have taken away for nothing, of so many jobs and days."""
    yield measured(
        "nodes that may be evicted and have done nothing, in all of these jobs",
        ours=[float(wrong)],
        other=[float(jobs)],
        unit="nodes",
        target=0.0,
    )
    healthy_days = [play(seed, eventful, sizes=DAY_SIZES) for seed in days]
    for what, count in (
        ("nodes that may be evicted", sum(len(each.looks_like_eviction) for each in healthy_days)),
        ("findings", sum(len(each.found) for each in healthy_days)),
    ):
        yield measured(
            f"{what} in {len(days)} healthy days",
            ours=[float(count)],
            other=[float(len(days))],
            unit=what.split()[0],
            target=0.0 if what != "findings" else 0.02,
        )


def swap_figures(seeds: range) -> Iterator[Figure]:
    """Nodes that left jobs that may evict, after their ranks were given to a spare."""
    count = [float(len(seeds))]
    for slow in slowswaps.GO_WITH_A_RANK:
        wrong = float(sum(len(slowswaps.play(seed, slow).evicted) for seed in seeds))
        what = f"innocent nodes evicted where a rank {slow.__name__.replace('_', ' ')}"
        yield measured(what, ours=[wrong], other=count, unit="nodes", target=0.0)
    played = [slowswaps.play(seed, slowswaps.is_slow, with_node=True) for seed in seeds]
    right = float(sum(each.evicted == (each.first,) for each in played))
    what = "slow nodes evicted"
    yield measured(what, ours=[right], other=count, unit="nodes", target=NAMED, goal=Goal.AT_LEAST)


def costs_us(ranks: int) -> tuple[float, float]:
    """Microseconds of CPU for one report of a node with eight ranks, steps of about a second: of the detector of
    slow ranks, and of all others, which come first and have taken what they share out of the report.
    """
    seeds = (draw(seed, healthy, sizes=(ranks,)) for seed in range(1000))
    job = next(each for each in seeds if each.step_s < 1.6 and each.per_node == 8)
    policy = Policy("sim/slow", 1, ranks // 8, processes_per_node=8, model_ranks=job.model_ranks)
    all_of_them = [each for each in detectors_for(policy) if Reported in each.subscribes_to]
    ours = [each for each in all_of_them if isinstance(each, StragglerDetector)]
    others = [each for each in all_of_them if each not in ours]
    begin(job, *all_of_them)
    used, told = [0.0, 0.0], 0
    for batch in batched(reports(job), job.nodes):
        for index, detectors in ((1, others), (0, ours)):
            began = time.thread_time()
            for report, at in batch:
                for each in detectors:
                    each.observe(report, at)
            used[index] += time.thread_time() - began
        told += len(batch)
    return 1e6 * used[0] / told, 1e6 * used[1] / told


def batched(each: Iterator[tuple[Reported, float]], size: int) -> Iterator[list[tuple[Reported, float]]]:
    """A second of reports at a time, so that reading the clock costs nothing."""
    while batch := list(islice(each, size)):
        yield batch


def cost_figures() -> Iterator[Figure]:
    for ranks in COST_RANKS:
        both = [costs_us(ranks) for _ in range(3)]
        print(f"all other detectors, {ranks} ranks: {median(each for _, each in both):.1f} us a node and second")
        yield measured(
            f"cost of the detector a node and second, of {ranks} ranks",
            ours=[each for each, _ in both],
            other=[NODE_SECOND_US],
            unit="us",
            target=0.1,
        )


def figures(jobs: int, days: int, swaps: int, first: int) -> Iterator[Figure]:
    wrong = 0
    for fault in FAULTS:
        played = [play(seed, fault) for seed in range(first, first + jobs)]
        wrong += sum(len(each.looks_like_eviction) for each in played)
        yield from class_figures(fault, played)
    yield from innocent_figures(wrong, jobs * len(FAULTS), range(first, first + days))
    yield from swap_figures(range(first, first + swaps))
    yield from cost_figures()


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=20, help="of each kind")
    parser.add_argument("--days", type=int, default=1000)
    parser.add_argument("--swaps", type=int, default=200, help="jobs that may evict, of each kind")
    parser.add_argument("--seed", type=int, default=0, help="the first one")
    given = parser.parse_args()
    publish("detection", list(figures(given.jobs, given.days, given.swaps, given.seed)))


if __name__ == "__main__":
    main()
