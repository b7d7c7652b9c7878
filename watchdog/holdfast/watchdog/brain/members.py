"""Who is there: launchers that join, warm up, enter, finish and leave, and what the operator sees of their pods.

Lost members whose node had no part in it are acquitted: who ended a pod is known to the operator, and its word
counts. It may come before the loss is seen, or some seconds after it; then what was held against the node is taken
back. A deletion excuses no node that is not ready, and nobody who only fell silent: the pod of a dead node is
deleted too, after the fact.
"""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

import msgspec

from holdfast.api.event import (
    ConditionOver,
    Event,
    MemberEntered,
    MemberFinished,
    MemberJoined,
    MemberLeft,
    MemberReady,
    MembersEntered,
    MembersReady,
    MemberWarmed,
    NodeChanged,
    PodChanged,
)
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.incident import Incident, Moment, Rung
from holdfast.api.nodecondition import CAUSE_PREFIX
from holdfast.api.plan import NodeState, PodEnd, PodState
from holdfast.api.policy import DRAIN_GRACE_S
from holdfast.api.round import Closed, Entry
from holdfast.api.status import JobPhase
from holdfast.watchdog.brain.departures import expect
from holdfast.watchdog.brain.healing import heal, rankless_lost, seen_again
from holdfast.watchdog.brain.history import runs_unseen
from holdfast.watchdog.brain.incidents import absolved, update
from holdfast.watchdog.brain.nodes import condition_over, readmit
from holdfast.watchdog.brain.phases import Turn, moved
from holdfast.watchdog.brain.plan import anybody_there, awaited_anew, found_again, missed
from holdfast.watchdog.brain.repetition import of_gone
from holdfast.watchdog.brain.roster import THERE, Member, MemberState, Roster
from holdfast.watchdog.brain.rounds import owe
from holdfast.watchdog.brain.selftests import barred, begin, examine
from holdfast.watchdog.brain.state import Departure, DepartureCause, JobState, Recovery
from holdfast.watchdog.brain.step import Pardon, Reason, Step, changed, ignore, stay
from holdfast.watchdog.brain.unwatched import nobodys
from holdfast.watchdog.wording import in_words


def joined(state: JobState, event: Event, now: float) -> Step:
    """A launcher connected: new, back after a pause, or restarted in the same slot."""
    assert isinstance(event, MemberJoined)
    known = state.member(event.member)
    restarted = known is not None and known.boot != event.boot and not isinstance(state.desired, Closed)
    if not anybody_there(state):
        state = awaited_anew(state, now)  # the first that comes back: whoever was cut off comes back now
    has_workers = state.in_round(event.member) and state.phase is not JobPhase.SUSPENDED
    if restarted and known is not None and known.standing is not MemberState.LOST and has_workers:
        # One that comes back as another process has lost its workers, whether or not its end was seen.
        seen = Evidence("member connection", f"{known.name} joined again as another process", now)
        after = heal(state, nobodys(state, _loss(state, known, "launcher restarted", seen)), now)
        return after.then(joined, event, now)
    member = Member(
        name=event.member,
        node=event.node,
        boot=event.boot,
        address=event.address,
        local_size=event.local_size,
        ports=event.ports,
        warm=event.warm,
        standing=MemberState.TESTING if barred(state, event.member) else MemberState.PRESENT,
        joined_at=now,
        transfer=event.transfer,
    )
    departures = state.departures
    if keeps := known is not None and not restarted:
        assert known is not None
        kept: tuple[str, ...] = ("joined_at", "entered_round", "finished_round", "ready_epoch", "reentrant")
        kept += ("reentry", "because", "nonfinite")
        member = msgspec.structs.replace(member, **{name: getattr(known, name) for name in kept})
    else:
        # Another process in the same place is not the one that was told to end.
        departures = tuple(each for each in departures if each.member != member.name)
    after_join = changed(
        state,
        members=state.members.joined(member),
        forming_since=now if known is None or state.forming_since is None else state.forming_since,
        missing=found_again(state, member.name),
        departures=departures,
        pending="",
        # A store that was lost gives numbers anew, which launchers that know greater ones would not obey.
        number_floor=max(state.number_floor, event.shown),
    )
    step = Step(after_join, (), Reason("member joined", f"{event.member} on {event.node}"))
    return step if keeps else step.then(examine, member.name, now)


