"""What the workers of a round do together: start when all are there, train in lockstep, stall when one is not.

Here is what does not depend on the resolution: who is in a round, where it begins, what is saved, which replica
groups are being formed. How steps are made is for who fills `_stand` and `_hear`: each of them (`steps.py`), or as
many as time makes.
"""

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass
from functools import partial
from typing import NamedTuple

from holdfast.api.checkpoint import TOLD_MAX, StoredCheckpoint
from holdfast.api.event import CheckpointRecorded, MemberReady, RestoreReported, StorageListed
from holdfast.api.membership import SaveWanted
from holdfast.api.round import MemberRanks, Round, Tier
from holdfast.api.telemetry import ParametersFingerprinted, StepWork
from holdfast.simulator.world.disk import Disk
from holdfast.simulator.world.member import Peers, SimulatedMember
from holdfast.simulator.world.nodememory import Memory
from holdfast.simulator.world.watchdog import Watchdog
from holdfast.simulator.world.witness import Witness

Group = tuple[int, str]
"""A replica group: the round in which it was formed, and its first member."""


@dataclass(frozen=True, slots=True)
class Found:
    """After which step a round begins (None: it is new), from where, and whether what it begins with is wrong."""

    step: int | None
    tier: Tier
    wrong: bool


class Place(NamedTuple):
    """Where training happens: who may take part, what it saves to and restores from, and who looks on."""

    watchdog: Watchdog
    members: Mapping[str, SimulatedMember]
    disk: Disk
    memory: Memory
    witness: Witness


