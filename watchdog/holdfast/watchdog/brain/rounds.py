"""The next round: when it is formed, from whom, and who takes which ranks.

Survivors keep their place in the rank order and a spare takes the place of a lost one, so that only the changed
shards move. Without spares the round shrinks to the largest legal size; it grows back when members come.
"""

import msgspec

from holdfast.api.incident import Action, Rung
from holdfast.api.policy import Policy
from holdfast.api.round import Entry, Idle, MemberRanks, Reentry, Restore, Round, Tier
from holdfast.watchdog.brain.copies import plan_copies
from holdfast.watchdog.brain.groups import (
    BACK,
    Grouping,
    endpoint_of,
    forming_since,
    is_in_groups,
    partition,
    regrouped,
    waits_at_the_door,
)
from holdfast.watchdog.brain.incidents import act
from holdfast.watchdog.brain.linktests import ask_for_links, links_bar, links_due
from holdfast.watchdog.brain.phases import LEADS_TO, Turn, moved
from holdfast.watchdog.brain.rewinds import newest_step
from holdfast.watchdog.brain.roster import Member
from holdfast.watchdog.brain.selftests import (
    being_tested,
    is_anybody_tested,
    misfits_in_words,
    waiting_for_tests,
)
from holdfast.watchdog.brain.state import ENDED, JobState, Recovery, Rewind
from holdfast.watchdog.brain.step import Effect, Reason, Show, Step, changed, stay
from holdfast.watchdog.wording import in_words

KEPT_RESTARTS = 1024
OBSTACLES_TOLD = 4
# Members join one after the other: each has the others wait a little longer, but not for ever.
GRACES_MAX = 6
# What takes many members takes them within moments: the first makes a round at once, the others one together.
GATHER_S = 0.25
GROWTH = "more members are ready: the round grows"


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
        leaves=None
        if known.leaves is None or recovery.leaves is None
        else tuple(sorted({*known.leaves, *recovery.leaves})),
    )
    return changed(state, recovery=both)


def settle_round(state: JobState, policy: Policy, now: float) -> Step:
    """Show the round that is owed as soon as it may and can be formed; until then nothing runs."""
    recovery = state.recovery or (Recovery("first round", Entry.RESPAWN) if state.round is None else None)
    if state.phase in ENDED or state.held or recovery is None:
        return stay(state)
    if recovery.not_before and now >= recovery.not_before:
        # Else it would go on to be a time to wake at while something else is waited for.
        recovery = msgspec.structs.replace(recovery, not_before=0.0)
        state = changed(state, recovery=recovery)
    if (without := _without_the_broken(state, policy, recovery, now)) is not None:
        return without
    found, says = next_round(state, policy, recovery, now)
    if found is None:
        return stay(state)
    if isinstance(found, Round):
        if names := links_due(state, (each.node for each in found.ranks)):
            return ask_for_links(state, names, now).then(settle_round, policy, now)
        return _show(state, recovery, found, now)
    if found is not Turn.BROKEN and (state.phase, state.reason) == (LEADS_TO[found], says):
        return stay(state)
    # The workers of the broken round leave it, the launchers stay warm.
    return idle(moved(state, found, reason=says), says)


def _without_the_broken(state: JobState, policy: Policy, recovery: Recovery, now: float) -> Step | None:
    """The round of the replica groups that go on, at once; None: the next round is everybody's."""
    round_ = state.round
    if round_ is None or not is_in_groups(state):
        return None
    waits = now < recovery.not_before and not recovery.incidents and not recovery.leaves
    if waits and not waits_at_the_door(state) and state.members.absent().isdisjoint(state.ranked()):
        return stay(state)
    if recovery.leaves is not None and not state.members.unheard().isdisjoint(state.ranked()):
        return stay(state)  # they are heard of soon, or lost; the workers of others need not leave for that
    grouping = regrouped(state, policy, recovery, seated(state, policy), next_number(state), now)
    if grouping is None:
        return None
    if grouping.groups == round_.groups and not recovery.incidents:
        return stay(state if now < recovery.not_before else changed(state, recovery=None))
    if (at := _rest_is_known_at(state)) is not None and now < at:
        return stay(state)
    return _show(state, recovery, _formed(state, policy, recovery, grouping), now)


