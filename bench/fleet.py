"""Whether the place that is to blame is named, and how often one that is not: on fleets of invented nodes.

    python bench/fleet.py [--trials 200] [--quick]

Each trial is four weeks of one fleet. Faults come one by one, and after each the places are judged, as the
watchdog does: a false alarm at any time of a trial counts. So many more faults fall behind the bad switch that
it has half of all. Recall: the share of fleets with a bad switch in which that, and nothing else, is named at
the end. Precision: of all places that were named at any time in any of these fleets, the share that was the bad
switch. No false alarm: the share of fleets without a bad place in which none was named at any time; nodes are
alike, or one in fifty is a X
"""

import argparse
import random
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from figure import BUILD, Figure, Goal, measured, publish

from holdfast.api.place import FaultFamily, Place
from holdfast.watchdog.brain.gatherings import Exposure, Located, gatherings

WEEKS_S = 28 * 86400.0
LEMONS, LEMON_RATE = 0.02, 30.0
SPINE_OF = 8


@dataclass(frozen=True)
class Fleet:
    """`nodes` of which `behind` share a leaf switch and a rack, and `faults` befall them in four weeks."""

    nodes: int
    behind: int
    faults: int

    def places(self, node: int) -> tuple[Place, ...]:
        leaf = node // self.behind
        return Place("rack", f"r{leaf}"), Place("spine", f"s{leaf // SPINE_OF}"), Place("switch", f"l{leaf}")

    @property
    def name(self) -> str:
        return f"{self.nodes} nodes, {self.nodes // self.behind} switches, {self.faults} faults"


FLEETS = (
    Fleet(32, 4, 32),
    Fleet(128, 8, 20),
    Fleet(512, 16, 20),
    Fleet(2048, 16, 40),
    Fleet(8192, 32, 120),
)


def exposure_of(fleet: Fleet) -> Exposure:
    behind: dict[Place, float] = {}
    for node in range(fleet.nodes):
        for place in fleet.places(node):
            behind[place] = behind.get(place, 0.0) + 1.0
    return Exposure(behind, {"rack": fleet.nodes, "spine": fleet.nodes, "switch": fleet.nodes})


def weights(fleet: Fleet, draw: random.Random, *, bad: int | None, lemons: bool) -> Sequence[float]:
    """How likely a fault names each node. The nodes behind the bad switch have half of all faults."""
    rates = [LEMON_RATE if lemons and draw.random() < LEMONS else 1.0 for _ in range(fleet.nodes)]
    if bad is None:
        return rates
    there = range(bad * fleet.behind, (bad + 1) * fleet.behind)
    inside = sum(rates[node] for node in there)
    more = (sum(rates) - inside) / inside
    return [rate * more if node in there else rate for node, rate in enumerate(rates)]


def trial(
    fleet: Fleet, exposure: Exposure, seed: int, *, bad: bool, lemons: bool
) -> tuple[set[str], set[str], str]:
    """The switches and other places named at the end, those named at any time, and the bad one ("": none)."""
    draw = random.Random(seed)
    leaf = draw.randrange(fleet.nodes // fleet.behind) if bad else None
    rates = weights(fleet, draw, bad=leaf, lemons=lemons)
    times = sorted(draw.uniform(0.0, WEEKS_S) for _ in range(fleet.faults))
    nodes = draw.choices(range(fleet.nodes), rates, k=fleet.faults)
    faults: list[Located] = []
    ever: set[str] = set()
    last: set[str] = set()
    for at, node in zip(times, nodes, strict=True):
        faults.append(Located(at, FaultFamily.NETWORK, {f"n{node}": fleet.places(node)}))
        last = {str(each.place) for each in gatherings(faults, exposure, at)}
        ever |= last
    return last, ever, "" if leaf is None else f"switch l{leaf}"


def figures_of(fleet: Fleet, trials: int) -> list[Figure]:
    exposure = exposure_of(fleet)
    found = [trial(fleet, exposure, seed, bad=True, lemons=False) for seed in range(trials)]
    recall = sum(last == {bad} for last, _, bad in found) / trials
    found += [trial(fleet, exposure, seed, bad=True, lemons=True) for seed in range(trials)]
    named = [place == bad for _, ever, bad in found for place in ever]
    precision = sum(named) / max(1, len(named))
    quiet = {
        kind: sum(not trial(fleet, exposure, seed, bad=False, lemons=lemons)[1] for seed in range(trials)) / trials
        for kind, lemons in (("nodes alike", False), ("with lemons", True))
    }
    shares = {"recall": (recall, 0.9), "precision": (precision, 0.95)}
    shares |= {f"no false alarm, {kind}": (share, 0.95) for kind, share in quiet.items()}
    return [
        measured(
            f"{what}, {fleet.name}", ours=[share], other=[1.0], unit="share", target=target, goal=Goal.AT_LEAST
        )
        for what, (share, target) in shares.items()
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=200)
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--folder", type=Path, default=BUILD)
    flags = parser.parse_args()
    trials = 20 if flags.quick else flags.trials
    figures = [figure for fleet in FLEETS for figure in figures_of(fleet, trials)]
    publish("fleet", figures, folder=flags.folder)


if __name__ == "__main__":
    main()
