"""What the watchdog tells of one job to who publishes it, beside the feed. It is asked for once a second."""

import msgspec

from holdfast.api.policy import ReportingPolicy
from holdfast.api.scalars import ScalarsLogged


class KeptScalars(msgspec.Struct, frozen=True):
    """What a rank logged. `number` counts the messages of the job since the watchdog began, from 1 on."""

    number: int
    logged: ScalarsLogged


class Spread(msgspec.Struct, frozen=True, array_like=True):
    """The least, the median and the greatest of what several said."""

    least: float
    median: float
    most: float


class GpuFigures(msgspec.Struct, frozen=True):
    """Over all GPUs of the job that tell: degrees Celsius, Watts, and the share of time in which they worked."""

    temperature_c: Spread | None = None
    power_w: Spread | None = None
    utilization_ratio: Spread | None = None


class Bulletin(msgspec.Struct, frozen=True):
    """One job. `uid` is its TrainingJob's, empty without one.

    `round` is the newest round, and `since` the step that it went on from (None: it began afresh, or nobody said).
    No remedy goes back behind step `final` by itself (None: of no step is that known).

    `scalars` are the messages after the one that was asked for, oldest first. Their numbers are those of `life`:
    with another one they begin anew. `lost` messages before them are not kept any more.
    """

    job: str
    uid: str
    reporting: ReportingPolicy | None
    round: int | None
    since: int | None
    final: int | None
    life: str
    scalars: tuple[KeptScalars, ...] = ()
    lost: int = 0
    gpus: GpuFigures = GpuFigures()
