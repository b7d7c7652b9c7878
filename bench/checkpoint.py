"""What saves and loads cost: Holdfast, stock DCP and the limits of this machine, taking turns in one run.

    python bench/checkpoint.py [--n 5] [--quick] [--only SECTION] [--folder FOLDER]

Ranks are processes of this machine that talk over gloo. The state is a small GPT-2's parameters and moments,
1.5 GB over all ranks, each tensor sharded. `FOLDER` is where it is saved, best on a disk of its own.
"""

import argparse
import itertools
import shutil
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from figure import BUILD, Figure, Goal, measured, publish, unmeasured
from saves import damage, loading, saving
from saves.ours import POINTS
from saves.ranks import Answer, Crew, Given, RanksFailed, outcomes, run
from saves.stock import Way
from saves.subject import GPT2_SMALL, MANY_TINY, SMALLEST, Size
from saves.turns import Samples

ALONE: Final = 1
WORLDS: Final = (2, 4)
ROWS, COLUMNS = 0, 1
LOST_S: Final = 0.15
STAGING_US: Final = 5.0
REPLICAS_TARGET: Final = 3.0  # A copy of half of it, and on each rank a look at all of it.
MEMORY_TARGET: Final = 1.1  # One image of what is saved, one copy of what is loaded.
LEFT_OUT: Final = "no samples; the run says why, or was a quick one"


@dataclass(frozen=True)
class Effort:
    """How much is saved, how often, and where."""

    size: Size
    tiny: Size
    rounds: int
    tries: int
    deaths: tuple[tuple[int, str], ...]
    ways: tuple[Way, ...]
    worlds: tuple[int, ...]
    baseline_s: float
    folder: Path

    def course(
        self, folder: str, *, size: Size | None = None, ways: tuple[Way, ...] | None = None
    ) -> saving.Course:
        path = self.folder / folder
        path.mkdir(exist_ok=True)
        ways = self.ways if ways is None else ways
        return saving.Course(size or self.size, path, self.rounds, ways, self.baseline_s)


DEATHS: Final = tuple((0, point) for point in POINTS) + tuple((1, point) for point in POINTS[:2])


def whole_effort(n: int, folder: Path) -> Effort:
    return Effort(GPT2_SMALL, MANY_TINY, n, 30, DEATHS, tuple(Way), WORLDS, 0.7, folder)


def quick_effort(folder: Path) -> Effort:
    return Effort(SMALLEST, SMALLEST, 1, 2, DEATHS[1:2], (Way.SYNC, Way.THREAD_KEPT), WORLDS[:1], 0.1, folder)


def attempt(program: Callable[[Crew, Given], Answer], given: Given, *, ranks: int) -> Answer | None:
    """What rank 0 answers; None, and said aloud, when the ranks fail."""
    try:
        began = time.perf_counter()
        answer = run(program, given, ranks=ranks)
        print(f"  {program.__name__}, {ranks} ranks: {time.perf_counter() - began:.1f} s", flush=True)
        return answer
    except RanksFailed as failure:
        print(f"  {program.__name__}, {ranks} ranks: {failure}", flush=True)
        return None


def compared(figure: str, samples: Samples, ours: str, other: str, *, target: float, unit: str = "s") -> Figure:
    """The figure for two lists of samples; unmeasured when either is missing."""
    if ours not in samples or other not in samples:
        return unmeasured(figure, unit=unit, target=target, reason=LEFT_OUT)
    return measured(figure, ours=samples[ours], other=samples[other], unit=unit, target=target)


def within(figure: str, samples: Samples, ours: str, limit: float, *, unit: str, target: float = 1.0) -> Figure:
    """The same against a number that is known."""
    return compared(figure, {**samples, "limit": [limit]}, ours, "limit", target=target, unit=unit)


def saves(effort: Effort) -> list[Figure]:
    figures = []
    for ranks in WORLDS:
        course = effort.course(f"save-{ranks}")
        samples = attempt(saving.save_in_turns, course, ranks=ranks) or {} if ranks in effort.worlds else {}
        stall, whole = f"stall, {ranks} ranks", f"durable save, {ranks} ranks"
        figures += [
            compared(f"{stall}, over memcpy into warm shared memory", samples, "ours stall", "copy", target=1.2),
            compared(f"{whole}, over raw O_DIRECT write and fsync", samples, "ours whole", "write", target=1.15),
        ]
        for way in Way:
            figures += [
                compared(f"{stall}, over {way}", samples, "ours stall", f"{way} stall", target=1.0),
                compared(f"{whole}, over {way}", samples, "ours whole", f"{way} whole", target=1.0),
            ]
    return figures


