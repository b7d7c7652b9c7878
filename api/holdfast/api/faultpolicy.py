"""`spec.faultPolicy` of a TrainingJob: how each kind of fault is judged and answered.

Every default is what a user gets unasked.
"""

from datetime import timedelta
from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from holdfast.api.policy import XidAction
from holdfast.api.quantity import Duration, Percent, Share, StepCount, Steps, Timeout, format_duration
from holdfast.api.section import Section, contradiction

Positive = Annotated[float, Field(gt=0)]


class FaultAction(StrEnum):
    """What is done about a node that a detector is sure of."""

    REPORT = "Report"
    RESTART = "Restart"
    EVICT = "Evict"


class NoticeSource(StrEnum):
    """Where notices of preemption are looked for."""

    AUTO = "auto"
    NONE = "none"


class NoticeAction(StrEnum):
    """What is done about a node that is about to be taken away."""

    REPORT = "Report"
    CHECKPOINT = "Checkpoint"
    MIGRATE = "Migrate"


class Heartbeat(Section):
    """How often launchers say that they live, and after how much silence one counts as lost."""

    interval: Duration = timedelta(seconds=1)
    lost: Duration = timedelta(seconds=3)

    @model_validator(mode="after")
    def _one_late_beat_is_no_loss(self) -> Self:
        if self.lost < 2 * self.interval:
            raise contradiction(
                "lost",
                format_duration(self.lost),
                f"write at least twice the interval, {format_duration(2 * self.interval)} or more",
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
    action: FaultAction = FaultAction.EVICT


class Corruption(Section):
    """How silent corruption is looked for."""

    fingerprint_every_steps: Annotated[int, Field(ge=1)] = 100
    self_test_every: Duration = timedelta(minutes=30)
    action: FaultAction = FaultAction.EVICT


class Loss(Section):
    """What is done about spikes and divergence."""

    skip_above_norm: Positive = 20
    rewind_after: StepCount = Steps(50)
    learning_rate_scale: Annotated[float, Field(gt=0, le=1)] = 0.5
    skip_batches: Annotated[int, Field(ge=0)] = 200


class Straggler(Section):
    """When a slow rank is worth a word."""

    slower_than: Share = Percent(0.15)
    sustained: StepCount = Steps(50)
    action: FaultAction = FaultAction.REPORT


class Preemption(Section):
    """What is done about spot notices."""

    source: NoticeSource = NoticeSource.AUTO
    action: NoticeAction = NoticeAction.MIGRATE


class Budget(Section):
    """The blast radius: how many nodes may be evicted before a human is asked."""

    evictions: Annotated[int, Field(ge=0)] = 4
    per: Duration = timedelta(hours=1)
    cluster_fraction: Share = Percent(0.05)


class Restarts(Section):
    """How often a job may be restarted before it counts as failed."""

    max: Annotated[int, Field(ge=0)] = 100
    per: Duration = timedelta(hours=24)
    backoff: Duration = timedelta(seconds=10)


class FaultPolicy(Section):
    """All of it."""

    heartbeat: Heartbeat = Heartbeat()
    hang: Hang = Hang()
    xid: dict[Annotated[int, Field(ge=1, le=1023)], XidAction] = Field(default_factory=dict)
    """Overrides of the catalogue's action, by XID."""
    thermal: Thermal = Thermal()
    corruption: Corruption = Corruption()
    loss: Loss = Loss()
    straggler: Straggler = Straggler()
    preemption: Preemption = Preemption()
    budget: Budget = Budget()
    restarts: Restarts = Restarts()
