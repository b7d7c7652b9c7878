"""What the operator sees of nodes and pods, and what it means for the members on them."""

from holdfast.api.event import Event, NodeChanged, PodChanged
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.plan import NodeState, PodState
from holdfast.api.policy import DRAIN_GRACE_S
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import found_again
from holdfast.watchdog.acquittal import acquit, excuse
from holdfast.watchdog.departure import expect
from holdfast.watchdog.healing import heal, seen_again
from holdfast.watchdog.loss import rankless_lost
from holdfast.watchdog.roster import Member, Standing
from holdfast.watchdog.state import Departure, DepartureCause, JobState
from holdfast.watchdog.step import Reason, Step, changed, ignore, stay

# A pod that is told to end has 30 s unless its spec says otherwise, of which the launcher keeps 5 for itself; the
# launcher's own word is better, and comes as soon as it is told.
# Source: https://kubernetes.io/docs/concepts/workloads/pods/pod-lifecycle/#pod-termination
LEAVING_S = 25.0
UNREADY_KEPT = 16_384
RACKS_KEPT = 65_536
DEPARTED_KEPT = 256


def node_changed(state: JobState, event: Event, now: float) -> Step:
    """A node changed. What its members do is heard from themselves, and counts more than what is said of it."""
    assert isinstance(event, NodeChanged)
    unready = tuple(each for each in state.unready if each != event.node)
    if event.state in (NodeState.NOT_READY, NodeState.GONE):
        unready = (*unready, event.node)[-UNREADY_KEPT:]
    state = changed(state, unready=unready, racks=_racks(state, event))
    match event.state:
        case NodeState.GONE:
            return _gone(state, event, now)
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


def _racks(state: JobState, event: NodeChanged) -> dict[str, str]:
    """The racks known after it. A node that is gone may come back somewhere else."""
    if event.state is NodeState.GONE:
        return {node: rack for node, rack in state.racks.items() if node != event.node}
    if not event.rack or len(state.racks) >= RACKS_KEPT:
        return state.racks
    return {**state.racks, event.node: event.rack}


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
    return event.node in state.unready or any(_is_drain_of(each, event.node) for each in state.departures)


def _is_drain_of(departure: Departure, node: str) -> bool:
    """Whether it is off when the node is ready again: that says nothing of a notice, or of what jobs know."""
    return departure.node == node and departure.cause is DepartureCause.DRAIN


def _gone(state: JobState, event: NodeChanged, now: float) -> Step:
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
        step = step.then(lambda after: acquit(after, event, now))
    return Step(
        changed(step.state, missing=found_again(step.state, event.member)),
        step.effects,
        step.reason,
    )


def _finished(state: JobState, member: Member) -> bool:
    return state.round is not None and member.finished_round == state.round.number


def _lost(state: JobState, member: Member | None, cause: str, now: float, *, excused: str = "") -> Step:
    """The cluster says that a member is no more. When that is known already, it is evidence of why.

    `excused` is the cause where the node had no part in it.
    """
    if member is None or _finished(state, member):
        return stay(state)
    finding = Finding(
        kind=FindingKind.MEMBER_LOST,
        subject=Subject(state.job, node=member.node, member=member.name),
        cause=excused or cause,
        evidence=(Evidence("operator", f"{member.name} on {member.node}: {cause}", now),),
        confidence=Confidence.CERTAIN,
        began_at=now,
        innocent=bool(excused),
        round=state.round.number if state.round else None,
    )
    if member.standing is Standing.LOST:
        return seen_again(state, finding, now)
    if state.policy is None or state.phase is JobPhase.SUSPENDED or not state.in_round(member.name):
        return rankless_lost(state, finding, now)
    return heal(state, finding, now)
