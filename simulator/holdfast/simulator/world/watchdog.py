"""The watchdog's process: the real brain, detectors and journal of one job, fed and woken in virtual time."""

from collections.abc import Callable

from holdfast.api.event import Event
from holdfast.simulator.world.agenda import Agenda
from holdfast.watchdog import brain
from holdfast.watchdog.brain.step import Effect
from holdfast.watchdog.detectors.detector import Disconnected, Sample
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import SensesFor
from holdfast.watchdog.store.store import Store

CarryOut = Callable[[tuple[Effect, ...]], None]


class Watchdog:
    """`carry_out` does what it decides, and ends with `schedule_wakeup`."""

    def __init__(
        self, name: str, agenda: Agenda, store: Store, *, senses_for: SensesFor, carry_out: CarryOut
    ) -> None:
        self.agenda = agenda
        self.up = True
        self.epoch = 0  # connections of an older one are dead
        self._name, self._store, self._senses_for, self._carry_out = name, store, senses_for, carry_out
        self._wakeup: float | None = None
        self.job = self._new_job()

    def _new_job(self) -> Job:
        fence = self._store.claim()
        return Job(self._name, store=self._store, fence=fence, brain=brain, senses_for=self._senses_for)

    def record(self, event: Event) -> None:
        """An event has reached it."""
        self._carry_out(self.job.record(event, self.agenda.now))

    def observe(self, sample: Sample) -> None:
        """Its detectors are shown something."""
        self._carry_out(self.job.observe(sample, self.agenda.now))

    def closed(self, member: str) -> None:
        """A launcher's connection closed without a word."""
        if self.up:
            self.observe(Disconnected(member))

    def schedule_wakeup(self) -> None:
        """It sleeps until something is due, or reaches it."""
        at, now = self.job.next_wakeup(self.agenda.now), self.agenda.now
        if at is None or (self._wakeup is not None and now < self._wakeup <= at):
            return
        self._wakeup = at = max(at, now + 0.001)
        epoch = self.epoch
        self.agenda.after(at - now, lambda: self._wake(epoch, at))

    def _wake(self, epoch: int, at: float) -> None:
        if self.up and epoch == self.epoch and at == self._wakeup:  # else it was put forward
            self._wakeup = None
            self._carry_out(self.job.elapse(self.agenda.now))

    def kill(self) -> None:
        """SIGKILL: what was in memory is gone."""
        self.up = False
        self.epoch += 1

    def start(self) -> None:
        """Another process takes over what the journal has."""
        self.job = self._new_job()
        self.job.restore()
        self.up = True
        self._wakeup = None
        self._carry_out(self.job.resume(self.agenda.now))
