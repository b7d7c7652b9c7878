"""The status that a TrainingJob carries, as it was last written: what was said once is not said again."""

from typing import Any

import msgspec

from holdfast.api.status import JobPhase
from holdfast.operator.kube.objects import Condition, Job


class RecordedIncident(msgspec.Struct, frozen=True):
    id: str = ""
    state: str = ""


class RecordedCheckpoint(msgspec.Struct, frozen=True):
    step: int = 0
    uri: str = ""
    time: str | None = None


class Recorded(msgspec.Struct, frozen=True, rename="camel"):
    """The fields that are looked back at. All are optional: somebody may have removed the status."""

    observed_generation: int | None = None
    phase: str | None = None
    round: int | None = None
    members: dict[str, Any] | None = None
    last_checkpoint: RecordedCheckpoint | None = None
    recent_incidents: tuple[RecordedIncident, ...] = ()
    pods_created: int | None = None
    priority: int | None = None
    started_at: str | None = None
    finished_at: str | None = None
    conditions: tuple[Condition, ...] = ()

    def condition(self, type_: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == type_), None)

    def holds(self, type_: str) -> bool:
        """Whether the condition of that type is True."""
        condition = self.condition(type_)
        return condition is not None and condition.status == "True"


def read_recorded(status: msgspec.Raw) -> tuple[Recorded, dict[str, Any]]:
    """The status, and the same as plain data to compare with. One that cannot be read counts as none."""
    try:
        return msgspec.json.decode(status, type=Recorded), msgspec.json.decode(status, type=dict[str, Any])
    except msgspec.MsgspecError:
        return Recorded(), {}


def refused_because(job: Job) -> str | None:
    """Why the newest spec of a job that never ran is refused; None where it is not, or was not looked at yet."""
    recorded, _ = read_recorded(job.status)
    if recorded.phase != JobPhase.INVALID or recorded.observed_generation != job.metadata.generation:
        return None
    condition = recorded.condition("InvalidSpec")
    return condition.message if condition is not None else ""
