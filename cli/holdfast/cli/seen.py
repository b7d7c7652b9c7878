"""A job's status as a command shows it: from the watchdog, or, when that is away, from the TrainingJob's record.

What the record does not keep is None, Unknown; it is never made up.
"""

from enum import StrEnum

import msgspec

from holdfast.api.status import Cadence, JobStatus, Membership


class Source(StrEnum):
    """Who said it."""

    WATCHDOG = "watchdog"  # now
    RECORD = "record"  # the operator wrote it, some time ago


class SeenCheckpoint(msgspec.Struct, frozen=True):
    """As `holdfast.api.status.Checkpoint`, with Unknown."""

    step: int
    uri: str
    round: int | None = None
    at: float | None = None


class SeenStatus(msgspec.Struct, frozen=True):
    """As `holdfast.api.status.JobStatus`, with Unknown. `last_checkpoint.at` is to be compared with `now`."""

    job: str
    phase: str | None = None
    reason: str = ""
    round: int | None = None
    members: Membership | None = None
    world_size: int | None = None
    step: int | None = None
    loss: float | None = None
    step_time_s: float | None = None
    restarts: int | None = None
    evictions: int | None = None
    incidents_open: int | None = None
    incidents_total: int | None = None
    last_checkpoint: SeenCheckpoint | None = None
    avoided_nodes: tuple[str, ...] | None = None
    now: float | None = None
    ettr: float | None = None
    verified_step: int | None = None
    cadence: Cadence | None = None
    source: Source = Source.WATCHDOG


def seen(status: JobStatus) -> SeenStatus:
    """What the watchdog said, as it said it."""
    saved = status.last_checkpoint
    fields = {name: getattr(status, name) for name in JobStatus.__struct_fields__ if name != "last_checkpoint"}
    checkpoint = SeenCheckpoint(saved.step, saved.uri, saved.round, saved.at) if saved else None
    return SeenStatus(last_checkpoint=checkpoint, **fields)


class RecordedIncidents(msgspec.Struct, frozen=True):
    """The newest incidents as the TrainingJob's record keeps them, oldest first."""

    incidents: tuple[dict[str, object], ...]
