"""What a worker process and its launcher say to each other, over a unix socket.

Frames are a four-byte little-endian length and that many bytes of msgpack. A worker that uses
`holdfast.trainer.Run` connects to the socket named by the environment variable `HOLDFAST_CONTROL` and says
`Attached`; an unmodified script never connects and is only ever respawned. The launcher then shows it
`Assignment`s. From `Entering` to `Finished` it is not done, whatever it exits with. When a round ends the worker
is told `RoundEnded`, leaves its process group, says `RoundLeft` and waits for the next assignment. A worker that
does not leave in time is killed and replaced. `SaveWanted` asks the workers of a round for one more checkpoint;
they agree among themselves on the step. `Verified` tells them which checkpoints replicas have vouched for, so that
one of those stays. `Reenters` says which rounds a worker's process can go on to, where that is not every round.

`round_environment` is what a round sets in the environment of its workers: of a new process by the launcher, of a
process that goes on by itself.
"""

import msgspec

from holdfast.api.bounds import Pid, Text, Whole
from holdfast.api.learningrate import factor_at
from holdfast.api.membership import (
    CheckpointCommitted,
    CheckpointsStored,
    CollectiveFailed,
    Restored,
    RoundWord,
    RunDescribed,
)
from holdfast.api.memory import NodeMemory
from holdfast.api.policy import SpikeLimits
from holdfast.api.profile import ProfileTold, ProfileWanted
from holdfast.api.round import Endpoint, GroupSeat, Reentry, Restore, Seat
from holdfast.api.scalars import ScalarsLogged
from holdfast.api.stacks import FlightTold, FlightWanted
from holdfast.api.telemetry import NonFinite

CONTROL_VARIABLE = "HOLDFAST_CONTROL"
RUN_DIRECTORY_VARIABLE = "HOLDFAST_RUN_DIR"
MAX_FRAME_BYTES = 1 << 20
ROLE = "default"


class Assignment(msgspec.Struct, frozen=True, tag=True):
    """Launcher to worker: your part in a round. `fingerprint_every`, `keep`, `save_every`, `spikes` and
    `ranks_shown` are as in `Round`. `group` is its replica group, where there are some: `rank` and `world_size`
    count over all of them.

    `memory` None: no snapshots in memory. `place` is the member's among `members`; `restarts` counts the rounds
    the member ran before this one.
    """

    job: str
    round: int
    rank: int
    local_rank: int
    world_size: int
    local_size: int
    endpoint: Endpoint
    restore: Restore
    reason: str
    fingerprint_every: int = 0
    memory: NodeMemory | None = None
    keep: int | None = None
    save_every: int | None = None
    place: int = 0
    members: int = 1
    restarts: int = 0
    spikes: SpikeLimits | None = None
    ranks_shown: int = 0
    group: GroupSeat | None = None

    def inside(self) -> "Assignment":
        """The part in its own replica group alone, as its ranks count among themselves; itself without groups."""
        if self.group is None:
            return self
        rank, group = self.rank - self.group.first_rank, self.group
        return msgspec.structs.replace(
            self, rank=rank, world_size=group.size, endpoint=group.endpoint, round=group.epoch, group=None
        )

    def goes_on(self, later: "Assignment") -> bool:
        """Whether a process that has this part goes on with `later` without leaving anything."""
        mine, group = self.group, later.group
        return mine is not None and group is not None and mine.epoch == group.epoch

    def learning_rate_factor(self, step: int) -> float:
        """What a script that works out its learning rate at each step multiplies it by at `step`: 1.0, but for a
        while after the job has gone back for its loss. Where storage may not hold the step that was asked for, as
        if it did.
        """
        return factor_at(self.restore.settled(self.restore.step or 0).cuts(), step)

    def batches_to_skip(self, step: int | None) -> int:
        """How many batches a script that restores by itself passes over behind those of `step`, which it restored
        (None: nothing).
        """
        return self.restore.batches_to_skip(step)