def firsts(effort: Effort) -> list[Figure]:
    figures = []
    for ranks in WORLDS:
        samples = lives(effort, ranks) if ranks in effort.worlds else {}
        first = f"first save, {ranks} ranks, over later saves"
        memory = f"memory that saving takes, {ranks} ranks, over what is saved"
        figures += [
            compared(first, samples, "first", "later", target=2.0),
            within(memory, samples, "peak", effort.size.size_bytes, unit="bytes", target=MEMORY_TARGET),
        ]
    return figures


def lives(effort: Effort, ranks: int) -> Samples:
    """Every sample is a process group of its own, in a folder of its own."""
    samples: Samples = {}
    for life in range(effort.rounds):
        course = effort.course(f"life-{ranks}-{life}")
        for name, values in (attempt(saving.first_saves, course, ranks=ranks) or {}).items():
            samples.setdefault(name, []).extend(values)
        shutil.rmtree(course.folder)
    return samples


def staging(effort: Effort) -> list[Figure]:
    course = effort.course("staging", size=effort.tiny, ways=(Way.THREAD_KEPT,))
    samples = attempt(saving.stage_many, course, ranks=WORLDS[0]) or {}
    name, way = "staging a tiny tensor", Way.THREAD_KEPT
    return [
        within(f"{name}, over {STAGING_US:.0f} us", samples, "ours stall", STAGING_US, unit="us"),
        compared(f"{name}, over {way}", samples, "ours stall", f"{way} stall", target=1.0, unit="us"),
    ]


def replicas(effort: Effort) -> list[Figure]:
    course = effort.course("replicas", ways=())
    samples = attempt(saving.save_replicas, course, ranks=WORLDS[0]) or {}
    name = f"stall, {WORLDS[0]} ranks that hold all of the state, over memcpy of it"
    return [compared(name, samples, "ours stall", "copy", target=REPLICAS_TARGET)]


def background(effort: Effort) -> list[Figure]:
    ways = tuple(way for way in (Way.THREAD_KEPT, Way.PROCESS_KEPT) if way in effort.ways)
    figures = []
    for ranks in (ALONE, *WORLDS):
        samples: Samples = {}
        if ranks in (ALONE, *effort.worlds):
            course = effort.course(f"background-{ranks}", ways=ways)
            samples = attempt(saving.train_meanwhile, course, ranks=ranks) or {}
        name = f"training time lost in the background per save, {ranks} {'rank' if ranks == ALONE else 'ranks'}"
        figures.append(within(f"{name}, over {LOST_S} s", samples, "ours lost", LOST_S, unit="s"))
        for way in (Way.THREAD_KEPT, Way.PROCESS_KEPT):
            figures.append(compared(f"{name}, over {way}", samples, "ours lost", f"{way} lost", target=1.0))
    return figures


def loads(effort: Effort) -> list[Figure]:
    figures = []
    for saved_by in WORLDS:
        course = effort.course(f"load-{saved_by}")
        if saved_by in effort.worlds:
            attempt(saving.leave_behind, course, ranks=saved_by)
        for loaded_by, dim in itertools.product(WORLDS, (ROWS, COLUMNS)):
            if saved_by == loaded_by and dim == COLUMNS:
                continue  # It reads the same bytes as with another number of ranks.
            samples: Samples = {}
            if {saved_by, loaded_by} <= set(effort.worlds):
                given = loading.Course(course.size, course.folder, dim, course.rounds)
                samples = attempt(loading.load_in_turns, given, ranks=loaded_by) or {}
            figures += loaded(samples, saved_by, loaded_by, dim)
    return figures


