"""Who takes which ranks: the next round from the members there are.

Survivors keep their place in the rank order and a spare takes the place of a lost one, so that only the changed
shards move. Without spares the round shrinks to the largest legal size; it grows back when members come.
"""

import msgspec

from holdfast.api.memory import MemoryRound
from holdfast.api.policy import Policy
from holdfast.api.round import Endpoint, Entry, MemberRanks, Reentry, Restore, Round, Tier
from holdfast.watchdog.copies import plan_copies
from holdfast.watchdog.rewinding import newest_step
from holdfast.watchdog.roster import Member
from holdfast.watchdog.state import JobState, Recovery
from holdfast.watchdog.wording import in_words


class Shortage(msgspec.Struct, frozen=True):
    """No legal round can be formed from the members there are."""

    present: int
    needed: int


def legal_size(policy: Policy, present: int) -> int:
    """The largest number of members, at most `present`, that makes a legal world; 0 when there is none."""
    sizes = range(min(present, policy.nodes_max), policy.nodes_min - 1, -1)
    return next((size for size in sizes if policy.world_sizes_allow(size)), 0)


def seated(state: JobState, policy: Policy) -> tuple[Member, ...]:
    """Members for the next round in rank order: survivors in their places, newcomers in the gaps and behind."""
    eligible = {member.name: member for member in _staying(state, policy)}
    places = state.ranked()
    newcomers = [member for name, member in eligible.items() if name not in places]
    if state.round is not None and legal_size(policy, len(eligible) - sum(not each.warm for each in newcomers)):
        # A cold newcomer would make everybody wait for its torch import; it joins once it is warm.
        newcomers = [member for member in newcomers if member.warm]
    newcomers.sort(
        key=lambda member: (member.node in state.probation, not member.warm, member.joined_at, member.name)
    )
    waiting = iter(newcomers)
    order = [eligible.get(name) or next(waiting, None) for name in places]
    return tuple(member for member in order if member is not None) + tuple(waiting)


def _staying(state: JobState, policy: Policy) -> tuple[Member, ...]:
    """Eligible members. Who is to leave is among them while nobody can take its place and its time is not up."""
    eligible = state.eligible()
    if not state.departures:
        return eligible
    wanted = min(len(state.round.ranks), policy.nodes_max) if state.round is not None else policy.nodes_max
    kept = set(state.leaving_last()[: max(0, wanted - state.ready_count())])
    staying = tuple(each for each in eligible if each.name not in state.leaving or each.name in kept)
    return staying if legal_size(policy, len(staying)) else eligible


def next_number(state: JobState) -> int:
    """Every desired state shown takes a number of its own, so that a launcher never has to compare more."""
    return max(state.desired.number if state.desired else 0, state.number_floor) + 1


def form(state: JobState, policy: Policy, recovery: Recovery) -> Round | Shortage:
    """The next round, or why there can be none."""
    if legal_size(policy, present := state.eligible_count()) == 0:
        return Shortage(present, needed=policy.nodes_min)  # said of each of thousands that come back
    order = seated(state, policy)
    first, seats = order[0], order[: legal_size(policy, len(order))]
    number = next_number(state)
    bound = _cannot_go_on(state, seats)
    entry = _entry(state, recovery, seats, bound)
    return Round(
        job=state.job,
        number=number,
        ranks=tuple(
            MemberRanks(member.name, member.node, place * policy.processes_per_node, member.local_size)
            for place, member in enumerate(seats)
        ),
        # Ports rotate, so that the store of the round before cannot be met by accident.
        endpoint=Endpoint(first.address, first.ports[number % len(first.ports)]),
        restore=msgspec.structs.replace(
            restore_directive(state, policy), verified=state.verified_step, unhealthy_from=state.unhealthy_from
        ),
        entry=entry,
        reason=_reason(recovery, entry, bound),
        fresh_ranks=_fresh_ranks(state, recovery, seats, bound),
        fingerprint_every=policy.corruption.fingerprint_every,
        memory=_memory(state, policy, seats, number),
        keep=policy.keep,
        save_every=policy.interval.steps if policy.interval is not None else None,
    )


def _memory(state: JobState, policy: Policy, seats: tuple[Member, ...], number: int) -> MemoryRound | None:
    """What the round says of snapshots. Where history was given up, as what is not healthy is, or nothing was
    counted, they count anew: the round after this one must not remember what this one has passed over.
    """
    if policy.memory is None:
        return None
    before = state.round.memory if state.round is not None else None
    goes_back = state.unhealthy_from is not None or (state.rewind is not None and state.rewind.round is None)
    since = number if before is None or goes_back else before.since_round
    return plan_copies(policy.memory, seats, state.racks, since_round=since)


