"""Training as arithmetic: as many steps as time makes, whatever number of ranks makes them.

Between two things that happen a step takes as long as the one before. Where the steps stand is so many of them at
an instant, and how long one takes from there on; only what is to happen at a certain step is due at its time.
"""

import math
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Final, Protocol

from holdfast.api.event import MemberReady, MembersReady, ReplicasAgreed
from holdfast.api.membership import SaveWanted
from holdfast.api.policy import SlowAction
from holdfast.api.round import Round
from holdfast.api.telemetry import StepWork
from holdfast.simulator.fleet.books import Books
from holdfast.simulator.fleet.fleettempo import FleetTempo
from holdfast.simulator.fleet.harm import Harm
from holdfast.simulator.fleet.machines import Machine, Machines
from holdfast.simulator.fleet.remembered import Remembered
from holdfast.simulator.fleet.slowness import FOUND_STEPS, LASTS_S, LASTS_STEPS, Slowness, SlowRank
from holdfast.simulator.outcome import LostTo
from holdfast.simulator.scenario import Scenario
from holdfast.simulator.world.member import SimulatedMember
from holdfast.simulator.world.training import Found, Place, Training, fingerprints

# What is due at the end of a step is due a little behind it, so that rounding never puts it before.
BEHIND_S: Final = 1e-6
WHOLE: Final = 1e-7
# Replica groups average at the end of a step: so much of it is left when they wait for one another.
TO_AVERAGE: Final = 0.01
AVERAGE: Final = "average"
# For so long whoever computes wrong is looked at, when replicas are compared.
COMPARED_S: Final = 10.0


class Fleet(Protocol):
    """Whose training it is: what is known of it, and what it makes of what it is told."""

    scenario: Scenario
    tempo: FleetTempo
    cluster: Machines
    harm: Harm
    books: Books
    in_sight: tuple[str, ...]

    def watch(self, names: Iterable[str], seconds: float) -> None:
        """Something happens to these: they are to be seen for so long."""

    def see_first_step(self, step_s: float) -> None:
        """The first step of a round is complete in so long."""

    def stands_still(self) -> None:
        """No step is made any more."""

    def take_up(self, round: Round, has: Callable[[str], bool]) -> None:
        """Replica groups whose first member `has` to are in the round now."""


