"""Who is there: members that join, warm up, enter, finish and leave."""

import msgspec

from holdfast.api.event import (
    Event,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberWarmed,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.round import Closed, Entry, Reentry
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import anybody_there, awaited_anew, found_again, missed
from holdfast.watchdog.healing import heal
from holdfast.watchdog.recovery import owe
from holdfast.watchdog.roster import THERE, Member, Roster, Standing
from holdfast.watchdog.state import Departure, JobState, Recovery
from holdfast.watchdog.step import Reason, Step, changed, ignore
from holdfast.watchdog.trial import barred, examine
from holdfast.watchdog.unseen import entered as entered_unseen
from holdfast.watchdog.unseen import runs_unseen


def joined(state: JobState, event: Event, now: float) -> Step:
    """A launcher connected: new, back after a pause, or restarted in the same slot."""
    assert isinstance(event, MemberJoined)
    known = state.member(event.member)
    restarted = known is not None and known.boot != event.boot and not isinstance(state.desired, Closed)
    if not anybody_there(state):
        state = awaited_anew(state, now)  # the first that comes back: whoever was cut off comes back now
    has_workers = state.in_round(event.member) and state.phase is not JobPhase.SUSPENDED
    if restarted and known is not None and known.standing is not Standing.LOST and has_workers:
        after = heal(state, _restart_finding(state, known, now), now)
        return after.then(lambda lost: joined(lost, event, now))
    keeps = known is not None and not restarted
    member = Member(
        name=event.member,
        node=event.node,
        boot=event.boot,
        address=event.address,
        local_size=event.local_size,
        ports=event.ports,
        warm=event.warm,
        standing=Standing.TESTING if barred(state, event.member) else Standing.PRESENT,
        joined_at=known.joined_at if keeps and known else now,
        entered_round=known.entered_round if keeps and known else None,
        finished_round=known.finished_round if keeps and known else None,
        reentrant=known.reentrant if keeps and known else False,
        reentry=known.reentry if keeps and known else Reentry.ANY_WORLD,
        because=known.because if keeps and known else "",
        transfer=event.transfer,
        nonfinite=known.nonfinite if keeps and known else (),
    )
    after_join = changed(
        state,
        members=state.members.joined(member),
        forming_since=now if known is None or state.forming_since is None else state.forming_since,
        missing=found_again(state, member.name),
        # Another process in the same place is not the one that was told to end.
        departures=state.departures if keeps else without_member(state.departures, member.name),
        pending="",
        # A store that was lost gives numbers anew, which launchers that know greater ones would not obey.
        number_floor=max(state.number_floor, event.shown),
    )
    step = Step(after_join, (), Reason("member joined", f"{event.member} on {event.node}"))
    return step if keeps else step.then(lambda there: examine(there, member.name, now))


def without_member(departures: tuple[Departure, ...], name: str) -> tuple[Departure, ...]:
    """The departures but that of one member."""
    return tuple(each for each in departures if each.member != name)


def _restart_finding(state: JobState, member: Member, now: float) -> Finding:
    """A launcher that comes back as another process has lost its workers, whether or not its end was seen."""
    return Finding(
        kind=FindingKind.MEMBER_LOST,
        subject=Subject(state.job, node=member.node, member=member.name),
        cause="launcher restarted",
        evidence=(Evidence("member connection", f"{member.name} joined again as another process", now),),
        confidence=Confidence.CERTAIN,
        began_at=now,
        round=state.round.number if state.round else None,
    )


def watchdog_started(state: JobState, event: Event, now: float) -> Step:
    """The watchdog is back: who was there may have gone meanwhile, which is Unknown until it is heard of."""
    members = Roster.of(
        *(
            msgspec.structs.replace(member, standing=Standing.UNKNOWN) if member.standing in THERE else member
            for member in state.members
        )
    )
    state = awaited_anew(changed(state, members=members), now)
    return Step(state, (), Reason("watchdog started", f"{len(members)} members Unknown"))


def warmed(state: JobState, event: Event, now: float) -> Step:
    """Workers of the member now start without importing torch."""
    assert isinstance(event, MemberWarmed)
    return with_member(state, event.member, warm=True)


def entered(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member run in a round."""
    assert isinstance(event, MemberEntered)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"{event.member} entered round {event.round}, which is over")
    if not state.progressed:  # what was lost is counted at the round's first step, once
        known = [step for step in (state.fault_step, event.last_step) if step is not None]
        # Reports come once a second: a step that was complete before the fault is no progress since.
        high = max(state.high_step, event.last_step or 0)
        state = changed(state, fault_step=max(known, default=None), high_step=high)
    state = changed(state, publishes=state.publishes or event.reentrant)
    after = with_member(
        state,
        event.member,
        entered_round=event.round,
        reentrant=event.reentrant,
        reentry=event.reentry,
        because=event.because,
    )
    broken = state.recovery is not None and bool(state.recovery.incidents)
    if broken or state.progressed or not runs_unseen(after.state):
        return after
    says = f"every worker runs in round {event.round}"
    return Step(entered_unseen(after.state), after.effects, Reason("entered", says))


def finished(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member ended with success."""
    assert isinstance(event, MemberFinished)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"{event.member} finished round {event.round}, which is over")
    if event.last_step is not None:
        last = max(event.last_step, state.step or 0)
        state = changed(state, step=last, high_step=max(last, state.high_step))
    return with_member(state, event.member, finished_round=event.round, nonfinite=event.nonfinite)


def left(state: JobState, event: Event, now: float) -> Step:
    """A launcher went on purpose: no fault, but its ranks must go elsewhere."""
    assert isinstance(event, MemberLeft)
    if state.member(event.member) is None:
        return ignore(state, f"{event.member} is not a member")
    was_in_round = state.in_round(event.member)
    after = with_member(missed(state, (event.member,), now), event.member, standing=Standing.LOST).state
    reason = f"{event.member} left: {event.reason}"
    if was_in_round:
        after = owe(after, Recovery(reason=reason, entry=Entry.REENTER))
    return Step(after, (), Reason("member left", reason))


def with_member(state: JobState, name: str, **fields: object) -> Step:
    if name not in state.members:
        return ignore(state, f"{name} is not a member")
    after = changed(state, members=state.members.changed(name, **fields))
    return Step(after, (), Reason("member changed", f"{name}: {sorted(fields)}"))
