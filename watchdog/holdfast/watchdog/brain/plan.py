"""The plan: what the operator should make true of pods and nodes, and whose pods it may remove.

Those of members that are not there any more, or are not needed. Silence alone never removes a pod: the watchdog's
own network may be what is broken. A lost member's pod is let go once the job trains without it, or its node is
known to be unwell, or it has been away for long while others are not.
"""

from collections.abc import Iterable
from itertools import takewhile

import msgspec

from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.roster import THERE, Member, MemberState
from holdfast.watchdog.brain.state import ENDED, JobState, Missing
from holdfast.watchdog.brain.step import Publish, Reason, Step, changed, stay

KEPT_MISSING = 16_384  # more than any job has nodes
# A launcher that only lost its connection is back within seconds; a pod takes tens of seconds to come.
LOST_FOR_GOOD_S = 30.0


def missed(state: JobState, names: Iterable[str], now: float, incident: str = "") -> JobState:
    """Note that members are not there any more, until they come back or their pods are gone."""
    if state.phase is JobPhase.SUSPENDED:
        return state  # nobody of a suspended job is missed
    members = (state.member(name) for name in names if name not in state.missing)
    gone = [each for each in members if each is not None and each.standing is not MemberState.LOST]
    if not gone:
        return state
    missing = {**state.missing, **{each.name: Missing(each.name, each.node, now, incident) for each in gone}}
    while len(missing) > KEPT_MISSING:
        del missing[next(iter(missing))]
    return changed(state, missing=missing)


def found_again(state: JobState, name: str) -> dict[str, Missing]:
    """Who is missing without this one: it is back, or its pod is known to be gone."""
    if name not in state.missing:
        return state.missing
    missing = dict(state.missing)
    del missing[name]
    return missing


def awaited_anew(state: JobState, now: float) -> JobState:
    """The state in which everybody who is missing is so from `now` on: until now nobody could be there."""
    missing = {name: msgspec.structs.replace(each, at=now) for name, each in state.missing.items()}
    return changed(state, missing=missing) if missing else state


def anybody_there(state: JobState) -> bool:
    """Whether any member is known to be there."""
    return len(state.members.absent()) < len(state.members)


def released(state: JobState, policy: Policy, now: float) -> tuple[str, ...]:
    """Members whose pods are to be removed, or may be: sorted by name."""
    members, is_running = state.members, state.phase is JobPhase.RUNNING
    # Who is missing and waited for no longer; most often nobody is, and few are looked at. With nobody there, what
    # is cut off may as well be the watchdog, and the control plane with it.
    away: set[str] = set()
    if anybody_there(state):
        missing = state.missing.values()
        away |= {each.member for each in takewhile(lambda each: now >= each.at + LOST_FOR_GOOD_S, missing)}
        if state.unready:
            unready = frozenset(state.unready)
            away |= {each.member for each in missing if each.node in unready}
        if state.progressed and is_running:  # it trains without them
            away |= {name for name in state.missing if not state.in_round(name)}
    # Who is to leave, or is on a node that is kept away from, once it has no ranks.
    ranked = state.ranked() if state.phase is not JobPhase.SUSPENDED else frozenset()
    unwanted = {*state.leaving, *(each.name for each in members.on_nodes(state.avoided_nodes))}
    there = {name for name in unwanted if name in members and name not in members.absent()}
    leaving = {name for name in there if name not in ranked}
    # Spares beyond those wanted, the newest first. Who leaves with ranks is to be replaced by one of them.
    surplus: list[Member] = []
    if state.round is not None and state.recovery is None and is_running:
        staying = len(state.round.ranks) - sum(1 for name in state.leaving if state.in_round(name))
        room = max(0, policy.members_wanted + policy.spares_wanted - staying)
        idle = [members.by_name[name] for name in members.beyond(state.ranked()) if name not in leaving]
        spares = (each for each in idle if each.standing in THERE)
        surplus = sorted(spares, key=lambda each: (each.joined_at, each.name))[room:]
    return tuple(sorted({*away, *leaving, *(each.name for each in surplus)}))


def is_given_up(state: JobState) -> bool:
    """Whether the job holds no pods at all: its spec suspends it, or its queue keeps it out. One that somebody
    paused keeps them, warm.
    """
    return state.policy is not None and state.policy.is_kept_out and state.phase is JobPhase.SUSPENDED


def next_release(state: JobState) -> float | None:
    """When a lost member counts as lost for good."""
    if not state.missing or is_given_up(state):
        return None
    known = frozenset(state.plan.release) if state.plan else frozenset()
    waiting = next((each.at for name, each in state.missing.items() if name not in known), None)
    return waiting + LOST_FOR_GOOD_S if waiting is not None and anybody_there(state) else None


def plan(state: JobState, now: float) -> Step:
    """What the operator should make true."""
    policy, known = state.policy, state.plan
    if policy is None or state.phase in ENDED:
        return plan_after_end(state)
    given_up = is_given_up(state)
    wanted = Plan(
        job=state.job,
        number=known.number if known else 1,
        members=0 if given_up else policy.members_wanted,
        spares=0 if given_up else policy.spares_wanted,
        release=() if given_up or policy.observe else released(state, policy, now),
    )
    return _published(state, wanted)


def plan_after_end(state: JobState) -> Step:
    """What is left of it once the job is over: of nodes it goes on to follow the state, of pods it stays."""
    return stay(state) if state.plan is None else _published(state, state.plan)


def _published(state: JobState, wanted: Plan) -> Step:
    """Show `wanted`, with what is known of the nodes, unless it is what is shown already."""
    known = state.plan
    cordon = tuple(order for order in state.avoided if order.incident is not None)
    trying = tuple(node for node in state.returned if node in state.probation)
    wanted = msgspec.structs.replace(
        wanted, avoid=state.avoided, cordon=cordon, returned=state.returned, trying=trying
    )
    if wanted == known:
        return stay(state)
    if known is not None:
        wanted = msgspec.structs.replace(wanted, number=known.number + 1)
    return Step(changed(state, plan=wanted), (Publish(wanted),), Reason("plan", f"plan {wanted.number}"))
