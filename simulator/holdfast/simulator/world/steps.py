"""Training in which every step is made: what happens between two of them happens in its own time."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from holdfast.api.round import Round
from holdfast.simulator.world.member import SimulatedMember, Worker
from holdfast.simulator.world.training import Training, fingerprints

if TYPE_CHECKING:
    from holdfast.simulator.world.world import World

CHECKPOINT_EVERY: Final = 5
LAST_STEP: Final = 100_000


class StepByStep(Training):
    """The script saves every few steps, besides what is asked of it, and ends after the last step."""

    def __init__(self, world: World, step_time_s: float) -> None:
        super().__init__(world, step_time_s)
        self.stepped: list[tuple[float, int]] = []  # (when, round) of the newest steps
        self.highest = 0  # the highest step that was ever made
        self.made: set[int] = set()  # rounds that made a step
        self.took_s: dict[int, float] = {}  # by step that is kept: since the one before it, of the same round
        self._stepped_at: tuple[int, float] | None = None  # the newest step's round and time
        self.nan_at: set[int] = set()  # steps whose batch gives a NaN, whenever they are trained
        self.nan_on: SimulatedMember | None = None  # whose next step gives one, once

    def is_stopped(self) -> bool:
        """Whether a worker of the newest round is stopped, for nobody knows how long."""
        newest = [member for member in self.world.members.values() if member.entered == self.newest]
        return any(Worker.STOPPED in member.workers for member in newest)

    def _stand(self, round: Round) -> None:
        found = self.restore(round)
        self.tell_restored(round, found)
        start = found.step
        self.took_s = {step: took_s for step, took_s in self.took_s.items() if step <= (start or 0)}
        self.world.after(self.step_time_s, lambda: self.step(round, (start or 0) + 1))

    def step(self, round: Round, step: int) -> None:
        """One step of all ranks; a round in which somebody is missing stands still."""
        members = self.members_of(round)
        if members is None:
            if any(member.entered == round.number for member in self.world.members.values()):
                self.world.after(self.step_time_s, lambda: self.step(round, step))
            return
        for member in members:
            member.step, member.progress_at = step, self.world.now
        self._compute(round, step, members)
        self._count(round, step)
        # Members that cannot be reached may train on in a round that is over; the fence stops their commits.
        if all(member.in_touch for member in members):
            self.stepped = [*self.stepped, (self.world.now, round.number)][-8:]
        if round.memory is not None:
            self.world.memory.take(round, step)
        if round.fingerprint_every and step % round.fingerprint_every == 0:
            self._fingerprint(round, step)
        wanted = self._wanted.pop(round.number, None)
        every = (CHECKPOINT_EVERY, *([round.save_every] if round.save_every else []))
        if wanted is not None or any(step % each == 0 for each in every):
            tainted, healthy = 0 in members[0].wrong, not self.is_sick
            self.world.after(
                self.world.tempo.commit_s(),
                lambda: self.commit(round, step, wanted, tainted=tainted, healthy=healthy),
            )
        if step >= LAST_STEP:
            for member in members:
                member.finish(round.number)
            return
        self.world.after(self.step_time_s, lambda: self.step(round, step + 1))

    def _count(self, round: Round, step: int) -> None:
        """Keep what the step took; a round that is over and trains on makes nothing that is kept."""
        self.made.add(round.number)
        self.highest = max(self.highest, step)
        if round.number != self.newest:
            return
        same = self._stepped_at is not None and self._stepped_at[0] == round.number
        self.took_s[step] = self.world.now - self._stepped_at[1] if same and self._stepped_at else 0.0
        self._stepped_at = round.number, self.world.now

    def _fingerprint(self, round: Round, step: int) -> None:
        """Every rank's agent tells what its parameters are after the step."""
        for share in round.ranks:
            member = self.world.members[share.member]
            told = fingerprints(member, round, step)
            if 0 in self.world.members[round.ranks[0].member].wrong and all(
                len(self.world.members[each.member].wrong) == each.local_size for each in round.ranks
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
