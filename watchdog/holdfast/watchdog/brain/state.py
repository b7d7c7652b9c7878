"""Everything the brain knows of one job. Frozen: `advance` returns a new one. Serialised whole by the stores."""

from collections.abc import Iterator, KeysView
from enum import StrEnum
from functools import cached_property

import msgspec

from holdfast.api.checkpoint import StoredCheckpoint
from holdfast.api.finding import FindingKind, ProvedBy, Slowness
from holdfast.api.incident import Incident, IncidentState, Rung
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.longwork import LongWork
from holdfast.api.place import Gathering, Place
from holdfast.api.plan import NodeOrder, Plan
from holdfast.api.policy import Offer, Policy
from holdfast.api.round import Desired, Entry, Follows, Restore, Round
from holdfast.api.selftest import LinkTest, TestLevel, UsualLink
from holdfast.api.status import Checkpoint, JobPhase, MeasuredRate
from holdfast.watchdog.brain.gatherings import behind
from holdfast.watchdog.brain.ledger import Ledger
from holdfast.watchdog.brain.ledgerofbefore import LedgerOfBefore
from holdfast.watchdog.brain.roster import Member, MemberState, Roster


class Failure(msgspec.Struct, frozen=True):
    """One failure: when, at which highest step, of what class, with which error text. `alike` and `trace` as in
    `Finding`. `frozen`: a process did not run, and nothing had ended it.
    """

    at: float
    step: int
    cause: str
    error: str = ""
    alike: str = ""
    trace: str = ""
    frozen: bool = False


ENDED = (JobPhase.SUCCEEDED, JobPhase.FAILED)
NOBODY: KeysView[str] = {}.keys()


class Recovery(msgspec.Struct, frozen=True):
    """A round that is owed: how to enter it, for whom, and not before when.

    `rung` is what the ladder chose for the worst of `incidents`; a planned change (growth, resize, first round)
    has no incident. `leaves` are members whose replica groups leave the round, besides those of who cannot stay;
    None: everybody's.
    """

    reason: str
    entry: Entry = Entry.REENTER
    fresh_ranks: tuple[int, ...] = ()
    not_before: float = 0.0
    rung: Rung | None = None
    incidents: tuple[str, ...] = ()
    leaves: tuple[str, ...] | None = ()


class Rewind(msgspec.Struct, frozen=True):
    """History is given up: what is restored instead, and the first round that was told so. Until there is one
    (None), what is saved counts no more.
    """

    restore: Restore
    round: int | None = None


class WentBack(msgspec.Struct, frozen=True, omit_defaults=True):
    """The job went back, at `at`: a loss or gradient norm was not finite at `step`, or the loss rose there. `rank`
    had it (None: Unknown), and `incident` tells of it.
    """

    step: int
    at: float
    kind: FindingKind = FindingKind.NON_FINITE
    rank: int | None = None
    incident: str = ""


class RewindAsked(msgspec.Struct, frozen=True):
    """An intervention that sends the job back to `step`, not answered yet. The checkpoint of step `intended` is
    expected to be restored, as `says` tells in words; `why` it is not that of `step`. `round` is the first round
    that was told, None: there is none yet.
    """

    id: str
    step: int
    intended: int
    says: str
    why: str = ""
    round: int | None = None


class Storage(msgspec.Struct, frozen=True):
    """What storage at `uri` held when `round` told of it last, `at` by the watchdog's clock: the readable
    checkpoints of the history that goes on, oldest first, `count` in all, of which at most `checkpoint.TOLD_MAX`
    are named.
    """

    checkpoints: tuple[StoredCheckpoint, ...]
    count: int
    uri: str
    round: int
    at: float


class Suspicion(msgspec.Struct, frozen=True):
    """One fault that was held against a node: what follow-the-fault and repetition look at. `rank` had it, or is
    the first one that the node had. `gone`: the node is, and took its bad name along; the rank did not.
    """

    node: str
    cause: str
    at: float
    incident: str = ""
    rank: int | None = None
    gone: bool = False


