"""A world of thousands of nodes: the same members, watchdog and cluster as of a few, seen where something happens.

Whom nothing happens to does what all others do, at the same time: one crowd, told of in one event. Who is in sight
does it by itself, as every member of a small world does.
"""

import random
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final

from holdfast.api.event import (
    InterventionRequested,
    MemberEntered,
    MembersEntered,
)
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.policy import Policy
from holdfast.api.round import Closed, Desired, Idle, Round
from holdfast.api.selftest import TestWanted, Verdict
from holdfast.api.status import JobPhase
from holdfast.simulator.fault import Symptom
from holdfast.simulator.fleet.books import PLANNED, Books
from holdfast.simulator.fleet.fleettempo import FleetTempo
from holdfast.simulator.fleet.forgetful import Forgetful
from holdfast.simulator.fleet.harm import Harm
from holdfast.simulator.fleet.lockstep import Lockstep
from holdfast.simulator.fleet.machines import Machine, Machines
from holdfast.simulator.fleet.remembered import Remembered
from holdfast.simulator.fleet.sight import Sight
from holdfast.simulator.fleet.slowness import SlowRank
from holdfast.simulator.outcome import LostTo
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.world.member import SimulatedMember
from holdfast.simulator.world.training import Place
from holdfast.simulator.world.world import World
from holdfast.watchdog.brain.groups import by_group
from holdfast.watchdog.brain.step import Effect, Notify, Publish, Show, Vouch
from holdfast.watchdog.detectors.detector import Connected, Left, RoundStarted

PEERS: Final = 2
PEERS_SOUGHT: Final = 8  # most members of a round are there, as a rule
# What a self-test of the devices can find.
OF_DEVICES: Final = (
    *(Symptom.PROCESS_EXIT, Symptom.XID, Symptom.GPU_LOST, Symptom.HANG, Symptom.NAN),
    *(Symptom.CORRUPTION, Symptom.SLOW),
)
# Before something happens to a member it is watched for so long, to be known as it is when nothing is wrong.
BEFORE_S: Final = 2.5
# How far the first rounds are watched, so that the detectors know how long the job's steps take.
LEARNED_STEPS: Final = 6.5
LEARNED_ROUNDS: Final = 2


