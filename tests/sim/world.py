"""A whole job in virtual time: the real brain, detectors and journal; everything around them simulated.

One seed is one schedule. Time is a heap of things due; nothing sleeps and nothing reads a clock. Connections keep
their order like TCP does, break at any moment, and lose what was under way; a launcher that reconnects repeats
what it cannot know to have arrived. A message may be late, never reordered within its connection.
"""

import heapq
import random
from collections.abc import Callable

from disk import Disk
from forgetful_store import MemoryStore
from invariants import Invariants
from member import SimulatedMember
from nodememory import Memory
from training import Training

from holdfast.api.event import Event, JobSubmitted, MemberJoined, NodeChanged, PodChanged
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.membership import SaveWanted
from holdfast.api.plan import NodeState, Plan, PodState
from holdfast.api.policy import (
    CheckpointInterval,
    CorruptionPolicy,
    EvictionBudget,
    GpuHour,
    LinkPolicy,
    MemoryPolicy,
    Policy,
    RestartBudget,
    SlowAction,
    StragglerPolicy,
    ThermalPolicy,
)
from holdfast.api.round import Desired
from holdfast.api.selftest import TestLevel
from holdfast.api.status import JobPhase
from holdfast.watchdog import brain
from holdfast.watchdog.brain.selftests import wanted_of
from holdfast.watchdog.brain.step import Answered, Dismiss, Effect, Examine, Publish, Save, Show
from holdfast.watchdog.detectors import detectors_for
from holdfast.watchdog.detectors.detector import Connected, Disconnected
from holdfast.watchdog.detectors.progress import Progress
from holdfast.watchdog.job import Job
from holdfast.watchdog.senses import Senses

JOB = "sim/run"
REPLACEMENT_S = 2.0
OBSERVED_SHARE = 0.15
LINKS_SHARE = 0.25
LINKS = LinkPolicy(flow_s=0.5, gang_s=0.5, timeout_s=20.0)


def senses_for(policy: Policy) -> Senses:
    return Senses(detectors_for(policy), Progress(policy))


