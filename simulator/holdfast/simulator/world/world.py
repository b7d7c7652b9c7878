"""A whole job in virtual time: the real brain, detectors and journal; everything around them simulated.

One seed is one schedule. Time is a heap of things due; nothing sleeps and nothing reads a clock. Connections keep
their order like TCP does, break at any moment, and lose what was under way; a launcher that reconnects repeats
what it cannot know to have arrived. A message may be late, never reordered within its connection.

Training and what memory holds of it come in two resolutions, step by step (`steps.py`) or as arithmetic; all else
is the same for two nodes and for twelve thousand, but for who is in sight (`SimulatedMember`).
"""

import heapq
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from holdfast.api.event import Event, JobSubmitted, MemberJoined, MemberReady, NodeChanged, PodChanged
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.membership import SaveWanted
from holdfast.api.plan import NodeState, Plan, PodState
from holdfast.api.policy import Policy
from holdfast.api.round import Desired, Round
from holdfast.api.selftest import TestWanted, Verdict
from holdfast.api.status import JobPhase
from holdfast.simulator.world.cluster import Cluster, Supplied
from holdfast.simulator.world.disk import Disk
from holdfast.simulator.world.member import SimulatedMember
from holdfast.simulator.world.nodememory import Memory
from holdfast.simulator.world.tempo import Tempo
from holdfast.simulator.world.training import Training
from holdfast.simulator.world.witness import Witness
from holdfast.watchdog import brain
from holdfast.watchdog.brain.selftests import wanted_of
from holdfast.watchdog.brain.step import Answered, Dismiss, Effect, Examine, Publish, Save, Show
from holdfast.watchdog.detectors.detector import Connected, Disconnected
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import SensesFor
from holdfast.watchdog.store.store import Store

BEGINS_AT: Final = 1000.0
VERDICTS: Final = (0.9, 0.04, 0.06)  # passed, failed, unknown