class DepartureStage(StrEnum):
    """How far a departure is."""

    EXPECTED = "Expected"
    SAVED = "Saved"  # its time is short, and what could be saved is; it stays as long as it can
    DUE = "Due"  # the next round goes on without it


class DepartureCause(StrEnum):
    """Who tells of a departure. Each may tell of the same node, and takes back only its own word."""

    TOLD = "Told"  # the member was told to end
    DRAIN = "Drain"  # somebody takes the node out of service; it may be called off
    NOTICE = "Notice"  # the machine is taken away
    DISTRUST = "Distrust"  # other jobs hold something against the node
    SLOW = "Slow"  # all wait for its ranks: a spare takes them, and it stays


class Departure(msgspec.Struct, frozen=True):
    """Somebody is to leave in good order: one member that was told to end, or whoever is on a node.

    `until` is when it is gone, or is waited for no longer.
    """

    reason: str
    until: float
    member: str | None = None
    node: str | None = None
    stage: DepartureStage = DepartureStage.EXPECTED
    cause: DepartureCause = DepartureCause.TOLD


class Saving(msgspec.Struct, frozen=True):
    """One more checkpoint asked of `round`.

    `at` is when it was asked for, `saved` its step once it is committed; `asked` are the interventions that wait.
    """

    number: int
    round: int
    at: float
    saved: int | None = None
    asked: tuple[str, ...] = ()


class Missing(msgspec.Struct, frozen=True):
    """A member that was lost, since when, and that has not come back: its pod may stand in the way of another.
    `incident` tells of the loss, where there is one.
    """

    member: str
    node: str
    at: float
    incident: str = ""


class Fit(msgspec.Struct, frozen=True):
    """How the members suit what the job asks for: `tensor` ranks in one NVLink domain, as tests are asked for now.

    `misfits` are members that get no ranks under this spec, and why; `incident` is the one that told of them.
    """

    tensor: int = 1
    misfits: dict[str, str] = {}
    incident: str | None = None


class Trial(msgspec.Struct, frozen=True):
    """A self-test asked of a member. One that `bars` is waited for before the member is given ranks.

    `began` is when the member's workers had no ranks any more, so that it could begin; None while they have.
    With `links` it is the member's part in a test of the links between nodes.
    """

    member: str
    number: int
    level: TestLevel
    reason: str
    at: float
    bars: bool
    began: float | None = None
    links: LinkTest | None = None


class LinksTested(msgspec.Struct, frozen=True):
    """What is known of the links between nodes: when the links of a node were tested last, or, of a node without
    ranks, were to be; `says` is what the newest test came to, `bad` what it said of the links of a node, `usual`
    the middle link of the fleet. `led` are the members that were asked to lead a test since, and have not
    answered; `excused` those that told why they took no part in it.
    """

    tested_at: dict[str, float] = {}
    led: tuple[str, ...] = ()
    says: str = ""
    bad: dict[str, str] = {}
    excused: tuple[str, ...] = ()
    usual: UsualLink | None = None


class SlowStage(StrEnum):
    """How far the ladder is with ranks that are slow."""

    TOLD = "Told"  # they are known, and nothing moves
    LEAVING = "Leaving"  # their round is saved, then a spare takes them
    MOVED = "Moved"  # a spare has them, and they are watched there
    STAYED = "Stayed"  # they were not slow there: the slowness stayed with the node
    FOLLOWED = "Followed"  # they were slow there too: it followed them, and the node is innocent