def next_round(state: JobState, policy: Policy, recovery: Recovery, now: float) -> tuple[Round | Turn | None, str]:
    """The round to show now, as `recovery` owes it, and why. While there can be none: what that makes of the job
    and what is waited for; None where all stays as it is.
    """
    # Workers of members that were not heard of since the watchdog's restart may run on: that is settled first.
    if silent := state.members.unheard() & state.ranked():
        return Turn.BROKEN, f"waiting to hear of {in_words(silent)} after the watchdog's restart"
    # Who had ranks and is tested keeps its place if it passes.
    if (untested := waiting_for_tests(state)) is not None:
        return Turn.BROKEN, untested
    # What fails again and again may need time to come back.
    if now < recovery.not_before:
        return Turn.BROKEN, f"backing off for {recovery.not_before - now:.0f} s: {recovery.reason}"
    # A round that broke at once broke for more members than are known yet.
    if (at := _rest_is_known_at(state)) is not None and now < at:
        return None, ""
    present, wanted = state.eligible_count(), policy.members_wanted
    if links_bar(state):
        says = f"{present} of {wanted} members are ready; waiting for {being_tested(state)}"
        return Turn.TESTING, _with_obstacles(state, says)
    size = legal_size(policy, present)
    # Where nobody is left of a round before, nobody waits: the maximum is waited for, while members are tested or
    # until a grace is over. Then the minimum will do.
    if _is_anew(state) and (not size or size < legal_size(policy, wanted)):
        until, tested = _graced_until(state, policy), is_anybody_tested(state)
        if not size or tested or until is None or now < until:
            turn = Turn.TESTING if tested else Turn.GATHERING if size else Turn.TOO_FEW
            says = f"{present} of {wanted} members joined"
            if tested:
                says = f"{present} of {wanted} members are ready; waiting for {being_tested(state)}"
            return turn, _with_obstacles(state, says)
    # This is asked for each of thousands that come back: who would be seated where is not.
    if not size:
        says = f"waiting for members: {present} of at least {policy.nodes_min} are there"
        return Turn.BROKEN, _with_obstacles(state, says)
    order = seated(state, policy)
    seats = order[: legal_size(policy, len(order))]
    everybody = wanted + policy.spares_wanted
    if present < everybody and links_due(state, (each.node for each in seats)):
        # Spares have their links tested with the others: they are waited for as the others are.
        until = _graced_until(state, policy)
        if until is not None and now < until:
            says = f"{present} of {everybody} members and spares joined, whose links are to be tested"
            return Turn.GATHERING, _with_obstacles(state, says)
    formed = _formed(state, policy, recovery, partition(policy, seats, next_number(state)))
    return formed, formed.reason


def next_round_at(state: JobState, policy: Policy) -> float | None:
    """When the round that is owed may be formed, where that is a matter of time."""
    recovery = state.recovery
    if state.held:
        return None
    if recovery is not None:
        if not state.members.unheard().isdisjoint(state.ranked()) or waiting_for_tests(state) is not None:
            return None  # they come, are lost, or their tests are given up: all of that is told
        if recovery.not_before:
            return recovery.not_before
        if (at := _rest_is_known_at(state)) is not None:
            return at
    if not _is_anew(state) or not legal_size(policy, state.eligible_count()) or is_anybody_tested(state):
        return None
    return _graced_until(state, policy)


def _is_anew(state: JobState) -> bool:
    """Whether nobody is left of a round before: the first round, or the first after everybody went."""
    return state.round is None or (state.recovery is not None and not state.has_survivors())


def _graced_until(state: JobState, policy: Policy) -> float | None:
    """Until when the rest of the members is waited for; None before the first has joined."""
    if state.forming_since is None:
        return None
    first = next(iter(state.members), None)
    longest = GRACES_MAX * policy.form_grace_s
    return min(state.forming_since + policy.form_grace_s, (first.joined_at if first else 0.0) + longest)


def _rest_is_known_at(state: JobState) -> float | None:
    """When a fault that broke a round no sooner than it was shown is healed; None when nothing waits for that."""
    recovery = state.recovery
    if recovery is None or not recovery.incidents or state.progressed or not isinstance(state.desired, Round):
        return None
    return state.round_shown_at + GATHER_S


def _with_obstacles(state: JobState, says: str) -> str:
    """What is waited for, and what is known to be in its way."""
    away = [f"node {order.node} gets no ranks ({order.reason})" for order in state.avoided[:OBSTACLES_TOLD]]
    return "; ".join(each for each in (says, *away, misfits_in_words(state), state.pending) if each)


def idle(state: JobState, says: str) -> Step:
    """Nothing is to run now."""
    if isinstance(state.desired, Idle):
        return Step(state, (), Reason("waiting", says))
    desired = Idle(state.job, next_number(state), says)
    return Step(changed(state, desired=desired), (Show(desired),), Reason("waiting", says))


