"""What people read: a job's state and its ranks, as the watchdog knows them now."""

import math
from enum import StrEnum

import msgspec

from holdfast.api.condition import Condition
from holdfast.api.finding import ProvedBy
from holdfast.api.place import Gathering
from holdfast.api.rankrecord import Phase
from holdfast.api.selftest import TestLevel
from holdfast.api.telemetry import GpuSample, ProcessState, Unreadable


class NotFinite(StrEnum):
    """A measured value that is no finite number, as it is spelled where JSON, which has no such numbers, is read.

    Unknown is another matter: it is null.
    """

    NAN = "nan"
    INFINITE = "inf"
    MINUS_INFINITE = "-inf"


Reading = float | NotFinite
"""A measured value."""


def reading(value: float | None) -> Reading | None:
    """`value` as it is read; None stays Unknown."""
    if value is None or math.isfinite(value):
        return value
    if math.isnan(value):
        return NotFinite.NAN
    return NotFinite.INFINITE if value > 0.0 else NotFinite.MINUS_INFINITE


class JobPhase(StrEnum):
    """Where a job is in its life."""

    PENDING = "Pending"  # accepted; fewer members than it needs
    PREFLIGHT = "Preflight"
    FORMING = "Forming"  # the minimum has joined; waiting shortly for the rest
    RUNNING = "Running"
    STALLED = "Stalled"  # as Running, and no step has been seen for long; it is shown, nothing is decided by it
    RECOVERING = "Recovering"  # a round was shown after a fault, no new step yet; or waiting for capacity
    SUSPENDED = "Suspended"
    SUCCEEDED = "Succeeded"
    FAILED = "Failed"
    INVALID = "Invalid"  # its spec is refused, so nothing was made of it; only the operator says so


class Membership(msgspec.Struct, frozen=True):
    """How many launchers are wanted and there.

    `joined` have ranks, or are on their way to get some; `spares` are beyond them. `ready` are those of the joined
    that train: all of them before the first step, none while the phase is Stalled. `joined` is None where an
    earlier version counted, whose `ready` are those that joined, and in what is read from a record.
    """

    wanted: int
    ready: int
    spares: int
    joined: int | None = None

    @property
    def there(self) -> int:
        """Those that joined, whether or not anybody sees them train."""
        return self.ready if self.joined is None else self.joined


class Checkpoint(msgspec.Struct, frozen=True):
    """A committed checkpoint. `at` is the watchdog's clock.

    `stall_s` is how long training stood still for it, `took_s` how long until it was committed; None: Unknown.
    """

    step: int
    uri: str
    round: int
    at: float
    stall_s: float | None = None
    took_s: float | None = None


class Cadence(msgspec.Struct, frozen=True):
    """How far apart checkpoints are, in seconds or steps, and why."""

    says: str
    every_s: float | None = None
    steps: int | None = None


class MeasuredRate(msgspec.Struct, frozen=True):
    """Bytes a second that self-tests of one kind measured, `count` times: their mean, and the least, on `node`."""

    check: str
    mean: float
    least: float
    node: str
    count: int


class PendingTest(msgspec.Struct, frozen=True):
    """A self-test that was asked of a member `at` (watchdog's clock) and is not answered yet. Of one that `bars`,
    the member gets no ranks before it has answered. `waits_for` is what keeps such a one from beginning, empty
    once nothing does.
    """

    member: str
    node: str
    level: TestLevel
    reason: str
    at: float
    bars: bool
    waits_for: str = ""


class Bill(msgspec.Struct, frozen=True):
    """What a job has cost so far, in the currency; `budget` is what it may cost, and from `alert_ratio` of it on
    somebody is told. None: nobody says.
    """

    gpu_hours: float
    amount: float
    currency: str
    budget: float | None = None
    alert_ratio: float | None = None


class Causes(msgspec.Struct, frozen=True):
    """Of a job's newest incidents: of how many the cause is known, of how many of these it was within
    `incident.CAUSE_WITHIN_S` of their detection, of how many it is not known, and the median time to it (None:
    none is known).
    """

    known: int
    within: int
    unknown: int
    median_s: float | None = None