class SlowRanks(msgspec.Struct, frozen=True):
    """Ranks that all others wait for, of a world of `world_size`, on `node`; none of either: all are slower than
    they were. `incident` tells of them.

    It was found at `seen_at` last, `took_s` after it had begun, or after its round was shown where that is not too
    long ago; `movable`: another node may help. While it `lasts`, `round` is the one that is slow, after its step
    `since_step`, and `told_steps` of its steps are told of. When they have MOVED it is the one in which they are
    watched, since `since_step` was complete at `at` (None: no step yet). `tries` are when spares were given the
    ranks.
    """

    incident: str
    slow: Slowness
    node: str | None
    ranks: tuple[int, ...]
    world_size: int
    took_s: float
    seen_at: float
    movable: bool
    round: int
    since_step: int | None
    told_steps: int = 0
    lasts: bool = True
    stage: SlowStage = SlowStage.TOLD
    at: float = 0.0
    tries: tuple[float, ...] = ()

    @property
    def is_last_choice(self) -> bool:
        """Whether the node is the last to be given ranks."""
        return bool(self.tries) and self.stage is not SlowStage.FOLLOWED


class ProbationStage(StrEnum):
    """How far a node that was put back into service is."""

    CANARY = "Canary"  # its members pass several self-tests first
    SPARE = "Spare"  # then they are the last to be given ranks, for a while


class Probation(msgspec.Struct, frozen=True):
    """A node that is trusted again step by step. `since` is when the stage began, `passed` counts its tests."""

    node: str
    stage: ProbationStage
    since: float
    passed: int = 0


