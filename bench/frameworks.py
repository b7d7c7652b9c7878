"""Scripts of frameworks as people bring them: unmodified and with one line under Holdfast, beside stock torchrun.

Each is put through a killed worker, a stopped worker, a lost node and a NaN, on two nodes of one rank. Seconds are
from the fault to the first step of a whole world. Losses are compared bit by bit with those of an undisturbed run,
step by step; in a smaller world they are others. Frameworks that are not there are installed
(`brought/packages.py`), or it is said why they cannot be.
"""

import argparse
import json
import os
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from brought.packages import installed, on_path
from drill import faults
from drill.fleet import Fleet, NotStarted, Shape, Terms
from drill.orchestrated import HoldfastFleet
from drill.outcome import Outcome
from drill.processes import none_left_behind
from drill.steplog import NS_PER_S
from drill.stock import TUNED, StockFleet
from figure import Figure, measured, publish, unmeasured

BROUGHT: Final = Path(__file__).parent / "brought" / "scripts"
SHARDED: Final = {"transformers_trainer": "transformers_fsdp", "accelerate_loop": "accelerate_fsdp"}
"""Scripts that take `--sharded`, and what they are called with it."""
NEEDS: Final = {
    "torchtitan_trainer": "torchtitan",
    "deepspeed_loop": "deepspeed",
    "megatron_loop": "megatron.core",
}
PAIR: Final = Shape(nodes_min=1, nodes_max=2, local_size=1)
# Their loaders refuse their state in a world of another size: a lost node is replaced by one that waits.
OF_ONE_SIZE: Final = frozenset({"torchtitan_trainer"})
FIXED: Final = Shape(nodes_min=2, nodes_max=2, local_size=1)
PACE_S: Final = "0.05"
BEHIND_S: Final = 3.0  # trained on after a fault was healed, so that there are losses to compare


class Way(Enum):
    """Who keeps the script going, and whether it has the line."""

    STOCK = "stock torchrun"
    UNMODIFIED = "Holdfast, unmodified"
    LINE = "Holdfast, one line"


@dataclass(frozen=True, slots=True)
class Cell:
    """One subject, way and fault. `differing` are steps whose loss was another than in the undisturbed run, of
    `compared`; None: the world was another, or nothing was healed.
    """

    outcome: Outcome | None
    compared: int = 0
    differing: int | None = None

    def __str__(self) -> str:
        if self.outcome is None:
            return "did not start"
        same = {None: "", 0: f", {self.compared} losses equal"}.get(self.differing, f", {self.differing} differ")
        return f"{self.outcome}{same}"


def value_spoiled(fleet: Fleet, cap_s: float) -> Outcome:
    """The loss of rank 1 is NaN once. Healed is it when a loss after it is a number, on all ranks."""
    (fleet.terms.folder / "nan").touch()
    fault_ns = time.monotonic_ns()
    spoiled = fleet.wait_for(lambda: spoiled_step(fleet.terms.folder), cap_s)
    if spoiled is None:
        return Outcome(seconds=None, cap_s=cap_s, note="no NaN was seen")
    healed = fleet.wait_for(lambda: recovered_loss(fleet.terms.folder, spoiled), cap_s)
    seconds = None if healed is None else (time.monotonic_ns() - fault_ns) / NS_PER_S
    return Outcome(seconds=seconds, cap_s=cap_s)


FAULTS: Final[Mapping[str, Callable[[Fleet, float], Outcome]]] = {
    "worker killed": faults.worker_killed,
    "worker stopped": faults.worker_stopped,
    "node lost": faults.node_killed,
    "NaN": value_spoiled,
}


def losses(folder: Path) -> list[tuple[int, float, str]]:
    """Step, loss and its bits, in the order they were written."""
    file = folder / "losses.jsonl"
    lines = file.read_text().splitlines() if file.exists() else []
    told = [json.loads(line) for line in lines if line.endswith("}")]
    return [(each["step"], float.fromhex(each["loss"]), each["loss"]) for each in told]


def spoiled_step(folder: Path) -> int | None:
    """The place in the list of the first loss that is no number."""
    return next((place for place, (_, loss, _) in enumerate(losses(folder)) if loss != loss), None)


def recovered_loss(folder: Path, spoiled: int) -> int | None:
    """The first number behind it that is of a step as late: what was lost is made good."""
    told = losses(folder)
    step = told[spoiled][0]
    return next((later for later, loss, _ in told[spoiled:] if loss == loss and later >= step), None)