class JobStatus(msgspec.Struct, frozen=True):
    """One job. `step` is the lowest last completed step over the ranks of the round, None when Unknown.

    `ettr` is the useful training time over the wall time since the first member joined, suspensions left out; None
    before that, and for a script that publishes no steps. `verified_step` is the last step after which what all
    ranks held is known to be right, by `verified_by`; None: nothing ever told. `cadence` None: the script alone
    says when a checkpoint is due. `loss` is the mean over the ranks that know theirs, not finite when one of
    theirs is not; it is the newest of the newest round, also when that has ended. After `unhealthy_from`, in the
    history that goes on, some rank's loss or gradient norm was not finite (None: none). `ended_at` is when the job
    succeeded or failed, None before. `observed`: what would be done about faults is told, and nothing is done.
    `step_age_s` is how long ago the newest step was complete, while the job trains; None when no step is seen.
    `tests` are the self-tests that are waited for, the first 16 of `tests_total`. `unfollowed` is why the script
    could not do what `faultPolicy.loss` asks for, empty while nothing speaks against it. `bill` is what it has
    cost; None without a price, and before the first member joined. `until_step` is the last step that the script
    means to make, None where it does not say. `causes` is how soon the causes of its newest 256 incidents were
    known; None without one. `links` is what the newest test of the links between nodes came to, empty without one.
    `gatherings` are the places behind which faults of all jobs gather and this one has nodes. `rates` are what
    self-tests have measured, `plan` is what of that is worse than the job's plan counts on, empty where nothing
    is.
    """

    job: str
    phase: JobPhase
    reason: str
    round: int | None
    members: Membership
    world_size: int
    step: int | None
    loss: Reading | None
    step_time_s: float | None
    restarts: int
    evictions: int
    incidents_open: int
    incidents_total: int
    last_checkpoint: Checkpoint | None
    avoided_nodes: tuple[str, ...]
    now: float
    ettr: float | None = None
    verified_step: int | None = None
    cadence: Cadence | None = None
    ended_at: float | None = None
    unhealthy_from: int | None = None
    verified_by: ProvedBy | None = None
    observed: bool = False
    step_age_s: float | None = None
    tests: tuple[PendingTest, ...] = ()
    tests_total: int = 0
    unfollowed: str = ""
    bill: Bill | None = None
    until_step: int | None = None
    causes: Causes | None = None
    links: str = ""
    gatherings: tuple[Gathering, ...] = ()
    rates: tuple[MeasuredRate, ...] = ()
    plan: str = ""


class RankStatus(msgspec.Struct, frozen=True):
    """One rank of the round. `None` is Unknown; `heard_age_s` is how old the newest sample is, `batch_step` the
    newest step of this round whose batch it told of. `waited_s` and `tokens` are sums over its steps of this round
    but the first: for how long it waited with nothing to do, and what it trained.
    """

    rank: int
    member: str
    node: str
    process: ProcessState
    phase: Phase | None = None
    step: int | None = None
    loss: Reading | None = None
    grad_norm: Reading | None = None
    step_time_s: float | None = None
    progress_age_s: float | None = None
    heard_age_s: float | None = None
    pid: int | None = None
    local_grad_norm: Reading | None = None
    batch_step: int | None = None
    waited_s: float | None = None
    tokens: int | None = None


class Hearing(StrEnum):
    """Whether a node's agent reports."""

    HEARD = "Heard"
    SILENT = "Silent"  # for so long that what it said of its GPUs says nothing of them now
    ENDED = "Ended"  # the job is over: this is what it said last


class NodeStatus(msgspec.Struct, frozen=True):
    """One node as its agent last reported it; `SILENT` leaves its GPUs Unknown.

    `unreadable` are sources of which nothing is known. `avoided` is why the job keeps away from it, empty while it
    does not; `known` is what all jobs together hold against it, empty when nothing. `tested` is the self-test that
    one of its members was asked for and has not answered, or what a test said of its links; empty when none.
    """

    node: str
    heard_age_s: float
    gpus: tuple[GpuSample, ...] = ()
    conditions: tuple[Condition, ...] = ()
    unreadable: tuple[Unreadable, ...] = ()
    avoided: str = ""
    known: str = ""
    hearing: Hearing = Hearing.HEARD
    tested: str = ""


class LastSeen(msgspec.Struct, frozen=True):
    """What was last known of a job that is over, or whose watchdog was stopped, at `at` (watchdog's clock).

    Ages are those at `at`.
    """

    at: float
    status: JobStatus
    ranks: tuple[RankStatus, ...] = ()
    nodes: tuple[NodeStatus, ...] = ()
