"""What the brain is told. Every event is journaled before it is applied; replay feeds the journal back.

Events are facts: something happened. Judgements arrive as `FindingMade`.
"""

import msgspec

from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.finding import Evidence, Finding, ProvedBy
from holdfast.api.intervention import InterventionRequest
from holdfast.api.place import Gathering, Place
from holdfast.api.plan import NodeState, PodEnd, PodState
from holdfast.api.policy import Offer, Policy
from holdfast.api.round import Follows, Reentry, Tier
from holdfast.api.runmanifest import RunManifest
from holdfast.api.selftest import CheckResult, Judged, TestLevel, Verdict
from holdfast.api.stacks import Stood
from holdfast.api.telemetry import RankNonFinite


class JobSubmitted(msgspec.Struct, frozen=True, tag=True):
    """A job, or a new version of its spec, was accepted."""

    policy: Policy


class MemberJoined(msgspec.Struct, frozen=True, tag=True):
    """A launcher connected. Fields as in `membership.Join`; `transfer` is its transfer server, "" without one."""

    member: str
    node: str
    boot: str
    address: str
    local_size: int
    ports: tuple[int, ...]
    warm: bool
    held_round: int | None = None
    shown: int = 0
    transfer: str = ""


class MemberWarmed(msgspec.Struct, frozen=True, tag=True):
    """The member can now start workers without importing torch."""

    member: str


class MemberLeft(msgspec.Struct, frozen=True, tag=True):
    """A launcher left on purpose."""

    member: str
    reason: str


class MemberDeparting(msgspec.Struct, frozen=True, tag=True):
    """A launcher was told to end and stays for `within_s` seconds at most."""

    member: str
    reason: str
    within_s: float


class MemberEntered(msgspec.Struct, frozen=True, tag=True):
    """All local workers of the member run in `round`. The rest is as in `membership.RoundEntered`."""

    member: str
    round: int
    reentrant: bool
    last_step: int | None = None
    reentry: Reentry = Reentry.ANY_WORLD
    because: str = ""


class MembersEntered(msgspec.Struct, frozen=True, tag=True):
    """Members entered within moments of each other, in the order in which they said so: one line for all."""

    entries: tuple[MemberEntered, ...]


class MemberReady(msgspec.Struct, frozen=True, tag=True):
    """All local workers of the member wait at a step boundary for those of other groups. `epoch` is that of the
    replica group, as in `round.GroupSeat`.
    """

    member: str
    epoch: int


class MembersReady(msgspec.Struct, frozen=True, tag=True):
    """Members became ready within moments of each other, in the order in which they said so: one line for all."""

    members: tuple[MemberReady, ...]


class RoundBegan(msgspec.Struct, frozen=True, tag=True):
    """A member's worker has shown the first sign of training in `round`. As in `membership.TrainingBegan`."""

    member: str
    round: int


class MemberFinished(msgspec.Struct, frozen=True, tag=True):
    """All local workers of the member ended `round` with success, after `last_step` where that is known.

    `nonfinite` is as in `membership.WorkersFinished`.
    """

    member: str
    round: int
    last_step: int | None = None
    nonfinite: tuple[RankNonFinite, ...] = ()


class CheckpointRecorded(msgspec.Struct, frozen=True, tag=True):
    """A checkpoint of `step` was committed by `round`, for the request `wanted` where there was one.

    What it cost is as in `membership.CheckpointCommitted`.
    """

    round: int
    step: int
    uri: str
    wanted: int | None = None
    stall_s: float | None = None
    took_s: float | None = None


