"""A simulated launcher with its workers and its node's agent."""

from enum import Enum
from functools import partial
from typing import Final, Protocol

import msgspec

from holdfast.api.event import (
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberWarmed,
)
from holdfast.api.membership import CollectiveFailed, WorkerExited
from holdfast.api.policy import Policy
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Closed, Desired, Entry, Round
from holdfast.api.selftest import Verdict
from holdfast.api.telemetry import NodeEvent, NonFinite, ProcessState, RankSample, StepWork
from holdfast.simulator.world.agent import Agent
from holdfast.simulator.world.cluster import Supplied
from holdfast.simulator.world.line import Line
from holdfast.simulator.world.selftests import SelfTests
from holdfast.simulator.world.watchdog import Watchdog
from holdfast.watchdog.detectors.detector import CollectiveBroke, Exited, Left


class Worker(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    STUCK = "stuck"  # it runs, and does not get to where the others wait
    DEAD = "dead"


STATES: Final = {
    Worker.RUNNING: ProcessState.RUNNING,
    Worker.STOPPED: ProcessState.STOPPED,
    Worker.STUCK: ProcessState.RUNNING,
    Worker.DEAD: ProcessState.GONE,
}
# Where a worker is in its step when nobody makes one; who waits for others does so in the backward pass.
PHASES: Final = {Worker.STUCK: Phase.FORWARD}


class Peers(Protocol):
    """What the workers of a member do together with those of others."""

    step_time_s: float
    ever_wrong: set[str]

    def changed(self, member: "SimulatedMember") -> None:
        """Something about the member's workers, or where they are, is not what it was."""

    def look(self, member: "SimulatedMember") -> None:
        """Somebody looks how far the member's ranks are."""

    def work_of(self, member: "SimulatedMember", local: int, rank: int) -> StepWork | None:
        """What the steps of a rank of the member's were made of, since its round began; None: it does not say."""

    def entered(self, round: Round) -> None:
        """A member's workers run in the round."""

    def heard(self, member: "SimulatedMember", coming: Round) -> None:
        """A member was shown a round into which its replica group goes on."""

    def may_go_on(self, member: "SimulatedMember", round: Round) -> bool:
        """Whether the workers of its replica group all run: they go on together."""

    def broke(self, round: Round, where: "SimulatedMember", *, for_all: bool = False) -> None:
        """A worker died: its peers' collectives fail within milliseconds, or never, unless they do `for_all`."""


class Ground(Protocol):
    """What is under a member: the job that it is of, and the cluster that it is in."""

    policy: Policy

    def joined(self, member: "SimulatedMember", join: MemberJoined) -> None:
        """Its launcher's connection is accepted."""

    def answers_test(self) -> bool:
        """Whether a self-test that begins ever ends."""

    def verdict_of(self, member: "SimulatedMember") -> Verdict:
        """What a self-test says of the member's devices."""

    def ends(self, member: "SimulatedMember") -> None:
        """Its pod is being evicted."""

    def remove_node(self, member: "SimulatedMember", why: str) -> None:
        """The node and everything on it is gone."""


class SimulatedMember:
    """One node: its launcher, the workers of that, and its agent.

    `in_sight`: its agent reports and its launcher beats every second. Who is not in sight does and says the same
    but for that: nobody hears of what is as it should be.
    """

    def __init__(
        self, given: Supplied, ground: Ground, peers: Peers, watchdog: Watchdog, *, in_sight: bool = True
    ) -> None:
        self._ground, self._peers, self._agenda, self._watchdog = ground, peers, watchdog.agenda, watchdog
        self.alive = False
        self.is_misfit = given.misfit
        self.name, self.node, self.rack = given.member, given.node, given.rack
        self.line = Line(self.name, watchdog, lives=lambda: self.alive, greet=self._greet, beats=in_sight)
        self.agent = Agent(self.node, f"GPU-{self.name}", self.line)
        self.tests = SelfTests(self, answers=ground.answers_test, verdict=lambda: ground.verdict_of(self))
        self.in_sight = in_sight
        self._sight = 0  # grows with every time that it comes into sight or goes
        self.boot = "1"
        self.warm = False
        self.held: Desired | None = None
        self.coming: Round | None = None  # the round that its replica group goes on into at the end of a step
        self.epoch: int | None = None  # of the replica group in which its workers are
        self.entered: int | None = None
        self.workers: list[Worker] = []
        self.ails = False  # whether a worker of them does not run
        self.hangs_next: Worker | None = None  # what becomes of one of them before it enters its next round
        self.hung_in: int | None = None  # the round in which one of them did
        self.step: int | None = None
        self.progress_at = self._agenda.now
        self.ending_at: float | None = None  # told to end: when it must be gone
        self.wrong: set[int] = set()  # local ranks whose parameters are not what they should be
        self.nonfinite: tuple[float, NonFinite] | None = None  # since when, and what its ranks tell of it

    @property
    def shown(self) -> int:
        """The greatest number that it was shown, 0 for none."""
        newest = self.coming or self.held
        return 0 if newest is None else newest.number

    @property
    def round(self) -> Round | None:
        """The round its workers are in, None while they are in none."""
        return self.held if isinstance(self.held, Round) and self.held.share_of(self.name) else None

    # life

    def start(self, delay_s: float, *, warm: bool = False) -> None:
        """Its launcher runs after that time, and can start workers at once if it is `warm`."""

        def begin() -> None:
            self.alive = True
            self.line.connect()
            if self.in_sight:
                self._tell_every_second()
            if not warm:
                self._agenda.after(self._agenda.tempo.warm_s(), self._become_warm)

        self.warm = warm
        self._agenda.after(delay_s, begin)

    def come_in_sight(self, shown: Desired | None) -> None:
        """From now on somebody looks. `shown` is what those who are not in sight were shown last."""
        if isinstance(shown, Round) and shown.number > self.shown and self.epoch is not None:
            self.coming = shown if shown.epochs.get(self.name) == self.epoch else self.coming
        if not self.in_sight:
            self.in_sight = True
            if self.alive:
                self._tell_every_second()

    def go_out_of_sight(self) -> None:
        """Nobody looks any more."""
        self.in_sight, self._sight = False, self._sight + 1
        self.line.rest()

    def _tell_every_second(self) -> None:
        self._sight += 1
        self._agenda.after(self._agenda.draw.uniform(0.0, 1.0), partial(self._report_on, self._sight))
        self.line.beat()

    def _become_warm(self) -> None:
        if self.alive:
            self.warm = True
            self.line.send(lambda: self._watchdog.record(MemberWarmed(self.name)))

    def die(self) -> None:
        """The whole node goes: launcher, workers, agent."""
        if self.alive:
            self.alive = False
            self.workers = []
            self._peers.changed(self)
            self.line.disconnect(told=not self.line.silent)

    def restart_launcher(self) -> None:
        """The launcher crashes (its workers with it) and comes back as another process."""
        if not self.alive:
            return
        self.line.disconnect(told=True)
        self.boot = str(int(self.boot) + 1)
        self.held, self.coming, self.epoch, self.entered = None, None, None, None
        self.workers, self.ails, self.step = [], False, None
        self.line.forget()
        self._peers.changed(self)
        self._agenda.after(self._agenda.draw.uniform(0.05, 2.0), self.line.connect)

    # the connection

    def _greet(self) -> None:
        """Say who is there, and what it was shown last."""
        newest = self.coming or self.held
        join = MemberJoined(
            self.name,
            self.node,
            self.boot,
            "127.0.0.1",
            self._ground.policy.processes_per_node,
            (7000, 7001),
            self.warm,
            newest.number if isinstance(newest, Round) else None,
            shown=self.shown,
            transfer=f"{self.name}:1",
        )
        self.line.send(lambda: self._ground.joined(self, join))

    def partition(self, seconds: float) -> None:
        """Nothing passes for a while; afterwards the old connection proves dead."""
        self.line.silence(seconds, partial(self.line.disconnect, told=True))

    def freeze(self, seconds: float) -> None:
        """The launcher is stopped: nothing is said or read, and its connection stays open."""
        self.line.silence(seconds, self._thaw)

    def _thaw(self) -> None:
        """Say what it would have said meanwhile, and read what it was sent."""
        if self.alive and self.line.connection and self._watchdog.up:
            self.line.repeat()
            if (desired := self._watchdog.job.state.desired) is not None:
                self.show(desired)

    # rounds

    def show(self, desired: Desired) -> None:
        """The watchdog pushes a desired state over the connection."""
        self.line.receive(partial(self.obey, desired))

    def obey(self, desired: Desired) -> None:
        """A greater number is obeyed, anything else is old news."""
        if self.held is not None and desired.number <= self.shown:
            return
        self.turn_to(desired)
        if self.coming is not None:
            self._go_on(self.coming)
            return
        self._peers.changed(self)
        if isinstance(desired, Closed):
            self.workers = []
        elif self.round is None and self.ending_at is not None:
            self.leave()
        elif self.round is not None:
            starts = Worker.RUNNING not in self.workers or self.ails or self.round.entry is Entry.RESPAWN
            enter_s = self._agenda.tempo.enter_s(self.round, starts=starts, is_new=not self.workers)
            self._agenda.after(enter_s, lambda: self.enter(desired.number))

    def turn_to(self, desired: Desired) -> None:
        """Hold it from now on; or, where its replica group goes on, from the end of a step on."""
        epoch = None
        if isinstance(desired, Round):
            epoch = desired.epochs.get(self.name)
            if epoch is not None and epoch == self.epoch:
                self.coming = desired
                return
        self.held, self.coming, self.epoch, self.entered = desired, None, epoch, None

    def _go_on(self, coming: Round) -> None:
        """Its workers learn of the round. One that ended before cannot be started into a group that has met."""
        for local, worker in enumerate(self.workers):
            if worker is Worker.DEAD:
                self._say_exit(coming, local, "RuntimeError: the replica group has met without it")
        self._peers.heard(self, coming)

    def take_up(self, round: Round) -> MemberEntered:
        """Its workers are in the round, and have left nothing for it."""
        last_step = self.step
        self.held, self.coming = round, None
        self.entered, self.step, self.progress_at, self.nonfinite = round.number, None, self._agenda.now, None
        return MemberEntered(self.name, round.number, reentrant=True, last_step=last_step)

    def go_on(self) -> None:
        """Into the round that it was shown, unless a worker of its replica group cannot."""
        round = self.coming
        assert round is not None
        if not self._peers.may_go_on(self, round):
            return
        self.line.tell(self.take_up(round))
        self._peers.entered(round)

    def enter(self, number: int) -> None:
        """Its workers run in that round, unless another came between."""
        round = self.round
        if not self.alive or round is None or round.number != number or self.entered == number:
            return
        if self.hangs_next is not None:
            others = [Worker.RUNNING] * (round.ranks[0].local_size - 1)
            self.workers, self.ails, self.progress_at = [self.hangs_next, *others], True, self._agenda.now
            self.hangs_next, self.hung_in, self.entered, self.step = None, number, None, None
            return
        self.line.tell(self.come_in(round))
        self._peers.entered(round)
        if self.coming is not None:
            self._peers.heard(self, self.coming)

    def come_in(self, round: Round) -> MemberEntered:
        """Its workers run in the round."""
        size = round.ranks[0].local_size
        if len(self.workers) != size or self.workers.count(Worker.RUNNING) != size:
            self.workers = [Worker.RUNNING] * size
        self.ails = False
        self.nonfinite = None
        last_step, self.entered, self.step, self.progress_at = self.step, round.number, None, self._agenda.now
        return MemberEntered(self.name, round.number, reentrant=True, last_step=last_step)

    def finish(self, number: int) -> None:
        """Its workers have made the last step."""
        self.line.tell(MemberFinished(self.name, number))

    def told_to_end(self, within_s: float) -> None:
        """Its pod is being evicted: it stays until its ranks are elsewhere, or the time is up."""
        if not self.alive or self.ending_at is not None:
            return
        self.ending_at = self._agenda.now + within_s
        self._ground.ends(self)
        self.line.tell(MemberDeparting(self.name, "SIGTERM", within_s))
        self._agenda.after(within_s, self.leave)
        if self.round is None and self.held is not None:
            self.leave()

    def leave(self) -> None:
        """A launcher stopped on purpose; its node goes with it."""
        if not self.alive:
            return
        event = MemberLeft(self.name, "stopped")

        def arrive() -> None:
            self.line.has_left = True
            self._watchdog.record(event)
            self._watchdog.observe(Left(self.name))

        self.line.send(arrive)
        self._agenda.after(0.05, lambda: self._ground.remove_node(self, "left"))
        if self.round is not None and self.entered == self.round.number:
            # Else nothing but a time-out of minutes would tell a job that is only observed.
            self._peers.broke(self.round, self, for_all=True)

    # workers

    def kill_worker(self, local: int, error: str = "", *, signal: int = 9) -> None:
        """A worker dies of `error`, or by the signal; the launcher says so at once, its peers a little later."""
        round = self.round
        if not self.alive or round is None or self.entered != round.number or self.workers[local] is Worker.DEAD:
            return
        self.workers[local], self.ails = Worker.DEAD, True
        self._peers.changed(self)
        self._say_exit(self.coming or round, local, error, signal=signal)
        self._peers.broke(round, self)

    def _say_exit(self, round: Round, local: int, error: str = "", *, signal: int = 9) -> None:
        """A worker of the newest round that the launcher was shown has ended."""
        rank = self.first_rank(round) + local
        exit = WorkerExited(
            round.number,
            rank,
            0.001,
            exit_code=1 if error else None,
            signal=None if error else signal,
            error=error,
            raised=error,
            began=self.step is not None,
        )
        self.line.show(Exited(self.name, self.node, exit))

    def stop_worker(self, local: int) -> None:
        self._hold_worker(local, Worker.STOPPED)

    def block_worker(self, local: int) -> None:
        """A worker runs on and gets nowhere: nothing fails, and the others wait for it."""
        self._hold_worker(local, Worker.STUCK)

    def _hold_worker(self, local: int, how: Worker) -> None:
        if self.alive and self.workers and self.workers[local] is Worker.RUNNING:
            self.workers[local], self.ails = how, True
            self._peers.changed(self)

    def collective_failed(self, round: Round, *, across: bool = False) -> None:
        """A live worker's collective failed because a peer went; `across`: one of another replica group."""
        if not self.alive or self.entered != round.number or Worker.RUNNING not in self.workers:
            return
        says, rank = "Connection closed by peer", self.first_rank(round)
        failure = CollectiveFailed(round.number, rank, 0.001, says, across=across)
        self.line.show(CollectiveBroke(self.name, self.node, failure))

    def first_rank(self, round: Round) -> int:
        share = round.share_of(self.name)
        assert share is not None
        return share.first_rank

    def flip_bit(self) -> None:
        """A bit of one worker's parameters flips, and nobody says so."""
        if self.alive and self.round is not None and self.entered == self.round.number:
            self.wrong.add(self._agenda.draw.randrange(len(self.workers)))
            self._peers.ever_wrong.add(self.node)

    def not_finite(self, step: int, *, loss: bool) -> None:
        """The loss of its ranks, or their gradient norm alone, is NaN; the first such step of a round is kept."""
        if self.nonfinite is None:
            told = NonFinite(step, 0.0, step, 1, "nan" if loss else "", "nan")
            self.nonfinite = (self._agenda.now, told)

    # the agent

    def report(self, events: tuple[NodeEvent, ...] = ()) -> None:
        """Its agent reports."""
        if self.alive:
            self.agent.report(self.boot, self._samples(), events)

    def _report_on(self, sight: int) -> None:
        if self.alive and sight == self._sight:
            self.report()
            self._agenda.after(1.0, partial(self._report_on, sight))

    def _nonfinite(self) -> NonFinite | None:
        if self.nonfinite is None:
            return None
        since, told = self.nonfinite
        return msgspec.structs.replace(told, age_s=self._agenda.now - since)

    def _samples(self) -> tuple[RankSample, ...]:
        round = self.round
        if round is None:
            return ()
        if self.entered != round.number:
            return self._first_records(round) if self.hung_in == round.number else ()
        self._peers.look(self)
        age = max(0.0, self._agenda.now - self.progress_at)
        first, work_of = self.first_rank(round), self._peers.work_of
        return tuple(
            RankSample(
                round=round.number,
                rank=first + local,
                process=STATES[worker],
                phase=Phase.STARTUP if self.step is None else PHASES.get(worker, Phase.BACKWARD),
                progress_age_s=age,
                phase_age_s=age,
                pulse_age_s=0.05 if worker in (Worker.RUNNING, Worker.STUCK) else age,
                step=self.step,
                collective_sequence=int(worker is Worker.RUNNING) if self.step is None else None,
                step_time_s=self._peers.step_time_s,
                loss=1.0,
                nonfinite=self._nonfinite(),
                work=work_of(self, local, first + local) if self.step is not None else None,
            )
            for local, worker in enumerate(self.workers)
        )

    def _first_records(self, round: Round) -> tuple[RankSample, ...]:
        """What the launcher has written of the workers before they publish anything themselves."""
        age_s, first = self._agenda.now - self.progress_at, self.first_rank(round)
        return tuple(
            RankSample(round.number, first + local, STATES[worker], Phase.IDLE, age_s, age_s)
            for local, worker in enumerate(self.workers)
        )
