"""The status of a TrainingJob as the operator writes it, and people and later operators read it."""

from typing import Annotated

from msgspec import Meta

from holdfast.api.status import JobPhase
from holdfast.api.written import Written, WrittenFreely


class Condition(WrittenFreely, frozen=True, gc=False):
    """Of a job, and as it is read of pods and nodes.

    Source: https://github.com/kubernetes/apimachinery/blob/master/pkg/apis/meta/v1/types.go
    """

    type: str = ""
    status: str = ""
    reason: str = ""
    message: str = ""
    last_transition_time: str | None = None
    observed_generation: int | None = None

    @property
    def says(self) -> str:
        """Reason and message in one."""
        return ": ".join(part for part in (self.reason, self.message) if part)


class RecordedIncident(WrittenFreely, frozen=True, gc=False):
    """As in `holdfast.api.incident.Incident`, in the words that people are shown."""

    id: str = ""
    kind: str = ""
    culprit: str = ""
    cause: str = ""
    action: str = ""
    state: str = ""
    time_to_recover_seconds: float | None = None
    slowed_rank_hours: float | None = None


class MembersStatus(Written, frozen=True):
    """As in `holdfast.api.status.Membership`."""

    wanted: Annotated[int, Meta(description="Members the job should have now.")] = 0
    ready: Annotated[
        int | None,
        Meta(
            description="Members that train, before that those that joined; 0 when Stalled, Unknown while the "
            "watchdog is away."
        ),
    ] = None
    spares: Annotated[int, Meta(description="Spares that have joined.")] = 0
    pods: Annotated[int, Meta(description="Pods that exist and have not ended.")] = 0


class CheckpointStatus(Written, frozen=True):
    """The newest committed checkpoint."""

    step: Annotated[int, Meta(description="The last step it holds.")]
    uri: Annotated[str, Meta(description="The checkpoint itself.")]
    verified: Annotated[bool, Meta(description="Whether every replica agreed on its fingerprint.")] = False
    time: Annotated[str | None, Meta(description="When it was committed.")] = None


class Goodput(Written, frozen=True):
    """Useful time over wall time."""

    ettr: Annotated[
        float | None,
        Meta(
            description="Useful over wall time since the first member joined, suspensions left out. Unknown when "
            "Stalled."
        ),
    ] = None


class TrainingJobStatus(Written, frozen=True):
    """Written by the operator from what the watchdog knows; never read as input."""

    observed_generation: Annotated[
        int | None, Meta(description="The newest generation of the spec that was taken, or refused as invalid.")
    ] = None
    phase: Annotated[
        JobPhase | None,
        Meta(description="Where the job is in its life, for people; programs read the conditions."),
    ] = None
    conditions: Annotated[
        tuple[Condition, ...], Meta(description="What is true of the job now, one condition per type.")
    ] = ()
    round: Annotated[int | None, Meta(description="The number of the newest round.")] = None
    members: Annotated[MembersStatus | None, Meta(description="How many members are wanted and there.")] = None
    world_size: Annotated[int | None, Meta(description="Ranks in the round.")] = None
    step: Annotated[int | None, Meta(description="The last step that every rank of the round has completed.")] = (
        None
    )
    restarts: Annotated[int | None, Meta(description="How often the job was restarted.")] = None
    last_checkpoint: Annotated[CheckpointStatus | None, Meta(description="The newest committed checkpoint.")] = (
        None
    )
    goodput: Annotated[Goodput | None, Meta(description="Useful time over wall time.")] = None
    recent_incidents: Annotated[
        tuple[RecordedIncident, ...], Meta(description="The newest incidents, newest first.")
    ] = ()
    incidents: Annotated[int | None, Meta(description="How many incidents there have been.")] = None
    pods_created: Annotated[
        int | None, Meta(description="The next pod takes this number: names are never used twice.")
    ] = None
    priority: Annotated[
        int | None,
        Meta(description="Of the members' pods: of jobs that half fit, the one of the highest priority goes on."),
    ] = None
    selector: Annotated[str | None, Meta(description="The members' pods, for the scale subresource.")] = None
    started_at: Annotated[str | None, Meta(description="When the first round was shown.")] = None
    finished_at: Annotated[str | None, Meta(description="When the job succeeded or failed.")] = None
    progressed_at: Annotated[
        str | None,
        Meta(
            description="When step, goodput and checkpoint were last written: they move fast, so that is at most "
            "every 30 s."
        ),
    ] = None

    def condition(self, type_: str) -> Condition | None:
        return next((each for each in self.conditions if each.type == type_), None)
