"""The set of local workers: decides what to do so that it matches the desired state it was shown.

Pure: no I/O and no clock. Every method takes what happened and when, and returns what is to be done about it
(`Effect`s); the shell does it and reports back. It never decides about a failure: a worker that ends on its own
is reported and its place stays empty until the watchdog shows another round.

How a worker comes into a round:

    attached, the round says re-enter, its rank is not fresh  ->  told to leave, then assigned, in its process
    anything else that lives                                  ->  killed; replaced once the kernel confirms
    nothing there                                             ->  started

When the member has entered (`RoundEntered`): each local worker has either attached and said `Entered`, or has
lived for `attach_grace_s` without attaching (an unmodified script), or is done. It is said again when workers
that were taken for unmodified have attached and entered later, and when it changes which rounds workers can go
on to: that is for the watchdog to respect when it says how its next round is entered.
"""

import itertools
import math

from holdfast.agent.launch.effect import Effect, Exit, KillWorker, Report, Start, TellWorker
from holdfast.agent.launch.memoryplace import MemoryPlace
from holdfast.agent.launch.slot import Slot, Standing
from holdfast.api.control import Entered, Finished, FromWorker, Reenters, RoundEnded, RoundLeft, assignment_in
from holdfast.api.membership import (
    CheckpointCommitted,
    CheckpointsStored,
    CollectiveFailed,
    Restored,
    RoundEntered,
    RoundWord,
    TrainingBegan,
    WorkerExited,
    WorkersFinished,
)
from holdfast.api.round import Closed, Entry, Reentry, Seat, Shown
from holdfast.api.telemetry import RankNonFinite

_STRICTER = (Reentry.ANY_WORLD, Reentry.SAME_WORLD, Reentry.NEVER)


