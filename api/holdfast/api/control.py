"""What a worker process and its launcher say to each other, over a unix socket.

Frames are a four-byte little-endian length and that many bytes of msgpack. A worker that uses
`holdfast.trainer.Run` connects to the socket named by the environment variable `HOLDFAST_CONTROL` and says
`Attached`; an unmodified script never connects and is only ever respawned. The launcher then shows it
`Assignment`s. When a round ends the worker is told `RoundEnded`, leaves its process group, says `RoundLeft`
and waits for the next assignment. A worker that does not leave in time is killed and replaced. `SaveWanted`
asks the workers of a round for one more checkpoint; they agree among themselves on the step. `Verified` tells them
which checkpoints replicas have vouched for, so that one of those stays.
"""

import msgspec

from holdfast.api.membership import CheckpointCommitted, CollectiveFailed, Restored, RoundWord
from holdfast.api.memory import NodeMemory
from holdfast.api.round import Endpoint, Restore

CONTROL_VARIABLE = "HOLDFAST_CONTROL"
RUN_DIRECTORY_VARIABLE = "HOLDFAST_RUN_DIR"
MAX_FRAME_BYTES = 1 << 20


class Assignment(msgspec.Struct, frozen=True, tag=True):
    """Launcher to worker: your part in a round. `fingerprint_every` and `keep` are as in `Round`.

    `memory` None: no snapshots in memory.
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


class RoundEnded(msgspec.Struct, frozen=True, tag=True):
    """Launcher to worker: leave `round` now."""

    round: int
    reason: str


class Attached(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: I am process `pid` and can re-enter rounds."""

    pid: int


class Entered(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: the process group of `round` stands and the training function runs."""

    round: int


class RoundLeft(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: `round` is left, its process group destroyed; ready for the next.

    `step` is the last step the worker completed in it, None when it completed none.
    """

    round: int
    step: int | None = None


class Finished(msgspec.Struct, frozen=True, tag=True):
    """Worker to launcher: the training function returned; the process is about to exit with zero."""

    round: int


ToWorker = Assignment | RoundEnded | RoundWord
FromWorker = Attached | Entered | RoundLeft | CollectiveFailed | CheckpointCommitted | Restored | Finished


def record_file_name(local_rank: int) -> str:
    """The rank record's file name inside the node's run directory."""
    return f"rank-{local_rank:03d}.record"
