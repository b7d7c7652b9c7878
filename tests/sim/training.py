"""What the workers of a round do together: start when all are there, step in lockstep, stall when one is not."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from member import Worker

from holdfast.api.checkpoint import TOLD_MAX, StoredCheckpoint
from holdfast.api.event import CheckpointRecorded, RestoreReported, StorageListed
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
        self.highest = 0  # the highest step that was ever made
        self.made: set[int] = set()  # rounds that made a step
        self.took_s: dict[int, float] = {}  # by step that is kept: since the one before it, of the same round
        self._stepped_at: tuple[int, float] | None = None  # the newest step's round and time
        self.ever_wrong: set[str] = set()  # nodes on which parameters were ever wrong by themselves
        self.rewound_by = 0  # the newest round that gave up what came before it
        self._tainted: set[int] = set()  # steps whose checkpoint holds what is wrong
        self.is_sick = False  # whether the parameters of the newest round are NaN
        self._sick: set[tuple[int, int]] = set()  # rounds and steps after which they were
        self.nan_at: set[int] = set()  # steps whose batch gives a NaN, whenever they are trained
        self.nan_on: SimulatedMember | None = None  # whose next step gives one, once
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

    def is_stopped(self) -> bool:
        """Whether a worker of the newest round is stopped, for nobody knows how long."""
        newest = [
            member for member in self.world.members.values() if member.entered == max(self._began, default=0)
        ]
        return any(Worker.STOPPED in member.workers for member in newest)

    def entered(self, round: Round) -> None:
        """A member entered; the last one to do so makes the process group stand."""
        if round.number in self._began or self.members_of(round) is None:
            return
        self._began.add(round.number)
        self.world.disk.raise_fence(round.number)
        start, tier, wrong = self._restore(round)
        self.took_s = {step: took_s for step, took_s in self.took_s.items() if step <= (start or 0)}
        for share in round.ranks:
            # Everybody loads parts of the same.
            member = self.world.members[share.member]
            member.wrong = set(range(share.local_size)) if wrong else set()
        first = self.world.members[round.ranks[0].member]
        event = RestoreReported(round.number, start, tier=tier)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))
        self._list_storage(round, first, start)
        self.world.after(self.step_time_s, lambda: self.step(round, (start or 0) + 1))

    def _list_storage(self, round: Round, first: SimulatedMember, start: int | None) -> None:
        """Rank 0 tells what storage holds of the history that goes on."""
        rounds = {step: number for number, step in self.world.disk.commits}
        there = [(step, healthy) for step, healthy in self.world.disk.there.items() if step <= (start or 0)]
        listed = tuple(
            StoredCheckpoint(step, rounds[step], f"step-{step}", healthy=healthy)
            for step, healthy in sorted(there, reverse=True)[:TOLD_MAX]
        )
        event = StorageListed(round.number, "/ckpt", len(there), listed)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def _restore(self, round: Round) -> tuple[int | None, Tier, bool]:
        """Where the round begins, from where, and whether what it begins with is wrong."""
        directive = round.restore
        start = self.world.disk.newest(directive.step, directive.unhealthy_from)
        if directive.tier is Tier.NONE:
            start = None
        self.is_sick = start is not None and not self.world.disk.there[start]
        if round.restore.tier is not Tier.MEMORY:
            self.rewound_by = round.number
        elif round.memory is not None and (images := self.world.memory.newest(round)):
            self.world.invariants.remembered(images)
            if images[0].step > (start or 0):
                self.is_sick = (images[0].round, images[0].step) in self._sick
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
                self.world.jitter(0.01, 0.4),
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
        if round.number != max(self._began):
            return
        same = self._stepped_at is not None and self._stepped_at[0] == round.number
        self.took_s[step] = self.world.now - self._stepped_at[1] if same and self._stepped_at else 0.0
        self._stepped_at = round.number, self.world.now

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

    def commit(self, round: Round, step: int, wanted: int | None, *, tainted: bool, healthy: bool) -> None:
        """Rank 0's background thread commits, unless its process is gone or a newer round has begun."""
        first = self.world.members.get(round.ranks[0].member)
        if first is None or not first.alive or first.entered != round.number:
            return
        if not self.world.disk.commit(round.number, step, healthy=healthy):
            self.world.note(f"commit of step {step} by round {round.number} was fenced")
            return
        (self._tainted.add if tainted else self._tainted.discard)(step)
        event = CheckpointRecorded(round.number, step, "/ckpt", wanted)
        first.send_and_remember(lambda: self.world.carry_out(self.world.job.record(event, self.world.now)))

    def broke(self, round: Round, *, for_all: bool = False) -> None:
        """A worker died: its peers' collectives fail within milliseconds, or never, unless they do `for_all`."""
        for share in round.ranks:
            member = self.world.members.get(share.member)
            if member is not None and (for_all or self.world.random.random() < 0.7):
                self.world.after(self.world.jitter(0.002, 0.1), lambda each=member: each.collective_failed(round))
