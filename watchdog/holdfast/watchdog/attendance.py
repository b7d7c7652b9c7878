"""Who is there: members that join, warm up, enter, finish and leave, and the nodes under them."""

import msgspec

from holdfast.api.event import (
    Event,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberWarmed,
    NodeChanged,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import IncidentState
from holdfast.api.plan import NodeState
from holdfast.api.round import Closed, Entry
from holdfast.api.status import JobPhase
from holdfast.watchdog.casebook import close
from holdfast.watchdog.healing import heal
from holdfast.watchdog.recovery import owe
from holdfast.watchdog.state import JobState, Member, Recovery, Standing
from holdfast.watchdog.step import Reason, Step, changed, ignore


def joined(state: JobState, event: Event, now: float) -> Step:
    """A launcher connected: new, back after a pause, or restarted in the same slot."""
    assert isinstance(event, MemberJoined)
    known = state.member(event.member)
    restarted = known is not None and known.boot != event.boot and not isinstance(state.desired, Closed)
    if restarted and known is not None and known.standing is not Standing.LOST and state.in_round(known.name):
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
        standing=Standing.PRESENT,
        joined_at=known.joined_at if keeps and known else now,
        entered_round=known.entered_round if keeps and known else None,
        finished_round=known.finished_round if keeps and known else None,
        reentrant=known.reentrant if keeps and known else False,
    )
    others = tuple(each for each in state.members if each.name != event.member)
    after_join = changed(state, members=(*others, member), forming_since=_forming_since(state, now))
    return Step(after_join, (), Reason("member joined", f"{event.member} on {event.node}"))


def _forming_since(state: JobState, now: float) -> float | None:
    return state.forming_since if state.forming_since is not None else now


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
    members = tuple(
        msgspec.structs.replace(member, standing=Standing.UNKNOWN)
        if member.standing is Standing.PRESENT
        else member
        for member in state.members
    )
    return Step(changed(state, members=members), (), Reason("watchdog started", f"{len(members)} members Unknown"))


def warmed(state: JobState, event: Event, now: float) -> Step:
    """Workers of the member now start without importing torch."""
    assert isinstance(event, MemberWarmed)
    return _with_member(state, event.member, warm=True)


def entered(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member run in a round."""
    assert isinstance(event, MemberEntered)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"{event.member} entered round {event.round}, which is over")
    known = [step for step in (state.fault_step, event.last_step) if step is not None]
    state = changed(state, fault_step=max(known, default=None))
    after = _with_member(state, event.member, entered_round=event.round, reentrant=event.reentrant)
    broken = state.recovery is not None and bool(state.recovery.incidents)
    if broken or not _running_unseen(after.state):
        return after
    # A script without holdfast.trainer publishes no steps; that its workers run is the best evidence there is.
    closed, effects = close(
        changed(after.state, progressed=True, phase=JobPhase.RUNNING, reason=f"running in round {event.round}"),
        IncidentState.RECOVERED,
        now,
        f"recovered: every worker runs in round {event.round} (the script publishes no steps)",
    )
    return Step(closed, after.effects + effects, Reason("entered", f"every worker runs in round {event.round}"))


def _running_unseen(state: JobState) -> bool:
    """Whether every member entered the newest round and none of them says which steps it makes."""
    if state.round is None or state.progressed:
        return False
    return all(
        member is not None and member.entered_round == state.round.number and not member.reentrant
        for member in state.ranked_members()
    )


def finished(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member ended with success."""
    assert isinstance(event, MemberFinished)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"{event.member} finished round {event.round}, which is over")
    if event.last_step is not None:
        last = max(event.last_step, state.step or 0)
        state = changed(state, step=last, high_step=max(last, state.high_step))
    return _with_member(state, event.member, finished_round=event.round)


def left(state: JobState, event: Event, now: float) -> Step:
    """A launcher went on purpose: no fault, but its ranks must go elsewhere."""
    assert isinstance(event, MemberLeft)
    if state.member(event.member) is None:
        return ignore(state, f"{event.member} is not a member")
    was_in_round = state.in_round(event.member)
    after = _with_member(state, event.member, standing=Standing.LOST).state
    reason = f"{event.member} left: {event.reason}"
    if was_in_round:
        after = owe(after, Recovery(reason=reason, entry=Entry.REENTER))
    return Step(after, (), Reason("member left", reason))


def node_changed(state: JobState, event: Event, now: float) -> Step:
    """The operator saw a node change. A node that is gone takes its member and its bad name with it."""
    assert isinstance(event, NodeChanged)
    if event.state is not NodeState.GONE:
        return ignore(state, f"node {event.node} is {event.state.value}")
    avoided = tuple(order for order in state.avoided if order.node != event.node)
    after = changed(state, avoided=avoided)
    for member in state.members:
        if member.node != event.node or member.standing is Standing.LOST:
            continue
        if not state.in_round(member.name):
            return _with_member(after, member.name, standing=Standing.LOST)
        finding = Finding(
            kind=FindingKind.MEMBER_LOST,
            subject=Subject(state.job, node=member.node, member=member.name),
            cause=f"node gone: {event.reason}",
            evidence=(Evidence("operator", f"node {event.node} is gone: {event.reason}", now),),
            confidence=Confidence.CERTAIN,
            began_at=now,
            round=state.round.number if state.round else None,
        )
        return heal(after, finding, now)
    return Step(after, (), Reason("node gone", f"node {event.node} is gone"))


def _with_member(state: JobState, name: str, **fields: object) -> Step:
    if state.member(name) is None:
        return ignore(state, f"{name} is not a member")
    members = tuple(
        msgspec.structs.replace(member, **fields) if member.name == name else member for member in state.members
    )
    return Step(changed(state, members=members), (), Reason("member changed", f"{name}: {sorted(fields)}"))
