"""Everything the brain knows of one job. Frozen: `advance` returns a new one. Serialised whole by the stores."""

from enum import StrEnum

import msgspec

from holdfast.api.incident import Incident
from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.round import Desired, Round
from holdfast.api.status import Checkpoint, JobPhase


class Standing(StrEnum):
    """Whether a member can be given ranks."""

    PRESENT = "Present"
    LOST = "Lost"


class Member(msgspec.Struct, frozen=True):
    """One launcher that joined. `reentrant` once it said that all its workers can re-enter."""

    name: str
    node: str
    boot: str
    address: str
    local_size: int
    ports: tuple[int, ...]
    warm: bool
    standing: Standing
    joined_at: float
    entered_round: int | None = None
    finished_round: int | None = None
    reentrant: bool = False


class JobState(msgspec.Struct, frozen=True):
    """One job's decided state. A state is never changed in place."""

    job: str
    phase: JobPhase = JobPhase.PENDING
    reason: str = "waiting for the job to be submitted"
    policy: Policy | None = None
    members: tuple[Member, ...] = ()
    desired: Desired | None = None
    plan: Plan | None = None
    round: Round | None = None  # the newest round, also while none is to run
    incidents: tuple[Incident, ...] = ()  # every one of the job, oldest first; closed ones are bounded
    checkpoints: tuple[Checkpoint, ...] = ()
