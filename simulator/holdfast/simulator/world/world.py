"""A whole job in virtual time: the real brain, detectors and journal; everything around them simulated.

One seed is one schedule. A world puts together the watchdog's process (`watchdog.py`), the members with their
lines to it (`member.py`, `line.py`), what their workers do together (`training.py`), and, here, the cluster that
carries out the watchdog's plan.

Training and what memory holds of it come in two resolutions, step by step (`steps.py`) or as arithmetic; all else
is the same for two nodes and for twelve thousand, but for who is in sight (`SimulatedMember`).
"""

from typing import Final

from holdfast.api.event import Event, JobSubmitted, MemberJoined, NodeChanged, PodChanged
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.membership import SaveWanted
from holdfast.api.plan import NodeState, Plan, PodState
from holdfast.api.policy import Policy
from holdfast.api.round import Desired
from holdfast.api.selftest import TestWanted, Verdict
from holdfast.api.status import JobPhase
from holdfast.simulator.world.agenda import Agenda
from holdfast.simulator.world.cluster import Cluster, Supplied
from holdfast.simulator.world.disk import Disk
from holdfast.simulator.world.member import SimulatedMember
from holdfast.simulator.world.nodememory import Memory
from holdfast.simulator.world.tempo import Tempo
from holdfast.simulator.world.training import Place, Training
from holdfast.simulator.world.watchdog import Watchdog
from holdfast.simulator.world.witness import Witness
from holdfast.watchdog.brain.selftests import wanted_of
from holdfast.watchdog.brain.step import Answered, Dismiss, Effect, Examine, Publish, Save, Show
from holdfast.watchdog.detectors.detector import Connected
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import SensesFor
from holdfast.watchdog.store.store import Store

NEVER_ANSWERS: Final = 0.05
VERDICTS: Final = (0.9, 0.04, 0.06)  # passed, failed, unknown


class World(Agenda):
    """The watchdog, its members, the disk they share and the cluster under them.

    Whoever makes one for a purpose says by overriding how training and memory are simulated, and who is in sight.
    `sound`: every device passes its self-tests.
    """

    sees_newcomers = True
    sound = True
    checkpoints_kept: int | None = None

    def __init__(
        self,
        policy: Policy,
        store: Store,
        *,
        senses_for: SensesFor,
        cluster: Cluster,
        tempo: Tempo,
        witness: Witness | None = None,
    ) -> None:
        super().__init__(tempo)
        self.policy, self.store, self.cluster = policy, store, cluster
        self.witness = witness or Witness()
        self.disk = Disk(self.checkpoints_kept)
        self.members: dict[str, SimulatedMember] = {}
        self.watchdog = Watchdog(policy.job, self, store, senses_for=senses_for, carry_out=self.carry_out)
        self.memory = self._memory()
        self.training = self._training(Place(self.watchdog, self.members, self.disk, self.memory, self.witness))
        self.plan: Plan | None = None
        self.draining: set[str] = set()
        self.ending: set[str] = set()  # members that were told to end
        self.asked: dict[str, InterventionRequest] = {}  # by id: what people asked for
        self.answers: dict[str, list[InterventionOutcome]] = {}  # what they were answered
        self._operator_away_until = 0.0
        self._unsaid: list[Event] = []

    def _training(self, place: Place) -> Training:
        """How training is simulated."""
        raise NotImplementedError

    def _memory(self) -> Memory:
        """What is known of snapshots in memory."""
        return Memory(self, self.members)

    @property
    def job(self) -> Job:
        """The real thing, in the watchdog's process that runs now or did last."""
        return self.watchdog.job

    def begin(self) -> None:
        """The job is submitted, and its first pods start."""
        self.watchdog.record(JobSubmitted(self.policy))
        self.start_pods()

    def start_pods(self) -> None:
        """The first ones: as any others, as the plan says."""
        self.follow_plan()

    def happened(self) -> None:
        self.witness.check()

    # the watchdog's shell

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
                        dismissed.line.dismissed()
            elif isinstance(effect, Examine):
                if (examined := self.members.get(effect.member)) is not None:
                    self.examine(examined, effect.wanted)
            elif isinstance(effect, Answered):
                self.answers.setdefault(effect.outcome.id, []).append(effect.outcome)
            elif isinstance(effect, Save):
                self.training.want(effect.wanted)
        self.watchdog.schedule_wakeup()

    def show(self, desired: Desired) -> None:
        """The watchdog pushes a desired state over every connection."""
        for member in list(self.members.values()):
            member.show(desired)

    def examine(self, member: SimulatedMember, wanted: TestWanted) -> None:
        """The member is asked for a self-test."""
        member.tests.ask(wanted)

    def joined(self, member: SimulatedMember, join: MemberJoined) -> None:
        """A launcher's connection is accepted; the current desired state is its answer."""
        job = self.job
        if job.state.round is not None:
            job.reached(join.shown, member.name)
            self.witness.reached(job.stopped)
        if member.in_sight:
            self.watchdog.observe(Connected(member.name, member.node))
        self.watchdog.record(join)
        saving = job.state.saving
        if saving is not None and saving.saved is None:
            self.training.want(SaveWanted(saving.round, saving.number))
        if (trial := job.state.trials.get(member.name)) is not None:
            member.tests.ask(wanted_of(job.state, trial))
        if job.state.desired is not None:
            member.show(job.state.desired)

    def kill_watchdog(self, away_s: float) -> None:
        """Its process goes, and every connection closes."""
        if not self.watchdog.up:
            return
        self.note(f"watchdog killed for {away_s:.1f} s")
        self.witness.leaves()
        self.watchdog.kill()
        for member in list(self.members.values()):
            member.line.disconnect()
        self.after(away_s, self._start_watchdog)

    def _start_watchdog(self) -> None:
        self.note("watchdog starts")
        self.watchdog.start()

    # self-tests

    def answers_test(self) -> bool:
        """Whether a self-test that begins ever ends."""
        return self.sound or self.draw.random() > NEVER_ANSWERS

    def verdict_of(self, member: SimulatedMember) -> Verdict:
        """What a self-test says of the member's devices."""
        return Verdict.PASSED if self.sound else self.draw.choices(tuple(Verdict), VERDICTS)[0]

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
        member = SimulatedMember(given, self, self.training, self.watchdog, in_sight=self.sees_newcomers)
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
            if not self.watchdog.up or self.now < self._operator_away_until:
                self.after(1.0, self._say)
                return
            self.watchdog.record(self._unsaid.pop(0))

    def lose_operator(self, away_s: float) -> None:
        """The operator is gone for a while, and then looks at everything again."""
        self._operator_away_until = max(self._operator_away_until, self.now + away_s)
        self.after(self._operator_away_until - self.now + 0.01, self.follow_plan)

    def ends(self, member: SimulatedMember) -> None:
        """The member's pod is being evicted, and so is soon gone."""
        self.ending.add(member.name)

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
