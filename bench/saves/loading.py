"""Programs of ranks that load what other ranks, as many or not, have saved."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from saves import memory, stock
from saves.limits import Limits, chill, warm
from saves.ours import Ours
from saves.ranks import Crew
from saves.saving import ours_folder, stock_folder
from saves.subject import Size, Subject
from saves.turns import Samples, Turn, take_turns


@dataclass(frozen=True)
class Course:
    """What lies in `folder`, and how it is loaded: `dim` is what two-dimensional tensors are sharded over now."""

    size: Size
    folder: Path
    dim: int
    rounds: int


class WrongState(Exception):
    """A load brought other values than were saved."""


def load_in_turns(crew: Crew, course: Course) -> Samples:
    """For X of ours and dcp and P of warm and cold: `X P` seconds, `X P read` and `X P peak` bytes that all
    ranks together read and take; `read warm` and `read cold` seconds of the machine; `needed` bytes of all ranks.
    """
    subject = Subject(course.size, ranks=crew.size, dim=course.dim)
    subject.fill(1)
    limits = Limits(crew, subject, course.folder)
    limits.write()
    turns: dict[str, Turn] = {
        "read warm": lambda: {"read warm": limits.read_warm()},
        "read cold": lambda: {"read cold": limits.read_cold()},
    }
    for page_cache, prepare in (("warm", warm), ("cold", chill)):
        for name, load, folder in (
            ("ours", _load_ours, ours_folder(course.folder)),
            ("dcp", stock.load, stock_folder(course.folder)),
        ):
            turns[f"{name} {page_cache}"] = partial(
                _load,
                crew,
                subject,
                f"{name} {page_cache}",
                partial(prepare, _files(folder)),
                partial(load, subject, folder),
            )
    samples = take_turns(turns, rounds=course.rounds)
    samples["needed"] = [crew.total(subject.held_bytes)]
    if crew.rank == 0:
        for raw in course.folder.glob("raw-*"):
            raw.unlink()
    return samples


def _load_ours(subject: Subject, folder: Path) -> None:
    ours = Ours(subject, folder)
    try:
        if ours.load() is None:
            raise WrongState(f"nothing restored from {folder}")
    finally:
        ours.close()


def _load(
    crew: Crew, subject: Subject, name: str, prepare: Callable[[], None], load: Callable[[], None]
) -> dict[str, float]:
    subject.spoil()
    if crew.rank == 0:
        prepare()
    resident, read = memory.resident_bytes(), memory.read_bytes()
    memory.forget_peak()
    crew.meet()
    began = time.perf_counter()
    load()
    took = time.perf_counter() - began
    peak, read = memory.peak_bytes() - resident, memory.read_bytes() - read
    if not subject.holds(1):
        raise WrongState(f"{name} brought other values than were saved")
    return {name: crew.worst(took), f"{name} read": crew.total(read), f"{name} peak": crew.total(peak)}


def _files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]
