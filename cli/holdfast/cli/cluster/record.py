"""A TrainingJob as the API server keeps it: what is known of a job while its watchdog is away.

The operator that wrote the status may be of another version, so it is read loosely: what is not understood is
Unknown.
"""

from datetime import datetime
from typing import Any

import msgspec

from holdfast.api.errors import Unavailable
from holdfast.api.jobstatus import Condition, TrainingJobStatus
from holdfast.api.status import Membership
from holdfast.cli.seen import RecordedIncidents, SeenCheckpoint, SeenStatus, Source


class Meta(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class JobRecord(msgspec.Struct, frozen=True):
    """A TrainingJob."""

    metadata: Meta
    status: TrainingJobStatus = TrainingJobStatus()
    spec: dict[str, Any] = {}

    @property
    def job(self) -> str:
        return f"{self.metadata.namespace}/{self.metadata.name}"

    def condition(self, type: str) -> Condition | None:
        return self.status.condition(type)


def read_record(document: dict[str, Any]) -> JobRecord:
    """A decoded TrainingJob."""
    spec = document.get("spec")
    return JobRecord(
        msgspec.convert(document["metadata"], Meta),
        TrainingJobStatus.decode(document.get("status")),
        spec if isinstance(spec, dict) else {},
    )


def seen_in(record: JobRecord, now: float) -> SeenStatus:
    """The status as recorded. `now` is the wall clock, which the times in it were written by."""
    status = record.status
    saved, members, recent = status.last_checkpoint, status.members, status.recent_incidents
    counted = None
    if members is not None and members.ready is not None:  # else nobody knows how many train
        counted = Membership(members.wanted, members.ready, members.spares)
    # Where not every incident is kept here, one that is not may be open.
    all_kept = status.incidents is not None and len(recent) >= status.incidents
    return SeenStatus(
        job=record.job,
        phase=status.phase,
        reason=_reason(record),
        round=status.round,
        members=counted,
        world_size=status.world_size,
        step=status.step,
        restarts=status.restarts,
        incidents_open=len([each for each in recent if each.state == "Open"]) if all_kept else None,
        incidents_total=status.incidents,
        last_checkpoint=SeenCheckpoint(saved.step, saved.uri, at=_seconds(saved.time)) if saved else None,
        now=now,
        ettr=status.goodput.ettr if status.goodput else None,
        ended_at=_seconds(status.finished_at),
        source=Source.RECORD,
    )


def incidents_in(record: JobRecord) -> RecordedIncidents:
    """The newest incidents, oldest first; the record has them the other way round. Raises Unavailable."""
    if record.status.incidents is None:
        raise Unavailable(f"nothing is recorded of the incidents of {record.job}")
    return RecordedIncidents(tuple(record.status.encode()["recentIncidents"][::-1]))


def _reason(record: JobRecord) -> str:
    """What holds the job up, else whether it is ready."""
    for type in ("InvalidSpec", "WatchdogReachable", "Ready"):
        condition = record.condition(type)
        wrong = "False" if type == "WatchdogReachable" else "True" if type == "InvalidSpec" else None
        if condition is not None and wrong in (None, condition.status):
            return condition.message or condition.reason
    return ""


def _seconds(time: str | None) -> float | None:
    """Seconds since 1970 of an RFC 3339 text."""
    try:
        return datetime.fromisoformat(time).timestamp() if time else None
    except ValueError:
        return None
