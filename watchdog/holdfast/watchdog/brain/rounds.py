"""The next round: when it is formed, from whom, and who takes which ranks.

Survivors keep their place in the rank order and a spare takes the place of a lost one, so that only the changed
shards move. Without spares the round shrinks to the largest legal size; it grows back when members come."""

import msgspec

from holdfast.api.incident import Action, Rung
from holdfast.api.memory import MemoryRound
from holdfast.api.policy import Policy
from holdfast.api.round import Endpoint, Entry, Idle, MemberRanks, Reentry, Restore, Round, Tier
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.copies import plan_copies
from holdfast.watchdog.brain.incidents import act
from holdfast.watchdog.brain.rewinds import newest_step
from holdfast.watchdog.brain.roster import Member
from holdfast.watchdog.brain.selftests import (
    being_tested,
    is_anybody_tested,
    misfits_in_words,
    waiting_for_tests,
)
from holdfast.watchdog.brain.state import ENDED, JobState, Recovery, Rewind, RewindAsked
from holdfast.watchdog.brain.step import Effect, Reason, Show, Step, changed, stay
from holdfast.watchdog.wording import in_words


def owe(state: JobState, recovery: Recovery) -> JobState:
    """The state with `recovery` owed. Two recoveries become one that satisfies both."""
    known = state.recovery
    if known is None:
        return changed(state, recovery=recovery)
    rungs = [rung for rung in (known.rung, recovery.rung) if rung is not None]
    both = Recovery(
        reason=recovery.reason if recovery.incidents or not known.incidents else known.reason,
        entry=Entry.RESPAWN if Entry.RESPAWN in (known.entry, recovery.entry) else Entry.REENTER,
        fresh_ranks=tuple(sorted({*known.fresh_ranks, *recovery.fresh_ranks})),
        not_before=max(known.not_before, recovery.not_before),
        rung=max(rungs, default=None),
        incidents=tuple(dict.fromkeys((*known.incidents, *recovery.incidents))),
    )
    return changed(state, recovery=both)


KEPT_RESTARTS = 1024


def next_round_at(state: JobState, policy: Policy) -> float | None:
    """When the round that is owed may be formed."""
    if state.held or _waits_for_members(state):
        return None  # they come, are lost, or their tests are given up: all of that is told
    if state.recovery is not None and state.recovery.not_before:
        return state.recovery.not_before
    if (at := _rest_is_known_at(state)) is not None:
        return at
    enough = (
        _forming_anew(state) and legal_size(policy, state.eligible_count()) > 0 and not is_anybody_tested(state)
    )
    return _graced_until(state, policy) if enough else None


# Members join one after the other: each has the others wait a little longer, but not for ever.
GRACES_MAX = 6


def _graced_until(state: JobState, policy: Policy) -> float | None:
    """Until when the rest of the members is waited for; None before the first has joined."""
    if state.forming_since is None:
        return None
    first = next(iter(state.members), None)
    longest = GRACES_MAX * policy.form_grace_s
    return min(state.forming_since + policy.form_grace_s, (first.joined_at if first else 0.0) + longest)


# What takes many members takes them within moments: the first makes a round at once, the others one together.
GATHER_S = 0.25


def _rest_is_known_at(state: JobState) -> float | None:
    """When a fault that broke a round no sooner than it was shown is healed; None when nothing waits for that."""
    recovery = state.recovery
    if recovery is None or not recovery.incidents or state.progressed or not isinstance(state.desired, Round):
        return None
    return state.round_shown_at + GATHER_S


def settle_round(state: JobState, policy: Policy, now: float) -> Step:
    """Form the round that is owed as soon as it may and can be formed; until then nothing runs."""
    if state.phase in ENDED or state.held:
        return stay(state)
    recovery = state.recovery or (Recovery("first round", Entry.RESPAWN) if state.round is None else None)
    if recovery is None:
        return stay(state)
    if recovery.not_before and now >= recovery.not_before:
        # Else it would go on to be a time to wake at while something else is waited for.
        recovery = msgspec.structs.replace(recovery, not_before=0.0)
        state = changed(state, recovery=recovery)
    if (unheard := _silent(state)) is not None:
        return _wait(state, f"waiting to hear of {unheard} after the watchdog's restart")
    if (untested := waiting_for_tests(state)) is not None:
        return _wait(state, untested)
    if now < recovery.not_before:
        return _wait(state, f"backing off for {recovery.not_before - now:.0f} s: {recovery.reason}")
    if (at := _rest_is_known_at(state)) is not None and now < at:
        return stay(state)
    if _forming_anew(state) and not _may_form(state, policy, now):
        return _waiting_to_form(state, policy)
    formed = form(state, policy, recovery)
    if isinstance(formed, Shortage):
        says = f"waiting for members: {formed.present} of at least {formed.needed} are there"
        return _wait(state, _with_obstacles(state, says))
    return _show(state, recovery, formed, now)


