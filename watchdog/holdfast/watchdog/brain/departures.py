"""Leaving a round in good order: a node is drained or tested in full, a member is told to end, the job
shrinks or is suspended.

Nothing is broken, so nothing is lost: the round is asked for one more checkpoint, and only then left. While nobody
can take the ranks of who is to leave, it keeps them as long as it can stay.
"""

from collections.abc import Container

import msgspec

from holdfast.api.event import Event, MemberDeparting, NodeDeparting
from holdfast.api.policy import NoticeAction
from holdfast.watchdog.brain.rounds import legal_size, owe
from holdfast.watchdog.brain.saves import ask_for_checkpoint, can_save, cannot_save, conclude, in_force, save_s
from holdfast.watchdog.brain.selftests import leaving_for_tests
from holdfast.watchdog.brain.state import Departure, DepartureCause, DepartureStage, JobState, Recovery
from holdfast.watchdog.brain.step import Reason, Step, changed, ignore, stay

# Nodes that are to be left while no member is on them: one may be about to join.
FORESEEN = 64
NOT_IN_TIME = "no checkpoint was committed in time"


def departing(state: JobState, event: Event, now: float) -> Step:
    """A launcher was told to end and stays for a while. It knows best for how long."""
    assert isinstance(event, MemberDeparting)
    if state.member(event.member) is None:
        return ignore(state, f"{event.member} is not a member")
    departure = Departure(event.reason, now + event.within_s, member=event.member)
    others = tuple(each for each in state.departures if each.member != event.member)
    return Step(changed(state, departures=(*others, departure)), (), Reason("departure", event.reason))


def node_departing(state: JobState, event: Event, now: float) -> Step:
    """The machine is taken away soon: do what the job's policy says about such notices."""
    assert isinstance(event, NodeDeparting)
    says = f"node {event.node} is taken away in {event.within_s:.0f} s: {event.reason}"
    if not state.members.on_nodes((event.node,)) or state.policy is None:
        return ignore(state, f"{says}; no member of the job is on it")
    match state.policy.notices:
        case NoticeAction.MIGRATE:
            return expect(
                state, Departure(says, now + event.within_s, node=event.node, cause=DepartureCause.NOTICE)
            )
        case NoticeAction.CHECKPOINT if cannot_save(state) is None:
            return ask_for_checkpoint(state, says, now)
        case _:
            return ignore(state, says)


def expect(state: JobState, departure: Departure) -> Step:
    """Note a departure that somebody else tells of. Said again by the same, it is the same one."""
    who = (departure.cause, departure.member, departure.node)
    if any((each.cause, each.member, each.node) == who for each in state.departures):
        return ignore(state, f"known already: {departure.reason}")
    return Step(
        changed(state, departures=(*state.departures, departure)), (), Reason("departure", departure.reason)
    )


def without_slow(state: JobState, nodes: Container[str]) -> tuple[Departure, ...]:
    """The departures without those of these nodes for being slow."""
    is_off = (each.cause is DepartureCause.SLOW and each.node in nodes for each in state.departures)
    return tuple(each for each, off in zip(state.departures, is_off, strict=True) if not off)


def next_departure(state: JobState) -> float | None:
    """When waiting ends: for a checkpoint, or for somebody to take ranks over."""
    if state.saving is not None and state.saving.saved is None:
        return gives_up_at(state)
    if not state.departures or not _steady(state):
        return None
    waiting = [each.until for each in _pressing(state) if each.stage is DepartureStage.EXPECTED]
    return min(waiting) - save_s(state) if waiting else None


def gives_up_at(state: JobState) -> float:
    """When the checkpoint that is asked for is waited for no longer: before somebody with ranks is gone."""
    assert state.saving is not None
    asked_at = state.saving.at
    ends = [each.until for each in _pressing(state) if each.until > asked_at]
    return min([asked_at + save_s(state), *ends])


def part(state: JobState, now: float) -> Step:
    """Ask for the checkpoint that a planned change of the round waits for, then owe the change."""
    step = _without_stale(state)
    state, saving = step.state, step.state.saving
    if not _steady(state):
        return step
    why = why_part(state, now)
    if why is None:
        return step.then(_stay_on, now)
    if not may_part(state, now):
        return step.then(ask_for_checkpoint, why, now)
    if state.held:
        return step  # what a suspension shows is the suspension's to decide
    says = f"{why}; step {saving.saved} is saved" if saving is not None and saving.saved is not None else why
    owed = Recovery(reason=says)
    step = step.then(lambda after: conclude(_at_stage(after, DepartureStage.DUE, now), NOT_IN_TIME))
    return step.then(lambda after: Step(owe(after, owed), (), Reason("departure", says)))


