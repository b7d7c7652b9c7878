"""What scripts logged by themselves, kept until somebody has published it.

Nothing is decided by it, so it is neither journaled nor part of a job's state, and lies in memory only: for as
long as who publishes may be away. Memory and time are bounded whatever ranks send. A job may say `VALUES_PER_S`
values a second and a burst of as many as in `BURST_S`; what is beyond is left out. `JOB_VALUES` are kept of one
job, and `TOTAL_VALUES` of all, taken from the job that has most; the oldest go first.
"""

import uuid
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Final

import msgspec

from holdfast.api.bulletin import KeptScalars
from holdfast.api.scalars import VALUES_PER_S, ScalarsLogged

JOB_VALUES: Final = 300_000
"""Of one name at ten steps a second that is eight hours; of all that one rank may log, two and a half minutes."""
TOTAL_VALUES: Final = 2_000_000
"""Some 250 MB where jobs fill it, twice that where each value has a name of its own; one that logs ten names
once a second has 3,000 values in five minutes.
"""
BURST_S: Final = 10.0
ANSWERED_VALUES: Final = 20_000


@dataclass(frozen=True, slots=True)
class _Kept:
    number: int
    logged: ScalarsLogged
    size: int


@dataclass(slots=True)
class _OfJob:
    """`allowance` is how many values may be said `at` this time."""

    at: float
    kept: deque[_Kept] = field(default_factory=deque)
    newest: int = 0
    size: int = 0
    allowance: float = VALUES_PER_S * BURST_S

    def remove_oldest(self) -> int:
        gone = self.kept.popleft()
        self.size -= gone.size
        return gone.size


class ScalarShelf:
    """Of all jobs of one watchdog. `life` names this one: numbers begin with it."""

    def __init__(self, *, job_values: int = JOB_VALUES, total_values: int = TOTAL_VALUES) -> None:
        self.life = uuid.uuid4().hex
        self._job_values = job_values
        self._total_values = total_values
        self._jobs: dict[str, _OfJob] = {}
        self._size = 0

    def keep(self, job: str, logged: ScalarsLogged, now: float) -> None:
        """Keep it, or what of it may be said now; give up the oldest for it."""
        of_job = self._jobs.setdefault(job, _OfJob(now))
        earned = max(0.0, now - of_job.at) * VALUES_PER_S
        of_job.at, of_job.allowance = now, min(VALUES_PER_S * BURST_S, of_job.allowance + earned)
        # A name takes room too, also where no value follows it.
        size = sum(max(1, len(points)) for points in logged.series.values())
        if size > of_job.allowance:
            logged = msgspec.structs.replace(logged, series={}, left_out=logged.left_out + size)
            size = 0
        of_job.allowance -= size
        of_job.newest += 1
        last = of_job.kept[-1] if of_job.kept else None
        if size == 0 and last is not None and not last.logged.series:
            # One that says no more than how much was left out adds to the one before: a flood keeps no memory.
            both = msgspec.structs.replace(logged, left_out=logged.left_out + last.logged.left_out)
            of_job.kept[-1] = replace(last, number=of_job.newest, logged=both)
            return
        of_job.kept.append(_Kept(of_job.newest, logged, max(1, size)))
        of_job.size += max(1, size)
        self._size += max(1, size)
        while of_job.size > self._job_values and len(of_job.kept) > 1:
            self._size -= of_job.remove_oldest()
        while self._size > self._total_values:
            largest = max(self._jobs.values(), key=lambda each: each.size)
            self._size -= largest.remove_oldest()

    def after(self, job: str, number: int, life: str) -> tuple[tuple[KeptScalars, ...], int]:
        """Messages behind the one of that number in that life, oldest first; how many are lost before them."""
        of_job = self._jobs.get(job)
        if of_job is None:
            return (), 0
        behind = number if life == self.life else 0
        found: list[KeptScalars] = []
        size = 0
        for each in of_job.kept:
            if each.number > behind:
                size += each.size
                if found and size > ANSWERED_VALUES:
                    break
                found.append(KeptScalars(each.number, each.logged))
        oldest = of_job.kept[0].number if of_job.kept else of_job.newest + 1
        return tuple(found), max(0, oldest - behind - 1)

    def forget(self, job: str) -> None:
        """The job is gone for good."""
        gone = self._jobs.pop(job, None)
        if gone is not None:
            self._size -= gone.size
