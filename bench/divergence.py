"""What `faultPolicy.loss` finds in losses of which it is known whether they diverge.

    make bench NAME=divergence

Each loss is drawn from a seed, as those of language models are: a floor of 1 to 8 that is come down to from some
times as much, noise of up to 3% that wanders (it remembers up to 50 looks), as much again on each of eight ranks,
and swings of the data. Some are sound to the end, some spike and come back within 40 steps, some rise by a half
after 600 looks: at once, or over 100 steps. Of others one rank alone goes apart from then on: above, as by bad
data, or below, as by a shard that repeats. A sound job that is sent back loses what it has trained since its
checkpoint, so that no such error is wanted; what is not named is for people, as before.
"""

import argparse
import math
import random
from collections.abc import Callable, Iterator

from figure import Figure, Goal, measured, publish

from holdfast.api.policy import LossPolicy, Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Endpoint, Entry, MemberRanks, Restore, Round
from holdfast.api.telemetry import NodeReport, ProcessState, RankSample
from holdfast.watchdog.detectors.detector import Reported, RoundStarted
from holdfast.watchdog.detectors.divergence import DivergenceDetector

SUSTAINED, RANKS, LOOKS, RISES_AFTER = 50, 8, 900, 600
Added = Callable[[int], float]  # share of the loss, by steps since it began to rise


def nothing(since: int) -> float:
    return 0.0


def at_once(since: int) -> float:
    return 0.5


def slowly(since: int) -> float:
    return min(0.5, since / 200)


def passing(since: int) -> float:
    return 3.0 * (since % 400 < 40)


def falling(since: int) -> float:
    return -min(0.5, since / 60)


def losses(drawn: random.Random, pace: int, added: Added) -> Iterator[tuple[int, float, float]]:
    """Step, mean loss and its noise on one rank, for each look."""
    floor, memory = drawn.uniform(1.0, 8.0), drawn.choice([0.0, 0.5, 0.9, 0.98])
    start, decay = drawn.choice([1.5, 3.0, 5.0]) * floor, drawn.choice([50, 500, 2000])
    noise, swing, wander = drawn.uniform(0.002, 0.03), drawn.choice([0.0, 0.0, 0.03]), 0.0
    rises = pace * RISES_AFTER
    for look in range(1, LOOKS):
        step = look * pace
        wander = memory * wander + math.sqrt(1 - memory * memory) * drawn.gauss(0.0, noise)
        mean = floor + (start - floor) / (1 + step / decay)
        share = wander + swing * math.sin(step / 300) + (added(step - rises) if step >= rises else 0.0)
        yield step, mean * (1 + share), mean * noise


def named_at(seed: int, added: Added, *, of_one: Added = nothing) -> int | None:
    """How many steps after the rise the job was sent back, before it negative; None: never. `of_one` is added to
    what one rank alone has; where it is given, that rank has to be the one that is named.
    """
    drawn = random.Random(seed)
    pace = drawn.choice([1, 3, 10, 40])
    policy = Policy("bench/loss", 1, 1, processes_per_node=RANKS, loss=LossPolicy(SUSTAINED))
    detector = DivergenceDetector(policy)
    ranks = (MemberRanks("m", "n", 0, RANKS),)
    shown = Round(policy.job, 1, ranks, Endpoint("127.0.0.1", 1), Restore(), Entry.RESPAWN, "")
    detector.observe(RoundStarted(shown), 0.0)
    odd, rises = seed % RANKS, pace * RISES_AFTER
    for look, (step, mean, noise) in enumerate(losses(drawn, pace, added)):
        alone = of_one(step - rises) if step >= rises else 0.0
        samples = tuple(
            RankSample(
                1,
                rank,
                ProcessState.RUNNING,
                Phase.FORWARD,
                0.0,
                0.0,
                step=step,
                loss=drawn.gauss(mean, noise) * (1 + alone * (rank == odd)),
            )
            for rank in range(RANKS)
        )
        found = detector.observe(Reported(NodeReport("n", "boot", look, samples)), float(look + 1))
        if any(each.asks is None for each in found):
            is_right = of_one is nothing or [each.subject.rank for each in found] == [odd]
            return step - rises if is_right else -1
    return None


def figures(jobs: int) -> Iterator[Figure]:
    seeds = range(jobs)
    sound = [named_at(seed, nothing) for seed in seeds]
    wrong = sum(at is not None for at in sound)
    yield measured("sound jobs sent back", ours=[wrong], other=[jobs], unit="jobs", target=0.0)
    spiked = sum(named_at(seed, passing) is not None for seed in seeds)
    yield measured("jobs sent back for spikes that pass", ours=[spiked], other=[jobs], unit="jobs", target=0.0)
    for name, added in (("at once", at_once), ("over 100 steps", slowly)):
        found = [at for seed in seeds if (at := named_at(seed, added)) is not None and at >= 0]
        yield measured(
            f"losses that rose by a half {name} and were named",
            ours=[len(found)],
            other=[jobs],
            unit="jobs",
            target=0.95,
            goal=Goal.AT_LEAST,
        )
        yield measured(
            f"steps until a rise {name} was named, beyond those it has to last",
            ours=[float(at - SUSTAINED) for at in found],
            other=[float(SUSTAINED)],
            unit="steps",
            target=1.0,
        )
    for name, of_one in (("above", at_once), ("below", falling)):
        found = [at for seed in seeds if (at := named_at(seed, nothing, of_one=of_one)) is not None and at >= 0]
        yield measured(
            f"ranks alone {name} the others that were named",
            ours=[len(found)],
            other=[jobs],
            unit="jobs",
            target=0.95,
            goal=Goal.AT_LEAST,
        )


def main() -> None:
    """Run the bench."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--jobs", type=int, default=200)
    publish("divergence", list(figures(parser.parse_args().jobs)))


if __name__ == "__main__":
    main()