def _show(state: JobState, recovery: Recovery, formed: Round, now: float) -> Step:
    """Show the new round to the launchers and write it into the incidents that it heals."""
    before = len(state.round.ranks) if state.round else 0
    effects: tuple[Effect, ...] = ()
    if recovery.incidents and recovery.rung is not None:
        rung = max(recovery.rung, Rung.SHRINK) if len(formed.ranks) < before else recovery.rung
        came, went = in_words(formed.names - state.ranked()), in_words(state.ranked() - formed.names)
        moves = ", ".join([f"{came} in"] * bool(came) + [f"{went} out"] * bool(went))
        size = f"{len(formed.ranks)} members, world size {formed.world_size}"
        does = f"round {formed.number}: {size}" + (f" ({moves})" if moves else "")
        action = Action(rung, now, does, recovery.reason, round=formed.number)
        state, effects = act(state, recovery.incidents, action)
    rewind, asked, goes_on = state.rewind, state.asked, formed.goes_on
    if rewind is not None and rewind.round is None:
        rewind = Rewind(rewind.restore, formed.number)
    if asked is not None and asked.round is None:
        asked = msgspec.structs.replace(asked, round=formed.number)
    after = moved(
        state,
        Turn.ROUND if before else Turn.FIRST_ROUND,
        round=formed,
        desired=formed,
        rewind=rewind,
        asked=asked,
        recovery=Recovery(BACK, not_before=recovery.not_before) if goes_on and now < recovery.not_before else None,
        progressed=False,
        # Groups that go on restore nothing: nothing is lost that was complete.
        step=state.step if goes_on else None,
        restored_step=(state.restored_step if state.step is None else state.step) if goes_on else None,
        forming=forming_since(state, formed, now),
        came_in=tuple([each.epoch for each in formed.groups if each.trains and each.epoch in state.forming]),
        signed_at=None,
        reason=formed.reason,
        forming_since=None,
        round_shown_at=now,
        ledger=state.ledger.begin(now),
        restarts=(*state.restarts, now)[-KEPT_RESTARTS:] if recovery.incidents else state.restarts,
        restart_count=state.restart_count + bool(recovery.incidents),
    )
    return Step(after, (*effects, Show(formed)), Reason("round", f"round {formed.number}: {formed.reason}"))


def legal_size(policy: Policy, present: int) -> int:
    """The largest number of members, at most `present`, that makes a legal world; 0 when there is none."""
    sizes = range(min(present, policy.members_wanted), policy.nodes_min - 1, -1)
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
        key=lambda member: (
            state.is_last_choice(member.node),
            bool(state.gathered_at(member.node)),
            not member.warm,
            member.joined_at,
            member.name,
        )
    )
    waiting = iter(newcomers)
    order = [eligible.get(name) or next(waiting, None) for name in places]
    return tuple(member for member in order if member is not None) + tuple(waiting)


def _staying(state: JobState, policy: Policy) -> tuple[Member, ...]:
    """Eligible members. Who is to leave is among them while nobody can take its place and its time is not up."""
    eligible = state.eligible()
    if not state.departures:
        return eligible
    wanted = (
        min(len(state.round.ranks), policy.members_wanted) if state.round is not None else policy.members_wanted
    )
    kept = set(state.leaving_last()[: max(0, wanted - state.ready_count())])
    staying = tuple(each for each in eligible if each.name not in state.leaving or each.name in kept)
    return staying if legal_size(policy, len(staying)) else eligible


def can_grow(state: JobState) -> bool:
    """Whether a larger legal round could be formed at once, with newcomers that are already warm."""
    policy = state.policy
    if state.round is None or policy is None or policy.observe:
        return False
    size = len(state.round.ranks)
    if size >= policy.members_wanted or legal_size(policy, state.eligible_count()) <= size:
        return False  # nearly always so; whom to take in need not be looked at
    ranked = state.ranked()
    ready = [
        member
        for member in _staying(state, policy)
        if member.name in ranked or (member.warm and not state.is_last_choice(member.node))
    ]
    return legal_size(policy, len(ready)) > size


def newest_number(state: JobState) -> int:
    """The greatest number that is known to have been shown, 0 for none."""
    return max(state.desired.number if state.desired else 0, state.number_floor)


def next_number(state: JobState) -> int:
    """Every desired state shown takes a number of its own, so that a launcher never has to compare more."""
    return newest_number(state) + 1