@dataclass(frozen=True, slots=True)
class Subject:
    """A script, and the words that it is given."""

    name: str
    script: str
    words: tuple[str, ...] = ()

    def fleet(self, way: Way, terms: Terms) -> Fleet:
        """The nodes that run it."""
        path = str(BROUGHT / f"{self.script}.py")
        match way:
            case Way.STOCK:
                return StockFleet(terms, tuning=TUNED, script=path, words=self.words)
            case Way.UNMODIFIED:
                return HoldfastFleet(terms, script=path, words=self.words)
            case Way.LINE:
                return HoldfastFleet(terms, script=path, words=(*self.words, "--holdfast"))


def subjects() -> dict[str, Subject]:
    """All of them by name: each script, and sharded where it can be."""
    scripts = sorted(path.stem for path in BROUGHT.glob("*.py") if path.stem.endswith(("_trainer", "_loop")))
    plain = [Subject(script, script) for script in scripts]
    sharded = [Subject(name, script, ("--sharded",)) for script, name in SHARDED.items()]
    return {each.name: each for each in (*plain, *sharded)}


def carried_out(way: Way, subject: Subject, fault: str | None, cap_s: float, known: dict[int, str]) -> Cell:
    """One cell. Without a fault: the undisturbed run, whose losses are `known` afterwards."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "GLOO_SOCKET_IFNAME": "lo", "PACE_S": PACE_S}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name, none_left_behind():
        folder = Path(name)
        is_fixed = subject.script in OF_ONE_SIZE
        shape = FIXED if is_fixed else PAIR
        fleet = subject.fleet(way, Terms(shape=shape, folder=folder, environment=environment))
        try:
            fleet.start(2)
        except NotStarted as error:
            print(f"  {subject.name}, {way.value}: {error}", flush=True)
            return Cell(None)
        if fault is None:
            time.sleep(cap_s)
            known.update({step: bits for step, _, bits in losses(folder)})
            return Cell(Outcome(seconds=0.0, cap_s=cap_s))
        strike = faults.node_replaced if is_fixed and fault == "node lost" else FAULTS[fault]
        outcome = strike(fleet, cap_s)
        if outcome.seconds is None:
            return Cell(outcome)
        fleet.wait_for(lambda: None, BEHIND_S)
        if fault == "node lost" and not is_fixed:
            return Cell(outcome)
        told = [(step, bits) for step, loss, bits in losses(folder) if step in known and loss == loss]
        return Cell(outcome, len(told), sum(known[step] != bits for step, bits in told))


def figure_of(subject: str, fault: str, cells: Mapping[Way, Cell]) -> Figure:
    """With the line against stock torchrun, which counts with the time it was given where it did not heal."""
    ours, other = cells[Way.LINE].outcome, cells[Way.STOCK].outcome
    name = f"{subject}, {fault}: one line, over stock torchrun"
    if ours is None or other is None or ours.seconds is None:
        return unmeasured(name, unit="s", target=1.0, reason="it was not healed, or did not start")
    if cells[Way.LINE].differing:
        return measured(f"{name}, with other losses", ours=[ours.seconds], other=[0.001], unit="s", target=1.0)
    return measured(name, ours=[ours.seconds], other=[other.at_least_s], unit="s", target=1.0)


def main() -> None:
    """Run the bench, and print the table."""
    there = subjects()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--only", action="append", choices=there, help="one script; may be given several times")
    parser.add_argument("--fault", action="append", choices=FAULTS, help="one fault; may be given several times")
    parser.add_argument("--cap", type=float, default=60.0, help="seconds that anything is waited for at most")
    given = parser.parse_args()
    folder, lacking = installed()
    os.environ.update(on_path(folder))
    for name, why in lacking.items():
        print(f"not installed: {name}: {why}", flush=True)
    figures, rows = list[Figure](), list[str]()
    for subject in (there[name] for name in given.only or there):
        if NEEDS.get(subject.script) in lacking:
            continue
        known = dict[int, str]()
        carried_out(Way.LINE, subject, None, 10.0, known)
        for fault in given.fault or FAULTS:
            cells = {way: carried_out(way, subject, fault, given.cap, known) for way in Way}
            for way, cell in cells.items():
                print(f"  {subject.name}, {fault}, {way.value}: {cell}", flush=True)
            rows.append("| " + " | ".join([subject.name, fault, *(str(cells[way]) for way in Way)]) + " |")
            figures.append(figure_of(subject.name, fault, cells))
    print("| script | fault | " + " | ".join(way.value for way in Way) + " |", *rows, sep="\n")
    publish("frameworks", figures)


if __name__ == "__main__":
    main()
