"""What an agent reports about its node: rank samples, GPU samples and events, one message per interval.

Ages, not times, travel: the agent computes them on its own monotonic clock when it takes the sample, the
watchdog subtracts them from its own clock at arrival. No wall clock of two machines is ever compared.
"""

from enum import StrEnum
from typing import Annotated

import msgspec

from holdfast.api.bounds import Bits, Code, Figure, Job, Many, Name, Pid, Rank, Seconds, Text, Whole
from holdfast.api.condition import AllClear, Condition
from holdfast.api.nvlink5 import LinkFault
from holdfast.api.rankrecord import Phase


class ProcessState(StrEnum):
    """What the kernel says of a worker process."""

    RUNNING = "Running"
    STOPPED = "Stopped"  # SIGSTOP or a debugger
    BLOCKED = "Blocked"  # uninterruptible sleep
    GONE = "Gone"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "ProcessState":
        """What a later version tells."""
        return cls.UNKNOWN


class NonFinite(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Steps of a rank in this round whose loss or gradient norm was not finite, and that were not skipped.

    `step` is the first of them, noticed `age_s` ago, `last` the newest and `count` how many. `loss` and
    `grad_norm` are what they were at the first: `nan`, `inf` or `-inf`; empty: finite or not measured.
    `parameters` says that neither tells of it, and that the parameters were not finite when the rank saved or had
    finished.
    """

    step: Whole
    age_s: Seconds
    last: Whole
    count: Whole
    loss: Text = ""
    grad_norm: Text = ""
    parameters: bool = False


class RankNonFinite(msgspec.Struct, frozen=True):
    """What one rank said of such steps when it had finished its round."""

    rank: Rank
    nonfinite: NonFinite


class SkippedSteps(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """Steps that all ranks of this round agreed to leave out: the newest, how many, and what this rank's own
    values were at the newest, as in `NonFinite`.
    """

    step: Whole
    count: Whole
    loss: Text = ""
    grad_norm: Text = ""


class StepWork(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """What the steps of a rank's round were made of, in sums over the `steps` that followed its first one.

    Seconds. `wall_s` is all of it; of it the rank waited for data, saved and was not training on purpose; of the
    rest, its training, it waited with nothing to do (for other ranks, as a rule), was ready without a processor
    (`delayed_s`) and collected garbage. While it was stopped (`stopped_s`, as the agent saw it) it seemed to wait.
    None is Unknown. `tokens` and `longest` are what the script told of each step: tokens, and the longest
    sequence. `workers` are the processes that load its data; 0: it does so itself. `own_s`, a part of its
    training, is what the script did behind its steps, before it asked for the next batch: what its thread ran,
    without its waits and delays where these are known.
    """

    steps: Whole
    wall_s: Seconds
    data_s: Seconds
    checkpoint_s: Seconds
    idle_s: Seconds
    collected_s: Seconds
    waited_s: Seconds | None = None
    delayed_s: Seconds | None = None
    stopped_s: Seconds = 0.0
    tokens: Whole | None = None
    longest: Whole | None = None
    workers: Whole | None = None
    own_s: Seconds = 0.0


class BatchAgain(msgspec.Struct, frozen=True, gc=False, array_like=True):
    """A rank's batch of `step` is one that its process had taken before, for `first`; so often since it began."""

    step: Whole
    first: Whole
    count: Whole


class RankSample(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """One rank as its agent last saw it. `None` is Unknown.

    `progress_age_s`: since the training loop last published anything; `pulse_age_s`: since the side thread
    last beat; `phase_age_s`: since the phase began. `step` is the last completed step of this round. `grad_norm`
    is what the script says, as a rule of the reduced gradient; `local_grad_norm` of the rank's own, before that. A
    loss or gradient norm that was measured may be NaN or infinite. `nonfinite` and `skipped` tell of the whole
    round, so that one bad step between two samples is not missed.

    `work` is what its steps were made of, and `again` the newest batch that it took twice. `worked_s` is the time
    of processors that its process used since the training loop last published; told once that is a second ago.

    `member` is the pod whose word this is, as the kubelet knows it; empty where the launcher and the agent are of
    one owner. So it is of what ranks say below.
    """

    round: Whole
    rank: Rank
    process: ProcessState
    phase: Phase
    progress_age_s: Seconds
    phase_age_s: Seconds
    pulse_age_s: Seconds | None = None
    pid: Pid | None = None
    step: Whole | None = None
    step_time_s: Seconds | None = None
    loss: float | None = None
    grad_norm: float | None = None
    tokens: Whole | None = None
    collective_sequence: Whole | None = None
    snapshot_step: Whole | None = None
    nonfinite: NonFinite | None = None
    skipped: SkippedSteps | None = None
    local_grad_norm: float | None = None
    member: Name = ""
    work: StepWork | None = None
    again: BatchAgain | None = None
    worked_s: Seconds | None = None


class Unreadable(msgspec.Struct, frozen=True):
    """A source that could not be read. Unknown is a state of its own, never Healthy."""

    source: Text
    reason: Text


class GpuHealth(StrEnum):
    """An agent's reading of one GPU."""

    HEALTHY = "Healthy"
    FAILED = "Failed"
    UNKNOWN = "Unknown"

    @classmethod
    def _missing_(cls, value: object) -> "GpuHealth":
        """What a later version tells."""
        return cls.UNKNOWN


class GpuSample(msgspec.Struct, frozen=True, omit_defaults=True):
    """One GPU. `None` is Unknown.

    `margin_c` is how much hotter it may get before it slows itself down; negative: it does. `throttled_s` counts
    the seconds it was held down for heat since the driver was loaded. `throttle` are the reasons why its clocks
    are held down now, as NVML's bits. `memory_used_bytes` are those that are in use, whoever uses them.
    """

    uuid: Name
    index: Code
    health: GpuHealth
    temperature_c: Figure | None = None
    memory_temperature_c: float | None = None
    power_w: float | None = None
    utilization_ratio: float | None = None
    margin_c: Figure | None = None
    throttled_s: Figure | None = None
    throttle: Bits | None = None
    memory_used_bytes: Figure | None = None


class XidRaised(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """The driver reported an XID error on one GPU.

    `recovery_action` is XID 154's code where present, `link_fault` what comes with an XID from 144 to 150.
    """

    gpu: Name
    xid: Whole
    age_s: Seconds
    text: Text = ""
    recovery_action: Code | None = None
    link_fault: LinkFault | None = None


class GpuDisappeared(msgspec.Struct, frozen=True, tag=True):
    """A GPU that answered before answers no more, or the driver says it fell off the bus."""

    gpu: Name
    age_s: Seconds
    text: Text = ""


class ParametersFingerprinted(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A rank fingerprinted its parameters after completing `step`.

    Ranks of one round with the same `group` hold the same parameters, so that at equal steps their `value`s must
    be equal.
    """

    round: Whole
    rank: Rank
    group: Bits
    step: Whole
    value: Bits
    age_s: Seconds
    member: Name = ""


class DeviceAnswered(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A rank ran the fixed block on its device after completing `step`, and it came to `value`.

    The block and its input are always the same, so wherever `device` is equal, `value` must be, in every round and
    after every step. By then the rank had looked at its parameters in `looks` pauses between two updates without
    finding a change; 0: nobody could tell when they are updated.
    """

    round: Whole
    rank: Rank
    device: Bits
    step: Whole
    value: Bits
    looks: Whole
    age_s: Seconds
    member: Name = ""


class ParametersChanged(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A rank's parameters changed between the end of `step` and the next update, though nothing wrote to them: in
    one bit (`is_flip`), as memory changes them, or in more, as a script does.
    """

    round: Whole
    rank: Rank
    step: Whole
    age_s: Seconds
    is_flip: bool = True
    member: Name = ""


class BatchTaken(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """A rank took these samples for `step`: `value` names them, whatever their order.

    The values of all ranks add up (modulo 2**64) to that of the step's whole batch, however many ranks share it.
    Told of some steps, about one a second: of those that a power of two divides, so that all ranks tell of many of
    the same.
    """

    round: Whole
    rank: Rank
    step: Whole
    value: Bits
    age_s: Seconds
    samples: Whole | None = None
    tokens: Whole | None = None
    member: Name = ""


class PreemptionNoticed(msgspec.Struct, frozen=True, tag=True):
    """Whoever owns the machine says that it takes it away, `within_s` seconds after the notice was seen."""

    source: Text
    within_s: Seconds
    age_s: Seconds
    text: Text = ""


class ProcessKilledForMemory(msgspec.Struct, frozen=True, tag=True):
    """The kernel killed process `pid` because memory had run out.

    `own_limit`: that of its own pod or job, up to a limit; False also where the kernel does not say whose.
    """

    pid: Pid
    name: Name
    age_s: Seconds
    text: Text = ""
    own_limit: bool = False


NodeEvent = (
    XidRaised
    | GpuDisappeared
    | ParametersFingerprinted
    | DeviceAnswered
    | ParametersChanged
    | BatchTaken
    | PreemptionNoticed
    | ProcessKilledForMemory
)
Statement = ParametersFingerprinted | DeviceAnswered | BatchTaken
"""What a sound rank says again and again. It proves nothing before it is compared with what others say."""


class AgentHello(msgspec.Struct, frozen=True, tag=True):
    """First message of an agent's connection. `boot` names this run of the agent: sequences restart with it."""

    node: Name
    boot: Name
    job: Job


class NodeReport(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """One node's telemetry. `sequence` grows by one per report of a `boot`; a repeated one is a duplicate.

    `conditions` are all that hold now, and for a minute those that cleared. `all_clear` is told now and then; a
    report without it says nothing.
    """

    node: Name
    boot: Name
    sequence: Whole
    ranks: Annotated[tuple[RankSample, ...], Many] = ()
    gpus: Annotated[tuple[GpuSample, ...], Many] = ()
    events: Annotated[tuple[NodeEvent, ...], Many] = ()
    unreadable: Annotated[tuple[Unreadable, ...], Many] = ()
    conditions: Annotated[tuple[Condition, ...], Many] = ()
    all_clear: Annotated[tuple[AllClear, ...], Many] = ()


class Pace(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to agent: how often to report, and when not to wait for the interval.

    A rank whose `progress_age_s` passes `stalled_after_s` is reported at once; None means never early.
    The watchdog alone judges what a stall means; the agent only chooses when to send the next sample.
    """

    interval_s: float
    stalled_after_s: float | None = None


class ReportTaken(msgspec.Struct, frozen=True, tag=True):
    """Watchdog to agent: reports of this boot up to `sequence` are taken and need not be kept."""

    sequence: int


FromAgent = AgentHello | NodeReport
ToAgent = Pace | ReportTaken