def _formed(state: JobState, policy: Policy, recovery: Recovery, grouping: Grouping) -> Round:
    """The round of these members, in rank order."""
    number, seats, before = next_number(state), grouping.seats, state.round
    entry, fresh_ranks, reason = _entry(state, recovery, grouping)
    is_whole = grouping.is_whole and not recovery.incidents
    memory = None
    if policy.memory is not None:
        # Where history was given up, as what is not healthy is, or nothing was counted, snapshots count anew: the
        # round after this one must not remember what this one has passed over.
        kept = before.memory if before is not None else None
        goes_back = state.unhealthy_from is not None or (state.rewind is not None and state.rewind.round is None)
        since = number if kept is None or goes_back else kept.since_round
        memory = plan_copies(policy.memory, seats, state.racks, since_round=since)
    return Round(
        job=state.job,
        number=number,
        ranks=tuple(
            MemberRanks(member.name, member.node, place * policy.processes_per_node, member.local_size)
            for place, member in enumerate(seats)
        ),
        endpoint=grouping.groups[0].endpoint if grouping.groups else endpoint_of(seats[0], number),
        restore=_restore(state, policy),
        entry=entry,
        reason=reason,
        fresh_ranks=fresh_ranks,
        fingerprint_every=policy.corruption.fingerprint_every,
        memory=memory,
        keep=policy.keep,
        save_every=policy.interval.steps if policy.interval is not None else None,
        spikes=policy.loss.spikes if policy.loss is not None else None,
        ranks_shown=policy.reporting.ranks if policy.reporting is not None else 1,
        groups=grouping.groups,
        broke_in=before.broke_in if before is not None and is_whole else number if grouping.groups else 0,
    )


def _entry(state: JobState, recovery: Recovery, grouping: Grouping) -> tuple[Entry, tuple[int, ...], str]:
    """How the workers enter the round, which ranks, as they will be numbered, are new processes, and why there is
    a round: with why processes that could have been kept are not. Of groups that go on nobody enters.
    """
    before, seats, kept = state.round, grouping.seats, grouping.kept
    if before is None:
        return recovery.entry, (), recovery.reason
    # Members whose workers said that their process cannot go on to this round. One that was without ranks in the
    # newest round may have waited with a process of an older one.
    same_world = sum([member.local_size for member in seats]) == before.world_size
    bound: dict[int, Member] = {}
    for place, member in enumerate(seats):
        if member.reentry is Reentry.ANY_WORLD or member.name in kept:
            continue
        share = before.share_of(member.name)
        keeps_rank = share is not None and same_world and share.first_rank == place * member.local_size
        if member.reentry is Reentry.NEVER or not keeps_rank:
            bound[place] = member
    # Members that stay and have not entered the newest round: what it asked of them is still to be done.
    ranked = state.ranked()
    moving = [(place, each) for place, each in enumerate(seats) if each.name not in kept]
    owing = {each.name for _, each in moving if each.name in ranked and each.entered_round != before.number}
    old = [place for place, each in moving if each.name in ranked]
    nobody_goes_on = bound and all(place in bound for place in old)
    respawns = (owing and before.entry is Entry.RESPAWN) or nobody_goes_on
    entry = Entry.RESPAWN if respawns else recovery.entry

    fresh = {
        place * member.local_size + local_rank
        for place, member in bound.items()
        for local_rank in range(member.local_size)
    }
    first_rank = {member.name: place * member.local_size for place, member in moving}
    for rank in {*recovery.fresh_ranks, *before.fresh_ranks}:
        share = before.member_of(rank)
        if share is None or share.member not in first_rank:
            continue
        if rank in recovery.fresh_ranks or share.member in owing:
            fresh.add(first_rank[share.member] + rank - share.first_rank)

    reason = recovery.reason
    if bound and recovery.entry is not Entry.RESPAWN:
        named = f"the workers of {in_words(member.name for member in bound.values())}"
        who = "all workers" if entry is Entry.RESPAWN else named
        reason += f"; {who} start anew: {next(iter(bound.values())).because}"
    return entry, tuple(sorted(fresh)), reason


def _restore(state: JobState, policy: Policy) -> Restore:
    """What a rewind asked for, else the newest snapshot or committed checkpoint; and what is known to be right.

    What rounds remember since they went back comes before going back once more: `_formed` counts nothing older.
    Without a commit on record the library looks for itself: an earlier run may have left one at the same place,
    which the script may name when the job does not.
    """
    rewind = state.rewind
    if rewind is None:
        tier = Tier.MEMORY if policy.memory is not None else Tier.CHECKPOINT
        restore = Restore(tier, newest_step(state), policy.checkpoint_uri, owner=state.incarnation)
    elif policy.memory is None or rewind.round is None:
        restore = rewind.restore
    else:
        step = 0 if rewind.restore.tier is Tier.NONE else rewind.restore.step
        restore = msgspec.structs.replace(rewind.restore, tier=Tier.MEMORY, step=step)
    return msgspec.structs.replace(
        restore,
        verified=state.verified_step,
        unhealthy_from=state.unhealthy_from,
        learning_rate_cuts=state.learning_rate_cuts,
    )
