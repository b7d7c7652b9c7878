"""The whole crowd as its director sees it: processes that play, are told what to do and asked what they saw."""

import contextlib
import multiprocessing
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from multiprocessing.connection import Connection
from statistics import quantiles
from typing import Any, Final

from crowd import cast
from crowd.cast import Part
from crowd.play import Order, Strain, play
from crowd.server import TOKEN, Server

PROCESSES: Final = 4
# The first process plays every 64th launcher and comes before the others on their core: when a round reaches its
# launchers is the watchdog's doing, when it reaches the last of 12,500 played ones their own.
WITNESS: Final = 0
WITNESSED: Final = 64
OTHERS_NICE: Final = 5
SHOWN_WITHIN_S: Final = 180.0


@dataclass(frozen=True, slots=True)
class Spread:
    """When a round was at those of its launchers that are witnesses, in seconds since the fault was told."""

    first_s: float
    median_s: float
    p99_s: float
    last_s: float

    @classmethod
    def of(cls, delays: Sequence[float]) -> "Spread":
        ordered = sorted(delays)
        cuts = quantiles(ordered, n=100, method="inclusive")
        return cls(ordered[0], cuts[49], cuts[98], ordered[-1])


def _place_of(part: Part) -> int:
    """Which process plays it."""
    return WITNESS if part.index % WITNESSED == 0 else 1 + part.index % (PROCESSES - 1)


class Crowd:
    """Everybody of `jobs`: `members` each, of which the first `agents` of all have an agent."""

    def __init__(self, stages: Sequence[Connection], jobs: Sequence[str], members: int) -> None:
        self._stages = stages
        self.jobs = jobs
        self.members = members

    def assemble(self, what: str) -> None:
        """Connect all launchers or all agents, from every process at once."""
        self._all("assemble", what)

    def form(self) -> None:
        """Wait until every launcher of every job has the job's newest round."""
        for job in self.jobs:
            self._shown_everywhere(job, after=0)

    def be_busy(self) -> None:
        self._all("busy")

    def strain(self) -> float:
        """How far the witnesses fell behind their own timetable since last asked, in seconds.

        Raises RuntimeError where less was played than the figures say.
        """
        told: list[Strain] = self._all("strain")
        if any(each.has_stopped for each in told):
            raise RuntimeError("a process of the crowd has stopped being busy")
        if lost := sum(each.lost for each in told):
            raise RuntimeError(f"the crowd has lost {lost} connections")
        return told[WITNESS].late_s

    def fail(self, job: str, index: int, step: int) -> Spread:
        """A rank of member `index` dies after a checkpoint of `step`; how the next round spreads."""
        number, _ = self._newest(job)
        self._say(Part(job, 0), cast.committed(number, step))
        time.sleep(1.0)
        began = self._say(Part(job, index), cast.exited(number, index * cast.RANKS))
        after = self._shown_everywhere(job, after=number)
        return Spread.of([at - began for at in after])

    def _shown_everywhere(self, job: str, after: int) -> list[float]:
        give_up_at = time.monotonic() + SHOWN_WITHIN_S
        number = have = 0
        while time.monotonic() < give_up_at:
            number, have = self._newest(job)
            if number > after and have >= self.members:
                self._stages[WITNESS].send(("shown", job, number))
                return list(self._stages[WITNESS].recv())
            time.sleep(0.2)
        raise TimeoutError(
            f"{have} of {self.members} launchers of {job} have round {number}, wanted beyond {after}"
        )

    def _newest(self, job: str) -> tuple[int, int]:
        told = self._all("newest", job)
        newest = max(number for number, _ in told)
        return newest, sum(have for number, have in told if number == newest)

    def _say(self, part: Part, body: bytes) -> float:
        stage = self._stages[_place_of(part)]
        stage.send(("say", part, body))
        at: float = stage.recv()
        return at

    def _all(self, *order: object) -> list[Any]:
        for stage in self._stages:
            stage.send(order)
        return [stage.recv() for stage in self._stages]


@contextlib.contextmanager
def crowd(
    server: Server, everybody: Sequence[Part], *, agents: int, reports_per_s: float, core: int | None
) -> Iterator[Crowd]:
    """A crowd that is not yet assembled; gone at the end: as many of each job, and so many of them with an agent.
    `reports_per_s` is of all agents together.
    """
    reporting = everybody[:agents]
    spawn = multiprocessing.get_context("spawn")
    stages, processes = [], []
    try:
        for place in range(PROCESSES):
            order = Order(
                server.port,
                TOKEN,
                f"127.0.0.{10 + place}",
                tuple(part for part in everybody if _place_of(part) == place),
                tuple(part for part in reporting if _place_of(part) == place),
                reports_per_s / agents if agents else 0.0,
            )
            here, there = spawn.Pipe()
            nice = 0 if place == WITNESS else OTHERS_NICE
            processes.append(spawn.Process(target=play, args=(order, there, core, nice), daemon=True))
            processes[-1].start()
            stages.append(here)
        jobs = tuple(dict.fromkeys(part.job for part in everybody))
        yield Crowd(stages, jobs, len(everybody) // len(jobs))
    finally:
        for process in processes:
            process.terminate()
            process.join()