def assignment_in(seat: Seat, *, local_rank: int, restarts: int, memory: NodeMemory | None = None) -> Assignment:
    """The part of one local rank of a member in the round in which the member has `seat`."""
    return Assignment(
        job=seat.job,
        round=seat.number,
        rank=seat.first_rank + local_rank,
        local_rank=local_rank,
        world_size=seat.world_size,
        local_size=seat.local_size,
        endpoint=seat.endpoint,
        restore=seat.restore,
        reason=seat.reason,
        fingerprint_every=seat.fingerprint_every,
        memory=memory,
        keep=seat.keep,
        save_every=seat.save_every,
        spikes=seat.spikes,
        ranks_shown=seat.ranks_shown,
        group=seat.group,
        place=seat.place,
        members=seat.members,
        restarts=restarts,
    )


def round_environment(part: Assignment) -> dict[str, str]:
    """What changes from round to round in the environment of a worker: what torchrun sets, and the round's number.
    Of a replica group the ranks are those within it; `HOLDFAST_RANK` is the rank in the round.

    Source: https://docs.pytorch.org/docs/stable/elastic/run.html#environment-variables
    """
    number, rank, part = part.round, part.rank, part.inside()
    return {
        "RANK": str(part.rank),
        "LOCAL_RANK": str(part.local_rank),
        "WORLD_SIZE": str(part.world_size),
        "LOCAL_WORLD_SIZE": str(part.local_size),
        "GROUP_RANK": str(part.place),
        "GROUP_WORLD_SIZE": str(part.members),
        "ROLE_NAME": ROLE,
        "ROLE_RANK": str(part.rank),
        "ROLE_WORLD_SIZE": str(part.world_size),
        "MASTER_ADDR": part.endpoint.host,
        "MASTER_PORT": str(part.endpoint.port),
        "TORCHELASTIC_RESTART_COUNT": str(part.restarts),
        "TORCHELASTIC_RUN_ID": part.job,
        "HOLDFAST_JOB": part.job,
        "HOLDFAST_ROUND": str(number),
        "HOLDFAST_RANK": str(rank),
    }


class RoundEnded(msgspec.Struct, frozen=True, tag=True):
    """Launcher to worker: leave `round` now."""

    round: int
    reason: str


class Attached(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: I am process `pid` and can re-enter rounds."""

    pid: Pid


class Reenters(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher, in a round: my process can go on to these rounds; `because` is what keeps it from more.

    A process that never says it can go on to every round.
    """

    reentry: Reentry
    because: Text


class Entering(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: training has been asked for, and I form the process group of `round`.

    From here on until `Finished` the process is not done, whatever it exits with.
    """

    round: Whole


class Entered(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: the process group of `round` stands and the training function runs."""

    round: Whole


class RoundLeft(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: `round` is left, its process group destroyed; ready for the next.

    `step` is the last step the worker completed in it, None when it completed none.
    """

    round: Whole
    step: Whole | None = None


class AtTheDoor(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: I wait at a step boundary, in the replica group of `epoch`, for the other groups."""

    epoch: Whole


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: the training function returned on every rank; the process is about to exit with zero.

    `nonfinite` is the worker's last word on its steps and parameters, None where all that it knows was finite.
    """

    round: Whole
    nonfinite: NonFinite | None = None


ToWorker = Assignment | RoundEnded | RoundWord | FlightWanted | ProfileWanted
FromWorker = (
    Attached
    | Reenters
    | Entering
    | Entered
    | RoundLeft
    | CollectiveFailed
    | CheckpointCommitted
    | CheckpointsStored
    | RunDescribed
    | Restored
    | ScalarsLogged
    | AtTheDoor
    | Finished
    | FlightTold
    | ProfileTold
)


def record_file_name(local_rank: int) -> str:
    """The rank record's file name inside the node's run directory."""
    return f"rank-{local_rank:03d}.record"
