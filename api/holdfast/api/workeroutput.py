"""The end of what worker processes wrote, which outlives their pods: sent by launchers, kept by the watchdog.

How much of it is sent follows from what the watchdog keeps of one job, `JOB_BYTES`: each rank has an equal
share of that, at most `TAIL_BYTES_MAX`. With 7,900 ranks or fewer that is 16 KiB of a process; of 100,000 ranks
(12,500 members of 8) it is 830 bytes each, some eight lines. All ranks of a job may be started again at the same
moment, so they send within `spread_s` of it and not all at once.
"""

from typing import Annotated, Final

import msgspec

from holdfast.api.bounds import TEXT_LENGTH_MAX, Figure, Name, Pid, Rank, Whole

TAIL_BYTES_MAX: Final = 16 << 10
TAIL_BYTES_MIN: Final = 512
JOB_BYTES: Final = 128 << 20
ENTRY_BYTES: Final = 512  # what one process costs beside its tail: names, numbers, the index
BYTES_PER_S: Final = 4 << 20  # of all members of a job together


class WorkerOutput(msgspec.Struct, frozen=True, tag=True):
    """Launcher to watchdog: the end of what one worker process wrote, as its bytes. Nothing is decided by it.

    `rank` is the last it had, `round` the one it was started in. Times are seconds since 1970 on the launcher's
    clock. `ended_with` is a signal or an exit code in words; empty when the launcher left at `ended_at` before the
    process had ended. `tail` begins with a line where that is possible; `omitted_bytes` were written before it.
    """

    rank: Rank
    pid: Pid
    round: Whole
    started_at: Figure
    ended_at: Figure
    ended_with: Name
    omitted_bytes: Whole
    tail: Annotated[bytes, msgspec.Meta(max_length=TEXT_LENGTH_MAX)]


class KeptOutput(msgspec.Struct, frozen=True):
    """What the watchdog tells of a `WorkerOutput`: with who sent it, and its bytes as text."""

    rank: int
    member: str
    node: str
    pid: int
    round: int
    started_at: float
    ended_at: float
    ended_with: str
    omitted_bytes: int
    tail: str


def tail_bytes(world_size: int) -> int:
    """How much of each process a job of so many ranks sends: 512 to 16,384 bytes."""
    share = JOB_BYTES // max(1, world_size) - ENTRY_BYTES
    return max(TAIL_BYTES_MIN, min(TAIL_BYTES_MAX, share))


def spread_s(world_size: int) -> float:
    """Over how many seconds the members of a job spread what they send when all their workers end at once.

    It is 32 s at most for what fits into the watchdog, and 4 ms for one rank.
    """
    return world_size * tail_bytes(world_size) / BYTES_PER_S