def _unheard(state: JobState, seats: tuple[Member, ...]) -> frozenset[str]:
    """Members that stay and have not entered the newest round: what it asked of them is still to be done."""
    number = state.round.number if state.round else None
    ranked = state.ranked()
    return frozenset(each.name for each in seats if each.name in ranked and each.entered_round != number)


def _cannot_go_on(state: JobState, seats: tuple[Member, ...]) -> dict[int, Member]:
    """Members, by their place in the next round, whose workers said that their process cannot go on to it.

    One that was without ranks in the newest round may have waited with a process of an older one.
    """
    if state.round is None:
        return {}
    same_world = sum([member.local_size for member in seats]) == state.round.world_size
    bound = {}
    for place, member in enumerate(seats):
        if member.reentry is Reentry.ANY_WORLD:
            continue
        share = state.round.share_of(member.name)
        keeps_rank = share is not None and same_world and share.first_rank == place * member.local_size
        if member.reentry is Reentry.NEVER or not keeps_rank:
            bound[place] = member
    return bound


def _reason(recovery: Recovery, entry: Entry, bound: dict[int, Member]) -> str:
    """Why there is a round, and why processes that could have been kept are not."""
    if not bound or recovery.entry is Entry.RESPAWN:
        return recovery.reason
    members = in_words(member.name for member in bound.values())
    who = "all workers" if entry is Entry.RESPAWN else f"the workers of {members}"
    return f"{recovery.reason}; {who} start anew: {next(iter(bound.values())).because}"


def _entry(state: JobState, recovery: Recovery, seats: tuple[Member, ...], bound: dict[int, Member]) -> Entry:
    owed = state.round is not None and state.round.entry is Entry.RESPAWN and _unheard(state, seats)
    nobody_goes_on = bound and all(
        place in bound for place, member in enumerate(seats) if member.name in state.ranked()
    )
    return Entry.RESPAWN if owed or nobody_goes_on else recovery.entry


def _fresh_ranks(
    state: JobState, recovery: Recovery, seats: tuple[Member, ...], bound: dict[int, Member]
) -> tuple[int, ...]:
    """The ranks, as they will be numbered, of the workers that must be new processes."""
    if state.round is None:
        return ()
    unheard = _unheard(state, seats)
    seat = {member.name: place * member.local_size for place, member in enumerate(seats)}
    fresh = {
        place * member.local_size + local_rank
        for place, member in bound.items()
        for local_rank in range(member.local_size)
    }
    for rank in {*recovery.fresh_ranks, *state.round.fresh_ranks}:
        share = state.round.member_of(rank)
        if share is None or share.member not in seat:
            continue
        if rank in recovery.fresh_ranks or share.member in unheard:
            fresh.add(seat[share.member] + rank - share.first_rank)
    return tuple(sorted(fresh))


def restore_directive(state: JobState, policy: Policy) -> Restore:
    """What the next round restores: what a rewind asked for, else the newest snapshot or committed checkpoint.

    What rounds remember since they went back comes before going back once more: `_memory` counts nothing older.
    Without a commit on record the library looks for itself: an earlier run may have left one at the same place,
    which the script may name when the job does not.
    """
    if (rewind := state.rewind) is not None:
        if policy.memory is None or rewind.round is None:
            return rewind.restore
        starts_over = rewind.restore.tier is Tier.NONE
        return msgspec.structs.replace(
            rewind.restore, tier=Tier.MEMORY, step=0 if starts_over else rewind.restore.step
        )
    tier = Tier.MEMORY if policy.memory is not None else Tier.CHECKPOINT
    return Restore(tier, newest_step(state), policy.checkpoint_uri, owner=state.incarnation)


GROWTH = "more members are ready: the round grows"


def can_grow(state: JobState) -> bool:
    """Whether a larger legal round could be formed at once, with newcomers that are already warm."""
    policy = state.policy
    if state.round is None or policy is None or policy.observe:
        return False
    size = len(state.round.ranks)
    if size >= policy.nodes_max or legal_size(policy, state.eligible_count()) <= size:
        return False  # nearly always so; whom to take in need not be looked at
    ranked = state.ranked()
    ready = [
        member
        for member in _staying(state, policy)
        if member.name in ranked or (member.warm and member.node not in state.probation)
    ]
    return legal_size(policy, len(ready)) > size