class World:
    """The watchdog, its members, the disk they share and the cluster under them."""

    def __init__(self, seed: int, *, sound: bool = False) -> None:
        """`sound`: every device passes its self-tests."""
        self.seed = seed
        self.sound = sound
        self.random = random.Random(seed)
        self.now = 1000.0
        self._due: list[tuple[float, int, Callable[[], None]]] = []
        self._count = 0
        self.policy = self._draw_policy()
        self.disk = Disk()
        self.memory = Memory(self)
        self.training = Training(self)
        self.members: dict[str, SimulatedMember] = {}
        self.nodes_made = 0
        self.store = MemoryStore()
        self.up = True
        self.epoch = 0  # of the watchdog: connections of an older one are dead
        self.plan: Plan | None = None
        self.log: list[str] = []
        self.invariants = Invariants(self)
        self.job = self._new_job()
        self._wakeup: float | None = None
        self.draining: set[str] = set()
        self.asked: dict[str, InterventionRequest] = {}  # by id: what people asked for
        self.answers: dict[str, list[InterventionOutcome]] = {}  # what they were answered
        fits = sound or self.policy.tensor == 1
        self.misfits_left = 0 if fits else self.random.choice((0, 0, 1))
        self._operator_away_until = 0.0
        self._unsaid: list[Event] = []
        self.carry_out(self.job.record(JobSubmitted(self.policy), self.now))
        self.follow_plan()

    def _draw_policy(self) -> Policy:
        nodes_max = self.random.randint(1, 4)
        preflight = self.random.choice((None, None, None, TestLevel.LIGHT))
        return Policy(
            job=JOB,
            nodes_min=self.random.randint(1, nodes_max),
            nodes_max=nodes_max,
            spares=self.random.randint(0, 2),
            processes_per_node=self.random.choice((1, 1, 2)),
            heartbeat_interval_s=1.0,
            lost_after_s=3.0,
            startup_timeout_s=20.0,
            form_grace_s=5.0,
            checkpoint_uri="/ckpt",
            gpu_hour=GpuHour(2.5, "EUR"),
            evictions=EvictionBudget(count=self.random.randint(1, 4), fraction=self.random.choice((0.05, 1.0))),
            restarts=RestartBudget(backoff_s=self.random.choice((1.0, 10.0))),
            preflight=preflight,
            links=LINKS if random.Random(f"links of {self.seed}").random() < LINKS_SHARE else None,
            tensor=1 if preflight is None else self.random.choice((1, 2)),
            thermal=ThermalPolicy(sustained_s=self.random.choice((10.0, 20.0))),
            memory=self.random.choice((None, MemoryPolicy(), MemoryPolicy(replicas=2))),
            interval=self.random.choice((None, CheckpointInterval(), CheckpointInterval(steps=7))),
            corruption=CorruptionPolicy(fingerprint_every=self.random.choice((0, 4)), self_test_every_s=20.0),
            observe=not self.sound and self.random.random() < OBSERVED_SHARE,
            straggler=StragglerPolicy(action=self.random.choice(tuple(SlowAction))),
        )

    def _new_job(self) -> Job:
        fence = self.store.claim()
        return Job(JOB, store=self.store, fence=fence, brain=brain, senses_for=senses_for)

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
            self.invariants.check()
        self.now = end

    def jitter(self, low: float, high: float) -> float:
        return self.random.uniform(low, high)

    def note(self, what: str) -> None:
        self.log.append(f"{self.now:9.3f} {what}")

    # the watchdog

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        """What the watchdog's shell does with effects."""
        self.invariants.counted()
        for effect in effects:
            if isinstance(effect, Show):
                self.note(f"shown {effect.desired}")
                self.invariants.shown(effect.desired)
                for member in list(self.members.values()):
                    member.show(effect.desired)
            elif isinstance(effect, Publish):
                self.plan = effect.plan
                self.invariants.planned(effect.plan)
                self.after(0.01, self.follow_plan)
            elif isinstance(effect, Dismiss):
                for dismissed in [self.members.get(name) for name in effect.members]:
                    if dismissed is not None:
                        dismissed.dismissed()
            elif isinstance(effect, Examine):
                if (examined := self.members.get(effect.member)) is not None:
                    examined.examine(effect.wanted)
            elif isinstance(effect, Answered):
                self.answers.setdefault(effect.outcome.id, []).append(effect.outcome)
            elif isinstance(effect, Save):
                self.training.want(effect.wanted)
        self._schedule_wakeup()

    def _schedule_wakeup(self) -> None:
        at = self.job.next_wakeup(self.now)
        if at is None or (self._wakeup is not None and self.now < self._wakeup <= at):
            return
        self._wakeup = max(at, self.now + 0.001)
        epoch = self.epoch
        self.after(self._wakeup - self.now, lambda: self._wake(epoch))

    def _wake(self, epoch: int) -> None:
        self._wakeup = None
        if self.up and epoch == self.epoch:
            self.carry_out(self.job.elapse(self.now))

    def kill_watchdog(self, away_s: float) -> None:
        """SIGKILL: what was in memory is gone, every connection closes."""
        if not self.up:
            return
        self.note(f"watchdog killed for {away_s:.1f} s")
        self.invariants.replay_equals_live()
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
            self.invariants.require(self.job.stopped is None, f"no number is lost: {self.job.stopped}")
        self.carry_out(self.job.observe(Connected(member.name, member.node), self.now))
        self.carry_out(self.job.record(join, self.now))
        saving = self.job.state.saving
        if saving is not None and saving.saved is None:
            self.training.want(SaveWanted(saving.round, saving.number))
        if (trial := self.job.state.trials.get(member.name)) is not None:
            member.examine(wanted_of(self.job.state, trial))
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
        for member in [each for each in self.members.values() if each.node in cordoned]:
            self.remove_node(member, "cordoned")
        for member in [each for each in self.members.values() if each.name in self.plan.release]:
            member.told_to_end(5.0)
        if self.plan.members == 0:
            for member in list(self.members.values()):
                member.told_to_end(5.0)
        # Who is about to go, or is where nobody should be, is replaced before it goes.
        left = self.draining | {order.node for order in self.plan.avoid}
        going = sum(1 for each in self.members.values() if each.node in left or each.ending_at is not None)
        while len(self.members) - going < self.plan.members + self.plan.spares:
            self.nodes_made += 1
            name = f"node-{self.nodes_made}"
            self.members[name] = SimulatedMember(self, name, is_misfit=self.misfits_left > 0)
            self.misfits_left -= self.misfits_left > 0
            self.members[name].start(self.jitter(0.05, 1.0))

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
        seen_s = self.jitter(0.2, 1.0)
        self.after(seen_s, lambda: self.tell(NodeChanged(member.node, NodeState.GONE, why)))
        self.after(seen_s, lambda: self.tell(PodChanged(member.name, member.node, PodState.GONE, why)))
        self.after(REPLACEMENT_S, self.follow_plan)
