"""The round: one agreed membership with its rank assignment, and the other things a launcher may be shown.

What a launcher is shown is a desired state (`Desired`). It makes its local workers match it, whatever it held
before: a launcher that holds round 7 and is shown round 8 leaves 7 and enters 8. Round numbers only grow; the
number is the fence, so a worker of an older round may neither commit a checkpoint nor count as evidence.
"""

from enum import StrEnum

import msgspec


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

    NONE = "None"  # nothing was ever saved: start from the beginning
    CHECKPOINT = "Checkpoint"
    MEMORY = "Memory"


class Restore(msgspec.Struct, frozen=True):
    """The restore directive: what a worker loads before its first step of a round.

    `step` is the newest step the round may restore; the checkpoint library falls back to an older one when
    that one proves damaged, and reports the step it truly restored. None with Tier.CHECKPOINT means "the
    newest intact one found at `uri`" (a watchdog that has not yet seen a commit). `uri` is the place that holds
    the job's checkpoints, as the job names it; empty when only the script knows. `owner` names this life of the
    job: its rounds are numbered from the start, and take over what an earlier life left at the same place.
    """

    tier: Tier = Tier.NONE
    step: int | None = None
    uri: str = ""
    skip_batches: int = 0
    learning_rate_scale: float = 1.0
    owner: str = ""


class Entry(StrEnum):
    """How workers come into the round."""

    REENTER = "ReEnter"  # a live worker leaves its round and enters this one in the same process
    RESPAWN = "Respawn"  # every worker is a new process


class Round(msgspec.Struct, frozen=True, tag=True):
    """One agreed membership. `fresh_ranks` must be new processes even when `entry` is REENTER (culprits)."""

    job: str
    number: int
    ranks: tuple[MemberRanks, ...]
    endpoint: Endpoint
    restore: Restore
    entry: Entry
    reason: str
    fresh_ranks: tuple[int, ...] = ()

    @property
    def world_size(self) -> int:
        return sum(share.local_size for share in self.ranks)

    def share_of(self, member: str) -> MemberRanks | None:
        """The member's ranks, or None when it is a spare in this round."""
        return next((share for share in self.ranks if share.member == member), None)

    def member_of(self, rank: int) -> MemberRanks | None:
        """Who runs `rank`, or None when it is outside the world."""
        for share in self.ranks:
            if share.first_rank <= rank < share.first_rank + share.local_size:
                return share
        return None


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