class World:
    """The watchdog, its members, the disk they share and the cluster under them.

    Whoever makes one for a purpose says by overriding how training and memory are simulated, what watches, and who
    is in sight. `sound`: every device passes its self-tests.
    """

    sees_newcomers = True

    def __init__(
        self,
        policy: Policy,
        store: Store,
        *,
        senses_for: SensesFor,
        cluster: Cluster,
        tempo: Tempo,
        sound: bool = False,
    ) -> None:
        self.policy, self.store, self.draw, self.sound = policy, store, tempo.draw, sound
        self.tempo, self.cluster, self._senses_for = tempo, cluster, senses_for
        self.witness = Witness()
        self.now = BEGINS_AT
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.disk = Disk()
        self.memory, self.training = self._resolution()
        self.members: dict[str, SimulatedMember] = {}
        self.up = True
        self.epoch = 0  # of the watchdog: connections of an older one are dead
        self.plan: Plan | None = None
        self.log: list[str] = []
        self.job = self._new_job()
        self._wakeup: float | None = None
        self.draining: set[str] = set()
        self.ending: set[str] = set()  # members that were told to end
        self.asked: dict[str, InterventionRequest] = {}  # by id: what people asked for
        self.answers: dict[str, list[InterventionOutcome]] = {}  # what they were answered
        self._operator_away_until = 0.0
        self._unsaid: list[Event] = []

    def _resolution(self) -> tuple[Memory, Training]:
        """How training is simulated, and what memory holds of it."""
        raise NotImplementedError

    def begin(self) -> None:
        """The job is submitted, and its first pods start."""
        self.carry_out(self.job.record(JobSubmitted(self.policy), self.now))
        self.start_pods()

    def start_pods(self) -> None:
        """The first ones: as any others, as the plan says."""
        self.follow_plan()

    def _new_job(self) -> Job:
        fence = self.store.claim()
        return Job(self.policy.job, store=self.store, fence=fence, brain=brain, senses_for=self._senses_for)

    # time

    def after(self, delay_s: float, what: Callable[[], None]) -> None:
        """Do something later."""
        self._count += 1
        heapq.heappush(self._due, (self.now + delay_s, self._count, what))

    def run(self, seconds: float) -> None:
        """Let virtual time pass, checking every promise after everything that happens."""
        end = self.now + seconds
        while self._due and self._due[0][0] <= end:
            self.now, _, what = heapq.heappop(self._due)
            what()
            self.witness.check()
        self.now = end

    def note(self, what: str) -> None:
        self.log.append(f"{self.now:9.3f} {what}")

    # the watchdog

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        """What the watchdog's shell does with effects."""
        self.witness.decided(effects)
        for effect in effects:
            if isinstance(effect, Show):
                self.witness.shown(effect.desired)
                self.show(effect.desired)
            elif isinstance(effect, Publish):
                self.plan = effect.plan
                self.witness.planned(effect.plan)
                self.after(0.01, self.follow_plan)
            elif isinstance(effect, Dismiss):
                for dismissed in [self.members.get(name) for name in effect.members]:
                    if dismissed is not None:
                        dismissed.dismissed()
            elif isinstance(effect, Examine):
                if (examined := self.members.get(effect.member)) is not None:
                    self.examine(examined, effect.wanted)
            elif isinstance(effect, Answered):
                self.answers.setdefault(effect.outcome.id, []).append(effect.outcome)
            elif isinstance(effect, Save):
                self.training.want(effect.wanted)
        self._schedule_wakeup()

    def show(self, desired: Desired) -> None:
        """The watchdog pushes a desired state over every connection."""
        for member in list(self.members.values()):
            member.show(desired)

    def examine(self, member: SimulatedMember, wanted: TestWanted) -> None:
        """The member is asked for a self-test."""
        member.tests.ask(wanted)

    def verdict_of(self, member: SimulatedMember) -> Verdict:
        """What a self-test says of the member's devices."""
        return Verdict.PASSED if self.sound else self.draw.choices(tuple(Verdict), VERDICTS)[0]

    def watched(self, round: Round) -> list[SimulatedMember]:
        """The members of the round of which somebody would hear that a collective of theirs failed."""
        members = (self.members.get(share.member) for share in round.ranks)
        return [member for member in members if member is not None]

    def is_apart(self, members: Iterable[SimulatedMember]) -> bool:
        """Whether some of them cannot reach the others."""
        return False

    def tell_ready(self, members: Sequence[SimulatedMember], epoch: int) -> None:
        """The workers of a replica group wait for the other groups at the end of a step."""
        for member in members:
            event = MemberReady(member.name, epoch)
            member.send_and_remember(partial(self._record, event))

    def _record(self, event: Event) -> None:
        self.carry_out(self.job.record(event, self.now))

    def _schedule_wakeup(self) -> None:
        at = self.job.next_wakeup(self.now)
        if at is None or (self._wakeup is not None and self.now < self._wakeup <= at):
            return
        self._wakeup = at = max(at, self.now + 0.001)
        epoch = self.epoch
        self.after(at - self.now, lambda: self._wake(epoch, at))

    def _wake(self, epoch: int, at: float) -> None:
        if self.up and epoch == self.epoch and at == self._wakeup:  # else it was put forward
            self._wakeup = None
            self.carry_out(self.job.elapse(self.now))

    def kill_watchdog(self, away_s: float) -> None:
        """SIGKILL: what was in memory is gone, every connection closes."""
        if not self.up:
            return
        self.note(f"watchdog killed for {away_s:.1f} s")
        self.witness.leaves()
        self.up = False
        self.epoch += 1
        for member in list(self.members.values()):
            member.disconnect()
        self.after(away_s, self._start_watchdog)

    def _start_watchdog(self) -> None:
        self.note("watchdog starts")
        self.job = self._new_job()
        self.job.restore()
        self.up = True
        self._wakeup = None
        self.carry_out(self.job.resume(self.now))

    def joined(self, member: SimulatedMember, join: MemberJoined) -> Desired | None:
        """A launcher's connection is accepted; the current desired state is its answer."""
        if self.job.state.round is not None:
            self.job.reached(join.shown, member.name)
            self.witness.reached(self.job.stopped)
        if member.in_sight:
            self.carry_out(self.job.observe(Connected(member.name, member.node), self.now))
        self.carry_out(self.job.record(join, self.now))
        saving = self.job.state.saving
        if saving is not None and saving.saved is None:
            self.training.want(SaveWanted(saving.round, saving.number))
        if (trial := self.job.state.trials.get(member.name)) is not None:
            member.tests.ask(wanted_of(self.job.state, trial))
        return self.job.state.desired

    def closed(self, member: str) -> None:
        """A launcher's connection closed without a word."""
        if self.up:
            self.carry_out(self.job.observe(Disconnected(member), self.now))

    # the cluster

    def follow_plan(self) -> None:
        """Start what is missing, take away what is cordoned: a level-triggered operator."""
        if self.plan is None or self.job.state.phase in (JobPhase.SUCCEEDED, JobPhase.FAILED):
            return
        if self.now < self._operator_away_until:
            return
        cordoned = {order.node for order in self.plan.cordon}
        for member in [each for each in self.members.values() if each.node in cordoned] if cordoned else ():
            self.remove_node(member, "cordoned")
        for member in [self.members[name] for name in self.plan.release if name in self.members]:
            member.told_to_end(5.0)
        if self.plan.members == 0:
            for member in list(self.members.values()):
                member.told_to_end(5.0)
        # Who is about to go, or is where nobody should be, is replaced before it goes.
        left = self.draining | {order.node for order in self.plan.avoid}
        there = self.members.values() if left or self.ending else ()
        going = sum(1 for each in there if each.node in left or each.name in self.ending)
        while len(self.members) - going < self.plan.members + self.plan.spares:
            if (given := self.cluster.supply()) is None:
                break
            self.add(given, self.tempo.provision_s())

    def add(self, given: Supplied, after_s: float, *, warm: bool = False) -> SimulatedMember:
        """A pod on a node that the cluster gave, as the operator tells; its launcher runs after that time."""
        if given.rack:
            self.tell(NodeChanged(given.node, NodeState.READY, rack=given.rack))
        member = SimulatedMember(self, given, in_sight=self.sees_newcomers)
        self.members[given.member] = member
        member.start(after_s, warm=warm)
        return member

    def submit(self, policy: Policy) -> None:
        """A new version of the job."""
        self.policy = policy
        self.tell(JobSubmitted(policy))

    def drain(self, member: SimulatedMember) -> None:
        """An administrator drains the node; its pod may not be evicted before it is released."""
        self.draining.add(member.node)
        self.tell(NodeChanged(member.node, NodeState.DRAINING, "cordoned by an administrator"))
        self.follow_plan()

    def call_off(self, node: str) -> None:
        """The drained node is to be used again."""
        self.draining.discard(node)
        self.tell(NodeChanged(node, NodeState.READY, ""))

    def tell(self, event: Event) -> None:
        """What people and the operator say reaches the watchdog in order, once it and the operator are there."""
        self._unsaid.append(event)
        if len(self._unsaid) == 1:
            self._say()

    def _say(self) -> None:
        while self._unsaid:
            if not self.up or self.now < self._operator_away_until:
                self.after(1.0, self._say)
                return
            self.carry_out(self.job.record(self._unsaid.pop(0), self.now))

    def lose_operator(self, away_s: float) -> None:
        """The operator is gone for a while, and then looks at everything again."""
        self._operator_away_until = max(self._operator_away_until, self.now + away_s)
        self.after(self._operator_away_until - self.now + 0.01, self.follow_plan)

    def lose(self, member: SimulatedMember, why: str) -> None:
        """The node goes, unless it went before."""
        if self.members.get(member.name) is member:
            self.remove_node(member, why)

    def remove_node(self, member: SimulatedMember, why: str) -> None:
        """The node and everything on it is gone; the operator says so and replaces it a little later."""
        self.note(f"{member.name} gone: {why}")
        member.die()
        self.members.pop(member.name, None)
        self.memory.forget(member.name)
        self.draining.discard(member.node)
        self.ending.discard(member.name)
        self.cluster.take_back(member.node, why)
        seen_s = self.tempo.noticed_s()
        self.after(seen_s, lambda: self.tell(NodeChanged(member.node, NodeState.GONE, why)))
        self.after(seen_s, lambda: self.tell(PodChanged(member.name, member.node, PodState.GONE, why)))
        self.after(self.tempo.replacement_s, self.follow_plan)
