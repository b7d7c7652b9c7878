"""Training in which every step is made: what happens between two of them happens in its own time."""

from dataclasses import dataclass
from typing import Final

import msgspec

from holdfast.api.round import Round
from holdfast.simulator.world.member import SimulatedMember, Worker
from holdfast.simulator.world.training import Group, Place, Training, fingerprints

CHECKPOINT_EVERY: Final = 5
LAST_STEP: Final = 100_000


@dataclass(frozen=True, slots=True)
class Given:
    """One step's batch: into how many shares it was divided, which are in the step, and how many groups were lost
    while it was made.
    """

    count: int
    shares: tuple[int, ...]
    lost: int


class Shares:
    """Which part of each step's batch came from which replica group.

    `given` is by step, of the history that is kept.
    """

    def __init__(self) -> None:
        self.given: dict[int, Given] = {}
        self._count = self._lost = 0
        self._of: dict[Group, int] = {}  # by group: which share of the step in flight it has

    def begin(self, round: Round) -> None:
        """The groups that train in the round divide the next step's batch among themselves, as they are shown."""
        self._of, self._lost = {}, 0
        for share in round.ranks[: round.training]:
            seat = round.seat_of(share.member)
            assert seat is not None
            assert seat.group is not None
            assert seat.group.index is not None
            self._count = seat.group.count
            if seat.group.first_rank == share.first_rank:
                self._of[seat.group.epoch, share.member] = seat.group.index

    def go_on(self, round: Round) -> None:
        """The step in flight is completed in the round: by those that are left, with what they have."""
        firsts = {share.first_rank: share.member for share in round.ranks[: round.training]}
        there = {
            (seat.group.epoch, firsts[seat.group.first_rank])
            for seat in map(round.seat_of, firsts.values())
            if seat is not None and seat.group is not None
        }
        left = {group: index for group, index in self._of.items() if group in there}
        self._of, self._lost = left, self._lost + len(self._of) - len(left)

    def complete(self, step: int) -> None:
        """The step counts."""
        self.given[step] = Given(self._count, tuple(sorted(self._of.values())), self._lost)

    def give_up(self, step: int) -> None:
        """What was made behind that step is made anew."""
        self.given = {each: given for each, given in self.given.items() if each <= step}


