"""One local rank's place: which process holds it, and where that process stands towards the desired round."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.agent.launch.memoryplace import MemoryPlace
from holdfast.api.control import Assignment
from holdfast.api.round import Seat


class Standing(StrEnum):
    """Where a slot's process stands."""

    ABSENT = "Absent"  # there is none: not wanted, or it failed and the watchdog has yet to decide
    STARTING = "Starting"  # asked for; its process id is not known yet
    RUNNING = "Running"  # it belongs to `Slot.round`
    LEAVING = "Leaving"  # told to leave an older round, has not said that it did
    PARKED = "Parked"  # it has left and waits, attached, for an assignment
    DYING = "Dying"  # killed; the kernel has not confirmed it
    DONE = "Done"  # it ended `Slot.round` with exit code zero


@dataclass(slots=True)
class Slot:
    """Times are seconds on the launcher's monotonic clock. `round` is the newest round the process was given."""

    local_rank: int
    standing: Standing = Standing.ABSENT
    round: int = -1
    rank: int = -1
    pid: int | None = None
    ticket: int | None = None
    attached: bool = False
    entered: bool = False
    finished: bool = False
    left_round: int = -1
    started_at: float = 0.0
    leave_by: float | None = None

    @property
    def holds_process(self) -> bool:
        return self.standing not in (Standing.ABSENT, Standing.DONE)

    def can_reenter(self) -> bool:
        """Whether its process can go on to another round without being replaced."""
        listening = self.standing in (Standing.RUNNING, Standing.LEAVING, Standing.PARKED)
        return listening and self.attached and not self.finished

    def clear(self, standing: Standing) -> None:
        """Its process is gone, or a new one is asked for. The round and the rank stay."""
        self.standing = standing
        self.pid = self.ticket = self.leave_by = None
        self.attached = self.entered = self.finished = False
        self.left_round = -1


def assignment(wanted: Seat, slot: Slot, local_size: int, memory: MemoryPlace | None) -> Assignment:
    """The slot's part in the round, as its worker is shown it. `memory` None: this node keeps no snapshots."""
    return Assignment(
        job=wanted.job,
        round=wanted.number,
        rank=slot.rank,
        local_rank=slot.local_rank,
        world_size=wanted.world_size,
        local_size=local_size,
        endpoint=wanted.endpoint,
        restore=wanted.restore,
        reason=wanted.reason,
        fingerprint_every=wanted.fingerprint_every,
        memory=None if memory is None else memory.part_in(wanted),
        keep=wanted.keep,
    )
