"""A simulated launcher with its workers and its node's agent."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

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
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Closed, Desired, Entry, Round
from holdfast.api.telemetry import NodeEvent, NodeReport, NonFinite, RankSample
from holdfast.simulator.world.cluster import Supplied
from holdfast.simulator.world.conditions import NodeConditions
from holdfast.simulator.world.selftests import SelfTests
from holdfast.simulator.world.worker import PHASES, STATES, Worker, first_records
from holdfast.watchdog.detectors.detector import CollectiveBroke, Exited, Heard, Left, Reported

if TYPE_CHECKING:
    from holdfast.simulator.world.world import World

REPEATED_MESSAGES = 4


class SimulatedMember:
    """One node. Everything it says travels over a connection that keeps order and can break.

    `in_sight`: its agent reports and its launcher beats every second. Who is not in sight does and says the same
    but for that: nobody hears of what is as it should be.
    """

    def __init__(self, world: World, given: Supplied, *, in_sight: bool = True) -> None:
        self.world = world
        self.is_misfit = given.misfit
        self.name, self.node, self.rack = given.member, given.node, given.rack
        self.conditions = NodeConditions(f"GPU-{self.name}")
        self.in_sight = in_sight
        self._sight = 0  # grows with every time that it comes into sight or goes
        self.boot = "1"
        self.alive = False
        self.warm = False
        self.connection = 0  # grows with every connection; 0 while there is none
        self._connections = 0
        self.connected_at = 0.0
        self._epoch = 0
        self._arrives = 0.0
        self.silent = False  # partitioned: nothing passes, nothing closes
        self.held: Desired | None = None
        self.coming: Round | None = None  # the round that its replica group goes on into at the end of a step
        self.epoch: int | None = None  # of the replica group in which its workers are
        self.entered: int | None = None
        self.workers: list[Worker] = []
        self.ails = False  # whether a worker of them does not run
        self.hangs_next: Worker | None = None  # what becomes of one of them before it enters its next round
        self.hung_in: int | None = None  # the round in which one of them did
        self.step: int | None = None
        self.progress_at = world.now
        self._recent: list[Callable[[], None]] = []
        self._has_left = False  # the watchdog heard it say so, and its connection means nothing any more
        self._reports = 0
        self.ending_at: float | None = None  # told to end: when it must be gone
        self.wrong: set[int] = set()  # local ranks whose parameters are not what they should be
        self.nonfinite: tuple[float, NonFinite] | None = None  # since when, and what its ranks tell of it
        self.tests = SelfTests(self)

    @property
    def in_touch(self) -> bool:
        """Whether it has had time to hear what the watchdog shows now."""
        return bool(self.connection) and not self.silent and self.world.now - self.connected_at > 0.1

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
            self.connect()
            if self.in_sight:
                self._tell_every_second()
            if not warm:
                self.world.after(self.world.tempo.warm_s(), self.become_warm)

        self.warm = warm
        self.world.after(delay_s, begin)

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

    def _tell_every_second(self) -> None:
        self._sight += 1
        sight = self._sight
        self.world.after(self.world.draw.uniform(0.0, 1.0), lambda: self._report_on(sight))
        if connection := self.connection:
            self.world.after(self.world.draw.uniform(0.0, 1.0), lambda: self._beat_on(sight, connection))

    def become_warm(self) -> None:
        if self.alive:
            self.warm = True
            self.send(lambda: self.world.carry_out(self.world.job.record(MemberWarmed(self.name), self.world.now)))

    def die(self) -> None:
        """The whole node goes: launcher, workers, agent."""
        if self.alive:
            self.alive = False
            self.workers = []
            self.world.training.changed(self)
            self.disconnect(told=not self.silent)

    def restart_launcher(self) -> None:
        """The launcher crashes (its workers with it) and comes back as another process."""
        if not self.alive:
            return
        self.disconnect(told=True)
        self.boot = str(int(self.boot) + 1)
        self.held, self.coming, self.epoch, self.entered = None, None, None, None
        self.workers, self.ails, self.step, self._recent = [], False, None, []
        self.world.training.changed(self)
        self.world.after(self.world.draw.uniform(0.05, 2.0), self.connect)

    # the connection

    def connect(self) -> None:
        world = self.world
        if not self.alive or self.connection:
            return
        if not world.up or self.silent:
            world.after(world.tempo.reconnect_s(), self.connect)
            return
        self._connections += 1
        self.connection, self._epoch, self._arrives = self._connections, world.epoch, world.now
        self.connected_at = world.now
        newest = self.coming or self.held
        held = newest.number if isinstance(newest, Round) else None
        ports = (7000, 7001)
        size = world.policy.processes_per_node
        join = MemberJoined(
            self.name,
            self.node,
            self.boot,
            "127.0.0.1",
            size,
            ports,
            self.warm,
            held,
            shown=self.shown,
            transfer=f"{self.name}:1",
        )

        def arrive() -> None:
            desired = world.joined(self, join)
            if desired is not None:
                self.show(desired)

        self.send(arrive)
        for message in self._recent[-REPEATED_MESSAGES:]:
            self.send(message)
        if self.in_sight:
            sight, connection = self._sight, self.connection
            world.after(1.0, lambda: self._beat_on(sight, connection))

    def disconnect(self, *, told: bool = False) -> None:
        """The connection is gone, with all that was under way. `told`: the watchdog sees it close."""
        had, self.connection = self.connection, 0
        if had and told and not self._has_left:
            self.world.closed(self.name)
        if self.alive:
            self.world.after(self.world.tempo.reconnect_s(), self.connect)

    def send(self, arrive: Callable[[], None]) -> None:
        """Deliver to the watchdog a little later, in order, unless the connection breaks first."""
        connection, world = self.connection, self.world
        if not connection or self.silent:
            return
        self._arrives = max(self._arrives, world.now) + world.tempo.message_s()

        def deliver() -> None:
            if world.up and self._epoch == world.epoch and self.connection == connection:
                world.carry_out(world.job.observe(Heard(self.name), world.now))
                arrive()

        world.after(self._arrives - world.now, deliver)

    def send_and_remember(self, arrive: Callable[[], None]) -> None:
        """Like `send`, and repeated after the next reconnect."""
        self._recent = [*self._recent, arrive][-16:]
        self.send(arrive)

    def _beat_on(self, sight: int, connection: int) -> None:
        if self.alive and connection and (sight, connection) == (self._sight, self.connection):
            self.send(lambda: None)
            self.world.after(1.0, lambda: self._beat_on(sight, connection))

    def partition(self, seconds: float) -> None:
        """Nothing passes for a while; afterwards the old connection proves dead."""
        self.silent = True

        def heal() -> None:
            self.silent = False
            self.disconnect(told=True)

        self.world.after(seconds, heal)

    def freeze(self, seconds: float) -> None:
        """The launcher is stopped: nothing is said or read, and its connection stays open."""
        self.silent = True

        def thaw() -> None:
            self.silent = False
            if self.alive and self.connection and self.world.up:
                for message in self._recent[-REPEATED_MESSAGES:]:
                    self.send(message)  # what it would have said meanwhile, and what it now reads
                if (desired := self.world.job.state.desired) is not None:
                    self.show(desired)

        self.world.after(seconds, thaw)

    def is_reached_by(self, connection: int) -> bool:
        """Whether it still hears what was sent over that connection."""
        return bool(connection) and self.alive and not self.silent and self.connection == connection

    def dismissed(self) -> None:
        """The watchdog closed the connection: this one counts as lost."""
        if self.connection:
            self.disconnect()

    # rounds

    def show(self, desired: Desired) -> None:
        """The watchdog pushes a desired state over this connection."""
        connection = self.connection

        def arrive() -> None:
            if self.is_reached_by(connection):
                self.obey(desired)

        self.world.after(self.world.tempo.message_s(), arrive)

    def obey(self, desired: Desired) -> None:
        """A greater number is obeyed, anything else is old news."""
        if self.held is not None and desired.number <= self.shown:
            return
        self.turn_to(desired)
        if self.coming is not None:
            self._go_on(self.coming)
            return
        self.world.training.changed(self)
        if isinstance(desired, Closed):
            self.workers = []
        elif self.round is None and self.ending_at is not None:
            self.leave()
        elif self.round is not None:
            starts = Worker.RUNNING not in self.workers or self.ails or self.round.entry is Entry.RESPAWN
            enter_s = self.world.tempo.enter_s(self.round, starts=starts, is_new=not self.workers)
            self.world.after(enter_s, lambda: self.enter(desired.number))

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
        self.world.training.heard(self, coming)

    def take_up(self, round: Round) -> MemberEntered:
        """Its workers are in the round, and have left nothing for it."""
        last_step = self.step
        self.held, self.coming = round, None
        self.entered, self.step, self.progress_at, self.nonfinite = round.number, None, self.world.now, None
        return MemberEntered(self.name, round.number, reentrant=True, last_step=last_step)

    def go_on(self) -> None:
        """Into the round that it was shown, unless a worker of its replica group cannot."""
        round = self.coming
        assert round is not None
        if not self.world.training.may_go_on(self, round):
            return
        event = self.take_up(round)
        self.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))
        self.world.training.entered(round)

    def enter(self, number: int) -> None:
        world, round = self.world, self.round
        if not self.alive or round is None or round.number != number or self.entered == number:
            return
        if self.hangs_next is not None:
            others = [Worker.RUNNING] * (round.ranks[0].local_size - 1)
            self.workers, self.ails, self.progress_at = [self.hangs_next, *others], True, world.now
            self.hangs_next, self.hung_in, self.entered, self.step = None, number, None, None
            return
        event = self.come_in(round)
        self.send_and_remember(lambda: world.carry_out(world.job.record(event, world.now)))
        world.training.entered(round)
        if self.coming is not None:
            world.training.heard(self, self.coming)

    def come_in(self, round: Round) -> MemberEntered:
        """Its workers run in the round."""
        size = round.ranks[0].local_size
        if len(self.workers) != size or self.workers.count(Worker.RUNNING) != size:
            self.workers = [Worker.RUNNING] * size
        self.ails = False
        self.nonfinite = None
        last_step, self.entered, self.step, self.progress_at = self.step, round.number, None, self.world.now
        return MemberEntered(self.name, round.number, reentrant=True, last_step=last_step)

    def finish(self, number: int) -> None:
        event = MemberFinished(self.name, number)
        self.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def told_to_end(self, within_s: float) -> None:
        """Its pod is being evicted: it stays until its ranks are elsewhere, or the time is up."""
        if not self.alive or self.ending_at is not None:
            return
        self.ending_at = self.world.now + within_s
        self.world.ending.add(self.name)
        event = MemberDeparting(self.name, "SIGTERM", within_s)
        self.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))
        self.world.after(within_s, self.leave)
        if self.round is None and self.held is not None:
            self.leave()

    def leave(self) -> None:
        """A launcher stopped on purpose; its node goes with it."""
        if not self.alive or self.name not in self.world.members:
            return
        event = MemberLeft(self.name, "stopped")

        def arrive() -> None:
            self._has_left = True
            self.world.carry_out(self.world.job.record(event, self.world.now))
            self.world.carry_out(self.world.job.observe(Left(self.name), self.world.now))

        self.send(arrive)
        self.world.after(0.05, lambda: self.world.remove_node(self, "left"))
        if self.round is not None and self.entered == self.round.number:
            # Else nothing but a time-out of minutes would tell a job that is only observed.
            self.world.training.broke(self.round, self, for_all=True)

    # workers

    def kill_worker(self, local: int, error: str = "", *, signal: int = 9) -> None:
        """A worker dies of `error`, or by the signal; the launcher says so at once, its peers a little later."""
        round, world = self.round, self.world
        if not self.alive or round is None or self.entered != round.number or self.workers[local] is Worker.DEAD:
            return
        self.workers[local], self.ails = Worker.DEAD, True
        world.training.changed(self)
        self._say_exit(self.coming or round, local, error, signal=signal)
        world.training.broke(round, self)

    def _say_exit(self, round: Round, local: int, error: str = "", *, signal: int = 9) -> None:
        """A worker of the newest round that the launcher was shown has ended."""
        rank, world = self.first_rank(round) + local, self.world
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
        self.send_and_remember(
            lambda: world.carry_out(world.job.observe(Exited(self.name, self.node, exit), world.now))
        )

    def stop_worker(self, local: int) -> None:
        self._hold_worker(local, Worker.STOPPED)

    def block_worker(self, local: int) -> None:
        """A worker runs on and gets nowhere: nothing fails, and the others wait for it."""
        self._hold_worker(local, Worker.STUCK)

    def _hold_worker(self, local: int, how: Worker) -> None:
        if self.alive and self.workers and self.workers[local] is Worker.RUNNING:
            self.workers[local], self.ails = how, True
            self.world.training.changed(self)

    def collective_failed(self, round: Round, *, across: bool = False) -> None:
        """A live worker's collective failed because a peer went; `across`: one of another replica group."""
        if not self.alive or self.entered != round.number or Worker.RUNNING not in self.workers:
            return
        says, rank = "Connection closed by peer", self.first_rank(round)
        failure = CollectiveFailed(round.number, rank, 0.001, says, across=across)
        self.send_and_remember(
            lambda: self.world.carry_out(
                self.world.job.observe(CollectiveBroke(self.name, self.node, failure), self.world.now)
            )
        )

    def first_rank(self, round: Round) -> int:
        share = round.share_of(self.name)
        assert share is not None
        return share.first_rank

    def flip_bit(self) -> None:
        """A bit of one worker's parameters flips, and nobody says so."""
        if self.alive and self.round is not None and self.entered == self.round.number:
            self.wrong.add(self.world.draw.randrange(len(self.workers)))
            self.world.training.ever_wrong.add(self.node)

    def not_finite(self, step: int, *, loss: bool) -> None:
        """The loss of its ranks, or their gradient norm alone, is NaN; the first such step of a round is kept."""
        if self.nonfinite is None:
            told = NonFinite(step, 0.0, step, 1, "nan" if loss else "", "nan")
            self.nonfinite = (self.world.now, told)

    # the agent

    def report(self, events: tuple[NodeEvent, ...] = ()) -> None:
        """One node report."""
        if not self.alive:
            return
        self._reports += 1
        report = self.conditions.added_to(
            NodeReport(self.node, self.boot, self._reports, ranks=self._samples(), events=events), self.world.now
        )
        self.send(lambda: self.world.carry_out(self.world.job.observe(Reported(report), self.world.now)))

    def _report_on(self, sight: int) -> None:
        if self.alive and sight == self._sight:
            self.report()
            self.world.after(1.0, lambda: self._report_on(sight))

    def _nonfinite(self) -> NonFinite | None:
        if self.nonfinite is None:
            return None
        since, told = self.nonfinite
        return msgspec.structs.replace(told, age_s=self.world.now - since)

    def _samples(self) -> tuple[RankSample, ...]:
        round = self.round
        if round is None:
            return ()
        if self.entered != round.number:
            age_s = self.world.now - self.progress_at
            return first_records(self, round, age_s) if self.hung_in == round.number else ()
        self.world.training.look(self)
        age = max(0.0, self.world.now - self.progress_at)
        first, work_of = self.first_rank(round), self.world.training.work_of
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
                step_time_s=self.world.training.step_time_s,
                loss=1.0,
                nonfinite=self._nonfinite(),
                work=work_of(self, local, first + local) if self.step is not None else None,
            )
            for local, worker in enumerate(self.workers)
        )