class JobState(msgspec.Struct, frozen=True, dict=True):
    """One job's decided state. `incarnation` names this life of the job: a job of the same name is not the same.

    `round` is the newest round, also while none is to run; `recovery` the next one when it is owed. `step` is
    the last step known complete on every rank of the round, `high_step` the highest ever; `fault_step` is the
    last step complete before the newest fault, `restored_step` where the newest round began (None: Unknown).
    `failures` are the faults since the job last went beyond `high_step`; `restarts` and `evictions` are times,
    for the budgets. `checkpoints` are the newest commits of this life and what they cost, `storage` is what there
    is to go back to (None: the script does not tell), `unhealthy_from` the first step, in the history that goes
    on, after which some rank's loss or gradient norm was not finite (None: none).
    `rewind` is what rounds restore until one has saved, `asked` the intervention that waits for it. `departures`
    are moves that are to come, `saving` the checkpoint they (or somebody) wait for, `unready` nodes the cluster
    says are not well, `pending` why the newest member that is not there is not, `number_floor` the greatest number
    a launcher has seen.

    `comparable` once ranks that should be replicas were seen equal: until then a difference may be on purpose.
    `verified_step` is the last step after which what all ranks held is known to be right, by `verified_by` (None:
    of no step), `trials` the
    self-tests that are waited for by member, `fit` whom the spec does not suit, `tested_at` when a node last
    passed a test, `digests` what was computed by whom: check and kind of device, result, nodes. `probation` are
    nodes that are being trusted again, `reputed` those avoided for what other jobs know of them. `racks` are
    the failure domains of nodes, `places` what they share with others, `sold` what they are and how they are paid
    for, as far as the cluster tells. `gatherings` are the places behind which faults of all jobs gather,
    `node_failures_per_day` how often a node of all jobs fails (None: nobody told).
    `paced_at` is when a checkpoint was last asked
    for because it was due, `storage_restores` how many faults needed one. `went_back` tells
    why the job went back for what its losses were, NaN or too high. `ended_at` is when the
    job succeeded or failed, None while it goes on. `publishes` once the script has said
    anything of its steps; of one that never does, `signed_at` is when the newest round first showed a sign of
    training. `has_trained` once a step or such a sign was seen since it was submitted, or restarted on request.
    `described` is the digest of how rank 0 said it was started, last. `departed` are nodes that went
    from the cluster while they were avoided: a machine of that name may come back. `learning_rate_cuts` are those
    made in the history that goes on, oldest first. `follows` is what the script does of a restore directive (None:
    Unknown), `until_step` the last step it means to make (None: it does not say). `slow` are ranks that were found
    slow, `slowed_rank_s` what that cost, in seconds of one rank. `links` is what is known of the links between
    nodes, `rates` what self-tests have measured, by check. `forming` are the replica groups of the round that do
    not train yet, by epoch, and since when; `came_in` are the epochs of those that train from this round on.
    `work` is what is known of work that takes far longer than a step.
    """

    job: str
    phase: JobPhase = JobPhase.PENDING
    reason: str = "waiting for the job to be submitted"
    policy: Policy | None = None
    incarnation: str = ""
    members: Roster = Roster()
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
    eviction_count: int = 0
    avoided: tuple[NodeOrder, ...] = ()
    returned: tuple[str, ...] = ()
    suspicions: tuple[Suspicion, ...] = ()
    rewind: Rewind | None = None
    answered: tuple[str, ...] = ()
    forming_since: float | None = None
    round_shown_at: float = 0.0
    paused: bool = False
    departures: tuple[Departure, ...] = ()
    saving: Saving | None = None
    save_count: int = 0
    missing: dict[str, Missing] = {}  # in the order in which they are missed
    unready: tuple[str, ...] = ()
    pending: str = ""
    ledger: Ledger = msgspec.field(default=Ledger(), name="books")
    # What an earlier version kept; the first event takes it over.
    ledger_of_before: LedgerOfBefore | None = msgspec.field(default=None, name="ledger")
    number_floor: int = 0
    comparable: bool = False
    verified_step: int | None = None
    verified_by: ProvedBy | None = None
    trials: dict[str, Trial] = {}
    trial_count: int = 0
    fit: Fit = Fit()
    tested_at: dict[str, float] = {}
    digests: dict[str, dict[str, tuple[str, ...]]] = {}
    probation: dict[str, Probation] = {}
    reputed: tuple[str, ...] = ()
    racks: dict[str, str] = {}
    sold: dict[str, Offer] = {}
    paced_at: float = 0.0
    storage_restores: int = 0
    ended_at: float | None = None
    unhealthy_from: int | None = None
    # Snapshots of before know it by this name.
    went_back: tuple[WentBack, ...] = msgspec.field(default=(), name="non_finite")
    publishes: bool = False
    signed_at: float | None = None
    has_trained: bool = False
    storage: Storage | None = None
    described: str = ""
    asked: RewindAsked | None = None
    departed: tuple[str, ...] = ()
    learning_rate_cuts: tuple[LearningRateCut, ...] = ()
    follows: tuple[Follows, ...] | None = None
    until_step: int | None = None
    slow: tuple[SlowRanks, ...] = ()  # oldest first, bounded
    slowed_rank_s: float = 0.0
    links: LinksTested = LinksTested()
    places: dict[str, tuple[Place, ...]] = {}
    gatherings: tuple[Gathering, ...] = ()
    node_failures_per_day: float | None = None
    rates: dict[str, MeasuredRate] = {}
    forming: dict[int, float] = {}
    came_in: tuple[int, ...] = ()
    work: LongWork = LongWork()

    @property
    def held(self) -> bool:
        """Whether nothing of the job may run: it is paused, its spec suspends it, or its queue keeps it out."""
        return self.paused or (self.policy is not None and self.policy.is_kept_out)

    @cached_property
    def leaving(self) -> frozenset[str]:
        """Names of the members that are to leave in good order."""
        if not self.departures:
            return frozenset()
        nodes = [each.node for each in self.departures if each.node is not None]
        told = {each.member for each in self.departures if each.member is not None and each.member in self.members}
        return frozenset({*told, *(member.name for member in self.members.on_nodes(nodes))})

    def leaving_last(self) -> list[str]:
        """Names of the members of the newest round that may stay for now, those first that may stay longest."""
        stays = sorted(self.departures, key=lambda each: -each.until)
        due = {name for each in stays if each.stage is DepartureStage.DUE for name in self.concerned(each)}
        names = (name for each in stays for name in self.concerned(each))
        return [name for name in dict.fromkeys(names) if name not in due and self.in_round(name)]

    def concerned(self, departure: Departure) -> list[str]:
        """Names of the members that it takes away."""
        there = self.members.on_nodes((departure.node,)) if departure.node is not None else []
        named = self.member(departure.member)
        return [each.name for each in (*there, *((named,) if named else ()))]

    def member(self, name: str | None) -> Member | None:
        """The member of that name, or None."""
        return self.members.get(name)

    def is_canary(self, name: str) -> bool:
        """Whether the member's node has tests to pass before it is trusted again."""
        member = self.member(name)
        probation = self.probation.get(member.node) if member is not None else None
        return probation is not None and probation.stage is ProbationStage.CANARY

    def is_last_choice(self, node: str) -> bool:
        """Whether the node is given ranks after all others: it is on probation, or was slow."""
        return node in self.probation or any(each.node == node and each.is_last_choice for each in self.slow)

    def gathered_at(self, node: str) -> tuple[Gathering, ...]:
        """The named places that the node is behind."""
        return behind(self.gatherings, self.places.get(node, ()))

    @property
    def avoided_nodes(self) -> frozenset[str]:
        return frozenset(order.node for order in self.avoided)

    @property
    def _size(self) -> int:
        return self.policy.processes_per_node if self.policy else 0

    def eligible(self) -> tuple[Member, ...]:
        """Members that can be given ranks now, in the order they joined."""
        avoided = self.avoided_nodes
        return tuple([each for each in self.members if self._is_fit(each) and each.node not in avoided])

    def eligible_count(self) -> int:
        """How many members `eligible` gives, without looking at each."""
        avoided = self.members.on_nodes(self.avoided_nodes) if self.avoided else ()
        return self.members.present(self._size) - sum(1 for each in avoided if self._is_fit(each))

    def spares(self) -> tuple[Member, ...]:
        """Eligible members without ranks that are to stay, in no order."""
        by_name, avoided = self.members.by_name, self.avoided_nodes
        idle = (by_name[name] for name in self.members.beyond(self.ranked()) if name not in self.leaving)
        return tuple([each for each in idle if self._is_fit(each) and each.node not in avoided])

    def ready_count(self) -> int:
        """How many eligible members that are to stay could go on at once: with ranks, or warm."""
        by_name, avoided = self.members.by_name, self.avoided_nodes
        cold = (name for name in self.members.beyond(self.ranked()) if not by_name[name].warm)
        away = [by_name[name] for name in {*self.leaving, *cold}]
        return self.eligible_count() - sum(1 for each in away if self._is_fit(each) and each.node not in avoided)

    def can_reenter(self) -> bool:
        """Whether all members of the newest round are known, and their workers can re-enter a round."""
        ranked = self.ranked()
        known = len(self.members) - len(self.members.beyond(ranked))
        return known == len(ranked) and ranked.isdisjoint(self.members.respawned())

    def _is_fit(self, member: Member) -> bool:
        return member.standing is MemberState.PRESENT and member.local_size == self._size

    def has_survivors(self) -> bool:
        """Whether a member with ranks in the newest round, there when it was shown, can be given ranks again."""
        by_name, avoided = self.members.by_name, self.avoided_nodes
        stayed = (by_name[name] for name in self.members.stayed(self.ranked(), self.round_shown_at))
        return any(self._is_fit(each) and each.node not in avoided for each in stayed)

    def ranked(self) -> KeysView[str]:
        """Names of the members that have ranks in the newest round."""
        return self.round.names if self.round else NOBODY

    def ranked_members(self) -> Iterator[Member | None]:
        """The newest round's members in rank order; None where one is not known any more."""
        return (self.members.get(share.member) for share in self.round.ranks) if self.round else iter(())

    def in_round(self, name: str | None) -> bool:
        """Whether the member has ranks in the newest round."""
        return self.round is not None and name is not None and name in self.round.names

    def open_incidents(self) -> tuple[Incident, ...]:
        return tuple(incident for incident in self.incidents if incident.state is IncidentState.OPEN)
