"""The round: one agreed membership with its rank assignment, and what a launcher is shown of it.

What is desired of all launchers of a job is `Desired`; each one is shown its part of that (`Shown`), because the
whole of a round of 12,500 members weighs most of a megabyte. It makes its local workers match it, whatever it held
before: a launcher that holds round 7 and is shown round 8 leaves 7 and enters 8. Round numbers only grow; the
number is the fence, so a worker of an older round may neither commit a checkpoint nor count as evidence.
"""

from bisect import bisect_left, bisect_right
from collections.abc import KeysView, Mapping
from enum import StrEnum
from functools import cached_property

import msgspec

from holdfast.api.learningrate import LearningRateCut
from holdfast.api.memory import MemoryOrder, MemoryRound
from holdfast.api.policy import SpikeLimits


class MemberRanks(msgspec.Struct, frozen=True):
    """A member's share of the round: global ranks first_rank .. first_rank + local_size - 1."""

    member: str
    node: str
    first_rank: int
    local_size: int


class Endpoint(msgspec.Struct, frozen=True):
    """Where the process group's store lives. Rank 0's process listens there; fresh for every round."""

    host: str
    port: int


class Tier(StrEnum):
    """Where state is restored from."""

    NONE = "None"  # start from the beginning, whatever is saved
    CHECKPOINT = "Checkpoint"
    MEMORY = "Memory"
    PEER = "Peer"  # nothing is loaded: the state is copied from a replica group that trains

    @classmethod
    def _missing_(cls, value: object) -> "Tier":
        """Where a later version restores from: what is durable holds in any case."""
        return cls.CHECKPOINT


class Restore(msgspec.Struct, frozen=True):
    """The restore directive: what a worker loads before its first step of a round.

    `step` is the newest step the round may restore; the checkpoint library falls back to an older one when
    that one proves damaged, and reports the step it truly restored. None means "the newest intact one found
    at `uri`" (a watchdog that has not yet seen a commit): the beginning, where nothing is there; where
    something is and none of it can be used, the round fails. With Tier.MEMORY a snapshot in the members'
    memory that is newer than `step` comes first; `step` bounds the checkpoints, and 0 is the beginning, for
    which none is needed. `uri` is the place that holds the job's checkpoints, as the job names it; empty when
    only the script knows. `owner` names this life of the job: its rounds are numbered from the start, and
    take over what an earlier life left at the same place. `verified` is the last step after which all
    replicas were seen to be equal, None: never compared. Nothing of step `unhealthy_from` or later in the
    history so far may be restored: a loss or gradient norm was not finite (None: of no step is that known).
    With `skip_until` all batches up to that step's are passed over, wherever the round truly begins, and not
    `skip_batches` (None: these). `learning_rate_cuts` are all that were made in the history that goes on, oldest
    first, those of earlier rounds too; `learning_rate_scale` is the newest one until a checkpoint has it, for who
    knows no cuts.
    `otherwise` is where the round goes on when nothing up to `step` can be restored: the newest up to there (None:
    it fails). `learning_rate_cuts` are then those of both histories, until `settled` tells which one goes on.
    """

    tier: Tier = Tier.NONE
    step: int | None = None
    uri: str = ""
    skip_batches: int = 0
    learning_rate_scale: float = 1.0
    owner: str = ""
    verified: int | None = None
    unhealthy_from: int | None = None
    otherwise: int | None = None
    skip_until: int | None = None
    learning_rate_cuts: tuple[LearningRateCut, ...] = ()

    def cuts(self) -> tuple[LearningRateCut, ...]:
        """`learning_rate_cuts`; where who wrote this knew none, the one that it asks for."""
        if self.learning_rate_cuts or self.learning_rate_scale == 1.0:
            return self.learning_rate_cuts
        return (LearningRateCut(self.learning_rate_scale, self.step or 0),)

    def settled(self, step: int) -> "Restore":
        """The same once a checkpoint of `step` was restored, which tells whether the round goes on `otherwise`.

        If it does, nothing of what was asked for is done, and every cut that was made before stays. If not, what
        was cut behind the step that was asked for is of the history that is given up.
        """
        if self.otherwise is None:
            return self
        count = len(self.learning_rate_cuts) - (self.learning_rate_scale != 1.0)
        earlier, asked = self.learning_rate_cuts[: max(count, 0)], self.learning_rate_cuts[max(count, 0) :]
        if self.is_younger(step):
            none = msgspec.structs.replace(self, skip_batches=0, learning_rate_scale=1.0, otherwise=None)
            return msgspec.structs.replace(none, step=step, learning_rate_cuts=earlier)
        kept = tuple(each for each in earlier if each.after < (self.step or 0))
        return msgspec.structs.replace(self, learning_rate_cuts=(*kept, *asked), otherwise=None)

    def is_younger(self, step: int | None) -> bool:
        """Whether what was restored, after `step`, is younger than what was asked for: nothing is changed then."""
        return self.step is not None and (step or 0) > self.step

    def batches_to_skip(self, step: int | None) -> int:
        """How many batches behind those of `step`, which was restored (None: nothing was), are passed over."""
        if self.is_younger(step):
            return 0
        return self.skip_batches if self.skip_until is None else max(0, self.skip_until - (step or 0))


