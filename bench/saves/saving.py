"""Programs of ranks that save: Holdfast, stock DCP and the machine's limits, taking turns."""

import os
import shutil
import time
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from statistics import median
from typing import Final

from saves import memory
from saves.limits import Limits
from saves.ours import Ours, keep_newest
from saves.ranks import Crew
from saves.stock import Stock, Way
from saves.subject import Size, Subject
from saves.turns import Samples, Turn, take_turns

SETTLE_S: Final = 0.1
BUSY_LOOP: Final = 60_000
LATER_SAVES: Final = 2


@dataclass(frozen=True)
class Course:
    """What to save, where, in how many rounds, and against which ways of DCP."""

    size: Size
    folder: Path
    rounds: int
    ways: tuple[Way, ...]
    baseline_s: float
    """For how long a loop is watched that nothing disturbs."""


def ours_folder(folder: Path) -> Path:
    return folder / "ours"


def stock_folder(folder: Path) -> Path:
    return folder / "stock"


def save_in_turns(crew: Crew, course: Course) -> Samples:
    """`X stall` and `X whole` of every contestant X in seconds, `copy` and `write` of the machine."""
    subject = _subject(crew, course)
    limits = Limits(crew, subject, course.folder)
    ours = _begun(subject, course)
    stocks = {way: Stock(subject, way) for way in course.ways}
    turns: dict[str, Turn] = {
        "copy": lambda: {"copy": limits.copy()},
        "write": lambda: {"write": limits.write()},
        "ours": partial(_save, crew, "ours", ours.save, ours.wait, course.folder),
    }
    for way, stock in stocks.items():
        save = partial(stock.save, stock_folder(course.folder))
        turns[way.value] = partial(_save, crew, way.value, save, stock.wait, course.folder)
    samples = take_turns(turns, rounds=course.rounds)
    if crew.rank == 0:
        for raw in course.folder.glob("raw-*"):
            raw.unlink()
    for stock in stocks.values():
        stock.close()
    ours.close()
    return samples


def save_replicas(crew: Crew, course: Course) -> Samples:
    """`ours stall` of state that every rank holds whole, and `copy` of all of it: who stores a part, has to see
    that the others hold the same.
    """
    subject = Subject(course.size, ranks=crew.size, dim=None)
    subject.fill(1)
    limits = Limits(crew, subject, course.folder)
    ours = _begun(subject, course)
    turns: dict[str, Turn] = {
        "copy": lambda: {"copy": limits.copy()},
        "ours": partial(_save, crew, "ours", ours.save, ours.wait, course.folder),
    }
    samples = take_turns(turns, rounds=course.rounds)
    ours.close()
    return samples


def leave_behind(crew: Crew, course: Course) -> bool:
    """Save once with Holdfast and once with DCP; that it did."""
    subject = _subject(crew, course)
    ours = _begun(subject, course)
    ours.save()
    ours.wait()
    synchronous = Stock(subject, Way.SYNC)
    synchronous.save(stock_folder(course.folder))
    synchronous.close()
    ours.close()
    return True


def first_saves(crew: Crew, course: Course) -> Samples:
    """A life of its own: its first save, `later` ones, and how much memory saving took beyond what was there."""
    subject = _subject(crew, course)
    crew.meet()
    before = memory.resident_bytes()
    memory.forget_peak()
    ours = _begun(subject, course)
    save = partial(_save, crew, "ours", ours.save, ours.wait, course.folder)
    first = save()["ours whole"]
    later = [save()["ours whole"] for _ in range(LATER_SAVES)]
    peak = crew.total(memory.peak_bytes() - before)
    ours.close()
    return {"first": [first], "later": [median(later)], "peak": [peak]}


def stage_many(crew: Crew, course: Course) -> Samples:
    """`X stall` as in `save_in_turns`, in microseconds for each of the tensors."""
    subject = _subject(crew, course)
    ours = _begun(subject, course)
    turns: dict[str, Turn] = {"ours": partial(_save, crew, "ours", ours.save, ours.wait, course.folder)}
    for way in course.ways:
        stock = Stock(subject, way)
        save = partial(stock.save, stock_folder(course.folder))
        turns[way.value] = partial(_save, crew, way.value, save, stock.wait, course.folder)
    samples = take_turns(turns, rounds=course.rounds)
    ours.close()
    return {name: [each / subject.count * 1e6 for each in those] for name, those in samples.items()}


def train_meanwhile(crew: Crew, course: Course) -> Samples:
    """`X lost`: seconds that a loop that holds the GIL has lost from the end of the stall to that of the save.

    The ranks step together, as in synchronous training: what one of them loses all lose.
    """
    subject = _subject(crew, course)
    ours = _begun(subject, course)
    turns: dict[str, Turn] = {"ours": partial(_lose, crew, course, "ours", ours, ours.save)}
    for way in course.ways:
        stock = Stock(subject, way)
        save = partial(stock.save, stock_folder(course.folder))
        turns[way.value] = partial(_lose, crew, course, way.value, stock, save)
    samples = take_turns(turns, rounds=course.rounds)
    ours.close()
    return samples


def _subject(crew: Crew, course: Course) -> Subject:
    subject = Subject(course.size, ranks=crew.size)
    subject.fill(1)
    return subject


def _begun(subject: Subject, course: Course) -> Ours:
    ours = Ours(subject, ours_folder(course.folder))
    ours.load()
    return ours


def _save(
    crew: Crew, name: str, save: Callable[[], float], wait: Callable[[], float], folder: Path
) -> dict[str, float]:
    _settle(crew, folder)
    began = time.perf_counter()
    stall = save()
    ended = wait()
    whole = crew.first(ended - began)
    return {f"{name} stall": crew.worst(stall), f"{name} whole": whole}


def _settle(crew: Crew, folder: Path) -> None:
    """Let nothing that an earlier turn has left weigh on the next; DCP would have to delete what it overwrites."""
    crew.meet()
    time.sleep(SETTLE_S)
    if crew.rank == 0:
        keep_newest(ours_folder(folder))
        shutil.rmtree(stock_folder(folder), ignore_errors=True)
        _sync(folder)
    crew.meet()


def _sync(folder: Path) -> None:
    """Make deletions durable now, so that the next turn need not."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _lose(
    crew: Crew, course: Course, name: str, saver: Ours | Stock, save: Callable[[], float]
) -> dict[str, float]:
    _settle(crew, course.folder)
    before = _step_s(crew, course.baseline_s)
    save()
    took, steps = _train(crew, saver.is_committed)
    saver.wait()
    time.sleep(SETTLE_S)
    after = _step_s(crew, course.baseline_s)
    return {f"{name} lost": took - steps * (before + after) / 2}


def _step_s(crew: Crew, window_s: float) -> float:
    ends_at = time.perf_counter() + window_s
    took, steps = _train(crew, lambda: time.perf_counter() >= ends_at)
    return took / steps


def _train(crew: Crew, is_over: Callable[[], bool]) -> tuple[float, int]:
    """Steps of all ranks until it is over for rank 0, one at least; seconds and how many.

    Only rank 0 hears of a commit, so it tells the others after each step. That is a part of every step, also of
    those that nothing disturbs.
    """
    began, steps = time.perf_counter(), 0
    while True:
        _busy_step()
        steps += 1
        if crew.first(float(is_over())):
            return time.perf_counter() - began, steps


def _busy_step() -> int:
    """Some milliseconds of pure Python."""
    return sum(number * number for number in range(BUSY_LOOP))
