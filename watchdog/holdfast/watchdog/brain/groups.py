"""Replica groups: which of them a fault takes out, who goes on without leaving its step loop, and who comes back.

A group that trains goes on from round to round while all its members can: only what lies between groups is formed
anew. A group that lost a member leaves the round. It is formed anew, from those that are left of it and a spare,
behind the groups that train, and trains once all its workers wait at a step boundary. What cannot be done to one
group alone (all go back, every worker starts anew, too few groups are left) is done to everybody, as without
groups.

Source: the data-parallel replica as the unit of failure: https://arxiv.org/abs/2602.00277
"""

from collections.abc import Collection, Iterable, Iterator, Sequence

import msgspec

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy
from holdfast.api.round import Endpoint, Entry, MemberRanks, ReplicaGroup, Round
from holdfast.watchdog.brain.roster import Member
from holdfast.watchdog.brain.state import JobState, Recovery

BACK = "a replica group is formed anew"
SETTLES_S = 1.0
ENDS = (FindingKind.PROCESS_EXIT, FindingKind.USER_CODE)
READY = "a replica group is ready: it trains from here on"


class Grouping(msgspec.Struct, frozen=True):
    """Who has ranks in a round, in rank order, in which groups; `kept` are names of those that leave nothing.
    `is_whole`: all groups that trained are kept.
    """

    seats: tuple[Member, ...]
    groups: tuple[ReplicaGroup, ...]
    kept: frozenset[str] = frozenset()
    is_whole: bool = False


def by_group(round_: Round) -> Iterator[tuple[ReplicaGroup, Sequence[MemberRanks]]]:
    """The groups of the round, each with its members' shares."""
    first = 0
    for group in round_.groups:
        yield group, round_.ranks[first : first + group.members]
        first += group.members


def counts_in(round_: Round, number: int) -> bool:
    """Whether what was saved in the round of that number is of the history of `round_`: the same one, or one from
    which replica groups went on. Since the oldest that trains was formed, nobody has gone back.
    """
    oldest = min([group.epoch for group in round_.groups if group.trains], default=round_.number)
    return oldest <= number <= round_.number


def within_groups(round_: Round | None, finding: Finding, recovery: Recovery, nodes: Collection[str]) -> Recovery:
    """`recovery`, owed for the finding, limited to the groups that it concerns; `nodes` leave the job.

    Everybody's leave when nobody can say whose.
    """
    if round_ is None or not round_.groups:
        return recovery
    subject = finding.subject
    is_nobody = (subject.member, subject.node, subject.rank) == (None, None, None)
    subjects = () if is_nobody else (subject, *finding.also)  # beside nobody are those that saw it
    named = {each.member for each in subjects if each.member is not None}
    ranks = recovery.fresh_ranks or [each.rank for each in subjects if each.rank is not None]
    named |= {share.member for share in map(round_.member_of, ranks) if share is not None}
    named |= {share.member for share in round_.ranks if share.node in nodes} if nodes else set()
    # A collective that failed between groups, and in none, breaks none, unless meeting anew did not help.
    breaks_none = finding.kind is FindingKind.COLLECTIVE_FAILED and recovery.entry is Entry.REENTER
    if finding.alike or not (named or breaks_none):
        return msgspec.structs.replace(recovery, leaves=None)
    out = [shares for _, shares in by_group(round_) if any(share.member in named for share in shares)]
    fresh = recovery.fresh_ranks
    if recovery.entry is Entry.RESPAWN:
        fresh = tuple(
            [share.first_rank + local for each in out for share in each for local in range(share.local_size)]
        )
    leaves = tuple(sorted(named))
    return msgspec.structs.replace(recovery, entry=Entry.REENTER, fresh_ranks=fresh, leaves=leaves)


def fell_with_others(state: JobState, finding: Finding) -> bool:
    """Whether the finding is of a replica group that trained on when another one was taken out, or is to be, and
    no step is new since: what takes many takes them within moments, and is no further failure of what is healed.
    """
    round_, recovery = state.round, state.recovery
    if round_ is None or state.progressed or not state.failures:
        return False
    owed = recovery.leaves or () if recovery is not None and recovery.incidents else ()
    for group, shares in by_group(round_):
        names = {share.member for share in shares}
        if finding.subject.member in names:
            return group.trains and (group.epoch < round_.number or (bool(owed) and names.isdisjoint(owed)))
    return False


def as_of_now(round_: Round | None, finding: Finding) -> Finding:
    """A worker's end, found in a round before `round_`, as it is in that, where its replica group has gone on; any
    other finding as it is.
    """
    if round_ is None or finding.round is None or finding.kind not in ENDS:
        return finding
    known: list[Subject] = []
    for each in (finding.subject, *finding.also):
        rank = None
        if each.member is not None and each.rank is not None:
            rank = round_.rank_now(finding.round, each.rank, each.member)
        if rank is not None:
            known.append(msgspec.structs.replace(each, rank=rank))
        elif not known:
            return finding
    return msgspec.structs.replace(finding, subject=known[0], also=tuple(known[1:]), round=round_.number)


def is_being_formed(round_: Round, names: Collection[str]) -> bool:
    """Whether all of these members are in groups that do not train yet."""
    forming = {share.member for group, shares in by_group(round_) if not group.trains for share in shares}
    return bool(names) and forming.issuperset(names)


