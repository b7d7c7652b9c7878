"""A simulated launcher with its workers and its node's agent."""

from __future__ import annotations

from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

import msgspec
from conditions import NodeConditions

from holdfast.api.event import (
    MemberDeparting,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberTested,
    MemberWarmed,
)
from holdfast.api.membership import CollectiveFailed, WorkerExited
from holdfast.api.rankrecord import Phase
from holdfast.api.round import Closed, Desired, Round
from holdfast.api.selftest import TOPOLOGY, BadLink, CheckResult, Judged, TestWanted, Verdict
from holdfast.api.telemetry import NodeEvent, NodeReport, NonFinite, ProcessState, RankSample
from holdfast.watchdog.detectors.detector import CollectiveBroke, Exited, Heard, Left, Reported

if TYPE_CHECKING:
    from world import World

REPEATED_MESSAGES = 4
NEVER_ANSWERS = 0.05
VERDICTS = (0.9, 0.04, 0.06)  # passed, failed, unknown


class Worker(Enum):
    RUNNING = "running"
    STOPPED = "stopped"
    DEAD = "dead"


class SimulatedMember:
    """One node. Everything it says travels over a connection that keeps order and can break."""

    def __init__(self, world: World, name: str, *, is_misfit: bool = False) -> None:
        """`is_misfit`: its GPUs share no NVLink domain as large as the job asks for."""
        self.world = world
        self.is_misfit = is_misfit
        self.conditions = NodeConditions(f"GPU-{name}")
        self.name = self.node = name
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
        self.entered: int | None = None
        self.workers: list[Worker] = []
        self.step: int | None = None
        self.progress_at = world.now
        self._recent: list[Callable[[], None]] = []
        self._has_left = False  # the watchdog heard it say so, and its connection means nothing any more
        self._reports = 0
        self.ending_at: float | None = None  # told to end: when it must be gone
        self.wrong: set[int] = set()  # local ranks whose parameters are not what they should be
        self.nonfinite: tuple[float, NonFinite] | None = None  # since when, and what its ranks tell of it
        self._wanted_test: TestWanted | None = None

    @property
    def in_touch(self) -> bool:
        """Whether it has had time to hear what the watchdog shows now."""
        return bool(self.connection) and not self.silent and self.world.now - self.connected_at > 0.1

    @property
    def round(self) -> Round | None:
        """The round its workers are in, None while they are in none."""
        return self.held if isinstance(self.held, Round) and self.held.share_of(self.name) else None

    # life

    def start(self, delay_s: float) -> None:
        def begin() -> None:
            self.alive = True
            self.connect()
            self.world.after(self.world.jitter(0.0, 1.0), self.report)
            self.world.after(self.world.jitter(1.0, 3.0), self.become_warm)

        self.world.after(delay_s, begin)

    def become_warm(self) -> None:
        if self.alive:
            self.warm = True
            self.send(lambda: self.world.carry_out(self.world.job.record(MemberWarmed(self.name), self.world.now)))

    def die(self) -> None:
        """The whole node goes: launcher, workers, agent."""
        if self.alive:
            self.alive = False
            self.workers = []
            self.disconnect(told=not self.silent)

    def restart_launcher(self) -> None:
        """The launcher crashes (its workers with it) and comes back as another process."""
        if not self.alive:
            return
        self.disconnect(told=True)
        self.boot = str(int(self.boot) + 1)
        self.held, self.entered, self.workers, self.step, self._recent = None, None, [], None, []
        self.world.after(self.world.jitter(0.05, 2.0), self.connect)

    # the connection

    def connect(self) -> None:
        world = self.world
        if not self.alive or self.connection:
            return
        if not world.up or self.silent:
            world.after(world.jitter(0.05, 0.5), self.connect)
            return
        self._connections += 1
        self.connection, self._epoch, self._arrives = self._connections, world.epoch, world.now
        self.connected_at = world.now
        held = self.held.number if isinstance(self.held, Round) else None
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
            shown=self.held.number if self.held is not None else 0,
            transfer=f"{self.name}:1",
        )

        def arrive() -> None:
            desired = world.joined(self, join)
            if desired is not None:
                self.show(desired)

        self.send(arrive)
        for message in self._recent[-REPEATED_MESSAGES:]:
            self.send(message)
        world.after(1.0, self.beat)

    def disconnect(self, *, told: bool = False) -> None:
        """The connection is gone, with all that was under way. `told`: the watchdog sees it close."""
        had, self.connection = self.connection, 0
        if had and told and not self._has_left:
            self.world.closed(self.name)
        if self.alive:
            self.world.after(self.world.jitter(0.05, 0.3), self.connect)

    def send(self, arrive: Callable[[], None]) -> None:
        """Deliver to the watchdog a little later, in order, unless the connection breaks first."""
        connection, world = self.connection, self.world
        if not connection or self.silent:
            return
        self._arrives = max(self._arrives, world.now) + world.jitter(0.0005, 0.02)

        def deliver() -> None:
            if world.up and self._epoch == world.epoch and self.connection == connection:
                world.carry_out(world.job.observe(Heard(self.name), world.now))
                arrive()

        world.after(self._arrives - world.now, deliver)

    def send_and_remember(self, arrive: Callable[[], None]) -> None:
        """Like `send`, and repeated after the next reconnect."""
        self._recent = [*self._recent, arrive][-16:]
        self.send(arrive)

    def beat(self) -> None:
        if self.alive and self.connection:
            self.send(lambda: None)
            self.world.after(1.0, self.beat)

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

    def dismissed(self) -> None:
        """The watchdog closed the connection: this one counts as lost."""
        if self.connection:
            self.disconnect()

    # rounds

    def show(self, desired: Desired) -> None:
        """The watchdog pushes a desired state over this connection."""
        connection = self.connection

        def arrive() -> None:
            if self.alive and not self.silent and self.connection == connection and connection:
                self.obey(desired)

        self.world.after(self.world.jitter(0.0005, 0.02), arrive)

    def obey(self, desired: Desired) -> None:
        """A greater number is obeyed, anything else is old news."""
        if self.held is not None and desired.number <= self.held.number:
            return
        self.held, self.entered = desired, None
        if isinstance(desired, Closed):
            self.workers = []
        elif self.round is None and self.ending_at is not None:
            self.leave()
        elif self.round is not None:
            self.world.after(self.world.jitter(0.02, 0.3), lambda: self.enter(desired.number))

    def enter(self, number: int) -> None:
        world, round = self.world, self.round
        if not self.alive or round is None or round.number != number:
            return
        self.workers = [Worker.RUNNING] * round.ranks[0].local_size
        self.nonfinite = None
        self.entered, last_step, self.step, self.progress_at = number, self.step, None, world.now
        event = MemberEntered(self.name, number, reentrant=True, last_step=last_step)
        self.send_and_remember(lambda: world.carry_out(world.job.record(event, world.now)))
        world.training.entered(round)

    def finish(self, number: int) -> None:
        event = MemberFinished(self.name, number)
        self.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def told_to_end(self, within_s: float) -> None:
        """Its pod is being evicted: it stays until its ranks are elsewhere, or the time is up."""
        if not self.alive or self.ending_at is not None:
            return
        self.ending_at = self.world.now + within_s
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
            self.world.training.broke(self.round, for_all=True)

    # self-tests

    def examine(self, wanted: TestWanted) -> None:
        """The watchdog asks for a self-test over this connection."""
        connection = self.connection

        def arrive() -> None:
            if self.alive and not self.silent and self.connection == connection and connection:
                self._wanted_test = wanted
                self._test(wanted)

        self.world.after(self.world.jitter(0.0005, 0.02), arrive)

    def _test(self, wanted: TestWanted) -> None:
        """Begin once no worker runs; some never answer."""
        if not self.alive or self._wanted_test is not wanted:
            return
        if self.round is not None:
            self.world.after(0.5, lambda: self._test(wanted))
        elif self.world.random.random() > NEVER_ANSWERS:
            self.world.after(self.world.jitter(0.2, 2.0), lambda: self._answer(wanted))

    def _answer(self, wanted: TestWanted) -> None:
        if not self.alive or self._wanted_test is not wanted:
            return
        verdict = Verdict.PASSED if self.world.sound else self.world.random.choices(tuple(Verdict), VERDICTS)[0]
        if self.round is not None:
            verdict = Verdict.UNKNOWN  # a round came between
        checks: tuple[CheckResult, ...] = ()
        if self.is_misfit and verdict is not Verdict.UNKNOWN:
            verdict = Verdict.FAILED
            checks = (CheckResult(TOPOLOGY, "node", verdict, "1 GPU in the largest NVLink domain", 0.1),)
        links = None
        if wanted.links is not None and wanted.links.leads and verdict is not Verdict.UNKNOWN:
            links = self._judged(wanted.links.members, verdict)
        event = MemberTested(self.name, wanted.number, wanted.level, verdict, checks, links=links)
        self.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def _judged(self, members: tuple[str, ...], verdict: Verdict) -> Judged:
        """What it found as the lead of a test of links: a link, a node, or somebody who did not come."""
        if verdict is Verdict.PASSED:
            return Judged(verdict, says="all alike")
        one, other = (self.world.random.choice(members) for _ in range(2))
        if one != other:
            return Judged(verdict, links=(BadLink(one, other, "slow"),), says="a link")
        node = self.world.random.random() < 0.5
        return Judged(verdict, {one: "slow"} if node else {}, says="a node", absent=() if node else (one,))

    # workers

    def kill_worker(self, local: int, error: str = "") -> None:
        """A worker dies; the launcher says so at once, its peers notice a little later."""
        round, world = self.round, self.world
        if not self.alive or round is None or self.entered != round.number or self.workers[local] is Worker.DEAD:
            return
        self.workers[local] = Worker.DEAD
        rank = self.first_rank(round) + local
        exit = WorkerExited(
            round.number,
            rank,
            0.001,
            exit_code=1 if error else None,
            signal=None if error else 9,
            error=error,
            raised=error,
            began=self.step is not None,
        )
        self.send_and_remember(
            lambda: world.carry_out(world.job.observe(Exited(self.name, self.node, exit), world.now))
        )
        world.training.broke(round)

    def stop_worker(self, local: int) -> None:
        if self.alive and self.workers and self.workers[local] is Worker.RUNNING:
            self.workers[local] = Worker.STOPPED

    def collective_failed(self, round: Round) -> None:
        """A live worker's collective failed because a peer went."""
        if not self.alive or self.entered != round.number or Worker.RUNNING not in self.workers:
            return
        failure = CollectiveFailed(round.number, self.first_rank(round), 0.001, "Connection closed by peer")
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
            self.wrong.add(self.world.random.randrange(len(self.workers)))
            self.world.training.ever_wrong.add(self.node)

    def not_finite(self, step: int, *, loss: bool) -> None:
        """The loss of its ranks, or their gradient norm alone, is NaN; the first such step of a round is kept."""
        if self.nonfinite is None:
            told = NonFinite(step, 0.0, step, 1, "nan" if loss else "", "nan")
            self.nonfinite = (self.world.now, told)

    # the agent

    def report(self, events: tuple[NodeEvent, ...] = ()) -> None:
        """One node report, and the next one in a second."""
        if not self.alive:
            return
        self._reports += 1
        report = self.conditions.added_to(
            NodeReport(self.node, self.boot, self._reports, ranks=self._samples(), events=events), self.world.now
        )
        self.send(lambda: self.world.carry_out(self.world.job.observe(Reported(report), self.world.now)))
        if not events:
            self.world.after(1.0, self.report)

    def _nonfinite(self) -> NonFinite | None:
        if self.nonfinite is None:
            return None
        since, told = self.nonfinite
        return msgspec.structs.replace(told, age_s=self.world.now - since)

    def _samples(self) -> tuple[RankSample, ...]:
        round = self.round
        if round is None or self.entered != round.number:
            return ()
        age = self.world.now - self.progress_at
        states = {
            Worker.RUNNING: ProcessState.RUNNING,
            Worker.STOPPED: ProcessState.STOPPED,
            Worker.DEAD: ProcessState.GONE,
        }
        return tuple(
            RankSample(
                round=round.number,
                rank=self.first_rank(round) + local,
                process=states[worker],
                phase=Phase.STARTUP if self.step is None else Phase.BACKWARD,
                progress_age_s=age,
                phase_age_s=age,
                pulse_age_s=0.05 if worker is Worker.RUNNING else age,
                step=self.step,
                step_time_s=self.world.training.step_time_s,
                loss=1.0,
                nonfinite=self._nonfinite(),
            )
            for local, worker in enumerate(self.workers)
        )
