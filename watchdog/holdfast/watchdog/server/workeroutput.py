"""The end of what worker processes wrote, kept for readers when the pod they ran in is gone.

Nothing is decided by it, so it is neither journaled nor part of a job's state, and lies in memory only: a watchdog
that takes over begins with none.

Memory is bounded whatever launchers send. One process: `TAIL_BYTES_MAX`. One rank: `PROCESSES_KEPT` processes.
One job: `JOB_BYTES`, each process counted with `ENTRY_BYTES` beside its tail, so that there are 262,144 processes
at most. All jobs: `TOTAL_BYTES`, taken from the job that has most, so that one that sends much takes nothing from
those that send little. The oldest to arrive go first.
"""

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from holdfast.api.workeroutput import ENTRY_BYTES, JOB_BYTES, KeptOutput, WorkerOutput

PROCESSES_KEPT: Final = 3
# The chart gives the watchdog 1 GiB.
TOTAL_BYTES: Final = 192 << 20
ANSWERED_MAX: Final = 64  # at 16 KiB each, an answer has 1 MiB of text

_Key = tuple[int, int, str]  # the round it was started in, rank, member


@dataclass(frozen=True, slots=True)
class _Kept:
    member: str
    node: str
    output: WorkerOutput

    @property
    def key(self) -> _Key:
        return self.output.round, self.output.rank, self.member

    @property
    def size(self) -> int:
        return len(self.output.tail) + ENTRY_BYTES

    @property
    def ended(self) -> tuple[float, _Key]:
        """The order of a rank's processes; one that re-entered may be older than the one it follows."""
        return self.output.ended_at, self.key

    def told(self) -> KeptOutput:
        said = self.output
        return KeptOutput(
            said.rank,
            self.member,
            self.node,
            said.pid,
            said.round,
            said.started_at,
            said.ended_at,
            said.ended_with,
            said.omitted_bytes,
            said.tail.decode("utf-8", "replace"),
        )


@dataclass(slots=True)
class _OfJob:
    """One job's, in the order of arrival, and those of each rank."""

    kept: dict[_Key, _Kept] = field(default_factory=dict)
    of_rank: dict[int, dict[_Key, _Kept]] = field(default_factory=lambda: defaultdict(dict))
    size: int = 0

    def add(self, each: _Kept) -> None:
        if (older := self.kept.get(each.key)) is not None:
            self.remove(older)
        of_rank = self.of_rank[each.output.rank]
        self.kept[each.key] = of_rank[each.key] = each
        self.size += each.size
        if len(of_rank) > PROCESSES_KEPT:
            self.remove(min(of_rank.values(), key=lambda kept: kept.ended))

    def remove(self, gone: _Kept) -> None:
        del self.kept[gone.key]
        self.size -= gone.size
        of_rank = self.of_rank[gone.output.rank]
        del of_rank[gone.key]
        if not of_rank:
            del self.of_rank[gone.output.rank]

    def remove_oldest(self) -> None:
        self.remove(next(iter(self.kept.values())))


class OutputShelf:
    """Of all jobs of one watchdog. Pure."""

    def __init__(self, *, job_bytes: int = JOB_BYTES, total_bytes: int = TOTAL_BYTES) -> None:
        self._job_bytes = job_bytes
        self._total_bytes = total_bytes
        self._jobs: dict[str, _OfJob] = {}
        self._size = 0

    def keep(self, job: str, *, member: str, node: str, output: WorkerOutput) -> None:
        """Keep it in place of what the same process sent before; give up the oldest for it."""
        of_job = self._jobs.setdefault(job, _OfJob())
        before = of_job.size
        of_job.add(_Kept(member, node, output))
        while of_job.size > self._job_bytes:
            of_job.remove_oldest()
        self._size += of_job.size - before
        while self._size > self._total_bytes:
            largest = max(self._jobs.values(), key=lambda each: each.size)
            self._size -= largest.size
            largest.remove_oldest()
            self._size += largest.size

    def of_rank(self, job: str, rank: int) -> tuple[KeptOutput, ...]:
        """What is kept of the rank's processes, the one that ended last first."""
        of_job = self._jobs.get(job, _OfJob())
        return _newest_first(of_job.of_rank.get(rank, {}).values())

    def on_node(self, job: str, node: str) -> tuple[KeptOutput, ...]:
        """What is kept of the processes that ran on the node, the one that ended last first."""
        of_job = self._jobs.get(job, _OfJob())
        return _newest_first(each for each in of_job.kept.values() if each.node == node)

    def forget(self, job: str) -> None:
        """The job is gone for good."""
        gone = self._jobs.pop(job, None)
        if gone is not None:
            self._size -= gone.size


def _newest_first(found: Iterable[_Kept]) -> tuple[KeptOutput, ...]:
    newest = sorted(found, key=lambda each: each.ended, reverse=True)[:ANSWERED_MAX]
    return tuple(each.told() for each in newest)