class LocalSet:
    """The workers of one member."""

    def __init__(
        self,
        *,
        local_size: int,
        leave_timeout_s: float,
        attach_grace_s: float,
        memory: MemoryPlace | None = None,
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
    def held_round(self) -> int | None:
        """The round local workers run now, None when none does."""
        round_ = self._my_round()
        return round_.number if round_ and any(slot.holds_process for slot in self.slots) else None

    @property
    def shown_number(self) -> int:
        """The greatest number that was shown, 0 when nothing was."""
        return self.desired.number if self.desired is not None else 0

    @property
    def is_empty(self) -> bool:
        return not any(slot.holds_process for slot in self.slots)

    def slot_of(self, pid: int) -> Slot | None:
        return next((slot for slot in self.slots if slot.pid == pid), None)

    # What the watchdog shows.

    def show(self, desired: Shown, now: float) -> list[Effect]:
        """Match `desired`. One that is not newer than what is held changes nothing."""
        if self.desired is not None and desired.number <= self.desired.number:
            return []
        if (before := self._my_round()) is not None and self._reported is not None:
            self._held_before = before.number  # One that was not entered has no steps of its own.
        self.desired = desired
        self._words.clear()
        self._reported, self._told_began = None, False
        if self._my_round() is not None:
            self._rounds_run += 1
        return [effect for slot in self.slots for effect in self._align(slot, now)]

    def pass_on(self, word: RoundWord) -> list[Effect]:
        """Pass it on to the workers of its round, also to those still to come. Of other rounds it is no news."""
        wanted = self._my_round()
        if wanted is None or word.round != wanted.number:
            return []
        self._words[type(word)] = word
        return [TellWorker(_known(slot.pid), word) for slot in self.slots if self._is_told(slot, wanted)]

    @property
    def leaves_devices_free(self) -> bool:
        """Whether no worker computes, and none is about to. Parked ones only hold memory."""
        quiet = (Standing.ABSENT, Standing.DONE, Standing.PARKED)
        over = self.has_ranks or isinstance(self.desired, Closed)
        return not over and all(slot.standing in quiet for slot in self.slots)

    @property
    def round_with_ranks(self) -> int | None:
        """The round that gives this member a share, by its number."""
        wanted = self._my_round()
        return wanted.number if wanted is not None else None

    @property
    def has_ranks(self) -> bool:
        """Whether the desired state gives this member a share in a round."""
        return self._my_round() is not None

    def _my_round(self) -> Seat | None:
        """The desired round when this member has a share in it."""
        desired = self.desired
        return desired if isinstance(desired, Seat) else None

    def _align(self, slot: Slot, now: float) -> list[Effect]:
        wanted = self._my_round()
        if slot.standing in (Standing.STARTING, Standing.DYING):
            return []  # looked at again when the answer comes
        if not slot.holds_process:
            return [self._start(slot, wanted)] if wanted else []
        if slot.can_reenter() and self._may_reenter(slot):
            return self._move(slot, wanted, now)
        slot.standing = Standing.DYING
        return [KillWorker(_known(slot.pid))]

    def _may_reenter(self, slot: Slot) -> bool:
        if isinstance(self.desired, Closed):
            return False
        wanted = self._my_round()
        return wanted is None or (
            wanted.entry is Entry.REENTER and _rank_in(wanted, slot) not in wanted.fresh_ranks
        )

    def _start(self, slot: Slot, wanted: Seat) -> Effect:
        slot.clear(Standing.STARTING)
        slot.round, slot.rank, slot.ticket = wanted.number, _rank_in(wanted, slot), next(self._tickets)
        return Start(slot.ticket, slot.local_rank, slot.rank, wanted, self._rounds_run - 1)

    def _move(self, slot: Slot, wanted: Seat | None, now: float) -> list[Effect]:
        """Take an attached worker out of its round and into `wanted`, or park it."""
        assert self.desired is not None
        pid = _known(slot.pid)
        effects: list[Effect] = []
        if slot.standing is not Standing.PARKED:
            effects.append(TellWorker(pid, RoundEnded(slot.round, self.desired.reason)))
            if slot.left_round == slot.round:
                slot.standing = Standing.PARKED
            elif slot.leave_by is None:
                slot.standing, slot.leave_by = Standing.LEAVING, now + self._leave_timeout_s
        slot.entered = False
        if wanted is not None:
            if slot.standing is Standing.PARKED:
                slot.standing = Standing.RUNNING
            slot.round, slot.rank, slot.started_at = wanted.number, _rank_in(wanted, slot), now
            effects += self._assign(slot, wanted)
        return effects

    def _assign(self, slot: Slot, wanted: Seat) -> list[Effect]:
        """Show a worker its part in the round, and what the round's workers have been told by now."""
        pid = _known(slot.pid)
        memory = None if self._memory is None else self._memory.part_in(wanted)
        assigned = assignment_in(wanted, local_rank=slot.local_rank, restarts=self._rounds_run - 1, memory=memory)
        part: list[Effect] = [TellWorker(pid, assigned)]
        return part + [TellWorker(pid, word) for word in self._words.values()]

    # What the warm parent says.

    def started(self, ticket: int, pid: int, now: float) -> list[Effect]:
        """The process asked for under `ticket` is `pid`."""
        slot = next((slot for slot in self.slots if slot.ticket == ticket), None)
        if slot is None:
            return [KillWorker(pid)]
        slot.standing, slot.pid, slot.ticket, slot.started_at = Standing.RUNNING, pid, None, now
        slot.attached = pid in self._early_attached
        self._early_attached.discard(pid)
        return self._catch_up(slot, now) + self._greet(slot)

    def not_started(self, ticket: int, error: str) -> list[Effect]:
        """The process asked for under `ticket` could not be started."""
        slot = next((slot for slot in self.slots if slot.ticket == ticket), None)
        if slot is None:
            return []
        slot.clear(Standing.ABSENT)
        return [Report(WorkerExited(slot.round, slot.rank, 0.0, exit_code=1, error=error))]

    def _catch_up(self, slot: Slot, now: float) -> list[Effect]:
        """Align a slot whose process was being started or ended while the desired state moved on."""
        wanted = self._my_round()
        if slot.holds_process and wanted is not None and slot.round == wanted.number:
            return []
        return self._align(slot, now)

    def exited(self, pid: int, exit: Exit, now: float) -> list[Effect]:
        """The kernel ended `pid`. Reported only when it ended on its own, in the round that is wanted."""
        slot = self.slot_of(pid)
        self._early_attached.discard(pid)
        if slot is None:
            return []
        if exit.completed is not None:
            self._remember_step(*exit.completed)
        wanted = self._my_round()
        on_its_own = slot.standing is Standing.RUNNING and wanted is not None and slot.round == wanted.number
        if not on_its_own:
            slot.clear(Standing.ABSENT)
            return self._align(slot, now)
        if exit.exit_code == 0:
            slot.clear(Standing.DONE)
            done = all(slot.standing is Standing.DONE for slot in self.slots)
            odd = tuple(RankNonFinite(each.rank, each.nonfinite) for each in self.slots if each.nonfinite)
            finished = WorkersFinished(slot.round, self._last_step_in(slot.round), odd)
            ended = Report(WorkerExited(slot.round, slot.rank, exit.age_s, exit_code=0))
            return [*self._entry_report(now), ended, *([Report(finished)] if done else [])]
        began = slot.began or (exit.completed is not None and exit.completed[0] == slot.round)
        slot.clear(Standing.ABSENT)
        failure = WorkerExited(
            slot.round,
            slot.rank,
            exit.age_s,
            exit.exit_code,
            exit.signal,
            exit.error,
            raised=exit.raised,
            place=exit.place,
            began=began,
            own_limit=exit.own_limit,
        )
        return [Report(failure)]

    def showed_sign(self, pid: int) -> list[Effect]:
        """A process whose script publishes nothing has shown its first sign of training: news once a round."""
        slot, wanted = self.slot_of(pid), self._my_round()
        if slot is None or slot.attached or slot.standing is not Standing.RUNNING:
            return []
        slot.began = True
        if wanted is None or slot.round != wanted.number or self._told_began:
            return []
        self._told_began = True
        return [Report(TrainingBegan(wanted.number))]

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
        if slot is None or slot.standing is Standing.DYING:
            return []
        if isinstance(message, RoundLeft):
            self._left(slot, message)
        elif isinstance(message, Entered) and message.round == slot.round:
            slot.entered, slot.standing, slot.leave_by = True, Standing.RUNNING, None
            return self._entry_report(now)
        elif isinstance(message, Reenters):
            slot.reenters = message
            return self._entry_report(now)
        elif isinstance(message, Finished) and message.round == slot.round:
            slot.finished, slot.nonfinite = True, message.nonfinite
        elif isinstance(message, CollectiveFailed | CheckpointCommitted | CheckpointsStored | Restored):
            wanted = self._my_round()
            return [Report(message)] if wanted and message.round == wanted.number else []
        return []

    def _greet(self, slot: Slot) -> list[Effect]:
        """Show a newly attached worker its assignment; its environment holds only part of it."""
        wanted = self._my_round()
        if wanted is None or slot.standing is not Standing.RUNNING or not self._is_told(slot, wanted):
            return []
        return self._assign(slot, wanted)

    def _is_told(self, slot: Slot, wanted: Seat) -> bool:
        """Whether the slot's worker listens and has been shown its part in `wanted`."""
        telling = (Standing.RUNNING, Standing.LEAVING)
        return slot.attached and slot.standing in telling and slot.round == wanted.number

    def _left(self, slot: Slot, message: RoundLeft) -> None:
        self._remember_step(message.round, message.step)
        slot.left_round = max(slot.left_round, message.round)
        wanted = self._my_round()
        if slot.standing is Standing.LEAVING and (self.desired is None or message.round < self.desired.number):
            slot.leave_by = None
            slot.standing = Standing.RUNNING if wanted and slot.round == wanted.number else Standing.PARKED

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
                slot.leave_by, slot.standing = None, Standing.DYING
                effects.append(KillWorker(_known(slot.pid)))
        return effects + self._entry_report(now)

    def next_wakeup(self) -> float | None:
        """When `elapse` has something to find, on the clock of the `now` arguments."""
        times = [slot.leave_by for slot in self.slots if slot.leave_by is not None]
        if self._my_round() is not None and self._reported is None:
            graces = [slot.started_at + self._attach_grace_s for slot in self.slots if self._is_silent(slot)]
            # One that has passed has been looked at: what is still missing then comes as a message, not with time.
            times += [grace for grace in graces if grace > self._looked_at]
        return min(times, default=None)

    def _is_silent(self, slot: Slot) -> bool:
        return slot.standing is Standing.RUNNING and not slot.attached

    def _entry_report(self, now: float) -> list[Effect]:
        wanted = self._my_round()
        if wanted is None or not all(self._has_entered(slot, wanted, now) for slot in self.slots):
            return []
        reentrant = all(slot.attached and slot.entered for slot in self.slots)
        reenters = max((slot.reenters for slot in self.slots), key=lambda each: _STRICTER.index(each.reentry))
        known = self._reported
        if known is not None and (known == (reentrant, reenters) or (known[0] and not reentrant)):
            return []
        self._reported = (reentrant, reenters)
        last_step = self._last_step_in(self._held_before)
        return [Report(RoundEntered(wanted.number, reentrant, last_step, reenters.reentry, reenters.because))]

    def _has_entered(self, slot: Slot, wanted: Seat, now: float) -> bool:
        if slot.round != wanted.number:
            return False
        if self._is_silent(slot):
            return now >= slot.started_at + self._attach_grace_s
        return slot.standing is Standing.DONE or (slot.standing is Standing.RUNNING and slot.entered)


def _rank_in(wanted: Seat, slot: Slot) -> int:
    return wanted.first_rank + slot.local_rank


def _known(pid: int | None) -> int:
    assert pid is not None, "a slot that holds a process knows its id"
    return pid