class Training(Peers):
    """The job's own progress, round by round."""

    def __init__(self, place: Place, step_time_s: float) -> None:
        self.watchdog, self.members, self.disk, self.memory, self.witness = place
        self.agenda = place.watchdog.agenda
        self.step_time_s = step_time_s
        self.newest = 0  # the number of the newest round that all were in
        self._missing = ""  # who was not in a round when all were counted last
        self.ever_wrong: set[str] = set()  # nodes on which parameters were ever wrong by themselves
        self.rewound_by = 0  # the newest round that gave up what came before it
        self._tainted: set[int] = set()  # steps whose checkpoint holds what is wrong
        self.is_sick = False  # whether the parameters of the newest round are NaN
        self._sick: set[tuple[int, int]] = set()  # rounds and steps after which they were
        self._wanted: dict[int, int] = {}  # by round: the number of the checkpoint that was asked for
        # Members whose ranks have the state of the newest step. Nobody: it is restored first.
        self.holders: Set[str] = frozenset()
        self._formed: set[Group] = set()  # replica groups that were formed
        self._saver: Group | None = None  # the one that saves

    def want(self, wanted: SaveWanted) -> None:
        """The launchers of a round were asked for one more checkpoint; the workers save at their next step."""
        self._wanted[wanted.round] = max(self._wanted.get(wanted.round, wanted.number), wanted.number)

    def changed(self, member: SimulatedMember) -> None:
        pass

    def look(self, member: SimulatedMember) -> None:
        pass

    def work_of(self, member: SimulatedMember, local: int, rank: int) -> StepWork | None:
        return None

    def watched(self, round: Round) -> list[SimulatedMember]:
        """The members of the round of which somebody would hear that a collective of theirs failed."""
        members = (self.members.get(share.member) for share in round.ranks)
        return [member for member in members if member is not None]

    def members_of(self, round: Round) -> list[SimulatedMember] | None:
        """The members that train in the round when all of them are in it with every worker running, else None."""
        known, number, last, there = self.members, round.number, self._missing, []
        if round.trains(last) and not ((absent := known.get(last)) and self.is_in(absent, round)):
            return None  # as when somebody asked last, for thousands
        for share in round.ranks[: round.training]:
            member = known.get(share.member)
            if member is None or member.entered != number or member.ails or not member.alive:
                self._missing = share.member
                return None
            there.append(member)
        return there

    def is_in(self, member: SimulatedMember, round: Round) -> bool:
        """Whether the member is in the round with every worker running."""
        return member.entered == round.number and member.alive and not member.ails

    def entered(self, round: Round) -> None:
        """A member entered; the last one to do so makes the process group stand, and its replica group form."""
        if round.number > self.newest and self.members_of(round) is not None:
            self.newest = round.number
            saver = (round.groups[0].epoch, round.ranks[0].member) if round.groups else None
            if not round.goes_on or saver != self._saver:
                self.disk.raise_fence(round.number)
            self._saver = saver
            self._stand(round)
        if round.groups:
            self._form(round)

    def _stand(self, round: Round) -> None:
        """All that train are there."""
        raise NotImplementedError

    # replica groups

    def heard(self, member: SimulatedMember, coming: Round) -> None:
        """A member was shown a round into which its replica group goes on. While it is being formed it is in no
        step, and waits for nobody.
        """
        if member.entered is None:
            return  # it says so again once its workers run
        round = member.round
        if round is not None and not round.trains(member.name):
            member.go_on()
        else:
            self._hear(member, coming)

    def _hear(self, member: SimulatedMember, coming: Round) -> None:
        """A member that trains takes the round up at the end of a step, or now if the step cannot end."""
        raise NotImplementedError

    def _form(self, round: Round) -> None:
        """Have the groups of the round that do not train build what they need, once all their workers run."""
        first, ranks = round.training, round.ranks
        for group in round.groups:
            if group.trains:
                continue
            shares = ranks[first : first + group.members]
            first += group.members
            key = group.epoch, shares[0].member
            if key not in self._formed and self._group_of(shares, group.epoch) is not None:
                self._formed.add(key)
                come = partial(self._come_to_the_door, shares, group.epoch)
                self.agenda.after(self.agenda.tempo.door_s(len(shares)), come)

    def _come_to_the_door(self, shares: Sequence[MemberRanks], epoch: int) -> None:
        members = self._group_of(shares, epoch)
        if members is None:
            return  # it failed meanwhile
        if self._is_apart(members):
            self.agenda.after(1.0, partial(self._come_to_the_door, shares, epoch))
            return
        self._tell_ready(members, epoch)

    def _is_apart(self, members: Sequence[SimulatedMember]) -> bool:
        """Whether some of them cannot reach the others."""
        return False

    def _tell_ready(self, members: Sequence[SimulatedMember], epoch: int) -> None:
        """Their workers wait for the other groups at the end of a step."""
        for member in members:
            member.line.tell(MemberReady(member.name, epoch))

    def _group_of(self, shares: Sequence[MemberRanks], epoch: int) -> list[SimulatedMember] | None:
        """The members of a replica group when all of them are in it with every worker running, else None."""
        members = [self.members.get(share.member) for share in shares]
        there = [each for each in members if each is not None and each.epoch == epoch and _is_whole(each)]
        return there if len(there) == len(shares) else None

    def may_go_on(self, member: SimulatedMember, round: Round) -> bool:
        """Whether the workers of its replica group all run: they go on together."""
        seat = round.seat_of(member.name)
        assert seat is not None
        assert seat.group is not None
        first = round.member_of(seat.group.first_rank)
        assert first is not None
        place = round.ranks.index(first)
        size = next(each.members for each in round.groups if each.epoch == seat.group.epoch)
        known = (self.members.get(share.member) for share in round.ranks[place : place + size])
        return all(each is not None and each.alive and not each.ails for each in known)

    def newcomers(self, round: Round) -> list[SimulatedMember]:
        """Those of the round that train and do not have the state: they copy it from a group that has."""
        shares = round.ranks[: round.training]
        return [self.members[each.member] for each in shares if each.member not in self.holders]

    def tell_restored(self, round: Round, found: Found) -> None:
        """The state is restored, and everybody has loaded parts of the same."""
        if found.wrong:
            for share in round.ranks[: round.training]:
                self.members[share.member].wrong = set(range(share.local_size))
        else:
            for member in [each for each in self.members.values() if each.wrong and round.trains(each.name)]:
                member.wrong = set()
        first = self.members[round.ranks[0].member]
        first.line.tell(RestoreReported(round.number, found.step, tier=found.tier))
        self._list_storage(round, first, found.step)

    def _list_storage(self, round: Round, first: SimulatedMember, start: int | None) -> None:
        """Rank 0 tells what storage holds of the history that goes on."""
        there = [(step, healthy) for step, healthy in self.disk.there.items() if step <= (start or 0)]
        listed = tuple(
            StoredCheckpoint(step, self.disk.rounds[step], f"step-{step}", healthy=healthy)
            for step, healthy in sorted(there, reverse=True)[:TOLD_MAX]
        )
        first.line.tell(StorageListed(round.number, "/ckpt", len(there), listed))

    def restore(self, round: Round) -> Found:
        """Where the round begins, as its directive says."""
        found = self._found(round)
        self.disk.go_on(found.step, round.restore.verified)
        return found

    def _found(self, round: Round) -> Found:
        directive = round.restore
        start = self.disk.newest(directive.step, directive.unhealthy_from)
        if directive.tier is Tier.NONE:
            start = None
        self.is_sick = start is not None and not self.disk.there[start]
        if round.restore.tier is not Tier.MEMORY:
            self.rewound_by = round.number
        elif round.memory is not None and (images := self.memory.newest(round)):
            self.witness.remembered(images)
            if images[0].step > (start or 0):
                self.is_sick = (images[0].round, images[0].step) in self._sick
                return Found(images[0].step, Tier.MEMORY, any(image.wrong for image in images))
        return Found(start, Tier.CHECKPOINT, start in self._tainted)

    def commit(
        self,
        round: Round,
        step: int,
        wanted: int | None,
        *,
        tainted: bool,
        healthy: bool,
        cost_s: tuple[float | None, float | None] = (None, None),
    ) -> None:
        """Rank 0's background thread commits, unless its process is gone or a newer round has begun.

        `cost_s`: for how long training stood still for it, and how long it took in all.
        """
        first = self.members.get(round.ranks[0].member)
        if first is None or not first.alive or not _went_on(first, round):
            return
        if not self.disk.commit(round.number, step, healthy=healthy):
            self.agenda.note(f"commit of step {step} by round {round.number} was fenced")
            return
        (self._tainted.add if tainted else self._tainted.discard)(step)
        first.line.tell(CheckpointRecorded(round.number, step, "/ckpt", wanted, *cost_s))

    def broke(self, round: Round, where: SimulatedMember, *, for_all: bool = False) -> None:
        """A worker died: its peers' collectives fail within milliseconds, or never, unless they do `for_all`.

        Those of other replica groups fail between groups, and only of one that trains.
        """
        trains = round.trains(where.name)
        for member in self.watched(round):
            is_across = bool(round.groups) and not _share_a_group(round, member, where)
            if is_across and not (trains and round.trains(member.name)):
                continue
            if for_all or self.agenda.draw.random() < 0.7:
                fail = partial(member.collective_failed, round, across=is_across)
                self.agenda.after(self.agenda.draw.uniform(0.002, 0.1), fail)


def _is_whole(member: SimulatedMember) -> bool:
    return member.alive and member.entered is not None and not member.ails


def _went_on(member: SimulatedMember, round: Round) -> bool:
    """Whether its workers are in the round, or left nothing for a later one."""
    if member.entered == round.number:
        return True
    return (
        member.entered is not None and member.epoch is not None and member.epoch == round.epochs.get(member.name)
    )


def _share_a_group(round: Round, one: SimulatedMember, other: SimulatedMember) -> bool:
    seats = [round.seat_of(each.name) for each in (one, other)]
    first, second = (seat.group if seat is not None else None for seat in seats)
    return first is not None and second is not None and first.first_rank == second.first_rank


def fingerprints(member: SimulatedMember, round: Round, step: int) -> tuple[ParametersFingerprinted, ...]:
    """What the member's ranks say their parameters are after the step. What went wrong once goes on to be wrong in
    its own way.
    """
    first = member.first_rank(round)
    return tuple(
        ParametersFingerprinted(
            round.number,
            first + local,
            group=0,
            step=step,
            value=step + (1_000_000 + first + local if local in member.wrong else 0),
            age_s=0.01,
        )
        for local in range(len(member.workers))
    )
