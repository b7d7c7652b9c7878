"""A job's status as a command shows it: from the watchdog, or, when that is away, from the TrainingJob's record.

What the record does not keep is None, Unknown; it is never made up.
"""

from enum import StrEnum

import msgspec

from holdfast.api.finding import ProvedBy
from holdfast.api.place import Gathering
from holdfast.api.status import (
    Bill,
    Cadence,
    Causes,
    JobStatus,
    LastSeen,
    MeasuredRate,
    Membership,
    PendingTest,
    Reading,
)


class Source(StrEnum):
    """Who said it."""

    WATCHDOG = "watchdog"  # now
    RECORD = "record"  # the operator wrote it, some time ago
    STORE = "store"  # the run is over; its state directory keeps it


class SeenCheckpoint(msgspec.Struct, frozen=True):
    """As `holdfast.api.status.Checkpoint`, with Unknown."""

    step: int
    uri: str
    round: int | None = None
    at: float | None = None
    stall_s: float | None = None
    took_s: float | None = None


class SeenStatus(msgspec.Struct, frozen=True):
    """As `holdfast.api.status.JobStatus`, with Unknown. `last_checkpoint.at` is to be compared with `now`."""

    job: str
    phase: str | None = None
    reason: str = ""
    round: int | None = None
    members: Membership | None = None
    world_size: int | None = None
    step: int | None = None
    loss: Reading | None = None
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
    ended_at: float | None = None
    unhealthy_from: int | None = None
    verified_by: ProvedBy | None = None
    observed: bool | None = None
    step_age_s: float | None = None
    tests: tuple[PendingTest, ...] | None = None
    tests_total: int | None = None
    unfollowed: str | None = None
    links: str | None = None
    bill: Bill | None = None
    causes: Causes | None = None
    until_step: int | None = None
    gatherings: tuple[Gathering, ...] = ()
    rates: tuple[MeasuredRate, ...] = ()
    plan: str | None = None
    source: Source = Source.WATCHDOG


def seen(status: JobStatus) -> SeenStatus:
    """What the watchdog said, as it said it."""
    saved = status.last_checkpoint
    fields = {name: getattr(status, name) for name in JobStatus.__struct_fields__ if name != "last_checkpoint"}
    checkpoint = (
        SeenCheckpoint(saved.step, saved.uri, saved.round, saved.at, saved.stall_s, saved.took_s)
        if saved
        else None
    )
    return SeenStatus(last_checkpoint=checkpoint, **fields)


STOPPED = "Stopped"
"""The phase of a run on this machine that nobody goes on with, though its job had not come to its end."""


def seen_last(last: LastSeen, now: float) -> SeenStatus:
    """What was last known of a run that is over: never that it runs. `now` is the wall clock."""
    status = last.status
    fields: dict[str, object] = {"source": Source.STORE, "now": now, "ended_at": status.ended_at or last.at}
    if status.ended_at is None:
        # Where it was. Its phase tells of the end of its launchers, which is what an interruption looks like.
        if status.step is not None:
            where = f"after step {status.step}"
        elif status.round is not None:
            where = f"in round {status.round}"
        else:
            where = f"while it was {status.phase}" + (f": {status.reason}" if status.reason else "")
        going_on = "`holdfast run` goes on with it"
        if status.last_checkpoint is None:
            going_on = "no checkpoint was saved, so `holdfast run` begins anew"
        fields |= {"phase": STOPPED, "reason": f"it was interrupted {where}; {going_on}"}
    return msgspec.structs.replace(seen(status), **fields)


class RecordedIncidents(msgspec.Struct, frozen=True):
    """The newest incidents as the TrainingJob's record keeps them, oldest first."""

    incidents: tuple[dict[str, object], ...]
