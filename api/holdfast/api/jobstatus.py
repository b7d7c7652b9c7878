"""The status of a TrainingJob as the operator writes it and people read it. Nothing decides by it."""

from pydantic import JsonValue

from holdfast.api.section import Section
from holdfast.api.status import JobPhase


class MembersStatus(Section):
    """As in `holdfast.api.status.Membership`."""

    wanted: int = 0
    """Members the job should have now."""
    ready: int | None = None
    """Members that train, before that those that joined; 0 when Stalled, Unknown while the watchdog is away."""
    spares: int = 0
    """Spares that have joined."""
    pods: int = 0
    """Pods that exist and have not ended."""


class CheckpointStatus(Section):
    """The newest committed checkpoint."""

    step: int
    """The last step it holds."""
    uri: str
    """The checkpoint itself."""
    verified: bool = False
    """Whether every replica agreed on its fingerprint."""
    time: str | None = None
    """When it was committed."""


class Goodput(Section):
    """Useful time over wall time."""

    ettr: float | None = None
    """Useful over wall time since the first member joined, suspensions left out. Unknown when Stalled."""


class TrainingJobStatus(Section):
    """Written by the operator from what the watchdog knows; never read as input."""

    observed_generation: int | None = None
    """The newest generation of the spec that was taken, or refused as invalid."""
    phase: JobPhase | None = None
    """Where the job is in its life, for people; programs read the conditions."""
    conditions: tuple[dict[str, JsonValue], ...] = ()
    """What is true of the job now, one condition per type."""
    round: int | None = None
    """The number of the newest round."""
    members: MembersStatus | None = None
    """How many members are wanted and there."""
    world_size: int | None = None
    """Ranks in the round."""
    step: int | None = None
    """The last step that every rank of the round has completed."""
    restarts: int | None = None
    """How often the job was restarted."""
    last_checkpoint: CheckpointStatus | None = None
    """The newest committed checkpoint."""
    goodput: Goodput | None = None
    """Useful time over wall time."""
    recent_incidents: tuple[dict[str, JsonValue], ...] = ()
    """The newest incidents, newest first."""
    incidents: int | None = None
    """How many incidents there have been."""
    pods_created: int | None = None
    """The next pod takes this number: names are never used twice."""
    priority: int | None = None
    """Of the members' pods: of jobs that half fit, the one of the highest priority goes on."""
    selector: str | None = None
    """The members' pods, for the scale subresource."""
    started_at: str | None = None
    """When the first round was shown."""
    finished_at: str | None = None
    """When the job succeeded or failed."""
    progressed_at: str | None = None
    """When step, goodput and checkpoint were last written: they move fast, so that is at most every 30 s."""