def _silent(state: JobState) -> str | None:
    """The members with ranks of which nothing is known since the restart, in words; None when there is none."""
    names = state.members.unheard() & state.ranked()
    return in_words(names) if names else None


def _waits_for_members(state: JobState) -> bool:
    """Whether a round is owed that waits for members with ranks, whatever the time."""
    return state.recovery is not None and (_silent(state) is not None or waiting_for_tests(state) is not None)


def _forming_anew(state: JobState) -> bool:
    """Whether nobody is left of a round before: the first round, or the first after everybody went."""
    return state.round is None or (state.recovery is not None and not state.has_survivors())


def _may_form(state: JobState, policy: Policy, now: float) -> bool:
    """A round formed anew waits for the maximum, and makes do with the minimum only after the grace."""
    present = state.eligible_count()
    if legal_size(policy, present) == 0:
        return False
    full = legal_size(policy, present) == legal_size(policy, policy.nodes_max)
    if not full and is_anybody_tested(state):
        return False  # they are there, and answer or are waited for no longer
    until = _graced_until(state, policy)
    return full or (until is not None and now >= until)


def _waiting_to_form(state: JobState, policy: Policy) -> Step:
    present = state.eligible_count()
    enough = legal_size(policy, present) > 0
    phase = JobPhase.FORMING if enough else JobPhase.PENDING
    says = f"{present} of {policy.nodes_max} members joined"
    if is_anybody_tested(state):
        testing = being_tested(state)
        phase = JobPhase.PREFLIGHT
        says = f"{present} of {policy.nodes_max} members are ready; waiting for the self-tests of {testing}"
    says = _with_obstacles(state, says)
    if (state.phase, state.reason) == (phase, says):
        return stay(state)
    return idle(changed(state, phase=phase, reason=says), says)


OBSTACLES_TOLD = 4


def _with_obstacles(state: JobState, says: str) -> str:
    """What is waited for, and what is known to be in its way."""
    away = [f"node {order.node} gets no ranks ({order.reason})" for order in state.avoided[:OBSTACLES_TOLD]]
    return "; ".join(each for each in (says, *away, misfits_in_words(state), state.pending) if each)


def _wait(state: JobState, says: str) -> Step:
    """Nothing may run now: the workers of the broken round leave it, the launchers stay warm."""
    after = changed(state, phase=JobPhase.RECOVERING, reason=says)
    return idle(after, says)


def idle(state: JobState, says: str) -> Step:
    if isinstance(state.desired, Idle):
        return Step(state, (), Reason("waiting", says))
    desired = Idle(state.job, next_number(state), says)
    return Step(changed(state, desired=desired), (Show(desired),), Reason("waiting", says))


def _show(state: JobState, recovery: Recovery, formed: Round, now: float) -> Step:
    """Show the new round to the launchers and write it into the incidents that it heals."""
    before = len(state.round.ranks) if state.round else 0
    effects: tuple[Effect, ...] = ()
    if recovery.incidents and recovery.rung is not None:
        shrunk = len(formed.ranks) < before
        rung = max(recovery.rung, Rung.SHRINK) if shrunk else recovery.rung
        size = f"{len(formed.ranks)} members, world size {formed.world_size}"
        does = f"round {formed.number}: {size}{_changes(state, formed)}"
        action = Action(rung, now, does, recovery.reason, round=formed.number)
        state, effects = act(state, recovery.incidents, action)
    after = changed(
        state,
        round=formed,
        desired=formed,
        rewind=_told_rewind(state.rewind, formed),
        asked=_told_asked(state.asked, formed),
        recovery=None,
        progressed=False,
        step=None,
        restored_step=None,
        signed_at=None,
        phase=JobPhase.RECOVERING if before else JobPhase.FORMING,
        reason=formed.reason,
        forming_since=None,
        round_shown_at=now,
        ledger=state.ledger.begin(now),
        restarts=(*state.restarts, now)[-KEPT_RESTARTS:] if recovery.incidents else state.restarts,
        restart_count=state.restart_count + bool(recovery.incidents),
    )
    return Step(after, (*effects, Show(formed)), Reason("round", f"round {formed.number}: {formed.reason}"))


def _told_rewind(rewind: Rewind | None, formed: Round) -> Rewind | None:
    return Rewind(rewind.restore, formed.number) if rewind is not None and rewind.round is None else rewind


def _told_asked(asked: RewindAsked | None, formed: Round) -> RewindAsked | None:
    if asked is None or asked.round is not None:
        return asked
    return msgspec.structs.replace(asked, round=formed.number)


def _changes(state: JobState, formed: Round) -> str:
    """Which members came and went, in words."""
    old, new = state.ranked(), formed.names
    came, went = new - old, old - new
    parts = [f"{in_words(came)} in" if came else "", f"{in_words(went)} out" if went else ""]
    told = ", ".join(part for part in parts if part)
    return f" ({told})" if told else ""


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
