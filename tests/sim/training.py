"""What the workers of a round do together: start when all are there, step in lockstep, stall when one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from member import Worker

from holdfast.api.event import CheckpointRecorded, RestoreReported
from holdfast.api.membership import SaveWanted
from holdfast.api.round import Round, Tier
from holdfast.api.telemetry import ParametersFingerprinted

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
        self.ever_wrong: set[str] = set()  # nodes on which parameters were ever wrong by themselves
        self.rewound_by = 0  # the newest round that gave up what came before it
        self._tainted: set[int] = set()  # steps whose checkpoint holds what is wrong
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
        start, tier, wrong = self._restore(round)
        for share in round.ranks:
            # Everybody loads parts of the same.
            member = self.world.members[share.member]
            member.wrong = set(range(share.local_size)) if wrong else set()
        first = self.world.members[round.ranks[0].member]
        event = RestoreReported(round.number, start, tier=tier)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))
        self.world.after(self.step_time_s, lambda: self.step(round, (start or 0) + 1))

    def _restore(self, round: Round) -> tuple[int | None, Tier, bool]:
        """Where the round begins, from where, and whether what it begins with is wrong."""
        start = self.world.disk.newest(round.restore.step)
        if round.restore.tier is not Tier.MEMORY:
            self.rewound_by = round.number
        elif round.memory is not None and (images := self.world.memory.newest(round)):
            self.world.invariants.remembered(images)
            if images[0].step > (start or 0):
                return images[0].step, Tier.MEMORY, any(image.wrong for image in images)
        return start, Tier.CHECKPOINT, start in self._tainted

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
        if round.memory is not None:
            self.world.memory.take(round, step)
        if round.fingerprint_every and step % round.fingerprint_every == 0:
            self._fingerprint(round, step)
        wanted = self._wanted.pop(round.number, None)
        if step % CHECKPOINT_EVERY == 0 or wanted is not None:
            tainted = 0 in members[0].wrong
            self.world.after(
                self.world.jitter(0.01, 0.4), lambda: self.commit(round, step, wanted, tainted=tainted)
            )
        if step >= LAST_STEP:
            for member in members:
                member.finish(round.number)
            return
        self.world.after(self.step_time_s, lambda: self.step(round, step + 1))

    def _fingerprint(self, round: Round, step: int) -> None:
        """Every rank's agent tells what its parameters are after the step."""
        for share in round.ranks:
            member = self.world.members[share.member]
            told = tuple(
                ParametersFingerprinted(
                    round.number,
                    share.first_rank + local,
                    group=0,
                    step=step,
                    # What went wrong once goes on to be wrong in its own way.
                    value=step + (1_000_000 + share.first_rank + local if local in member.wrong else 0),
                    age_s=0.01,
                )
                for local in range(share.local_size)
            )
            if 0 in self.world.members[round.ranks[0].member].wrong and all(
                len(self.world.members[each.member].wrong) == each.local_size for each in round.ranks
            ):
                told = tuple(msgspec.structs.replace(each, value=step + 2_000_000) for each in told)
            member.report(told)

    def commit(self, round: Round, step: int, wanted: int | None, *, tainted: bool) -> None:
        """Rank 0's background thread commits, unless its process is gone or a newer round has begun."""
        first = self.world.members.get(round.ranks[0].member)
        if first is None or not first.alive or first.entered != round.number:
            return
        if not self.world.disk.commit(round.number, step):
            self.world.note(f"commit of step {step} by round {round.number} was fenced")
            return
        (self._tainted.add if tainted else self._tainted.discard)(step)
        event = CheckpointRecorded(round.number, step, "/ckpt", wanted)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def broke(self, round: Round) -> None:
        """A worker died: its peers' collectives fail within milliseconds, or never."""
        for share in round.ranks:
            member = self.world.members.get(share.member)
            if member is not None and self.world.random.random() < 0.7:
                self.world.after(self.world.jitter(0.002, 0.1), lambda each=member: each.collective_failed(round))
