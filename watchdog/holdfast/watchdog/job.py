"""One job as the watchdog lives it: what is decided, what watches it, and the journal behind both.

Every event is in the journal before it is applied. While the store refuses, events wait here, in order and
bounded, and nothing is decided; what runs goes on running.
"""

import logging
from collections.abc import Iterable, Iterator, Sequence

import msgspec

from holdfast.api.errors import Damaged, Fenced, Unavailable
from holdfast.api.event import (
    ClockTicked,
    Event,
    Journaled,
    NodeChanged,
    PodChanged,
    RoundProgressed,
    WatchdogStarted,
)
from holdfast.api.incident import Incident
from holdfast.api.intervention import Forecast, InterventionOutcome, InterventionRequest
from holdfast.api.longwork import LongWork
from holdfast.api.round import Round
from holdfast.api.status import LastSeen
from holdfast.watchdog.brain.forecast import forecast
from holdfast.watchdog.brain.roster import MemberState
from holdfast.watchdog.brain.rounds import newest_number
from holdfast.watchdog.brain.state import JobState
from holdfast.watchdog.brain.step import (
    Answered,
    Brain,
    Effect,
    IncidentClosed,
    IncidentOpened,
    IncidentUpdated,
    Publish,
    Show,
    Step,
    turn,
)
from holdfast.watchdog.decisionlog import DecisionLog
from holdfast.watchdog.detectors.detector import (
    Connected,
    Expected,
    Finished,
    Left,
    NodeNoted,
    Placed,
    RoundStarted,
    RoundStopped,
    Sample,
    WorkKnown,
)
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.journal import lastseen
from holdfast.watchdog.journal.gatheredentries import GatheredEntries
from holdfast.watchdog.journal.heldprogress import HeldProgress
from holdfast.watchdog.journal.replay import Replayed, newest, walk
from holdfast.watchdog.metrics.counts import JobCounts
from holdfast.watchdog.senses import Senses, SensesFor
from holdfast.watchdog.store.store import START, Extent, Fence, Snapshot, Store

logger = logging.getLogger(__name__)

# A snapshot of a small job is written this often: a restart applies fewer lines than this, or than twice as many
# where the newest snapshot is torn.
SNAPSHOT_EVERY_LINES = 64
# That of a large job weighs megabytes, so it waits for more lines. At 12,500 members it is 3.4 MB, written every
# 3,400 lines, in some 15 ms; a restart replays those it is behind in 0.3 s.
SNAPSHOT_BYTES_PER_LINE = 1024
# A member makes a handful of events per round; this holds several rounds of a large job.
WAITING_EVENTS_MAX = 65_536
STORE_RETRY_S = 1.0
# Launchers of a watchdog whose machine vanished notice it by their pings, within 6 s, then connect to this one,
# which does not lead before the rest of a lease has run out: two thirds of it at least, 2 s by default.
RETURN_S = 6.0
# Effects that others act on: a round number that was shown must never be given again.
SHOWN = (Show, Publish, Answered)


