"""Who is put to which test, how often, and what that gives."""

import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import Final

from figure import Figure

from drill.fleet import Fleet, NotStarted, Shape, Terms
from drill.orchestrated import HoldfastFleet
from drill.outcome import Outcome
from drill.processes import none_left_behind
from drill.stock import AS_IT_COMES, LETS_NODES_JOIN, TUNED, StockFleet
from holdfast.api.policy import MemoryPolicy

PHASE_S: Final = 0.027  # runs differ in where between two checkpoints the fault falls
TRIES: Final = 3


class Contestant(Enum):
    """Who keeps a job going, and with which script."""

    STOCK = "stock torchrun"
    TUNED = "tuned torchrun"
    JOINABLE = "torchrun with a last call of 1 s"
    HOLDFAST = "Holdfast, unmodified script"
    REENTERED = "Holdfast, re-entered"
    REMEMBERED = "Holdfast, snapshots in memory after every step of 0.2 s"


Outcomes = Mapping[Contestant, Sequence[Outcome]]
Fault = Callable[[Fleet, float], Outcome]


@dataclass(frozen=True, slots=True)
class Entry:
    """A contestant, and how long it is waited for. One that is waited for in vain runs less often."""

    who: Contestant
    cap_s: float
    rarely: str = ""

    def runs(self, effort: "Effort") -> int:
        return effort.rare_runs if self.rarely else effort.runs


@dataclass(frozen=True, slots=True)
class Effort:
    """How often everything is measured, and the longest anything is waited for."""

    runs: int
    rare_runs: int
    cap_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    """One fault for several contestants. `nodes` are started before it; `judge` makes figures of it all."""

    name: str
    fault: Fault
    shape: Shape
    nodes: int
    entries: tuple[Entry, ...]
    judge: Callable[[Outcomes], list[Figure]]


def fleet_of(who: Contestant, terms: Terms) -> Fleet:
    """The contestant's nodes, not yet started."""
    match who:
        case Contestant.STOCK:
            return StockFleet(terms, tuning=AS_IT_COMES)
        case Contestant.TUNED:
            return StockFleet(terms, tuning=TUNED)
        case Contestant.JOINABLE:
            return StockFleet(terms, tuning=LETS_NODES_JOIN)
        case Contestant.HOLDFAST:
            return HoldfastFleet(terms, script="plain.py")
        case Contestant.REENTERED:
            return HoldfastFleet(terms, script="reentrant.py")
        case Contestant.REMEMBERED:
            return HoldfastFleet(terms, script="remembering.py", memory=MemoryPolicy())


def carry_out(exercise: Exercise, effort: Effort, environment: Mapping[str, str]) -> Outcomes:
    """Run it, contestants taking turns. One whose training never starts has no outcome for that turn."""
    outcomes: dict[Contestant, list[Outcome]] = {entry.who: [] for entry in exercise.entries}
    for number in range(effort.runs):
        for entry in exercise.entries:
            if number >= entry.runs(effort):
                continue
            cap_s = min(entry.cap_s, effort.cap_s)
            outcome = _attempt(exercise, entry.who, cap_s, environment, number)
            print(
                f"  {exercise.name}, run {number + 1}, {entry.who.value}: {outcome or 'did not start'}", flush=True
            )
            if outcome is not None:
                outcomes[entry.who].append(outcome)
    return outcomes


def _attempt(
    exercise: Exercise, who: Contestant, cap_s: float, environment: Mapping[str, str], number: int
) -> Outcome | None:
    for _ in range(TRIES):
        with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as folder, none_left_behind():
            fleet = fleet_of(who, Terms(shape=exercise.shape, folder=Path(folder), environment=environment))
            try:
                fleet.start(exercise.nodes)
            except NotStarted as error:
                print(f"  {exercise.name}, {who.value}: {error}", flush=True)
                continue
            time.sleep(number * PHASE_S)
            return exercise.fault(fleet, cap_s)
    return None