class Follows(StrEnum):
    """What of its restore directive a script does."""

    RESTORE = "Restore"  # it begins where it is told to
    BATCHES = "Batches"  # it passes over batches
    LEARNING_RATE = "LearningRate"  # it cuts its learning rate

    @classmethod
    def _missing_(cls, value: object) -> "Follows":
        """Of what a later script does besides, this is the least."""
        return cls.RESTORE


class Entry(StrEnum):
    """How workers come into the round."""

    REENTER = "ReEnter"  # a live worker leaves its round and enters this one in the same process
    RESPAWN = "Respawn"  # every worker is a new process


class Reentry(StrEnum):
    """Into which rounds a worker's process may go on, after the one it is in."""

    ANY_WORLD = "AnyWorld"  # every one: nothing in it keeps the world of an earlier round
    SAME_WORLD = "SameWorld"  # those in which its rank and the number of ranks stay the same
    NEVER = "Never"  # none: something in it keeps process groups that are gone

    @classmethod
    def _missing_(cls, value: object) -> "Reentry":
        """A later trainer asks for what is not known here: a new process is right in any case."""
        return cls.NEVER


class ReplicaGroup(msgspec.Struct, frozen=True):
    """A replica group of a round: its next `members`, in rank order. `epoch` is the round in which it was formed:
    a member whose workers are in that epoch already leaves nothing, whatever the number of the round. Its own
    ranks meet at `endpoint`. One that is being formed (`trains` False) has no part in what is averaged.
    """

    epoch: int
    members: int
    endpoint: Endpoint
    trains: bool


class GroupSeat(msgspec.Struct, frozen=True):
    """What a member is shown of its replica group: its ranks first_rank .. first_rank + size - 1 of the round,
    which met in round `epoch` at `endpoint`.

    It is the one of `index` among the `count` groups that train; None while it is being formed. All groups meet at
    the round's endpoint, where the group of epoch `meets_in` met before. `broke_in` is as in `Round`.
    """

    epoch: int
    first_rank: int
    size: int
    endpoint: Endpoint
    index: int | None
    count: int
    meets_in: int
    broke_in: int = 0