def partition(policy: Policy, seats: tuple[Member, ...], number: int) -> Grouping:
    """A round of everybody: all groups are formed in it, and train from its start."""
    size = policy.replica_nodes
    if not size:
        return Grouping(seats, ())
    firsts = seats[::size]
    return Grouping(
        seats, tuple([ReplicaGroup(number, size, endpoint_of(each, number), trains=True) for each in firsts])
    )


def regrouped(
    state: JobState, policy: Policy, recovery: Recovery, order: Sequence[Member], number: int, now: float
) -> Grouping | None:
    """The groups of the next round, when those go on that can; None: it is a round of everybody.

    `number` is the round's, `order` are all who can have ranks, in rank order. Until `recovery.not_before` no
    group is formed anew.
    """
    round_ = state.round
    if round_ is None or recovery.leaves is None or not is_in_groups(state):
        return None
    goes_back = state.rewind is not None and state.rewind.round is None
    if goes_back or recovery.entry is Entry.RESPAWN or not state.members.unheard().isdisjoint(state.ranked()):
        return None
    there, size = {each.name: each for each in order}, policy.replica_nodes
    kept: list[tuple[ReplicaGroup, list[Member]]] = []
    for group, shares in by_group(round_):
        names = [share.member for share in shares]
        if group.members == size and there.keys() >= set(names) and not set(names) & set(recovery.leaves):
            members = [there[name] for name in names]
            trains = group.trains or is_ready(group, members)
            kept.append((msgspec.structs.replace(group, trains=trains), members))
    kept = [*(each for each in kept if each[0].trains), *(each for each in kept if not each[0].trains)]
    kept = kept[: policy.members_wanted // size]
    trained = [group for group, _ in kept if group.trains and group in round_.groups]
    if not trained:
        return None  # nobody is left who has the state
    if size * sum(group.trains for group, _ in kept) < policy.nodes_min:
        return None
    stay = frozenset([member.name for _, members in kept for member in members])
    free = [each for each in order if each.name not in stay] if now >= recovery.not_before else []
    for first in range(0, min(len(free), policy.members_wanted - len(stay)) // size * size, size):
        members = free[first : first + size]
        kept.append((ReplicaGroup(number, size, endpoint_of(members[0], number), trains=False), members))
    seats = tuple([member for _, members in kept for member in members])
    is_whole = len(trained) == sum(group.trains for group in round_.groups)
    return Grouping(seats, tuple([group for group, _ in kept]), stay, is_whole)


def is_in_groups(state: JobState) -> bool:
    """Whether a round of replica groups runs."""
    return isinstance(state.desired, Round) and bool(state.desired.groups)


def is_ready(group: ReplicaGroup, members: Iterable[Member | None]) -> bool:
    """Whether all workers of the group wait at a step boundary for the others."""
    return all(each is not None and each.ready_epoch == group.epoch for each in members)


def waits_at_the_door(state: JobState) -> bool:
    """Whether a group that was being formed is ready, so that it can train."""
    if state.round is None or not state.forming:
        return False
    return any(
        not group.trains and is_ready(group, (state.member(share.member) for share in shares))
        for group, shares in by_group(state.round)
    )


def forming_since(state: JobState, round_: Round, now: float) -> dict[int, float]:
    """By epoch: since when the groups of the round are formed that do not train yet."""
    return {each.epoch: state.forming.get(each.epoch, now) for each in round_.groups if not each.trains}


def may_regroup(state: JobState) -> bool:
    """Whether groups may come in now: a round of groups runs, and no fault is to be healed first."""
    policy, recovery = state.policy, state.recovery
    if (recovery is not None and recovery.incidents) or state.held or policy is None or policy.observe:
        return False
    return is_in_groups(state)


def next_overdue(state: JobState, policy: Policy) -> float | None:
    """When a group that is being formed has had all the time that a job has for its start."""
    if not state.forming or not may_regroup(state):
        return None
    return min((_due(state, policy, group) for group, _ in _late(state)), default=None)


def not_ready(state: JobState, policy: Policy, now: float) -> Finding | None:
    """That a group which is being formed is not ready in time."""
    for group, shares in _late(state):
        began_at = state.forming[group.epoch]
        if now < _due(state, policy, group):
            continue
        late = [each for each in shares if not is_ready(group, [state.member(each.member)])]
        subject, *also = [Subject(state.job, node=each.node, member=each.member) for each in late]
        says = f"replica group of round {group.epoch} is not ready after {policy.startup_timeout_s:.0f} s"
        return Finding(
            kind=FindingKind.HANG,
            subject=subject,
            cause="replica group not ready",
            evidence=(Evidence("watchdog", says, now),),
            confidence=Confidence.UNKNOWN,
            began_at=began_at,
            round=state.round.number if state.round is not None else None,
            error=says,
            also=tuple(also),
        )
    return None


def _due(state: JobState, policy: Policy, group: ReplicaGroup) -> float:
    """By when the group has to be ready. Where a round was shown only now, that is settled first."""
    return max(state.forming[group.epoch] + policy.startup_timeout_s, state.round_shown_at + SETTLES_S)


def _late(state: JobState) -> Iterator[tuple[ReplicaGroup, Sequence[MemberRanks]]]:
    """The groups that are being formed and are not ready."""
    if state.round is None or not state.forming:
        return
    for group, shares in by_group(state.round):
        if not (group.trains or is_ready(group, (state.member(share.member) for share in shares))):
            yield group, shares


def endpoint_of(first: Member, number: int) -> Endpoint:
    """Ports rotate, so that the store of the round before cannot be met by accident."""
    return Endpoint(first.address, first.ports[number % len(first.ports)])
