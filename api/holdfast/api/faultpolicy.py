"""`spec.faultPolicy` of a TrainingJob: how each kind of fault is judged and answered.

Every default is what a user gets unasked.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from holdfast.api.bounds import COUNT_MAX, STEPS_MAX
from holdfast.api.condition import ConditionKind
from holdfast.api.policy import FaultAction, NoticeAction, SlowAction, XidAction
from holdfast.api.quantity import (
    Duration,
    Excess,
    Percent,
    Share,
    StepCount,
    Steps,
    Sustained,
    Timeout,
    format_duration,
)
from holdfast.api.section import Section, contradiction

LOST_FIX = "write at least twice the interval"
LOSS_FIX = "write learningRateScale below 1 as well, or leave this out"


class NoticeSource(StrEnum):
    """Where notices of preemption are looked for."""

    AUTO = "auto"
    NONE = "none"


class Heartbeat(Section):
    """How often launchers say that they live, and after how much silence one counts as lost."""

    interval: Duration = timedelta(seconds=1)
    """Time from one beat to the next."""
    lost: Duration = timedelta(seconds=3)
    """After this much silence a launcher counts as lost: at least twice the interval."""

    @model_validator(mode="after")
    def _one_late_beat_is_no_loss(self) -> Self:
        if self.lost < 2 * self.interval:
            raise contradiction(
                "lost",
                format_duration(self.lost),
                f"{LOST_FIX}, {format_duration(2 * self.interval)} or more",
            )
        return self


class Hang(Section):
    """When a round that makes no progress counts as hung."""

    timeout: Timeout = None
    """auto: from the job's own step times, per phase of the step."""


class Thermal(Section):
    """When a hot GPU counts as slowed down."""

    slowdown_margin_c: Annotated[float, Field(ge=0, le=50, alias="slowdownMarginC")] = 3
    """Degrees Celsius below the slowdown temperature of the device."""
    sustained: Duration = timedelta(seconds=60)
    """For how long it has to be that hot."""
    action: FaultAction = FaultAction.EVICT
    """What is done about the node."""


class Corruption(Section):
    """How silent corruption is looked for."""

    fingerprint_every_steps: Annotated[int, Field(ge=1, le=STEPS_MAX)] = 100
    """Steps from one comparison of the replicas' fingerprints to the next."""
    self_test_every: Duration = timedelta(minutes=30)
    """Time from one self-test of a spare's GPUs to the next."""
    action: FaultAction = FaultAction.EVICT
    """What is done about a node that computes wrong."""


class Loss(Section):
    """What is done about a loss that rises and does not come back, and about a gradient that is far too large."""

    rewind_after: StepCount = Steps(50)
    """For so many steps it has to be too high, on most ranks; a spike that passes sooner is no fault."""
    learning_rate_scale: Annotated[float, Field(gt=0, le=1)] = 1.0
    """What the learning rate is multiplied by when the job has gone back."""
    learning_rate_steps: Annotated[int, Field(ge=1, le=STEPS_MAX)] | None = None
    """Up to the first bad step and for so many more; then the learning rate is as before. Without: for good."""
    skip_batches: Annotated[int, Field(ge=0, le=STEPS_MAX)] = 0
    """All batches from the checkpoint up to the first bad step, and so many more, are passed over. 0: none are."""
    skip_above_norm: Annotated[float, Field(gt=1, le=1e6)] | None = None
    """The script's SpikeGuard leaves out a step whose gradient norm is more than so many times the running mean.
    Without: what the script says, else 20."""
    clip_deviations: Annotated[float, Field(gt=0, le=1e6)] | None = None
    """It clips at the running mean plus so many standard deviations. Without: what the script says, else 4."""

    @model_validator(mode="after")
    def _what_is_cut_for_a_while_is_cut(self) -> Self:
        if self.learning_rate_steps is not None and self.learning_rate_scale == 1.0:
            raise contradiction("learningRateSteps", str(self.learning_rate_steps), LOSS_FIX)
        return self


class Straggler(Section):
    """When a rank that all others wait for counts as slow, and what may be done about its node."""

    slower_than: Excess = None
    """auto: beyond the job's own noise, and 5% of a step at least."""
    sustained: Sustained = None
    """For so many steps it has to be slow. auto: until it cannot be chance."""
    action: SlowAction = SlowAction.REPORT
    """How far it may go for a node that is slow. Swap: a spare takes its ranks, once. Evict: and the node leaves,
    if they are not slow elsewhere."""


class Preemption(Section):
    """What is done about spot notices."""

    source: NoticeSource = NoticeSource.AUTO
    """none: notices are recorded, and nothing is done about them."""
    action: NoticeAction = NoticeAction.MIGRATE
    """What is done about the node."""


class Budget(Section):
    """The blast radius: how many nodes may be evicted before a human is asked."""

    evictions: Annotated[int, Field(ge=0, le=COUNT_MAX)] | None = None
    """At most so many nodes leave the job in the time given by per. By default 4, and 1 for each 1024 nodes."""
    per: Duration = timedelta(hours=1)
    """The time that evictions are counted over."""
    cluster_fraction: Share = Percent(0.05)
    """At most this share of the job's nodes is avoided at once."""


class Restarts(Section):
    """How often a job may be restarted before it counts as failed."""

    max: Annotated[int, Field(ge=0, le=COUNT_MAX)] | None = None
    """At most so many restarts in the time given by per; one more and the job has failed.

    By default 100, and 1 for each 32 nodes.
    """
    per: Duration = timedelta(hours=24)
    """The time that restarts are counted over."""
    backoff: Duration = timedelta(seconds=10)
    """The wait before the second restart without progress; it doubles from then on."""


class FaultPolicy(Section):
    """All of it."""

    heartbeat: Heartbeat = Heartbeat()
    """How a launcher shows that it lives."""
    hang: Hang = Hang()
    """When a round counts as hung."""
    xid: dict[Annotated[int, Field(ge=1, le=1023)], XidAction] = Field(default_factory=dict, max_length=1023)
    """Overrides of the catalogue's action, by XID."""
    conditions: dict[ConditionKind, XidAction] = Field(default_factory=dict, max_length=len(ConditionKind))
    """Overrides of the action about lasting conditions of GPUs, links and nodes, by kind."""
    thermal: Thermal = Thermal()
    """When a GPU is too hot."""
    corruption: Corruption = Corruption()
    """How silent corruption is looked for."""
    loss: Loss | None = None
    """When the job goes back for its loss. Without: never."""
    straggler: Straggler = Straggler()
    """When a rank is slow."""
    preemption: Preemption = Preemption()
    """What is done about spot notices."""
    budget: Budget = Budget()
    """How many nodes may be evicted before a human is asked."""
    restarts: Restarts = Restarts()
    """How often the job may be restarted before it has failed."""