def _loss(state: JobState, member: Member, cause: str, seen: Evidence, *, innocent: bool = False) -> Finding:
    """A loss that somebody is sure of. `innocent`: the node had no part in it."""
    return Finding(
        kind=FindingKind.MEMBER_LOST,
        subject=Subject(state.job, node=member.node, member=member.name),
        cause=cause,
        evidence=(seen,),
        confidence=Confidence.CERTAIN,
        began_at=seen.at,
        innocent=innocent,
        round=state.round.number if state.round else None,
    )


def watchdog_started(state: JobState, event: Event, now: float) -> Step:
    """The watchdog is back: who was there may have gone meanwhile, which is Unknown until it is heard of."""
    members = Roster.of(
        *(
            msgspec.structs.replace(member, standing=MemberState.UNKNOWN) if member.standing in THERE else member
            for member in state.members
        )
    )
    state = awaited_anew(changed(state, members=members), now)
    # An earlier version did not note when a test began.
    return Step(state, (), Reason("watchdog started", f"{len(members)} members Unknown")).then(begin, now)


def warmed(state: JobState, event: Event, now: float) -> Step:
    """Workers of the member now start without importing torch."""
    assert isinstance(event, MemberWarmed)
    return _with_member(state, event.member, warm=True)


def entered(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member run in a round."""
    assert isinstance(event, MemberEntered)
    return _entered(state, (event,), now)


def entered_together(state: JobState, event: Event, now: float) -> Step:
    """All workers of several members run in a round: as one after the other, with one change of the roster."""
    assert isinstance(event, MembersEntered)
    return _entered(state, event.entries, now)


def _entered(state: JobState, entries: Sequence[MemberEntered], now: float) -> Step:
    current = [each for each in entries if state.round is not None and each.round == state.round.number]
    if not current:
        number = max(each.round for each in entries)
        return ignore(state, f"{in_words(each.member for each in entries)} entered round {number}, which is over")
    number = current[0].round
    # What was lost is counted at the round's first step, once; replica groups that go on lost nothing.
    if not state.progressed and state.round is not None and not state.round.goes_on:
        lasts = [each.last_step for each in current if each.last_step is not None]
        known = [*lasts, *([] if state.fault_step is None else [state.fault_step])]
        # Reports come once a second: a step that was complete before the fault is no progress since.
        high = max([state.high_step, *lasts])
        state = changed(state, fault_step=max(known, default=None), high_step=high)
    state = changed(state, publishes=state.publishes or any(each.reentrant for each in current))
    changes: dict[str, Member] = {}
    new = 0
    for each in current:
        if (member := changes.get(each.member) or state.member(each.member)) is None:
            continue
        new += member.entered_round != number
        changes[each.member] = msgspec.structs.replace(
            member, entered_round=number, reentrant=each.reentrant, reentry=each.reentry, because=each.because
        )
    if not changes:
        return ignore(state, f"{in_words(each.member for each in current)} is not a member")
    ledger = state.ledger.enter(new) if new else state.ledger
    after = changed(state, members=state.members.replaced(changes.values()), ledger=ledger)
    reason = Reason("member changed", f"{in_words(changes)} entered round {number}")
    broken = state.recovery is not None and bool(state.recovery.incidents)
    if broken or state.progressed or not runs_unseen(after):
        return Step(after, (), reason)
    began = moved(after, Turn.TRAINS, progressed=True, reason=f"running in round {number}")
    return Step(began, (), Reason("entered", f"every worker runs in round {number}"))


def ready(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member wait at a step boundary for those of other replica groups."""
    assert isinstance(event, MemberReady)
    return _ready(state, (event,))


def ready_together(state: JobState, event: Event, now: float) -> Step:
    """All workers of several members wait at a step boundary: as one after the other, with one change of the
    roster.
    """
    assert isinstance(event, MembersReady)
    return _ready(state, event.members)


def _ready(state: JobState, told: Sequence[MemberReady]) -> Step:
    changes: dict[str, Member] = {}
    for each in told:
        member = changes.get(each.member) or state.member(each.member)
        if member is not None and each.epoch in state.forming and state.in_round(each.member):
            changes[each.member] = msgspec.structs.replace(member, ready_epoch=each.epoch)
    if not changes:
        names, epochs = in_words(each.member for each in told), in_words({str(each.epoch) for each in told})
        return ignore(state, f"no replica group of epoch {epochs} is being formed of {names}")
    after = changed(state, members=state.members.replaced(changes.values()))
    return Step(after, (), Reason("member changed", f"{in_words(changes)} wait for the other replica groups"))


def finished(state: JobState, event: Event, now: float) -> Step:
    """All workers of the member ended with success."""
    assert isinstance(event, MemberFinished)
    if state.round is None or event.round != state.round.number:
        return ignore(state, f"{event.member} finished round {event.round}, which is over")
    if event.last_step is not None:
        last = max(event.last_step, state.step or 0)
        state = changed(state, step=last, high_step=max(last, state.high_step))
    return _with_member(state, event.member, finished_round=event.round, nonfinite=event.nonfinite)


def left(state: JobState, event: Event, now: float) -> Step:
    """A launcher went on purpose: no fault, but its ranks must go elsewhere."""
    assert isinstance(event, MemberLeft)
    if state.member(event.member) is None:
        return ignore(state, f"{event.member} is not a member")
    was_in_round = state.in_round(event.member)
    after = _with_member(missed(state, (event.member,), now), event.member, standing=MemberState.LOST).state
    reason = f"{event.member} left: {event.reason}"
    if was_in_round:
        after = owe(after, Recovery(reason=reason, entry=Entry.REENTER))
    return Step(after, (), Reason("member left", reason))


def _with_member(state: JobState, name: str, **fields: object) -> Step:
    if name not in state.members:
        return ignore(state, f"{name} is not a member")
    after = changed(state, members=state.members.changed(name, **fields))
    return Step(after, (), Reason("member changed", f"{name}: {sorted(fields)}"))


# A pod that is told to end has 30 s unless its spec says otherwise, of which the launcher keeps 5 for itself; the
# launcher's own word is better, and comes as soon as it is told.
# Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
LEAVING_S = 25.0
UNREADY_KEPT = 16_384
RACKS_KEPT = 65_536
DEPARTED_KEPT = 256
# A node that was left so often for a condition of others that comes and goes stays out until somebody returns it.
TIMES_LEFT = 3
TIMES_LEFT_WITHIN_S = 86400.0
LEAVING = (Rung.SWAP, Rung.SHRINK)


def node_changed(state: JobState, event: Event, now: float) -> Step:
    """A node changed. What its members do is heard from themselves, and counts more than what is said of it."""
    assert isinstance(event, NodeChanged)
    unready = tuple(each for each in state.unready if each != event.node)
    if event.state in (NodeState.NOT_READY, NodeState.GONE):
        unready = (*unready, event.node)[-UNREADY_KEPT:]
    racks, sold, places = state.racks, state.sold, state.places
    if event.state is NodeState.GONE:  # it may come back somewhere else, as something else
        racks = {node: rack for node, rack in racks.items() if node != event.node}
        sold = {node: offer for node, offer in sold.items() if node != event.node}
        places = {node: known for node, known in places.items() if node != event.node}
    elif event.rack and len(racks) < RACKS_KEPT:
        racks = {**racks, event.node: event.rack}
    if event.offer is not None and event.state is not NodeState.GONE and len(sold) < RACKS_KEPT:
        sold = {**sold, event.node: event.offer} if sold.get(event.node) != event.offer else sold
    if event.places and event.state is not NodeState.GONE and len(places) < RACKS_KEPT:
        places = {**places, event.node: event.places} if places.get(event.node) != event.places else places
    state = changed(state, unready=unready, racks=racks, sold=sold, places=places)
    step = _node_is(state, event, now)
    if (over := _mended(state, event)) is not None:
        return step.then(condition_over, over, now)
    return step.then(_repaired, event, now) if _is_repaired(state, event) else step


def _is_repaired(state: JobState, event: NodeChanged) -> bool:
    """Whether somebody repaired the node of what the job keeps away from it for."""
    repaired = event.remediated and event.state in (NodeState.READY, NodeState.DRAINING)
    return bool(repaired) and any(
        (each.node, each.incident) == (event.node, event.remediated) for each in state.avoided
    )


def _repaired(state: JobState, event: NodeChanged, now: float) -> Step:
    """It comes back by way of its tests, and whatever any job held against it before is forgotten."""
    says = f"it was repaired for {event.remediated}"
    back = readmit(state, event.node, now, says)
    return Step(back.state, (*back.effects, Pardon(event.node, says)), back.reason)


def _mended(state: JobState, event: NodeChanged) -> ConditionOver | None:
    """That the condition of others for which the job left the node is over; None: it is not, or nobody knows."""
    if event.state not in (NodeState.READY, NodeState.DRAINING):
        return None  # nobody keeps the conditions of such a node up to date
    order = next((each for each in state.avoided if each.node == event.node), None)
    incident = (
        None if order is None else next((each for each in state.incidents if each.id == order.incident), None)
    )
    if incident is None or not incident.cause.startswith(CAUSE_PREFIX) or incident.cause in event.holding:
        return None
    if _times_left_for(state, incident) >= TIMES_LEFT:
        return None  # it would be raised again, and each time costs an eviction of the budget for real faults
    return ConditionOver(event.node, incident.cause, f"{incident.cause} is over")


def _times_left_for(state: JobState, last: Incident) -> int:
    """How often the node was left for the cause of that incident, within a day before it."""
    return sum(
        (each.culprit.node, each.cause) == (last.culprit.node, last.cause)
        and each.detected_at > last.detected_at - TIMES_LEFT_WITHIN_S
        and any(action.rung in LEAVING for action in each.actions)
        for each in state.incidents
    )


def _node_is(state: JobState, event: NodeChanged, now: float) -> Step:
    match event.state:
        case NodeState.GONE:
            return _node_gone(state, event, now)
        case NodeState.DRAINING:
            until = now + (state.policy.drain_grace_s if state.policy else DRAIN_GRACE_S)
            says = f"node {event.node}: {event.reason}"
            return expect(state, Departure(says, until, node=event.node, cause=DepartureCause.DRAIN))
        case NodeState.READY:
            kept = tuple(each for each in state.departures if not _is_drain_of(each, event.node))
            return Step(changed(state, departures=kept), (), Reason("node ready", f"node {event.node} is ready"))
        case _:
            says = f"node {event.node} is {event.state.value}: {event.reason}"
            return Step(state, (), Reason("node changed", says))


def pod_changed(state: JobState, event: Event, now: float) -> Step:
    """A member's pod changed."""
    assert isinstance(event, PodChanged)
    match event.state:
        case PodState.GONE:
            return _pod_gone(state, event, now)
        case PodState.LEAVING if (member := state.member(event.member)) is not None:
            return expect(
                state, Departure(f"pod {member.name}: {event.reason}", now + LEAVING_S, member=member.name)
            )
        case PodState.PENDING:
            pending = f"{event.member}: {event.reason}" if event.reason else ""
            return Step(changed(state, pending=pending), (), Reason("pod pending", pending))
        case PodState.RUNNING if _waited(state, event.member):
            return Step(changed(state, pending=""), (), Reason("pod running", event.member))
        case _:
            return ignore(state, f"pod {event.member} is {event.state.value}")


def _waited(state: JobState, member: str) -> bool:
    return state.pending.startswith(f"{member}: ")


def is_news(state: JobState, event: NodeChanged | PodChanged) -> bool:
    """Whether the event could change anything: an operator repeats all it sees whenever it connects."""
    if isinstance(event, PodChanged):
        known = event.member in state.members or event.member in state.missing
        waits = event.state is PodState.PENDING and bool(event.reason)
        return waits or _waited(state, event.member) or (known and event.state is not PodState.RUNNING)
    if event.state is not NodeState.READY or event.rack not in ("", state.racks.get(event.node)):
        return True
    if event.places not in ((), state.places.get(event.node)):
        return True
    if event.offer not in (None, state.sold.get(event.node)) or _mended(state, event) is not None:
        return True
    if _is_repaired(state, event):
        return True
    return event.node in state.unready or any(_is_drain_of(each, event.node) for each in state.departures)


def _is_drain_of(departure: Departure, node: str) -> bool:
    """Whether it is off when the node is ready again: that says nothing of a notice, or of what jobs know."""
    return departure.node == node and departure.cause is DepartureCause.DRAIN


def _node_gone(state: JobState, event: NodeChanged, now: float) -> Step:
    """A node that is gone takes its members and its bad name with it."""
    names = [each.name for each in state.members.on_nodes((event.node,))]
    departed = tuple(each for each in state.departed if each != event.node)
    if event.node in state.avoided_nodes:
        departed = (*departed, event.node)[-DEPARTED_KEPT:]
    after = changed(
        state,
        departed=departed,
        avoided=tuple(order for order in state.avoided if order.node != event.node),
        reputed=tuple(node for node in state.reputed if node != event.node),
        departures=tuple(each for each in state.departures if each.node != event.node),
        slow=tuple(each for each in state.slow if each.node != event.node),
        suspicions=of_gone(state, event.node),
    )
    step = Step(after, (), Reason("node gone", f"node {event.node} is gone: {event.reason}"))
    cause = f"node gone: {event.reason}"
    for name in names:
        lost = _lost(step.state, step.state.member(name), cause, now)
        step = Step(lost.state, (*step.effects, *lost.effects), step.reason)
    return step


def _pod_gone(state: JobState, event: PodChanged, now: float) -> Step:
    state = changed(state, pending="" if _waited(state, event.member) else state.pending)
    step = Step(state, (), Reason("pod gone", f"pod {event.member} is gone: {event.reason}"))
    excused = excuse(state, event)
    if (member := state.member(event.member)) is not None:
        step = _lost(state, member, f"pod gone: {event.reason}", now, excused=excused)
    if excused:
        step = step.then(acquit, event, now)
    return Step(changed(step.state, missing=found_again(step.state, event.member)), step.effects, step.reason)


def _lost(state: JobState, member: Member | None, cause: str, now: float, *, excused: str = "") -> Step:
    """The cluster says that a member is no more. When that is known already, it is evidence of why.

    `excused` is the cause where the node had no part in it.
    """
    has_finished = member is not None and state.round is not None and member.finished_round == state.round.number
    if member is None or has_finished:
        return stay(state)
    seen = Evidence("operator", f"{member.name} on {member.node}: {cause}", now)
    finding = _loss(state, member, excused or cause, seen, innocent=bool(excused))
    if member.standing is MemberState.LOST:
        return seen_again(state, finding, now)
    rests = state.phase in (JobPhase.SUSPENDED, JobPhase.FAILED)
    if state.policy is None or rests or not state.in_round(member.name):
        return rankless_lost(state, finding, now)
    return heal(state, finding, now)


CAUSES: Mapping[PodEnd, str] = MappingProxyType(
    {
        PodEnd.OWN_LIMIT: "the pod was ended for its own limit of memory or storage",
        PodEnd.DELETED: "the pod was deleted by somebody",
        PodEnd.DISPLACED: "the pod was preempted or evicted by somebody",
    }
)


def excuse(state: JobState, event: PodChanged) -> str:
    """Why the pod ended, where its node had no part in it; empty where it may have had one."""
    if event.end is None:
        return ""
    plan = state.plan
    let_go = plan is None or plan.members + plan.spares == 0 or event.member in plan.release
    after_the_fact = let_go or event.node in state.unready
    return "" if after_the_fact and event.end is not PodEnd.OWN_LIMIT else CAUSES[event.end]


def acquit(state: JobState, event: PodChanged, now: float) -> Step:
    """Hold the member's loss against its node no more, also when its incident is over. `event` has an excuse."""
    assert event.end is not None
    incident = _loss_of(state, event.member)
    if incident is None or (incident.confidence is not Confidence.CERTAIN and event.end is not PodEnd.OWN_LIMIT):
        return stay(state)
    state = absolved(state, incident)
    if incident.innocent:
        return stay(state)
    says = f"{CAUSES[event.end]}: node {incident.culprit.node} had no part in it"
    state, effects = update(
        state,
        msgspec.structs.replace(
            incident,
            cause=CAUSES[event.end],
            innocent=True,
            timeline=(*incident.timeline, Moment(now, says)),
            note=f"first judged {incident.cause}",
        ),
    )
    return Step(state, effects, Reason("acquitted", says))


def _loss_of(state: JobState, member: str) -> Incident | None:
    """The incident of a member's loss; None where it came back, or where something else explains its end."""
    missing = state.missing.get(member)
    if missing is None:
        return None
    incident = next((each for each in reversed(state.incidents) if each.id == missing.incident), None)
    if incident is None or incident.kind is not FindingKind.MEMBER_LOST:
        return None
    return incident if incident.culprit.member == member else None