def loaded(samples: Samples, saved_by: int, loaded_by: int, dim: int) -> list[Figure]:
    is_same = saved_by == loaded_by and dim == ROWS
    axis = "columns" if dim == COLUMNS else "rows"
    name = f"{'same-layout' if is_same else 'resharded'} load, {saved_by} to {loaded_by} ranks, {axis}"
    figures = []
    for cache, limit, target in (("warm", "page-cache", 3.5), ("cold", "disk", 1.5)):
        if is_same:
            label = f"{name}, {cache}, over {limit} read"
            figures.append(compared(label, samples, f"ours {cache}", f"read {cache}", target=target))
        figures.append(
            compared(f"{name}, {cache}, over dcp.load", samples, f"ours {cache}", f"dcp {cache}", target=1.0)
        )
    target = 1.5 if dim == COLUMNS else 1.05
    label = f"{name}, bytes read over bytes needed"
    figures.append(compared(label, samples, "ours warm read", "needed", target=target, unit="bytes"))
    if is_same:
        samples = {**samples, "peak": peaks(samples)} if samples else {}
        label = f"memory that loading takes, {loaded_by} ranks, over what is loaded"
        figures.append(compared(label, samples, "peak", "needed", target=MEMORY_TARGET, unit="bytes"))
    return figures


def peaks(samples: Samples) -> list[float]:
    """The highest: memory that is given back to the allocator only the first load has to ask for."""
    return [max(value for name, values in samples.items() if name.endswith("warm peak") for value in values)]


def detection(effort: Effort) -> list[Figure]:
    course = effort.course("harm")
    given = damage.Course(SMALLEST, course.folder, effort.tries)
    samples = attempt(damage.harm, given, ranks=1) or {}
    figures = []
    for harm in damage.HARMS:
        theirs = samples.get(f"dcp {harm}", [])
        name = f"loads that a {harm} did not mislead; stock DCP: {sum(theirs):.0f} of {len(theirs)}"
        figures.append(share(name, samples.get(harm, []) if samples.get("unharmed") == [1.0] else []))
    name = "deaths in a save after which the newest committed checkpoint loads"
    return [*figures, share(name, [survived(effort, rank, point) for rank, point in effort.deaths])]


def survived(effort: Effort, rank: int, point: str) -> float:
    course = effort.course(f"death-{rank}-{point}")
    death = damage.Death(SMALLEST, course.folder, rank, point)
    print(f"  die_in_a_save, rank {rank} at {point}", flush=True)
    if outcomes(damage.die_in_a_save, death, ranks=WORLDS[0])[rank] is not None:
        raise RanksFailed(f"rank {rank} did not die at {point}")
    return attempt(damage.look_back, death, ranks=WORLDS[0]) or 0.0


def share(figure: str, samples: Sequence[float]) -> Figure:
    """Of all tries, those that went well, which all have to."""
    if not samples:
        return unmeasured(figure, unit="share", target=1.0, goal=Goal.AT_LEAST, reason=LEFT_OUT)
    well = [sum(samples) / len(samples)] * len(samples)
    return measured(figure, ours=well, other=[1.0], unit="share", target=1.0, goal=Goal.AT_LEAST)


SECTIONS: Final = {
    "save": saves,
    "first": firsts,
    "staging": staging,
    "replicas": replicas,
    "background": background,
    "load": loads,
    "detection": detection,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--n", type=int, default=5, help="rounds; each contestant gives one sample a round")
    parser.add_argument("--quick", action="store_true", help="whether it runs at all, with a state of no size")
    parser.add_argument("--only", choices=SECTIONS, help="one section; written to a file of its own")
    parser.add_argument("--output", type=Path, default=BUILD, help="where the figures go (default: %(default)s)")
    parser.add_argument("--folder", type=Path, default=BUILD, help="where to save (default: %(default)s)")
    given = parser.parse_args()
    given.folder.mkdir(parents=True, exist_ok=True)
    figures: list[Figure] = []
    for name, section in SECTIONS.items():
        if given.only in (None, name):
            print(name, flush=True)
            with tempfile.TemporaryDirectory(prefix="checkpoint-", dir=given.folder) as folder:
                path = Path(folder)
                figures += section(quick_effort(path) if given.quick else whole_effort(given.n, path))
    publish(f"checkpoint-{given.only}" if given.only else "checkpoint", figures, folder=given.output)


if __name__ == "__main__":
    main()