class StepByStep(Training):
    """The script saves every few steps, besides what is asked of it, and ends after the last step."""

    def __init__(self, place: Place, step_time_s: float) -> None:
        super().__init__(place, step_time_s)
        self.stepped: list[tuple[float, int]] = []  # (when, round) of the newest steps
        self.highest = 0  # the highest step that was ever made
        self.made: set[int] = set()  # rounds that made a step
        self.took_s: dict[int, float] = {}  # by step that is kept: since the one before it, of the same round
        self._stepped_at: tuple[int, float] | None = None  # the newest step's round and time
        self.nan_at: set[int] = set()  # steps whose batch gives a NaN, whenever they are trained
        self.nan_on: SimulatedMember | None = None  # whose next step gives one, once
        self.shares = Shares()  # of replica groups
        self._stands: Round | None = None  # the newest round that all were in
        self._last = 0  # the step that was complete last

    def is_stopped(self) -> bool:
        """Whether a worker of the newest round is stopped, for nobody knows how long."""
        newest = [member for member in self.members.values() if member.entered == self.newest]
        return any(Worker.STOPPED in member.workers for member in newest)

    def _stand(self, round: Round) -> None:
        self._stands = round
        if round.goes_on and self.holders:
            self._regroup(round)
            return
        self.holders = frozenset()
        found = self.restore(round)
        self.tell_restored(round, found)
        self._last = start = found.step or 0
        self.took_s = {step: took_s for step, took_s in self.took_s.items() if step <= start}
        self.shares.give_up(start)
        if round.groups:
            self.shares.begin(round)
        first_s = self.step_time_s + self.agenda.tempo.first_step_s()
        self.agenda.after(first_s, lambda: self.step(round, start + 1))

    def _regroup(self, round: Round) -> None:
        """Groups go on: they meet anew, those that come in copy the state, and the step in flight is completed."""
        self.witness.went_on(round)
        tempo, newcomers = self.agenda.tempo, self.newcomers(round)
        wait_s = tempo.regroup_s(round) + (tempo.state_s() if newcomers else 0.0)
        self.shares.go_on(round)
        for place, member in enumerate(newcomers):
            source = self.members[round.ranks[place % round.groups[0].members].member]
            member.wrong = set(source.wrong)
        self.agenda.after(self.step_time_s + wait_s, lambda: self.step(round, self._last + 1))

    def _hear(self, member: SimulatedMember, coming: Round) -> None:
        round = self._stands
        if round is None or round.number != member.entered or self.members_of(round) is None:
            member.go_on()  # nobody completes a step there

    def _go_on_together(self, members: list[SimulatedMember]) -> bool:
        """At the end of a step: into the newest round, once all that make it have heard of it."""
        coming = members[0].coming
        if coming is None or any(each.shown != coming.number for each in members):
            return False
        for each in members:
            each.go_on()
        return True

    def step(self, round: Round, step: int) -> None:
        """One step of all ranks; a round in which somebody is missing stands still."""
        members = self.members_of(round)
        if members is None:
            there = [member for member in self.members.values() if member.entered == round.number]
            for member in there:
                if member.coming is not None:
                    member.go_on()
            if any(member.entered == round.number for member in there):
                self.agenda.after(self.step_time_s, lambda: self.step(round, step))
            return
        if round.number == self.newest:
            self._last = step
            if round.groups:
                self.holders = frozenset([each.name for each in members])
                self.shares.complete(step)
                self.shares.begin(round)
        for member in members:
            member.step, member.progress_at = step, self.agenda.now
        self._compute(round, step, members)
        self._count(round, step)
        # Members that cannot be reached may train on in a round that is over; the fence stops their commits.
        if all(member.line.in_touch for member in members):
            self.stepped = [*self.stepped, (self.agenda.now, round.number)][-8:]
        if round.memory is not None:
            self.memory.take(round, step)
        if round.fingerprint_every and step % round.fingerprint_every == 0:
            self._fingerprint(round, step)
        wanted = self._wanted.pop(round.number, None)
        every = (CHECKPOINT_EVERY, *([round.save_every] if round.save_every else []))
        if wanted is not None or any(step % each == 0 for each in every):
            tainted, healthy = 0 in members[0].wrong, not self.is_sick
            self.agenda.after(
                self.agenda.tempo.commit_s(),
                lambda: self.commit(round, step, wanted, tainted=tainted, healthy=healthy),
            )
        if step >= LAST_STEP:
            for member in members:
                member.finish(round.number)
            return
        if self._go_on_together(members):
            return
        self.agenda.after(self.step_time_s, lambda: self.step(round, step + 1))

    def _count(self, round: Round, step: int) -> None:
        """Keep what the step took; a round that is over and trains on makes nothing that is kept."""
        self.made.add(round.number)
        self.highest = max(self.highest, step)
        if round.number != self.newest:
            return
        same = self._stepped_at is not None and self._stepped_at[0] == round.number
        self.took_s[step] = self.agenda.now - self._stepped_at[1] if same and self._stepped_at else 0.0
        self._stepped_at = round.number, self.agenda.now

    def _fingerprint(self, round: Round, step: int) -> None:
        """Every rank's agent tells what its parameters are after the step."""
        for share in round.ranks:
            member = self.members[share.member]
            told = fingerprints(member, round, step)
            if 0 in self.members[round.ranks[0].member].wrong and all(
                len(self.members[each.member].wrong) == each.local_size for each in round.ranks
            ):
                told = tuple(msgspec.structs.replace(each, value=step + 2_000_000) for each in told)
            member.report(told)

    def _compute(self, round: Round, step: int, members: list[SimulatedMember]) -> None:
        """A NaN on one rank reaches all by way of the gradients; once in the parameters it stays there."""
        began = self.nan_on if self.nan_on in members else members[-1] if step in self.nan_at else None
        if began is not None or self.is_sick:
            for member in members:
                member.not_finite(step, loss=self.is_sick or member is began)
        if began is not None:
            self.is_sick, self.nan_on = True, None
        if self.is_sick:
            self._sick.add((round.number, step))