class Job:
    """Synchronous and single-threaded. Whoever calls carries out the effects returned.

    Every method that takes `now` (watchdog clock, seconds) may raise Fenced: another watchdog has taken over,
    and this one must stop.
    """

    def __init__(self, name: str, *, store: Store, fence: Fence, brain: Brain, senses_for: SensesFor) -> None:
        self.name = name
        self.state: JobState = brain.initial(name)
        self.offset = START
        self.last_at = 0.0
        self.trouble: str | None = None  # why the store refuses, None while it takes everything
        self.stopped: str | None = None  # why nothing is decided any more, None while that can be
        self.senses: Senses | None = None
        self._placed: dict[str, Placed] = {}  # by node; whoever watches anew is told again
        self.noted: dict[str, NodeNoted] = {}  # what others say of nodes, of those of which they say something
        self.counts = JobCounts()
        self._store = store
        self._fence = fence
        self._brain = brain
        self._senses_for = senses_for
        self._held = HeldProgress(brain)
        self._entries = GatheredEntries()
        self._waiting: dict[object, Event] = {}  # in order, by what a newer one takes the place of
        self._unnoted: dict[str, InterventionOutcome] = {}  # answers given that the store does not keep yet
        self._log = DecisionLog(name)
        self.extent = Extent()  # of the journal, when the newest snapshot was written
        self._saved_offset = START
        self._saved_bytes = 0
        self._wakeup_of: tuple[JobState | None, float | None] = None, None
        self._tick_was_idle = False
        self._retry_at = 0.0  # while the store refuses: when to ask it again

    def restore(self) -> None:
        """Read what an earlier run left: the snapshot, and the lines behind it. Raises Unavailable, Fenced.

        A journal that cannot be applied stops this job, and no other one.
        """
        try:
            origin = newest(self._store, self.name, brain=self._brain)
            self.state, self.offset, self.last_at = origin.state, origin.offset, origin.at
            snapshot = origin.snapshot()
            self._saved_offset, self._saved_bytes = origin.offset, len(snapshot.state)
            if (last := self._store.last(self.name)) < origin.offset:
                raise Damaged(f"the journal ends at line {last}, and the snapshot is of line {origin.offset}")
            if origin.passed_over:
                # Else the next one would make the unreadable one the earlier, and this one would be gone.
                self._store.save(self.name, snapshot, fence=self._fence)
            self.extent = self._store.extent(self.name)
            self.counts.begin(self.state.incidents)
            missed: list[Effect] = []
            for line in self._store.tail(self.name, self.offset):
                missed.extend(self._apply(line).effects)
            # What is shown is read from the state; only the records for readers may not have been written.
            self.keep(missed, self.last_at)
        except (Unavailable, Fenced):
            raise
        except Exception as error:
            self.stop(error)

    def stop(self, error: Exception) -> None:
        """Decide nothing of this job any more, and say why. What runs goes on; the journal stays as it is."""
        says = f"the journal cannot be applied behind line {self.offset}: {type(error).__name__}: {error}"
        self._stop(f"{says}; other jobs go on; delete this job and submit it again to begin anew")

    def reached(self, number: int, by: str) -> None:
        """Somebody outside the store knows that the job had come to `number`.

        A store that knows of less is an older copy of itself: what was decided since is not in it, so nothing more
        is decided of this job.
        """
        known = newest_number(self.state)
        if self.state.desired is None or number <= known:
            return
        self._stop(
            f"the store is an older copy of itself: {by} knows number {number}, and the newest in it is {known}; "
            "restore a newer copy, or delete this job and create it again, which begins anew from its newest "
            "checkpoint"
        )

    def _stop(self, says: str) -> None:
        self.stopped = self.trouble = says
        self.senses = None
        self.state = self._brain.initial(self.name)
        self._waiting.clear()
        self._held, self._entries = HeldProgress(self._brain), GatheredEntries()
        logger.error("job stopped job=%s reason=%s", self.name, self.stopped)

    def resume(self, now: float) -> tuple[Effect, ...]:
        """Go on after `restore`: watch again, and let the brain know that it was away."""
        if self.stopped is not None:
            return ()
        self._watch(now, back_by=now + RETURN_S)
        return self.demand(WatchdogStarted(), now)

    def observe(self, sample: Sample, now: float) -> tuple[Effect, ...]:
        """Show a sample to everything that watches, and apply what that proves."""
        if isinstance(sample, Placed):
            self._placed[sample.node] = sample
        elif isinstance(sample, NodeNoted):
            self.noted.pop(sample.node, None)
            if sample.conditions:
                self.noted[sample.node] = sample
        if self.senses is None:
            return ()
        return self._apply_all(self.senses.observe(sample, now), now)

    def record(self, event: Event, now: float) -> tuple[Effect, ...]:
        """Apply a fact. It is kept when the store refuses, and applied once the store takes it."""
        return self._apply_all((event,), now)

    def demand(self, event: Event, now: float) -> tuple[Effect, ...]:
        """Apply what somebody waits for. Raises Unavailable or Damaged, and forgets it, when the store refuses."""
        if self.stopped is not None:
            raise Unavailable(self.stopped)
        effects = self._apply_all((), now)
        if self._waiting:
            raise Unavailable(f"the store refuses: {self.trouble}")
        held = (*self._held.take(), *self._entries.take())
        try:
            lines = self._store.append(self.name, (*held, event), at=now, after=self.offset, fence=self._fence)
        except (Unavailable, Damaged) as error:
            self._refused(str(error), now)
            self._wait(held, now)
            raise
        self._accepted()
        return effects + self._apply_lines(lines, now)

    def elapse(self, now: float) -> tuple[Effect, ...]:
        """Apply what the passing of time proves. Called at `next_wakeup`, or later."""
        if self.stopped is not None:
            return ()
        events = list(self.senses.elapse(now)) if self.senses else []
        wakeup = self._brain_wakeup()
        if wakeup is not None and wakeup <= now:
            events.append(ClockTicked())
        if self.trouble is not None and not self._waiting and now >= self._retry_at:
            self.save(now)  # nothing waits, so this alone shows whether the store is back
        before = self.state
        effects = self._apply_all(events, now)
        self._tick_was_idle = bool(events) and self.state == before
        return effects

    def next_wakeup(self, now: float) -> float | None:
        """When to call `elapse`, or None."""
        if self.stopped is not None:
            return None
        wakeups = [self._entries.due_at, self._brain_wakeup(), self.senses.next_wakeup() if self.senses else None]
        if self.trouble is not None:
            wakeups.append(self._retry_at)
        soonest = min((at for at in wakeups if at is not None), default=None)
        # A tick that changes nothing and is due again at once must not fill the journal.
        if soonest is not None and soonest <= now and self._tick_was_idle:
            return now + STORE_RETRY_S
        return soonest

    def _brain_wakeup(self) -> float | None:
        """When the brain wants to be woken. It depends on the state alone, and is asked for with every message."""
        if self._wakeup_of[0] is not self.state:
            self._wakeup_of = self.state, self._brain.next_wakeup(self.state)
        return self._wakeup_of[1]

    def save(self, now: float) -> None:
        """Write a snapshot. A failure is noted; the journal has it all."""
        if self.stopped is not None:
            return
        snapshot = Snapshot(self.offset, self.last_at, msgspec.msgpack.encode(self.state))
        try:
            self._note_answers()  # a restart reads nothing before the snapshot again
            self._store.save(self.name, snapshot, fence=self._fence)
            self.extent = self._store.extent(self.name)
        except (Unavailable, Damaged) as error:
            self._refused(str(error), now)
        else:
            self._saved_offset, self._saved_bytes = self.offset, len(snapshot.state)
            self._accepted()

    def write_progress(self, now: float) -> tuple[Effect, ...]:
        """Have the journal know how far the job is: nobody will write it later."""
        return self._apply_all((), now, holds=False)

    @property
    def progress(self) -> Progress | None:
        """How far the ranks are; None while nothing watches them."""
        return self.senses.progress if self.senses is not None else None

    @property
    def shown(self) -> JobState:
        """The state for readers, with progress that is not in the journal yet. Decisions are made from `state`."""
        return self._held.shown or self.state

    @property
    def behind(self) -> bool:
        """Whether events wait for the store, so that the state is not what it will be."""
        return bool(self._waiting)

    @property
    def snapshot_due(self) -> bool:
        """Whether `keep` would save a snapshot."""
        lines = max(SNAPSHOT_EVERY_LINES, self._saved_bytes // SNAPSHOT_BYTES_PER_LINE)
        return self.offset - self._saved_offset >= lines and self.trouble is None

    def keep(self, effects: Sequence[Effect], now: float) -> None:
        """Make what was decided outlast the machine and readable, and save a snapshot when one is due.

        Called right after `effects` were carried out. Waiting for the disk before would cost every recovery some
        milliseconds to no end: the journal survives this process already, and with the machine goes everybody
        who saw the decision. A failure is noted and no more.
        """
        if self.stopped is not None:
            return
        try:
            self._note_answers()
            kinds = IncidentOpened | IncidentUpdated | IncidentClosed
            newest_of = {each.incident.id: each.incident for each in effects if isinstance(each, kinds)}
            for incident in newest_of.values():
                self._store.file(incident, fence=self._fence)
            if any(isinstance(effect, SHOWN) for effect in effects):
                self._store.harden(fence=self._fence)
        except (Unavailable, Damaged) as error:
            self._refused(str(error), now)
        if self.snapshot_due:
            self.save(now)

    def answer(self, id: str) -> InterventionOutcome | None:
        """What an intervention was answered, ever; None when it was not. Raises Unavailable, Damaged."""
        return self._unnoted.get(id) or self._store.answer(self.name, id)

    def forecast(self, request: InterventionRequest, now: float) -> Forecast:
        """What the intervention would do now. Nothing is journaled or applied."""
        return forecast(self._brain, self.shown, request, now)

    def keep_last(self, last: LastSeen, now: float) -> None:
        """Keep what was last seen for readers. A failure is noted and no more. Raises Fenced."""
        try:
            lastseen.keep(self._store, last, offset=self.offset, fence=self._fence)
        except (Unavailable, Damaged) as error:
            self._refused(str(error), now)

    def kept_last(self) -> LastSeen | None:
        """What was kept when this life of the job ended; None when nothing was. Raises Unavailable, Damaged."""
        found = lastseen.kept(self._store, self.name)
        return found[0] if found is not None and found[0].status.ended_at == self.state.ended_at else None

    def filed_incidents(self, *, limit: int) -> tuple[Incident, ...]:
        """The newest incidents ever filed, oldest first. Raises Unavailable, Damaged."""
        return self._store.incidents(self.name, limit=limit)

    def history(self) -> Iterator[Replayed]:
        """Every line there is and what it led to, from the oldest that can be applied. Raises Unavailable,
        Damaged.
        """
        return walk(self._store, self.name, brain=self._brain)

    def _apply_all(self, events: Iterable[Event], now: float, *, holds: bool = True) -> tuple[Effect, ...]:
        """Journal and apply the events behind those that still wait, or let all of them wait.

        Progress that leads to nothing is held back, where the state is what it will be.
        """
        if self.stopped is not None:
            return ()
        if self.trouble is not None and now < self._retry_at:
            self._wait((*self._entries.take(), *events), now)
            return ()
        events = self._entries.sift(events, self.state, now) if holds else (*self._entries.take(), *events)
        events = self._held.sift(events, self.state if holds and not self._waiting else None, now)
        batch = (*self._waiting.values(), *events)
        if not batch:
            return ()
        try:
            lines = self._store.append(self.name, batch, at=now, after=self.offset, fence=self._fence)
        except (Unavailable, Damaged) as error:
            self._refused(str(error), now)
            self._wait(events, now)
            return ()
        self._waiting.clear()
        self._accepted()
        return self._apply_lines(lines, now)

    def _note_answers(self) -> None:
        for id, outcome in tuple(self._unnoted.items()):
            self._store.note_answer(self.name, outcome, fence=self._fence)
            del self._unnoted[id]

    def _wait(self, events: Iterable[Event], now: float) -> None:
        """Keep them until the store takes them. Of ticks and of progress the next one is as good."""
        for event in events:
            if isinstance(event, ClockTicked):
                continue
            if isinstance(event, RoundProgressed):
                self._held.keep(event, now)
                continue
            self._waiting |= {object(): held for held in self._held.take()}
            subject: object
            match event:  # a newer one takes its place: an operator repeats all it sees at every turn
                case NodeChanged(node=node):
                    subject = NodeChanged, node
                case PodChanged(member=member):
                    subject = PodChanged, member
                case _:
                    subject = object()
            self._waiting.pop(subject, None)
            self._waiting[subject] = event
        while len(self._waiting) > WAITING_EVENTS_MAX:
            lost = self._waiting.pop(next(iter(self._waiting)))
            logger.error("too much waits for the store job=%s lost=%s", self.name, type(lost).__name__)

    def _apply_lines(self, lines: Sequence[Journaled], now: float) -> tuple[Effect, ...]:
        """Apply journaled events, then what the round they led to makes the senses say."""
        effects: list[Effect] = []
        proved: list[Event] = []
        for line in lines:
            policy, work = self.state.policy, self.state.work
            step = self._apply(line)
            self._log.note(line, step)
            effects.extend(step.effects)
            if self.state.policy != policy:
                self._watch(now)
            elif self.senses is not None:  # they are to know which round runs
                if self.state.work is not work:
                    self.senses.observe(WorkKnown(self.state.work), now)
                for shown in step.effects:
                    if isinstance(shown, Show):
                        proved.extend(self.senses.observe(_as_sample(shown), now))
        return (*effects, *self._apply_all(proved, now))

    def _apply(self, line: Journaled) -> Step:
        step = turn(self._brain, self.state, line.event, line.at)
        self.state, self.offset, self.last_at = step.state, line.offset, line.at
        self.counts.note(line.event, step.effects)
        self._unnoted |= {each.outcome.id: each.outcome for each in step.effects if isinstance(each, Answered)}
        return step

    def _watch(self, now: float, *, back_by: float | None = None) -> None:
        """Begin to watch under the policy there is; who should be there has until `back_by` to connect again."""
        if self.state.policy is None:
            return
        self.senses = self._senses_for(self.state.policy)
        there: list[Sample] = []
        finished: list[Sample] = []
        gone: list[Sample] = []
        for each in self.state.members:
            if each.standing is MemberState.LOST:
                gone.append(Left(each.name))
            elif back_by is None:
                there.append(Connected(each.name, each.node))
            else:
                there.append(Expected(each.name, each.node, back_by))
            if each.finished_round is not None:
                finished.append(Finished(each.name, each.finished_round, each.nonfinite))
        shown = [_as_sample(Show(self.state.desired))] if self.state.desired is not None else []
        learned = [WorkKnown(self.state.work)] if self.state.work != LongWork() else []
        for sample in (
            *learned,
            *there,
            *self._placed.values(),
            *self.noted.values(),
            *shown,
            *finished,
            *gone,
        ):
            self.senses.observe(sample, now)

    def _refused(self, trouble: str, now: float) -> None:
        if trouble != self.trouble:
            logger.error("store refuses job=%s reason=%s", self.name, trouble)
        self.trouble, self._retry_at = trouble, now + STORE_RETRY_S

    def _accepted(self) -> None:
        if self.trouble is not None:
            logger.info("store takes writes again job=%s", self.name)
        self.trouble = None


def _as_sample(effect: Show) -> Sample:
    desired = effect.desired
    return RoundStarted(desired) if isinstance(desired, Round) else RoundStopped(desired.number)
