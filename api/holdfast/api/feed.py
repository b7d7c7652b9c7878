"""What the watchdog streams to whoever watches its jobs: consoles and trackers.

A subscriber says `FeedHello` and then only listens. It is told of every job at first, and of what changed after
that. Each message stands for itself and takes the place of the one before of the same kind, job and, of incidents,
id: who falls behind is shown only the newest of each. Times are seconds on the watchdog's clock.

What is known of each rank or GPU travels as columns: little-endian numbers, one for each. Their order is told in
`PlacesTold` and `GpusTold`; columns of another `layout` than the newest say nothing.
"""

import msgspec

from holdfast.api.bounds import Figure, Job, Name
from holdfast.api.condition import Condition
from holdfast.api.incident import Incident
from holdfast.api.policy import ModelFlops
from holdfast.api.status import JobStatus
from holdfast.api.telemetry import GpuHealth, ProcessState

FEED_PATH = "/v1/feed"
FEED_BYTES_MAX = 64 * 1024 * 1024
"""A subscriber's limit for one message: the names of 12,500 nodes and their GPUs take some 5 MB."""

PROCESS_STATES: tuple[ProcessState, ...] = tuple(ProcessState)
"""What a byte of the column `process` stands for, by its number."""

GPU_HEALTHS: tuple[GpuHealth, ...] = tuple(GpuHealth)
"""What a byte of the column `health` of GPUs stands for, by its number."""

UNKNOWN_STEP = -1


class FeedHello(msgspec.Struct, frozen=True, tag=True):
    """First and only message of a subscriber. `client` is what it is called in the watchdog's log."""

    client: Name


class Pulse(msgspec.Struct, frozen=True, tag=True):
    """Said every second, also when nothing changed: what was told before holds `at` this time."""

    at: float


class Hour(msgspec.Struct, frozen=True):
    """What an hour costs. `currency` is an ISO 4217 code."""

    amount: Figure
    currency: Name


class JobTold(msgspec.Struct, frozen=True, tag=True):
    """One job's status, and what its figures are made of where its spec says it: MFU and money.

    `hour` is what all GPUs that it holds cost for an hour.
    """

    job: Job
    status: JobStatus
    flops: ModelFlops | None = None
    hour: Hour | None = None


class JobGone(msgspec.Struct, frozen=True, tag=True):
    """The watchdog has forgotten the job."""

    job: Job


class IncidentTold(msgspec.Struct, frozen=True, tag=True):
    """One incident as it is now."""

    job: Job
    incident: Incident


class NodeRanks(msgspec.Struct, frozen=True, array_like=True):
    """A member's ranks: `count` of them from `first` on, on the node with this index."""

    node: int
    first: int
    count: int


class PlacesTold(msgspec.Struct, frozen=True, tag=True):
    """Where the job is: its nodes by index, each node's failure domain (empty: not known), who has which ranks.

    `round` None: none runs. `order` are the ranks heard of (u32), in the order of the columns in `RanksTold` and
    `StepsTold`.
    """

    job: Job
    layout: int
    round: int | None
    world: int
    nodes: tuple[Name, ...]
    racks: tuple[Name, ...]
    ranks: tuple[NodeRanks, ...]
    order: bytes


class RanksTold(msgspec.Struct, frozen=True, tag=True):
    """What each rank does now: `phase` (u8, a `rankrecord.Phase`) and `process` (u8, one of `PROCESS_STATES`)."""

    job: Job
    layout: int
    phase: bytes
    process: bytes


class Waited(msgspec.Struct, frozen=True, array_like=True):
    """Sums over a sample of the ranks, in seconds since their round began: all of their steps' time, and what of
    it they waited for others with nothing to do.
    """

    wall_s: float
    waited_s: float


class StepColumns(msgspec.Struct, frozen=True, array_like=True):
    """The newest step of each rank: `step` (i32, UNKNOWN_STEP), and of that step the others (f32, NaN: not known,
    or no number).
    """

    step: bytes = b""
    step_s: bytes = b""
    loss: bytes = b""
    grad_norm: bytes = b""
    tokens: bytes = b""


class StepsTold(msgspec.Struct, frozen=True, tag=True):
    """What the ranks' newest steps were like, read `at` this time. `waited` None: nothing tells of it."""

    job: Job
    layout: int
    at: float
    columns: StepColumns
    waited: Waited | None = None


class NodeRemark(msgspec.Struct, frozen=True, array_like=True):
    """What there is to say of the node with this index: as in `status.NodeStatus`, and whether it is silent."""

    node: int
    silent: bool = False
    avoided: str = ""
    known: str = ""
    tested: str = ""
    conditions: tuple[Condition, ...] = ()


class NodesTold(msgspec.Struct, frozen=True, tag=True):
    """The nodes of which there is something to say; nothing is to be said of the others."""

    job: Job
    layout: int
    remarks: tuple[NodeRemark, ...]


class GpusTold(msgspec.Struct, frozen=True, tag=True):
    """The UUIDs of each node's GPUs, by the node's index."""

    job: Job
    layout: int
    uuids: tuple[tuple[Name, ...], ...]


class HeatTold(msgspec.Struct, frozen=True, tag=True):
    """Each GPU in the order of `GpusTold`: `health` (u8, one of `GPU_HEALTHS`), `temperature_c` (f32, NaN)."""

    job: Job
    layout: int
    health: bytes
    temperature_c: bytes


Told = (
    Pulse | JobTold | JobGone | IncidentTold | PlacesTold | RanksTold | StepsTold | NodesTold | GpusTold | HeatTold
)


class Whoami(msgspec.Struct, frozen=True):
    """Who holds a token, and what of `view`, `logs` and `operate` that allows: of the job asked about, or of all.

    `namespaces` are those whose jobs the caller may list.
    """

    name: str
    may: tuple[str, ...]
    namespaces: tuple[str, ...]
