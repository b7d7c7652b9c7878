"""One local rank's place: which process holds it, and where that process stands towards the desired round."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.api.control import Reenters
from holdfast.api.round import Reentry
from holdfast.api.telemetry import NonFinite

ANY_ROUND = Reenters(Reentry.ANY_WORLD, "")


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
    """Times are seconds on the launcher's monotonic clock. `round` is the newest round the process was given.

    `began` says that the process, of a script that does not attach, has shown a sign of training.
    `reenters` is what the process said of the rounds it can go on to, `nonfinite` what it said of its values when
    it had finished.
    """

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
    began: bool = False
    reenters: Reenters = ANY_ROUND
    nonfinite: NonFinite | None = None

    @property
    def holds_process(self) -> bool:
        return self.standing not in (Standing.ABSENT, Standing.DONE)

    def can_reenter(self) -> bool:
        """Whether its process can go on to another round without being replaced."""
        listening = self.standing in (Standing.RUNNING, Standing.LEAVING, Standing.PARKED)
        return listening and self.attached and not self.finished

    def clear(self, standing: Standing) -> None:
        """Its process is gone, or a new one is asked for. The round and the rank stay, and its word on the round
        that it is done with.
        """
        self.standing = standing
        self.pid = self.ticket = self.leave_by = None
        self.attached = self.entered = self.finished = self.began = False
        self.left_round = -1
        self.reenters = ANY_ROUND
        if standing is not Standing.DONE:
            self.nonfinite = None
