"""The set of local workers: decides what to do so that it matches the desired state it was shown.

Pure: no I/O and no clock. Every method takes what happened and when, and returns what is to be done about it
(`Effect`s); the shell does it and reports back. It never decides about a failure: a worker that ends on its own
is reported and its place stays empty until the watchdog shows another round.

How a worker comes into a round:

    attached, the round says re-enter, its rank is not fresh  ->  told to leave, then assigned, in its process
    its replica group is the one it is in already             ->  assigned, and told to leave nothing
    anything else that lives                                  ->  killed; replaced once the kernel confirms
    nothing there                                             ->  started

When the member has entered (`RoundEntered`): each local worker has either attached and said `Entered`, or has
lived for `attach_grace_s` without attaching (an unmodified script), or is done. It is said again when workers
that were taken for unmodified have attached and entered later, and when it changes which rounds workers can go
on to: that is for the watchdog to respect when it says how its next round is entered.
"""

import itertools
import math
from dataclasses import dataclass

import msgspec

from holdfast.agent.launch.slot import Slot, SlotState, epoch_in
from holdfast.api.control import (
    AtTheDoor,
    Entered,
    Entering,
    Finished,
    FromWorker,
    Reenters,
    RoundEnded,
    RoundLeft,
    ToWorker,
    assignment_in,
)
from holdfast.api.membership import (
    CheckpointCommitted,
    CheckpointsStored,
    CollectiveFailed,
    FromLauncher,
    GroupReady,
    Restored,
    RoundEntered,
    RoundWord,
    RunDescribed,
    TrainingBegan,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.memory import NodeMemory
from holdfast.api.round import Closed, Entry, Reentry, Seat, Shown
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.selftest import TestWanted
from holdfast.api.telemetry import RankNonFinite

_STRICTER = (Reentry.ANY_WORLD, Reentry.SAME_WORLD, Reentry.NEVER)


@dataclass(frozen=True, slots=True)
class Start:
    """Start a process for `rank` of `round`; answer with `started` or `not_started` under `ticket`.

    `restarts` counts the rounds this launcher ran before.
    """

    ticket: int
    local_rank: int
    rank: int
    round: Seat
    restarts: int


@dataclass(frozen=True, slots=True)
class KillWorker:
    """SIGKILL the process and its group; answer with `exited`."""

    pid: int


@dataclass(frozen=True, slots=True)
class TellWorker:
    """Send over the worker's control connection."""

    pid: int
    message: ToWorker


@dataclass(frozen=True, slots=True)
class StartTest:
    """Start a process that does the self-test `request` asks for."""

    ticket: int
    request: TestWanted


@dataclass(frozen=True, slots=True)
class Report:
    """Send to the watchdog."""

    message: FromLauncher


Effect = Start | StartTest | KillWorker | TellWorker | Report


@dataclass(frozen=True, slots=True)
class MemoryPlace:
    """Where the node's snapshots in memory lie: their `folder`, the `server` that serves them ("host:port")."""

    folder: str
    server: str

    def part_in(self, seat: Seat) -> NodeMemory | None:
        """What the workers of `seat` are told; None when its round keeps no snapshots in memory.

        Without the name of the job's life nobody could tell whose snapshots are found.
        """
        if seat.memory is None or not seat.restore.owner:
            return None
        return NodeMemory(seat.memory, self.folder, self.server)


class LocalSet:
    """The workers of one member."""

    def __init__(
        self, *, local_size: int, leave_timeout_s: float, attach_grace_s: float, memory: MemoryPlace | None = None
    ) -> None:
        """`memory` None: the node keeps no snapshots."""
        self._memory = memory
        self._leave_timeout_s = leave_timeout_s
        self._attach_grace_s = attach_grace_s
        self.slots = tuple(Slot(local_rank) for local_rank in range(local_size))
        self.desired: Shown | None = None
        self._words: dict[type[RoundWord], RoundWord] = {}  # the newest of each kind
        self._tickets = itertools.count(1)
        self._rounds_run = 0
        self._early_attached: set[int] = set()
        self._last_step: tuple[int, int] | None = None  # (round, step)
        self._held_before = -1
        self._reported: tuple[bool, Reenters] | None = None
        self._told_began = False  # of the desired round
        self._looked_at = -math.inf  # when `elapse` was last called

    @property
    def seat(self) -> Seat | None:
        """The desired round when this member has a share in it."""
        return self.desired if isinstance(self.desired, Seat) else None

    @property
    def held_round(self) -> int | None:
        """The round local workers run now, None when none does."""
        return self.seat.number if self.seat and any(slot.holds_process for slot in self.slots) else None

    def slot_of(self, pid: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.pid == pid), None)

    # What the watchdog shows.

    def show(self, desired: Shown, now: float) -> list[Effect]:
        """Match `desired`. One that is not newer than what is held changes nothing."""
        if self.desired is not None and desired.number <= self.desired.number:
            return []
        if (before := self.seat) is not None and self._reported is not None:
            self._held_before = before.number  # One that was not entered has no steps of its own.
        self.desired = desired
        self._words.clear()
        self._reported, self._told_began = None, False
        if self.seat is not None:
            self._rounds_run += 1
        aligned = [effect for slot in self.slots for effect in self._align(slot, now)]
        return aligned + self._ready_report() + (self._finish_report(now) if self.seat is not None else [])

    def pass_on(self, word: RoundWord) -> list[Effect]:
        """Pass it on to the workers of its round, also to those still to come. Of other rounds it is no news."""
        if self.seat is None or word.round != self.seat.number:
            return []
        self._words[type(word)] = word
        return [TellWorker(slot.process, word) for slot in self.slots if self._is_told(slot)]

    @property
    def leaves_devices_free(self) -> bool:
        """Whether no worker computes, and none is about to. Parked ones only hold memory."""
        quiet = (SlotState.ABSENT, SlotState.DONE, SlotState.PARKED)
        busy = isinstance(self.desired, Seat | Closed)
        return not busy and all(slot.state in quiet for slot in self.slots)

    def _align(self, slot: Slot, now: float) -> list[Effect]:
        wanted = self.seat
        if slot.state in (SlotState.STARTING, SlotState.DYING):
            return []  # looked at again when the answer comes
        if wanted is not None and slot.goes_on(wanted):
            slot.round, slot.rank, slot.entered = wanted.number, _rank_in(wanted, slot), False
            return self._assign(slot, wanted) if slot.attached else []
        if wanted is not None and slot.is_done_with(wanted):
            slot.round, slot.rank = wanted.number, _rank_in(wanted, slot)
            return []
        if not slot.holds_process:
            if wanted is None:
                return []
            slot.clear(SlotState.STARTING)
            slot.round, slot.rank, slot.ticket = wanted.number, _rank_in(wanted, slot), next(self._tickets)
            slot.epoch = epoch_in(wanted)
            return [Start(slot.ticket, slot.local_rank, slot.rank, wanted, self._rounds_run - 1)]
        may_reenter = not isinstance(self.desired, Closed)
        if wanted is not None:
            is_fresh = _rank_in(wanted, slot) in wanted.fresh_ranks or slot.reenters.reentry is Reentry.NEVER
            may_reenter = wanted.entry is Entry.REENTER and not is_fresh
        if slot.can_reenter and may_reenter:
            return self._move(slot, wanted, now)
        slot.state = SlotState.DYING
        return [KillWorker(slot.process)]

    def _move(self, slot: Slot, wanted: Seat | None, now: float) -> list[Effect]:
        """Take an attached worker out of its round and into `wanted`, or park it."""
        assert self.desired is not None
        effects: list[Effect] = []
        if slot.state is not SlotState.PARKED:
            effects.append(TellWorker(slot.process, RoundEnded(slot.round, self.desired.reason)))
            if slot.left_round == slot.round:
                slot.state = SlotState.PARKED
            elif slot.leave_by is None:
                slot.state, slot.leave_by = SlotState.LEAVING, now + self._leave_timeout_s
        slot.entered = False
        if wanted is not None:
            if slot.state is SlotState.PARKED:
                slot.state = SlotState.RUNNING
            slot.round, slot.rank, slot.started_at = wanted.number, _rank_in(wanted, slot), now
            slot.epoch = epoch_in(wanted)
            effects += self._assign(slot, wanted)
        return effects

    def _assign(self, slot: Slot, wanted: Seat) -> list[Effect]:
        """Show a worker its part in the round, and what the round's workers have been told by now."""
        memory = None if self._memory is None else self._memory.part_in(wanted)
        restarts = self._rounds_run - 1
        assigned = assignment_in(wanted, local_rank=slot.local_rank, restarts=restarts, memory=memory)
        return [TellWorker(slot.process, message) for message in (assigned, *self._words.values())]

    # What the warm parent says.

    def started(self, ticket: int, pid: int, now: float) -> list[Effect]:
        """The process asked for under `ticket` is `pid`."""
        slot = self._slot_with(ticket)
        if slot is None:
            return [KillWorker(pid)]
        slot.state, slot.pid, slot.ticket, slot.started_at = SlotState.RUNNING, pid, None, now
        slot.attached = pid in self._early_attached
        self._early_attached.discard(pid)
        # The desired state may have moved on while the process was being started.
        return ([] if self._is_wanted(slot) else self._align(slot, now)) + self._greet(slot)

    def not_started(self, ticket: int, error: str) -> list[Effect]:
        """The process asked for under `ticket` could not be started."""
        slot = self._slot_with(ticket)
        if slot is None:
            return []
        slot.clear(SlotState.ABSENT)
        return [Report(WorkerExited(slot.round, slot.rank, 0.0, exit_code=1, error=error))]

    def _slot_with(self, ticket: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.ticket == ticket), None)

    def exited(
        self, pid: int, exit: WorkerExited, now: float, *, completed: tuple[int, int] | None = None
    ) -> list[Effect]:
        """The kernel ended `pid`, as `exit` says. Reported only when it ended on its own, in the round wanted.

        `completed` is the round it last completed a step in, and that step; None when Unknown.
        """
        slot = self.slot_of(pid)
        self._early_attached.discard(pid)
        if slot is None:
            return []
        if completed is not None:
            self._remember_step(*completed)
        on_its_own = slot.state is SlotState.RUNNING and self._is_wanted(slot)
        if not on_its_own:
            slot.clear(SlotState.ABSENT)
            return self._align(slot, now)
        exit = msgspec.structs.replace(exit, round=slot.round, rank=slot.rank)
        if not exit.is_end:
            since = slot.round if slot.epoch is None else slot.epoch  # a replica group goes on from round to round
            began = slot.began or (completed is not None and since <= completed[0] <= slot.round)
            slot.clear(SlotState.ABSENT)
            return [Report(msgspec.structs.replace(exit, began=began))]
        slot.clear(SlotState.DONE)
        return [*self._entry_report(now), Report(exit), *self._finish_report(now)]

    def _finish_report(self, now: float) -> list[Effect]:
        """Once training is over for all local workers of the desired round."""
        if not all(each.state is SlotState.DONE and self._is_wanted(each) for each in self.slots):
            return []
        odd = tuple(RankNonFinite(each.rank, each.nonfinite) for each in self.slots if each.nonfinite)
        number = self.slots[0].round
        return [*self._entry_report(now), Report(WorkersFinished(number, self._last_step_in(number), odd))]

    def showed_sign(self, pid: int) -> list[Effect]:
        """A process whose script publishes nothing has shown its first sign of training: news once a round."""
        slot = self.slot_of(pid)
        if slot is None or slot.attached or slot.state is not SlotState.RUNNING:
            return []
        slot.began = True
        if self._told_began or not self._is_wanted(slot):
            return []
        self._told_began = True
        return [Report(TrainingBegan(slot.round))]

    # What workers say.

    def attached(self, pid: int, now: float) -> list[Effect]:
        """A worker opened its control connection. It may do so before its start has been confirmed."""
        slot = self.slot_of(pid)
        if slot is None:
            self._early_attached.add(pid)
            return []
        slot.attached = True
        return self._greet(slot)

    def detached(self, pid: int) -> None:
        """A worker's control connection is gone; it cannot re-enter any more."""
        self._early_attached.discard(pid)
        if slot := self.slot_of(pid):
            slot.attached = False

    def heard(self, pid: int, message: FromWorker, now: float) -> list[Effect]:
        """A worker said something. What concerns a round that is not wanted any more is dropped."""
        slot = self.slot_of(pid)
        if slot is None or slot.state is SlotState.DYING:
            return []
        if isinstance(message, RoundLeft):
            self._remember_step(message.round, message.step)
            slot.left_round = max(slot.left_round, message.round)
            if slot.state is SlotState.LEAVING and (self.desired is None or message.round < self.desired.number):
                slot.leave_by = None
                slot.state = SlotState.RUNNING if self._is_wanted(slot) else SlotState.PARKED
        elif isinstance(message, Entering):
            slot.inside = True
        elif isinstance(message, Entered) and message.round == slot.round:
            slot.entered, slot.state, slot.leave_by = True, SlotState.RUNNING, None
            return self._entry_report(now)
        elif isinstance(message, AtTheDoor):
            slot.ready_epoch = message.epoch
            return self._ready_report()
        elif isinstance(message, Reenters):
            slot.reenters = message
            return self._entry_report(now)
        elif isinstance(message, Finished):
            slot.inside = False  # of whichever round: its replica group may have gone on to another meanwhile
            if message.round == slot.round:
                slot.finished, slot.nonfinite = True, message.nonfinite
        elif isinstance(message, CheckpointCommitted | CheckpointsStored) and self._saved_in(slot, message.round):
            return [Report(message)]
        elif isinstance(
            message, CollectiveFailed | CheckpointCommitted | CheckpointsStored | RunDescribed | Restored
        ):
            return [Report(message)] if self.seat and message.round == self.seat.number else []
        elif isinstance(message, ScalarsLogged):  # also the rest of a round that is over
            return [Report(message)]
        return []

    def _saved_in(self, slot: Slot, round: int) -> bool:
        """Whether the worker's replica group, which is wanted on, was in that round."""
        epoch = epoch_in(self.seat)
        return self.seat is not None and slot.epoch == epoch is not None and epoch <= round < self.seat.number

    def _ready_report(self) -> list[Effect]:
        """Once all workers of a replica group that is being formed wait for the others."""
        seat, epoch = self.seat, epoch_in(self.seat)
        if seat is None or seat.group is None or seat.group.index is not None:
            return []
        is_ready = all(slot.state is SlotState.RUNNING and slot.ready_epoch == epoch for slot in self.slots)
        return [Report(GroupReady(seat.number, seat.group.epoch))] if is_ready else []

    def _greet(self, slot: Slot) -> list[Effect]:
        """Show a newly attached worker its assignment; its environment holds only part of it."""
        if self.seat is None or slot.state is not SlotState.RUNNING or not self._is_told(slot):
            return []
        return self._assign(slot, self.seat)

    def _is_wanted(self, slot: Slot) -> bool:
        """Whether the slot's process was given the desired round."""
        return self.seat is not None and slot.round == self.seat.number

    def _is_told(self, slot: Slot) -> bool:
        """Whether the slot's worker listens and has been shown its part in the desired round."""
        return slot.attached and slot.state in (SlotState.RUNNING, SlotState.LEAVING) and self._is_wanted(slot)

    def _remember_step(self, round_: int, step: int | None) -> None:
        if step is not None:
            self._last_step = max((round_, step), self._last_step or (round_, step))

    def _last_step_in(self, round_: int) -> int | None:
        known = self._last_step
        return known[1] if known is not None and known[0] == round_ else None

    # What the clock says.

    def elapse(self, now: float) -> list[Effect]:
        """Replace workers that did not leave in time, and see who has lived long enough to count as entered."""
        self._looked_at = now
        effects: list[Effect] = []
        for slot in self.slots:
            if slot.leave_by is not None and slot.leave_by <= now:
                slot.leave_by, slot.state = None, SlotState.DYING
                effects.append(KillWorker(slot.process))
        return effects + self._entry_report(now)

    def next_wakeup(self) -> float | None:
        """When `elapse` has something to find, on the clock of the `now` arguments."""
        times = [slot.leave_by for slot in self.slots if slot.leave_by is not None]
        if self.seat is not None and self._reported is None:
            graces = [slot.started_at + self._attach_grace_s for slot in self.slots if slot.is_silent]
            # One that has passed has been looked at: what is still missing then comes as a message, not with time.
            times += [grace for grace in graces if grace > self._looked_at]
        return min(times, default=None)

    def _entry_report(self, now: float) -> list[Effect]:
        if self.seat is None:
            return []
        for slot in self.slots:
            if slot.is_silent:
                has_entered = now >= slot.started_at + self._attach_grace_s
            else:
                has_entered = slot.state is SlotState.DONE or (slot.state is SlotState.RUNNING and slot.entered)
            if not has_entered or not self._is_wanted(slot):
                return []
        reentrant = all(slot.attached and slot.entered for slot in self.slots)
        reenters = max((slot.reenters for slot in self.slots), key=lambda each: _STRICTER.index(each.reentry))
        known = self._reported
        if known is not None and (known == (reentrant, reenters) or (known[0] and not reentrant)):
            return []
        self._reported = (reentrant, reenters)
        last_step = self._last_step_in(self._held_before)
        return [Report(RoundEntered(self.seat.number, reentrant, last_step, reenters.reentry, reenters.because))]


def _rank_in(wanted: Seat, slot: Slot) -> int:
    return wanted.first_rank + slot.local_rank