class FleetWorld(World):
    """One run of a scenario."""

    sees_newcomers = False
    memory: Remembered
    training: Lockstep
    cluster: Machines
    tempo: FleetTempo

    def __init__(self, scenario: Scenario, seed: int) -> None:
        self.scenario = scenario
        self.in_sight: tuple[str, ...] = ()
        self.pages = self.rounds = 0
        self._sight_until = 0.0
        self._asked = 0
        self._unanswered: dict[str, TestWanted] = {}  # by member: a test of what is well
        self.is_paged = False  # and somebody is on the way
        self._senses: Sight | None = None
        self._known_bad: set[str] = set()  # nodes that the plan keeps away from
        self.right = self.wrongly = self.spares_used = 0
        draw, self.checkpoints_kept = random.Random(seed), scenario.policy.keep or 3
        super().__init__(
            scenario.policy,
            Forgetful(),
            senses_for=self._new_senses,
            cluster=Machines(scenario.fleet, seed),
            tempo=FleetTempo(draw, scenario.times),
        )
        self.harm = Harm(self.members)
        self.books = Books(self.now)
        self._entered: Round | None = None  # the newest round that was
        self._obeyed: Desired | None = None  # what whoever is not in sight was shown last
        self._ever: set[str] = set()  # members that ever had ranks

    def _new_senses(self, policy: Policy) -> Sight:
        self._senses = Sight(policy)
        return self._senses

    def _memory(self) -> Remembered:
        return Remembered(self, self.members)

    def _training(self, place: Place) -> Lockstep:
        return Lockstep(place, self)

    def note(self, what: str) -> None:
        """Nobody reads it."""

    def start_pods(self) -> None:
        """The machines are there, and their launchers come within seconds, warm; the spares last."""
        fleet = self.scenario.fleet
        for place in range(fleet.nodes + fleet.spares):
            if (given := self.cluster.supply()) is not None:
                self.add(given, self.draw.uniform(0.0, 1.0) + (place >= fleet.nodes), warm=True)

    # the crowd

    def show(self, desired: Desired) -> None:
        for member in [self.members[name] for name in self.in_sight if name in self.members]:
            member.show(desired)
        self.after(self.tempo.message_s(), partial(self._obey_together, desired))

    def _obey_together(self, desired: Desired) -> None:
        goes_on = isinstance(desired, Round) and desired.goes_on
        epochs = desired.epochs if isinstance(desired, Round) and goes_on else {}
        for member in list(self.members.values()):
            if member.in_sight or not member.line.connection or member.line.silent or not member.alive:
                continue
            if goes_on and member.epoch is not None and epochs.get(member.name) == member.epoch:
                continue  # it leaves nothing, and is in the round with its group
            if member.ending_at is not None or (member.held is not None and desired.number <= member.shown):
                member.show(desired)
                continue
            member.turn_to(desired)
            if isinstance(desired, Closed):
                member.workers = []
        self._obeyed = desired
        if isinstance(desired, Round) and goes_on:
            self._go_on_together(desired)
        elif self.training.round is not None and self.training.round.number < desired.number:
            self.training.left()
        if isinstance(desired, Round):
            starts = self._entered is None or not desired.names <= self._entered.names
            self.after(self.tempo.enter_s(desired, starts=starts), partial(self._enter_together, desired))

    def _go_on_together(self, round: Round) -> None:
        """Replica groups that are in no step, as they are being formed, at once; the others at its end."""
        before = self.training.round
        self.take_up(round, lambda first: before is None or not before.trains(first))
        self.training.hear(round)

    def take_up(self, round: Round, has: Callable[[str], bool]) -> None:
        """Replica groups that go on, and whose first member `has` to, are in the round: whoever was shown it, and
        all of a group or nobody.
        """
        entries: list[MemberEntered] = []
        for group, shares in by_group(round):
            if group.epoch == round.number or not has(shares[0].member):
                continue
            members = [self.members.get(share.member) for share in shares]
            there = [each for each in members if each is not None and each.alive and not each.ails]
            for each in there if len(there) == len(shares) else ():
                if each.epoch != group.epoch or each.entered is None or each.entered >= round.number:
                    continue
                if each.coming is round if each.in_sight else each.line.connection and not each.line.silent:
                    entries.append(each.take_up(round))
        self._tell_entered(round, entries)

    def _tell_entered(self, round: Round, entries: Sequence[MemberEntered]) -> None:
        if entries:
            self.watchdog.record(MembersEntered(tuple(entries)))
            self.training.entered(round)

    def _enter_together(self, round: Round) -> None:
        """All that were shown the round and have not entered it."""
        entries = []
        for share in round.ranks[round.training if round.goes_on else 0 :]:
            member = self.members.get(share.member)
            if member is not None and member.alive and member.held is round and member.entered != round.number:
                entries.append(member.come_in(round))
        self._entered = round
        self.training.forget_slow(round)
        self._tell_entered(round, entries)
        if isinstance(self._obeyed, Round) and self._obeyed.goes_on and self._obeyed.number > round.number:
            self._go_on_together(self._obeyed)

    # who is in sight

    def watch(self, names: Iterable[str], seconds: float) -> None:
        """These and a few of their peers are in sight for so long."""
        round, wanted = self.job.state.round, [name for name in names if name in self.members]
        peers: list[str] = []
        if round is not None:
            # Rank 0 is among them: of whoever is the first in sight, detectors think that it has more to do.
            sought = (0, *(self.draw.randrange(round.training) for _ in range(PEERS_SOUGHT)))
            for place in sought:
                name = round.ranks[place].member
                if len(peers) < PEERS and name not in (*wanted, *peers) and name in self.members:
                    peers.append(name)
        known = set(self.in_sight)
        self._sight_until = max(self._sight_until, self.now + seconds)
        self.after(seconds + 0.001, self._shed)
        if not known.issuperset(wanted):
            self._look_at((*self.in_sight, *(each for each in (*wanted, *peers) if each not in known)))

    def _shed(self) -> None:
        """Nobody is looked at any more, unless somebody is to be, or the job stands still and nobody knows why."""
        if self.now < self._sight_until or not self.in_sight:
            return
        if self.books.phase is LostTo.DETECT or self.training.lacks:
            self._sight_until = self.now + 30.0
            self.after(30.001, self._shed)
            return
        self._look_at(())

    def _look_at(self, names: Sequence[str]) -> None:
        coming = [self.members[name] for name in names if name not in self.in_sight and name in self.members]
        leaving = [name for name in self.in_sight if name not in names]
        self.in_sight = tuple(names)
        if self._senses is not None:
            self._senses.look_at(names)
        for member in coming:
            member.come_in_sight(self._obeyed)
            self.watchdog.observe(Connected(member.name, member.node))
        desired = self.job.state.desired
        if isinstance(desired, Round):
            self.watchdog.observe(RoundStarted(desired))
        for name in leaving:
            if name in self.members:
                self.members[name].go_out_of_sight()
            self.watchdog.observe(Left(name))

    def see_first_step(self, step_s: float) -> None:
        """The first step of a round is complete in so long, and somebody looks."""
        round, turn = self.training.round, self.training.turn
        assert round is not None
        self.books.share = round.training / self.policy.members_wanted
        steps, pace_s = LEARNED_STEPS if self.rounds <= LEARNED_ROUNDS else 1.0, self.training.pace_s

        def look() -> None:
            if turn == self.training.turn:
                names = [each.member for each in round.ranks[:PEERS]]
                self.watch(names if not self.in_sight else (), (steps - 1.0) * pace_s + 3.0)

        self.after(max(0.0, step_s - 0.5), look)

    # what befalls all

    def has_ranks(self, name: str) -> bool:
        """Whether the member is there and has ranks in the newest round."""
        member, round = self.members.get(name), self.job.state.round
        return member is not None and member.alive and round is not None and name in round.names

    def runs_workers(self, member: SimulatedMember) -> bool:
        """Whether its workers run in the newest round."""
        round = self.job.state.round
        return round is not None and member.alive and member.entered == round.number and bool(member.workers)

    def trains(self, member: SimulatedMember) -> bool:
        """Whether the others wait for it at the end of a step: it is in no replica group that is being formed."""
        round = member.round
        return round is None or round.trains(member.name)

    def blame(self, member: SimulatedMember, cause: str) -> None:
        """What stands still from now on does so for this fault."""
        self.harm.struck[member.node] = cause
        if not self.trains(member):
            return
        if self.training.runs:
            self.books.cause = cause
        elif self.books.phase not in (None, LostTo.SAVE):
            self.books.broke(self.now, cause)

    def slow_by(self, member: SimulatedMember, *, infrastructure: bool) -> object:
        """What is to blame for a slow rank of the member's: the machine, or what the rank has to do anywhere."""
        machine, round = self.machine_of(member), self.training.round
        share = round.share_of(member.name) if round is not None else None
        if infrastructure or share is None:
            return machine
        return SlowRank(share.first_rank + machine.number % share.local_size)

    def hold_up(self, member: SimulatedMember, what: object, cause: str) -> None:
        """All wait for something that befell the member, with every process alive."""
        if self.training.runs and self.trains(member):
            self.training.pause(what)
            self.books.broke(self.now, cause)

    def remove_node(self, member: SimulatedMember, why: str) -> None:
        super().remove_node(member, why)
        for machine in self.cluster.sent:
            kinds = list(machine.defects.values()) or self.harm.gone.pop(machine.node, [])
            times = [each.repair for each in kinds] or [self.scenario.times.inspect]
            self.after(max(each.drawn(machine.draw) for each in times), partial(self._repaired, machine))
        self.cluster.sent.clear()

    def _repaired(self, machine: Machine) -> None:
        self.cluster.back(machine)
        self.follow_plan()

    def stands_still(self) -> None:
        """Training stopped, for the fault that is known to have done it, or as the watchdog says."""
        if self.books.phase in (None, LostTo.SAVE):
            self.books.broke(self.now, self.books.cause or self._blamed())
        self._follow_phase()

    def examine(self, member: SimulatedMember, wanted: TestWanted) -> None:
        """A test that nobody waits for is answered where it could find something: there are many of the others."""
        trial, machine = self.job.state.trials.get(member.name), self.machine_of(member)
        if trial is None or trial.bars or machine.defects or self.has_ranks(member.name):
            member.tests.ask(wanted)
        else:
            self._unanswered[member.name] = wanted

    def break_spare(self, name: str) -> None:
        """Something is wrong with a member without ranks: its next test may find it."""
        if (wanted := self._unanswered.pop(name, None)) is not None and name in self.members:
            within_s = self.draw.uniform(0.0, self.policy.corruption.self_test_every_s)
            self.after(within_s, partial(self.members[name].tests.ask, wanted))

    def verdict_of(self, member: SimulatedMember) -> Verdict:
        """A device that is broken is found by some tests, and not by others."""
        broken = any(each.symptom in OF_DEVICES for each in self.machine_of(member).defects.values())
        found = broken and self.draw.random() < self.scenario.tests_find
        return Verdict.FAILED if found else Verdict.PASSED

    # what is counted

    def carry_out(self, effects: tuple[Effect, ...]) -> None:
        for effect in effects:
            if isinstance(effect, Notify):
                self.pages += 1
            elif isinstance(effect, Vouch):
                self.disk.verified = -1 if effect.verified.step is None else effect.verified.step
            elif isinstance(effect, Show):
                self._shown(effect.desired)
            elif isinstance(effect, Publish):
                self._sent_away({order.node for order in effect.plan.cordon})
        super().carry_out(effects)
        if effects:
            self._follow_phase()

    def _shown(self, desired: Desired) -> None:
        if isinstance(desired, Round):
            self.rounds += 1
            self.spares_used += len(desired.names - self._ever) if self._ever else 0
            self._ever |= desired.names
            self.harm.owe(desired, self.books.cause or self._blamed())

    def _blamed(self) -> str:
        """Which fault the watchdog acts upon, where training still went on."""
        state, desired = self.job.state, self.job.state.desired
        newest = state.incidents[-1] if state.incidents else None
        nodes = [newest.culprit.node] if newest is not None and newest.detected_at >= self.now - 1.0 else []
        if isinstance(desired, Round) and self._entered is not None:
            left = self._entered.names - desired.names
            nodes += [share.node for share in self._entered.ranks if share.member in left] if left else []
        return next((self.harm.struck[node] for node in nodes if node in self.harm.struck), PLANNED)

    def _follow_phase(self) -> None:
        """In which phase of a recovery the job is, while nobody makes a step or is about to."""
        state, books = self.job.state, self.books
        if books.phase is None or self.training.is_forming:
            return
        phase = LostTo.DETECT
        if state.phase is JobPhase.FAILED:
            phase = LostTo.WAIT
            if not self.is_paged:
                self.is_paged = True
                self.after(self.scenario.times.human.drawn(self.draw), self._restart)
        elif isinstance(state.desired, Idle):
            too_few = state.eligible_count() < self.policy.nodes_min
            phase = LostTo.WAIT if too_few else LostTo.DECIDE
        elif state.recovery is not None:
            phase = LostTo.DECIDE
        elif state.desired is not None and state.desired.number > self.training.newest:
            phase = LostTo.RESTART
        if phase is not books.phase:
            books.turn(phase, self.now)

    def _sent_away(self, bad: set[str]) -> None:
        """Count whom the watchdog sends away, and whether there was something wrong with it."""
        found = [node for node in bad - self._known_bad if self.cluster.of(node).defects]
        self.right += len(found)
        self.wrongly += len(bad - self._known_bad) - len(found)
        self._known_bad = bad

    def _restart(self) -> None:
        """Somebody who was paged takes out what is seen to be broken by now, and has the job go on."""
        self.is_paged = False
        for machine in self.cluster.all:
            if machine.shown and machine.member in self.members:
                self.lose(self.members[machine.member], "taken out by whoever was paged")
        if self.job.state.phase is JobPhase.FAILED:
            self._asked += 1
            action = InterventionAction.RESTART
            request = InterventionRequest(str(self._asked), self.policy.job, action, "whoever was paged")
            self.watchdog.record(InterventionRequested(request))

    def machine_of(self, member: SimulatedMember) -> Machine:
        """The machine that the member is on, or was."""
        return self.cluster.of(member.node)