class StorageListed(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 of `round` has told what storage holds. Fields as in `membership.CheckpointsStored`."""

    round: int
    uri: str
    count: int
    checkpoints: tuple[StoredCheckpoint, ...] = ()


class RunRecorded(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 of `round` has told how it was started, and not as in the round before. Nothing follows from it: it
    is journaled for people who compare runs. `digest` is of all of it but the round.
    """

    round: int
    digest: str
    manifest: RunManifest


class StacksTaken(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """Where the ranks stood that an incident is about, before anything was ended.

    `line` is that of the script at which the culprit stood, "" where it is not known; `stood` is what it was in.
    `waits` is what earlier versions wrote for `Stood.WAITS`, and is written no more.
    """

    incident: str
    evidence: tuple[Evidence, ...]
    line: str = ""
    stood: Stood = Stood.UNKNOWN
    waits: bool = False


class StopEnded(msgspec.Struct, frozen=True, tag=True):
    """A rank that all others waited for, longer than a step may take, went on by itself after `took_s` seconds.
    `worked`: the kernel showed its process working.
    """

    round: int
    rank: int
    took_s: float
    worked: bool


class RestoreReported(msgspec.Struct, frozen=True, tag=True):
    """Rank 0 restored `step` in `round` from `tier`, passing over the damaged ones in `skipped`.

    `healed` is what was damaged and taken from a replica. `follows` is what else of the
    directive the script does, or would do. `until` is the last step that it means to make, None: it does not say.
    """

    round: int
    step: int | None
    skipped: tuple[str, ...] = ()
    tier: Tier = Tier.CHECKPOINT
    healed: tuple[str, ...] = ()
    follows: tuple[Follows, ...] = ()
    until: int | None = None


class RoundProgressed(msgspec.Struct, frozen=True, tag=True):
    """Every rank of `round` has completed a step since it entered; `step` is the lowest of them, completed
    `age_s` before it was told: at `completed_at` (watchdog clock, seconds), without which the event tells it.
    `data_us` and `checkpoint_us` are what ranks waited for data and stood still for saves in the round's steps:
    microseconds of one rank, of all ranks since it was first heard of them.

    Journaled once when the round's first step is complete everywhere, and later before any other event and once a
    minute, so that the brain knows the last step a fault may cost.
    """

    round: int
    step: int
    age_s: float = 0.0
    completed_at: float | None = None
    data_us: int = 0
    checkpoint_us: int = 0


class FindingMade(msgspec.Struct, frozen=True, tag=True):
    """A detector judged."""

    finding: Finding


class ReplicasAgreed(msgspec.Struct, frozen=True, tag=True, omit_defaults=True):
    """What all ranks of `round` held after `step` is right, as far as `by` can tell."""

    round: int
    step: int
    by: ProvedBy = ProvedBy.REPLICAS


class MemberTested(msgspec.Struct, frozen=True, tag=True):
    """A member answered test request `number`. Fields as in `selftest.Tested`."""

    member: str
    number: int
    level: TestLevel
    verdict: Verdict
    checks: tuple[CheckResult, ...] = ()
    says: str = ""
    links: Judged | None = None


class NodeDeparting(msgspec.Struct, frozen=True, tag=True):
    """The machine is taken away in `within_s` seconds (a spot notice)."""

    node: str
    reason: str
    within_s: float


class ConditionOver(msgspec.Struct, frozen=True, tag=True):
    """What was found wrong with a node, by its finding's `cause`, is over: an explicit rule says so."""

    node: str
    cause: str
    says: str


class NodeReputed(msgspec.Struct, frozen=True, tag=True):
    """What all jobs know of a node together: `quarantined` nodes are to be kept away from, for `reason`."""

    node: str
    quarantined: bool
    score: float
    reason: str


class FleetReviewed(msgspec.Struct, frozen=True, tag=True):
    """What all jobs know together: all the places behind which faults gather, and behind which this job has nodes;
    and how often a node fails, per day, None where nothing was watched yet.
    """

    gatherings: tuple[Gathering, ...]
    node_failures_per_day: float | None = None


class NodeChanged(msgspec.Struct, frozen=True, tag=True):
    """The operator saw a node change. `rack` is its failure domain, empty while it is not known; `offer` what its
    GPUs are and how it is paid for, None while neither is known. `holding` are the causes of the conditions of
    others that hold; `remediated` is the incident for which somebody repaired it, empty while nobody has. `places`
    are what it shares with the nodes beside it, as far as that is known.
    """

    node: str
    state: NodeState
    reason: str = ""
    rack: str = ""
    offer: Offer | None = None
    holding: tuple[str, ...] = ()
    remediated: str = ""
    places: tuple[Place, ...] = ()


class PodChanged(msgspec.Struct, frozen=True, tag=True):
    """The operator saw the pod of a member change. Fields as in `plan.PodObserved`."""

    member: str
    node: str
    state: PodState
    reason: str = ""
    end: PodEnd | None = None


class InterventionRequested(msgspec.Struct, frozen=True, tag=True):
    """An on-call engineer asked for something."""

    request: InterventionRequest


class WatchdogStarted(msgspec.Struct, frozen=True, tag=True):
    """A watchdog took up this job's journal: what it knows of the members is from before."""


class ClockTicked(msgspec.Struct, frozen=True, tag=True):
    """The time the brain asked to be woken at has come."""


Event = (
    JobSubmitted
    | MemberJoined
    | MemberWarmed
    | MemberDeparting
    | MemberLeft
    | MemberEntered
    | MembersEntered
    | MemberReady
    | MembersReady
    | RoundBegan
    | MemberFinished
    | CheckpointRecorded
    | StorageListed
    | RunRecorded
    | StacksTaken
    | StopEnded
    | RestoreReported
    | RoundProgressed
    | FindingMade
    | ReplicasAgreed
    | MemberTested
    | NodeDeparting
    | ConditionOver
    | NodeReputed
    | FleetReviewed
    | NodeChanged
    | PodChanged
    | InterventionRequested
    | ClockTicked
    | WatchdogStarted
)


def entries_of(event: Event) -> tuple[MemberEntered, ...]:
    """Which members entered a round by the event, in order; nobody where it is about something else."""
    match event:
        case MemberEntered():
            return (event,)
        case MembersEntered(entries=entries):
            return entries
        case _:
            return ()


class Journaled(msgspec.Struct, frozen=True):
    """One line of the journal: the event, when (watchdog clock, seconds), and its place."""

    offset: int
    at: float
    event: Event
