"""Everything the brain knows of one job. Frozen: `advance` returns a new one. Serialised whole by the stores."""

from enum import StrEnum

import msgspec

from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.policy import Policy
from holdfast.api.round import Desired, Entry, Restore, Round
from holdfast.api.status import Checkpoint, JobPhase
from holdfast.watchdog.detectors.crash_loop import Failure


class Standing(StrEnum):
    """Whether a member can be given ranks."""

    PRESENT = "Present"
    LOST = "Lost"
    UNKNOWN = "Unknown"  # the watchdog restarted and has not heard of it yet


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


class Recovery(msgspec.Struct, frozen=True):
    """A round that is owed: how to enter it, for whom, and not before when.

    `rung` is what the ladder chose for the worst of `incidents`; a planned change (growth, resize, first round)
    has no incident.
    """

    reason: str
    entry: Entry = Entry.REENTER
    fresh_ranks: tuple[int, ...] = ()
    not_before: float = 0.0
    rung: Rung | None = None
    incidents: tuple[str, ...] = ()


class Suspicion(msgspec.Struct, frozen=True):
    """One fault that was held against a node: what follow-the-fault and repetition look at."""

    node: str
    cause: str
    at: float


class JobState(msgspec.Struct, frozen=True):
    """One job's decided state. `incarnation` names this life of the job: a job of the same name is not the same.

    `round` is the newest round, also while none is to run; `recovery` the next one when it is owed. `step` is
    the last step known complete on every rank of the round, `high_step` the highest ever; `fault_step` is the
    last step complete before the newest fault, `restored_step` where the newest round began (None: Unknown).
    `failures` are the faults since the job last went beyond `high_step`; `restarts` and `evictions` are times,
    for the budgets. `rewind` overrides the next round's restore directive.
    """

    job: str
    phase: JobPhase = JobPhase.PENDING
    reason: str = "waiting for the job to be submitted"
    policy: Policy | None = None
    incarnation: str = ""
    members: tuple[Member, ...] = ()
    desired: Desired | None = None
    plan: Plan | None = None
    round: Round | None = None
    recovery: Recovery | None = None
    progressed: bool = False
    step: int | None = None
    high_step: int = 0
    fault_step: int | None = None
    restored_step: int | None = None
    incidents: tuple[Incident, ...] = ()  # oldest first, bounded
    incident_count: int = 0
    checkpoints: tuple[Checkpoint, ...] = ()
    failures: tuple[Failure, ...] = ()
    restarts: tuple[float, ...] = ()
    restart_count: int = 0
    evictions: tuple[float, ...] = ()
    avoided: tuple[NodeOrder, ...] = ()
    returned: tuple[str, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    rewind: Restore | None = None
    answered: tuple[str, ...] = ()
    forming_since: float | None = None
    round_shown_at: float = 0.0
    paused: bool = False

    def member(self, name: str | None) -> Member | None:
        """The member of that name, or None."""
        return next((member for member in self.members if member.name == name), None)

    def eligible(self) -> tuple[Member, ...]:
        """Members that can be given ranks now, in the order they joined."""
        size = self.policy.processes_per_node if self.policy else 0
        avoided = {order.node for order in self.avoided}
        return tuple(
            member
            for member in self.members
            if member.standing is Standing.PRESENT and member.node not in avoided and member.local_size == size
        )

    def survivors(self) -> tuple[Member, ...]:
        """Eligible members that were there when the newest round was shown and have ranks in it."""
        ranked = self.ranked()
        return tuple(
            member
            for member in self.eligible()
            if member.name in ranked and member.joined_at <= self.round_shown_at
        )

    def ranked(self) -> frozenset[str]:
        """Names of the members that have ranks in the newest round."""
        return frozenset(share.member for share in self.round.ranks) if self.round else frozenset()

    def ranked_members(self) -> tuple[Member | None, ...]:
        """The newest round's members in rank order; None where one is not known any more."""
        by_name = {member.name: member for member in self.members}
        return tuple(by_name.get(share.member) for share in self.round.ranks) if self.round else ()

    def in_round(self, name: str | None) -> bool:
        """Whether the member has ranks in the newest round."""
        return self.round is not None and name is not None and self.round.share_of(name) is not None

    def open_incidents(self) -> tuple[Incident, ...]:
        return tuple(incident for incident in self.incidents if incident.state is IncidentState.OPEN)