class Round(msgspec.Struct, frozen=True, tag=True, dict=True):
    """One agreed membership. `fresh_ranks` must be new processes even when `entry` is REENTER (culprits).

    `groups` are its replica groups in rank order, those that train first; empty: all ranks are one group.
    `broke_in` is the newest round in which one that trained had left, or that followed a fault: who is in an older
    one cannot complete a step there.

    `fingerprint_every`: ranks fingerprint their parameters after every so many steps; 0: never. `memory` None:
    no snapshots are kept in memory. `keep` is how many committed checkpoints stay; None: the script says.
    `save_every`: a checkpoint after every so many steps, besides what the script says; None: only that. `spikes`:
    how far a gradient norm may go; None: the script says. `ranks_shown`: ranks below it send what the script logs;
    0: none, of a watchdog that does not understand it.
    """

    job: str
    number: int
    ranks: tuple[MemberRanks, ...]
    endpoint: Endpoint
    restore: Restore
    entry: Entry
    reason: str
    fresh_ranks: tuple[int, ...] = ()
    fingerprint_every: int = 0
    memory: MemoryRound | None = None
    keep: int | None = None
    save_every: int | None = None
    spikes: SpikeLimits | None = None
    ranks_shown: int = 0
    groups: tuple[ReplicaGroup, ...] = ()
    broke_in: int = 0

    @cached_property
    def _places(self) -> Mapping[str, int]:
        """Where each member is in `ranks`. Built when first asked for: it is asked for with every message."""
        return {share.member: place for place, share in enumerate(self.ranks)}

    @cached_property
    def names(self) -> KeysView[str]:
        """The members' names, in rank order. The same object each time."""
        return self._places.keys()

    @cached_property
    def world_size(self) -> int:
        return sum([share.local_size for share in self.ranks])

    @cached_property
    def training(self) -> int:
        """How many members train, the first in rank order: all but those of groups that are being formed."""
        return sum([each.members for each in self.groups if each.trains]) if self.groups else len(self.ranks)

    @cached_property
    def training_size(self) -> int:
        """How many ranks train, the first ones."""
        return sum([share.local_size for share in self.ranks[: self.training]]) if self.groups else self.world_size

    @cached_property
    def goes_on(self) -> bool:
        """Whether there are groups in it that leave nothing for it: they restore nothing, and lose no step."""
        return any(each.epoch != self.number for each in self.groups)

    @cached_property
    def epochs(self) -> Mapping[str, int]:
        """By the name of each member the epoch of its replica group; empty where there are none."""
        found: dict[str, int] = {}
        first = 0
        for group in self.groups:
            found.update(
                dict.fromkeys([each.member for each in self.ranks[first : first + group.members]], group.epoch)
            )
            first += group.members
        return found

    def trains(self, member: str) -> bool:
        """Whether the member has ranks that train."""
        place = self._places.get(member)
        return place is not None and place < self.training

    def rank_now(self, number: int, rank: int, member: str) -> int | None:
        """How a rank of `member` is numbered in this round, that was `rank` in the round of that number: its
        replica group may have gone on since. None: that round is over for it.
        """
        if number == self.number:
            return rank
        group, share = self.group_of(member), self.share_of(member)
        if group is None or share is None or not group.epoch <= number < self.number:
            return None
        return share.first_rank + rank % share.local_size

    def group_of(self, member: str) -> GroupSeat | None:
        """What the member is shown of its replica group; None where there are none, or it has no ranks."""
        place = self._places.get(member)
        return None if place is None else self.group_seat(place)

    def group_seat(self, place: int) -> GroupSeat | None:
        """What the member at `place` is shown of its replica group; None where there are none."""
        at = bisect_right(self._group_seats, place, key=_first)
        return self._group_seats[at - 1][1] if at else None

    @cached_property
    def _group_seats(self) -> tuple[tuple[int, GroupSeat], ...]:
        """The first place of each group, and what its members are shown of it."""
        first, count, seats = 0, sum([each.trains for each in self.groups]), []
        for index, group in enumerate(self.groups):
            shares = self.ranks[first : first + group.members]
            seat = GroupSeat(
                epoch=group.epoch,
                first_rank=shares[0].first_rank,
                size=sum([share.local_size for share in shares]),
                endpoint=group.endpoint,
                index=index if group.trains else None,
                count=count,
                meets_in=self.groups[0].epoch,
                broke_in=self.broke_in,
            )
            seats.append((first, seat))
            first += group.members
        return tuple(seats)

    def share_of(self, member: str) -> MemberRanks | None:
        """The member's ranks, or None when it is a spare in this round."""
        place = self._places.get(member)
        return None if place is None else self.ranks[place]

    def member_of(self, rank: int) -> MemberRanks | None:
        """Who runs `rank`, or None when it is outside the world. A binary search: shares are in rank order."""
        place = bisect_right(self.ranks, rank, key=_first_rank) - 1
        if place < 0:
            return None
        share = self.ranks[place]
        return share if rank < share.first_rank + share.local_size else None

    def seat_of(self, member: str) -> "Seat | None":
        """What `member` is shown of the round, or None when it is a spare in it."""
        place = self._places.get(member)
        if place is None:
            return None
        share, group = self.ranks[place], self.group_seat(place)
        comes_later = group is not None and group.index is None
        return Seat(
            job=self.job,
            number=self.number,
            members=len(self.ranks),
            world_size=self.world_size,
            endpoint=self.endpoint,
            restore=msgspec.structs.replace(self.restore, tier=Tier.PEER) if comes_later else self.restore,
            entry=self.entry,
            reason=self.reason,
            place=place,
            first_rank=share.first_rank,
            local_size=share.local_size,
            fresh_ranks=self._fresh_of(share) if self.fresh_ranks else (),
            fingerprint_every=self.fingerprint_every,
            memory=None if self.memory is None else self.memory.order_for(place),
            keep=self.keep,
            save_every=self.save_every,
            spikes=self.spikes,
            ranks_shown=self.ranks_shown,
            group=group,
        )

    def _fresh_of(self, share: MemberRanks) -> tuple[int, ...]:
        fresh = self._fresh_in_order
        first = bisect_left(fresh, share.first_rank)
        return fresh[first : bisect_left(fresh, share.first_rank + share.local_size, first)]

    @cached_property
    def _fresh_in_order(self) -> tuple[int, ...]:
        return tuple(sorted(self.fresh_ranks))


