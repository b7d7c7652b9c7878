"""A place for one worker process of a member, and where the process in it stands. Pure."""

from dataclasses import dataclass
from enum import StrEnum

from holdfast.api.control import Reenters
from holdfast.api.round import Reentry, Seat
from holdfast.api.telemetry import NonFinite

ANY_ROUND = Reenters(Reentry.ANY_WORLD, "")


class SlotState(StrEnum):
    """Where a slot's process stands."""

    ABSENT = "Absent"  # there is none: not wanted, or it failed and the watchdog has yet to decide
    STARTING = "Starting"  # asked for; its process id is not known yet
    RUNNING = "Running"  # it belongs to `Slot.round`
    LEAVING = "Leaving"  # told to leave an older round, has not said that it did
    PARKED = "Parked"  # it has left and waits, attached, for an assignment
    DYING = "Dying"  # killed; the kernel has not confirmed it
    DONE = "Done"  # training is over for it in `Slot.round`


@dataclass(slots=True)
class Slot:
    """Times are seconds on the launcher's monotonic clock. `round` is the newest round the process was given.

    `began` says that the process, of a script that does not attach, has shown a sign of training.
    `epoch` is the replica group that the process is in, `ready_epoch` the one in which it waits at a step
    boundary. `inside` says that training was asked for in the process, and has not returned.
    `reenters` is what the process said of the rounds it can go on to, `nonfinite` what it said of its values when
    it had finished.
    """

    local_rank: int
    state: SlotState = SlotState.ABSENT
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
    inside: bool = False
    reenters: Reenters = ANY_ROUND
    nonfinite: NonFinite | None = None
    epoch: int | None = None
    ready_epoch: int | None = None

    @property
    def holds_process(self) -> bool:
        return self.state not in (SlotState.ABSENT, SlotState.DONE)

    @property
    def process(self) -> int:
        assert self.pid is not None, "a slot that holds a process knows its id"
        return self.pid

    @property
    def is_silent(self) -> bool:
        """Whether its process runs and has not attached: an unmodified script, as far as is known."""
        return self.state is SlotState.RUNNING and not self.attached

    @property
    def can_reenter(self) -> bool:
        """Whether its process can go on to another round without being replaced."""
        listening = self.state in (SlotState.RUNNING, SlotState.LEAVING, SlotState.PARKED)
        return listening and self.attached and not self.finished

    def clear(self, state: SlotState) -> None:
        """Its process is gone, or a new one is asked for. The round and the rank stay, and its word on the round
        that it is done with.
        """
        self.state = state
        self.pid = self.ticket = self.leave_by = None
        self.attached = self.entered = self.finished = self.began = self.inside = False
        self.left_round = -1
        self.reenters, self.ready_epoch = ANY_ROUND, None
        if state is not SlotState.DONE:
            self.nonfinite = self.epoch = None

    def goes_on(self, wanted: Seat) -> bool:
        """Whether its process is in the seat's replica group already."""
        return self.state is SlotState.RUNNING and self.epoch is not None and self.epoch == epoch_in(wanted)

    def is_done_with(self, wanted: Seat) -> bool:
        """Whether it has finished in the seat's replica group, which no fault has ended since: another group came
        in meanwhile.
        """
        is_done = self.state is SlotState.DONE and self.epoch is not None and self.epoch == epoch_in(wanted)
        return is_done and wanted.group is not None and wanted.group.broke_in <= self.round


def epoch_in(wanted: Seat | None) -> int | None:
    """The replica group of the seat; None without one."""
    return wanted.group.epoch if wanted is not None and wanted.group is not None else None