def why_part(state: JobState, now: float) -> str | None:
    """Why the round in force is to be left in good order; None when it is not, or not yet."""
    if state.policy is None or state.round is None:
        return None
    if state.held:
        return "the job is to be suspended"
    if len(state.round.ranks) > state.policy.members_wanted:
        return f"the job is to have {state.policy.members_wanted} members"
    if (tested := leaving_for_tests(state)) is not None:
        return tested
    pressing = _pressing(state)
    if not pressing:
        return None
    ready = state.ready_count()
    with_ranks = len(state.round.ranks) - sum(1 for name in state.leaving if state.in_round(name))
    if ready > with_ranks:
        return pressing[0].reason  # somebody is there who can take over
    ending = _ending(state, now)
    return ending.reason if ending is not None and legal_size(state.policy, ready) else None


def may_part(state: JobState, now: float) -> bool:
    """Whether the round may be left now: it is saved, or cannot be, or was waited for long enough."""
    if not in_force(state) or not can_save(state):
        return True
    return state.saving is not None and (state.saving.saved is not None or now >= gives_up_at(state))


def _steady(state: JobState) -> bool:
    """Whether a round is in force and all its members have been heard of since the watchdog started."""
    return in_force(state) and state.members.unheard().isdisjoint(state.ranked())


def _pressing(state: JobState) -> tuple[Departure, ...]:
    """The departures of members that have ranks, the soonest first."""
    pressing = [each for each in state.departures if any(map(state.in_round, state.concerned(each)))]
    return tuple(sorted(pressing, key=lambda each: each.until))


def _ending(
    state: JobState, now: float, stages: Container[DepartureStage] = tuple(DepartureStage)
) -> Departure | None:
    """The first departure that can wait no longer: just enough time is left for a checkpoint."""
    if not state.departures:
        return None
    wait_s = save_s(state)
    return next((each for each in _pressing(state) if each.stage in stages and now >= each.until - wait_s), None)


def _stay_on(state: JobState, now: float) -> Step:
    """Nothing is to change now: what was asked for is waited for; who must soon go is saved for once."""
    saving = state.saving
    if saving is None:
        return _stranded(state, now)
    if saving.saved is None and now < gives_up_at(state):
        return stay(state)
    if saving.saved is not None:
        state = _at_stage(state, DepartureStage.SAVED, now)
    return conclude(state, NOT_IN_TIME).then(_stranded, now)


def _stranded(state: JobState, now: float) -> Step:
    """Nobody can take over from one that must go, and the job cannot run without: save what there is, and stay."""
    ending = _ending(state, now, (DepartureStage.EXPECTED,))
    if ending is None:
        return stay(state)
    says = f"{ending.reason}; nobody can take its ranks"
    if can_save(state) and now < ending.until:
        return ask_for_checkpoint(state, says, now)
    return Step(_at_stage(state, DepartureStage.SAVED, now), (), Reason("departure", says))


def _at_stage(state: JobState, stage: DepartureStage, now: float) -> JobState:
    """The state with all departures that can wait no longer at `stage`."""
    wait_s = save_s(state)
    departures = tuple(
        msgspec.structs.replace(each, stage=stage) if now >= each.until - wait_s else each
        for each in state.departures
    )
    return changed(state, departures=departures)


def _without_stale(state: JobState) -> Step:
    """Drop departures of members that are gone, and a checkpoint that was asked of a round that is over."""
    if state.departures:
        known = [each for each in state.departures if each.member is None or each.member in state.members]
        bare = [each for each in known if each.node is not None and not state.members.on_nodes((each.node,))]
        forgotten = {each.node for each in bare[:-FORESEEN]}
        kept = tuple(each for each in known if each.node is None or each.node not in forgotten)
        state = changed(state, departures=kept)
    saving = state.saving
    if saving is None or (in_force(state) and state.round is not None and saving.round == state.round.number):
        return stay(state)
    return conclude(state, f"round {saving.round} ended before it could be saved")