def _first(of: tuple[int, GroupSeat]) -> int:
    return of[0]


def _first_rank(share: MemberRanks) -> int:
    return share.first_rank


class Seat(msgspec.Struct, frozen=True, tag=True):
    """One member's part of a round: global ranks first_rank .. first_rank + local_size - 1 of `world_size`.

    `place` is the member's among `members`. `fresh_ranks` are those of its own ranks that must be new processes
    even when `entry` is REENTER. `fingerprint_every`, `keep`, `save_every`, `spikes` and `ranks_shown` are as
    in `Round`. `group` None: the round has no replica groups.
    """

    job: str
    number: int
    members: int
    world_size: int
    endpoint: Endpoint
    restore: Restore
    entry: Entry
    reason: str
    place: int
    first_rank: int
    local_size: int
    fresh_ranks: tuple[int, ...] = ()
    fingerprint_every: int = 0
    memory: MemoryOrder | None = None
    keep: int | None = None
    save_every: int | None = None
    spikes: SpikeLimits | None = None
    ranks_shown: int = 0
    group: GroupSeat | None = None


class Idle(msgspec.Struct, frozen=True, tag=True):
    """No round is to run now (forming, backing off, suspended): leave any older round, wait warm."""

    job: str
    number: int
    reason: str


class Closed(msgspec.Struct, frozen=True, tag=True):
    """The job is over: leave, and exit with zero when `succeeded`, otherwise with one."""

    job: str
    number: int
    succeeded: bool
    reason: str


Desired = Round | Idle | Closed
Shown = Seat | Idle | Closed


def shown_to(desired: Desired, member: str) -> Shown:
    """What `member` is shown of what is desired. A spare has nothing to do in a round but to be ready."""
    if not isinstance(desired, Round):
        return desired
    return desired.seat_of(member) or Idle(desired.job, desired.number, desired.reason)
