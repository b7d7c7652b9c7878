"""What the workers of a round do together: start when all are there, step in lockstep, stall when one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

from member import Worker

from holdfast.api.event import CheckpointRecorded, RestoreReported
from holdfast.api.membership import SaveWanted
from holdfast.api.round import Round

if TYPE_CHECKING:
    from member import SimulatedMember
    from world import World

CHECKPOINT_EVERY = 5
LAST_STEP = 100_000


class Training:
    """The job's own progress, round by round."""

    def __init__(self, world: World) -> None:
        self.world = world
        self.step_time_s = world.random.choice((0.2, 0.5))
        self.stepped: list[tuple[float, int]] = []  # (when, round) of the newest steps
        self._began: set[int] = set()
        self._wanted: dict[int, int] = {}  # by round: the number of the checkpoint that was asked for

    def want(self, wanted: SaveWanted) -> None:
        """The launchers of a round were asked for one more checkpoint; the workers save at their next step."""
        self._wanted.setdefault(wanted.round, wanted.number)
        self._wanted[wanted.round] = max(self._wanted[wanted.round], wanted.number)

    def members_of(self, round: Round) -> list[SimulatedMember] | None:
        """The round's members when all of them are in it with every worker running, else None."""
        members = [self.world.members.get(share.member) for share in round.ranks]
        there = [
            member
            for member in members
            if member is not None
            and member.alive
            and member.entered == round.number
            and all(worker is Worker.RUNNING for worker in member.workers)
        ]
        return there if len(there) == len(members) else None

    def entered(self, round: Round) -> None:
        """A member entered; the last one to do so makes the process group stand."""
        if round.number in self._began or self.members_of(round) is None:
            return
        self._began.add(round.number)
        self.world.disk.raise_fence(round.number)
        start = self.world.disk.newest(round.restore.step)
        first = self.world.members[round.ranks[0].member]
        event = RestoreReported(round.number, start)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))
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
        # Members that cannot be reached may train on in a round that is over; the fence stops their commits.
        if all(member.in_touch for member in members):
            self.stepped = [*self.stepped, (self.world.now, round.number)][-8:]
        wanted = self._wanted.pop(round.number, None)
        if step % CHECKPOINT_EVERY == 0 or wanted is not None:
            self.world.after(self.world.jitter(0.01, 0.4), lambda: self.commit(round, step, wanted))
        if step >= LAST_STEP:
            for member in members:
                member.finish(round.number)
            return
        self.world.after(self.step_time_s, lambda: self.step(round, step + 1))

    def commit(self, round: Round, step: int, wanted: int | None) -> None:
        """Rank 0's background thread commits, unless its process is gone or a newer round has begun."""
        first = self.world.members.get(round.ranks[0].member)
        if first is None or not first.alive or first.entered != round.number:
            return
        if not self.world.disk.commit(round.number, step):
            self.world.note(f"commit of step {step} by round {round.number} was fenced")
            return
        event = CheckpointRecorded(round.number, step, "/ckpt", wanted)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def broke(self, round: Round) -> None:
        """A worker died: its peers' collectives fail within milliseconds, or never."""
        for share in round.ranks:
            member = self.world.members.get(share.member)
            if member is not None and self.world.random.random() < 0.7:
                self.world.after(self.world.jitter(0.002, 0.1), lambda each=member: each.collective_failed(round))