class Lockstep(Training):
    """All ranks of a round make a step, or nobody does."""

    memory: Remembered

    def __init__(self, place: Place, fleet: Fleet) -> None:
        super().__init__(place, fleet.scenario.step_s)
        self.fleet = fleet
        self.round: Round | None = None  # that makes steps or is about to, None while none does
        self.runs = False  # whether steps are made now
        self.begins = 0  # the step after which the newest round began
        self.done = 0.0  # steps of the history that goes on, with the part of the newest one
        self._at = self.agenda.now  # when so many were done
        self.turn = 0  # grows with every round that begins or ends
        self._pace = 0  # grows whenever what is due at a step is due at another time than was thought
        self._due: dict[str, tuple[int, Callable[[int], None]]] = {}
        self.slowness = Slowness()
        self.agreed = 0  # the newest step after which replicas are known to have been alike
        self.held: set[object] = set()  # what keeps everybody from making one, though all are there
        self.coming: Round | None = None  # the newest round into which replica groups go on
        self.lacks = False  # whether a replica group is gone that the others wait for at the end of the step
        self._meets = False  # whether those that go on meet anew, and copy
        self._at_next_round: dict[object, Callable[[], None]] = {}

    @property
    def pace_s(self) -> float:
        """What a step takes now."""
        return self.step_time_s * self.slowness.factor

    @property
    def left_s(self) -> float:
        """How long the step takes that is being made, from here on."""
        return (math.floor(self.done + WHOLE) + 1 - self.done) * self.pace_s

    @property
    def is_forming(self) -> bool:
        """Whether steps are made, or all are there to make one soon."""
        return self.round is not None and (AVERAGE not in self.held or self._meets)

    @property
    def step(self) -> int:
        """The last step that is complete."""
        self.advance()
        return math.floor(self.done + WHOLE)

    def advance(self) -> None:
        """Count what was made until now."""
        now = self.agenda.now
        if self.runs and now > self._at:
            took_s, steps = now - self._at, (now - self._at) / self.pace_s
            useful_s = steps * self.step_time_s
            self.fleet.books.train(useful_s, took_s - useful_s, self.slowness.cause)
            self.slowness.make(steps)
            self.done, self._at = self.done + steps, now

    # rounds

    def _stand(self, round: Round) -> None:
        waiting, self._at_next_round = self._at_next_round, {}
        for do in waiting.values():
            do()
        if round.goes_on and self.holders:
            self._regroup(round)
            return
        self.stop()
        self.round, self.begins = round, self.step  # of this round there is no step yet
        tempo, meet = self.fleet.tempo, partial(self._load, round, self.turn)
        if round.groups:  # each by itself, and then all of them
            self.agenda.after(tempo.meet_s(round.groups[0].members) + tempo.regroup_s(round), meet)
        else:
            self.agenda.after(tempo.meet_s(len(round.ranks)), meet)

    def _load(self, round: Round, turn: int) -> None:
        if turn != self.turn:
            return
        if self.fleet.harm.is_cut(round):  # they meet, and wait for one another
            self.agenda.after(1.0, partial(self._load, round, turn))
            return
        found = self.restore(round)
        self.fleet.books.turn(LostTo.RESTORE, self.agenda.now)
        self.agenda.after(self.fleet.tempo.load_s(found.tier), partial(self._loaded, round, turn, found))

    def _loaded(self, round: Round, turn: int, found: Found) -> None:
        if turn != self.turn:
            return
        self.begins = found.step or 0
        self.fleet.books.discard((self.done - self.begins) * self.step_time_s)
        self.done = float(self.begins)
        self.tell_restored(round, found)
        if not found.wrong:
            self.fleet.harm.copied(self.members[share.member] for share in round.ranks[: round.training])
        self.fleet.books.turn(LostTo.RESTART, self.agenda.now)
        self.agenda.after(self.fleet.tempo.first_step_s(), partial(self._begin, turn))

    def _begin(self, turn: int) -> None:
        if turn != self.turn or self.round is None:
            return
        round = self.round
        self.slowness.begin()
        self.runs, self._at = True, self.agenda.now
        self.fleet.books.trains(self.agenda.now, self.pace_s)
        self.fleet.see_first_step(self.pace_s)
        self.see_slow()
        self._expect_save(self.step)
        self.agreed = self.begins
        self.expect_difference()
        if round.number in self._wanted:
            self._at_step("save", self.step + 1, self._save)
        if round.groups:
            self.holders = _training(round)
        if self.coming is not None:
            self._at_average()

    def stop(self) -> None:
        """No step is made any more: somebody is missing, or the round is over."""
        if self.round is not None and self.step > self.begins:
            wrong = bool(self.fleet.harm.wrong_in(self.round))
            self.memory.note(self.round, self.step, begins=self.begins, wrong=wrong)
        self.runs, self.round, self.coming = False, None, None
        self.lacks, self._meets, self.holders = False, False, frozenset()
        self.held.clear()
        self._due.clear()
        self.turn += 1
        self._pace += 1

    def changed(self, member: SimulatedMember) -> None:
        round = self.round
        if round is None or not round.trains(member.name) or self.is_in(member, round):
            return
        if self.holders:
            self._lack(round)
        else:
            self.left()

    def left(self) -> None:
        """The round is over for some of its members, and so for all."""
        self.stop()
        self.fleet.stands_still()

    def at_next_round(self, what: object, do: Callable[[], None]) -> None:
        """Do that, once for the same `what`, as soon as the workers of all in a round run."""
        self._at_next_round[what] = do

    def watched(self, round: Round) -> list[SimulatedMember]:
        return [self.members[name] for name in self.fleet.in_sight if name in self.members and name in round.names]

    # replica groups that go on

    def _is_apart(self, members: Sequence[SimulatedMember]) -> bool:
        return self.fleet.harm.is_apart(members)

    def _tell_ready(self, members: Sequence[SimulatedMember], epoch: int) -> None:
        told = MembersReady(tuple([MemberReady(each.name, epoch) for each in members]))
        self.agenda.after(self.fleet.tempo.message_s(), partial(self.watchdog.record, told))

    def _lack(self, round: Round) -> None:
        """A group is gone. The others find out at the end of the step, and complete it with what they have."""
        if AVERAGE in self.held:
            self._meets = False
            self.turn += 1
            self.fleet.stands_still()
        elif not self.lacks:
            self.lacks = True
            self.advance()
            rest = round.training - round.groups[0].members
            made_s = (self.done - self.step) * self.step_time_s
            self.fleet.books.shrink(made_s, rest / self.fleet.scenario.policy.members_wanted)
            self._at_average()

    def hear(self, coming: Round) -> None:
        """Members of groups that train were shown a round into which they go on."""
        if self.round is None:
            return
        self.coming = coming
        if AVERAGE in self.held:
            self._take_up(coming)
        elif self.held - {"save"}:  # they stand there already, for whatever it is
            self._wait(self.step)
        else:
            self._at_average()

    def _hear(self, member: SimulatedMember, coming: Round) -> None:
        round = self.round
        if round is None or round.number != member.entered or AVERAGE in self.held or self.newest >= coming.number:
            member.go_on()
        else:
            self.hear(coming)

    def _at_average(self) -> None:
        """They wait for one another before the step that is being made ends."""
        self._at_step(AVERAGE, self.step + 1, self._wait)

    def _wait(self, step: int) -> None:
        coming = self.coming
        self._due.pop(AVERAGE, None)
        self.pause(AVERAGE)
        if self.lacks or self.held != {AVERAGE}:
            self.fleet.stands_still()
        elif coming is not None:
            self.fleet.books.regroup(self.agenda.now, self.fleet.harm.fault_of_newcomers(coming))
        if coming is not None:
            self._take_up(coming)

    def _take_up(self, coming: Round) -> None:
        self.fleet.take_up(coming, coming.trains)

    def _regroup(self, round: Round) -> None:
        """All of them are in the round: they meet anew, and those that come in copy the state."""
        self.advance()
        self.runs, self.round, self.begins = False, round, self.step
        self.held.add(AVERAGE)
        self._meets = True
        self.turn += 1
        self.fleet.books.turn(LostTo.RESTART, self.agenda.now)
        self.agenda.after(self.fleet.tempo.regroup_s(round), partial(self._copy, round, self.turn))

    def _copy(self, round: Round, turn: int) -> None:
        if turn != self.turn:
            return
        if self.fleet.harm.is_cut(round):
            self.agenda.after(1.0, partial(self._copy, round, turn))
            return
        newcomers = self.newcomers(round)
        if newcomers:
            self.fleet.books.turn(LostTo.RESTORE, self.agenda.now)
        copies_s = self.fleet.tempo.state_s() if newcomers else 0.0
        self.agenda.after(copies_s, partial(self._goes_on, round, turn, newcomers))

    def _goes_on(self, round: Round, turn: int, newcomers: list[SimulatedMember]) -> None:
        if turn != self.turn:
            return
        self._meets = False  # had anybody gone meanwhile, it would be another turn
        self.fleet.harm.copied(newcomers)
        self.holders, self.lacks = _training(round), False
        self.held.difference_update(self.fleet.harm.cut_off(round))
        if self.coming is not None and self.coming.number <= round.number:
            self.coming = None
        if self.held != {AVERAGE}:
            self.fleet.books.turn(LostTo.DETECT, self.agenda.now)
        self.go_on(AVERAGE)
        self.fleet.see_first_step(self.left_s)
        if round.number in self._wanted:
            self._at_step("save", self.step + 1, self._save)
        if self.coming is not None:
            self._at_average()

    # what makes it stand still or slow for a while

    def pause(self, what: object) -> None:
        """Nobody makes a step, though all are there, for the sake of `what`."""
        self.advance()
        if self.runs or self.held:
            self.held.add(what)
            self.runs = False
            self._pace += 1

    def go_on(self, what: object) -> None:
        """It stands in nobody's way any more."""
        if what in self.held:
            self.held.remove(what)
            if not self.held and self.round is not None:
                self.runs, self._at = True, self.agenda.now
                self.fleet.books.trains(self.agenda.now, self.left_s)
                self._due_anew()

    def slow_down(self, what: object, cause: str, factor: float) -> None:
        """From now on steps take longer for the sake of `what`."""
        self.advance()
        self.slowness.now[what] = cause, factor
        self._due_anew()

    def speed_up(self, what: object) -> None:
        """They do not any more."""
        self.advance()
        if self.slowness.now.pop(what, None) is not None:
            self._due_anew()

    def forget_slow(self, round: Round) -> None:
        """Machines that have no ranks in the round slow nobody down."""
        slow = [each for each in self.slowness.now if isinstance(each, Machine)]
        ranked = {share.node for share in round.ranks[: round.training]} if slow else set()
        for machine in [each for each in slow if each.node not in ranked]:
            self.speed_up(machine)

    def look(self, member: SimulatedMember) -> None:
        step = self.step
        if self.newest != member.entered or step <= self.begins:
            return
        if self.runs:
            member.step, member.progress_at = step, self.agenda.now - (self.done - step) * self.pace_s
        elif member.step != step:
            member.step, member.progress_at = step, self._at - (self.done - step) * self.pace_s

    def see_slow(self) -> None:
        """Whoever has slow ranks now is looked at for as long as it takes to find them."""
        round = self.round
        slow = list(self.slowness.now) if round is not None else []
        names = [each.member for each in slow if isinstance(each, Machine) and each.member is not None]
        shares = (round.member_of(each.rank) for each in slow if isinstance(each, SlowRank) and round is not None)
        names += [share.member for share in shares if share is not None]
        may_move = self.fleet.scenario.policy.straggler.action is not SlowAction.REPORT
        if names:
            self.fleet.watch(names, LASTS_S + LASTS_STEPS * self.pace_s if may_move else FOUND_STEPS * self.pace_s)

    def work_of(self, member: SimulatedMember, local: int, rank: int) -> StepWork | None:
        self.advance()
        machine = self.fleet.cluster.of(member.node)
        blamed = (machine,) if local == machine.number % len(member.workers) else ()
        return self.slowness.work(rank, self.step_time_s, SlowRank(rank), *blamed)

    # what is due at a step

    def _next(self, every: int) -> int:
        return (self.step // every + 1) * every

    def _at_step(self, name: str, step: int, what: Callable[[int], None]) -> None:
        self._due[name] = step, what
        self._schedule(name)

    def _due_anew(self) -> None:
        self._pace += 1
        for name in tuple(self._due):
            self._schedule(name)

    def _schedule(self, name: str) -> None:
        if self.runs:
            self.advance()
            early = TO_AVERAGE if name == AVERAGE else 0.0
            in_s = max(0.0, (self._due[name][0] - early - self.done) * self.pace_s) + BEHIND_S
            self.agenda.after(in_s, partial(self._reached, name, self._pace))

    def _reached(self, name: str, pace: int) -> None:
        if pace == self._pace and self.runs and name in self._due:
            step, what = self._due.pop(name)
            what(step)

    # checkpoints

    def want(self, wanted: SaveWanted) -> None:
        super().want(wanted)
        round = self.round
        if round is not None and wanted.round == round.number and self.runs:
            self._at_step("save", self.step + 1, self._save)

    def _expect_save(self, after: int) -> None:
        """The next one without being asked: the job's policy says after how many steps, the script may as well."""
        assert self.round is not None
        if periods := {self.round.save_every or 0, self.fleet.scenario.script_saves} - {0}:
            self._at_step("save every", min((after // each + 1) * each for each in periods), self._save_every)

    def _save_every(self, step: int) -> None:
        if self.round is not None:
            self._expect_save(step)
        self._save(step)

    def _save(self, step: int) -> None:
        """All stand still for the copy of their state; a thread writes it while they train on."""
        self.agree()
        round = self.round
        assert round is not None
        wanted = self._wanted.pop(round.number, None)
        tempo, turn = self.fleet.tempo, self.turn
        stall_s, took_s = tempo.save_stall_s(), tempo.commit_s()
        first = self.members[round.ranks[0].member]
        tainted, healthy = bool(first.wrong), not self.is_sick
        commit = partial(self.commit, round, step, wanted, tainted=tainted, healthy=healthy)
        self.agenda.after(stall_s + took_s, partial(commit, cost_s=(stall_s, took_s)))
        if stall_s > 0.0:
            self.pause("save")
            self.fleet.books.turn(LostTo.SAVE, self.agenda.now)
            self.agenda.after(stall_s, lambda: self.go_on("save") if turn == self.turn else None)

    # what is wrong with the state

    def turn_sick(self, member: SimulatedMember, cause: str) -> None:
        """The next step gives a NaN on the member's ranks, and by way of the gradients on all."""
        if self.runs:
            self._at_step("sick", self.step + 1, partial(self._sicken, member, cause))

    def _sicken(self, member: SimulatedMember, cause: str, step: int) -> None:
        round = self.round
        assert round is not None
        self.is_sick = True
        self.fleet.books.cause = cause
        for each in self.watched(round):
            each.not_finite(step, loss=each is member)

    def agree(self) -> None:
        """Say that replicas were alike when they were last compared: before anything else is said of the steps."""
        round = self.round
        if round is None or not self.runs or not round.fingerprint_every or self.fleet.harm.wrong_in(round):
            return
        compared = self.step - self.step % round.fingerprint_every
        if compared > self.agreed:
            self.agreed = compared
            self.watchdog.record(ReplicasAgreed(round.number, compared))

    def expect_difference(self) -> None:
        """Where parameters are not what they should be, that shows when replicas are next compared."""
        round = self.round
        if round is not None and self.runs and round.fingerprint_every and self.fleet.harm.wrong_in(round):
            self._at_step("compare", self._next(round.fingerprint_every), self._compare)

    def _compare(self, step: int) -> None:
        """Some differ: those are looked at."""
        round = self.round
        assert round is not None
        self.fleet.watch(self.fleet.harm.wrong_in(round), COMPARED_S)
        for member in self.watched(round):
            member.report(fingerprints(member, round, step))
        self.expect_difference()


def _training(round: Round) -> frozenset[str]:
    return frozenset([share.member for share in round.ranks[: round.training]])
