"""Nodes that the job keeps away from, and nodes it takes back, trusted step by step.

A node that was taken out of service does not come back into the middle of a run because it booted or because
somebody said so: what is wrong with it may show one time in fifty. It passes several self-tests first, then is a
spare, then is given ranks.
"""

import msgspec

from holdfast.api.event import ConditionOver, Event, FaultsGathered, NodeReputed
from holdfast.api.finding import FindingKind
from holdfast.api.plan import NodeOrder
from holdfast.watchdog.brain.departures import expect, without_slow
from holdfast.watchdog.brain.incidents import gathers
from holdfast.watchdog.brain.selftests import examine
from holdfast.watchdog.brain.state import Departure, DepartureCause, JobState, Probation, ProbationStage
from holdfast.watchdog.brain.step import Reason, Step, changed, ignore, stay

# What all jobs keep away from is a twentieth of the nodes at most.
KEPT_REPUTED = 4096
KEPT_TIMES = 1024  # of evictions, for the budget


def avoid(state: JobState, order: NodeOrder, now: float) -> JobState:
    """Keep away from a node from now on; it counts against the eviction budget."""
    return changed(
        keep_away(state, order),
        evictions=(*state.evictions, now)[-KEPT_TIMES:],
        eviction_count=state.eviction_count + 1,
    )


def keep_away(state: JobState, order: NodeOrder) -> JobState:
    """Give the node no ranks until somebody takes it back, whatever was thought of it before."""
    others = tuple(each for each in state.avoided if each.node != order.node)
    returned = tuple(node for node in state.returned if node != order.node)
    probation = {node: each for node, each in state.probation.items() if node != order.node}
    return changed(
        state,
        avoided=(*others, order),
        returned=returned,
        probation=probation,
        reputed=tuple(node for node in state.reputed if node != order.node),
    )


def take_back(state: JobState, nodes: tuple[str, ...]) -> JobState:
    """Put nodes back into service and forget what was held against them."""
    return changed(
        state,
        avoided=tuple(order for order in state.avoided if order.node not in nodes),
        reputed=tuple(node for node in state.reputed if node not in nodes),
        returned=tuple(dict.fromkeys((*state.returned, *nodes))),
        departed=tuple(node for node in state.departed if node not in nodes),
        suspicions=tuple(each for each in state.suspicions if each.node not in nodes),
        slow=tuple(each for each in state.slow if each.node not in nodes),
        departures=without_slow(state, nodes),
    )


# A part that computes wrong now and then passes one test easily; each test repeats its own checks many times.
# Source: https://arxiv.org/abs/2102.11245 and AEGIS-SDC (OSDI 2026): one run of fifty diverged.
CANARY_TESTS = 3
# How long a node that passed them is the last to be given ranks.
SPARE_S = 600.0
KEPT_PROBATION = 4096
# What can be over by itself; what was proved wrong by arithmetic, or needs a new part, only a human takes back.
PASSING = (FindingKind.CONDITION, FindingKind.THERMAL)


def readmit(state: JobState, node: str, now: float, says: str) -> Step:
    """Put a node back into service. Without self-tests in the job's policy it is trusted at once."""
    state = take_back(state, (node,))
    if state.policy is None or state.policy.preflight is None:
        return Step(state, (), Reason("readmitted", f"node {node}: {says}"))
    probation = dict(state.probation)
    probation.pop(node, None)
    probation[node] = Probation(node, ProbationStage.CANARY, now)
    while len(probation) > KEPT_PROBATION:
        del probation[next(iter(probation))]
    step = Step(changed(state, probation=probation), (), Reason("readmitted", f"node {node} on probation: {says}"))
    for member in state.members.on_nodes((node,)):
        name = member.name
        step = step.then(examine, name, now)
    return step


def condition_over(state: JobState, event: Event, now: float) -> Step:
    """What was found wrong with a node is over; if it is avoided for that, it comes back by way of probation."""
    assert isinstance(event, ConditionOver)
    order = next((each for each in state.avoided if each.node == event.node), None)
    if order is None:
        return ignore(state, f"node {event.node} is not avoided")
    incident = next((each for each in state.incidents if each.id == order.incident), None)
    if incident is None or incident.kind not in PASSING or incident.cause != event.cause:
        return ignore(state, f"node {event.node} is avoided for another reason: {order.reason}")
    return readmit(state, event.node, now, event.says)


def advanced(state: JobState, node: str, now: float) -> JobState:
    """The state after a member of the node passed a test."""
    known = state.probation.get(node)
    if known is None or known.stage is not ProbationStage.CANARY:
        return state
    count = known.passed + 1
    if count < CANARY_TESTS:
        after = msgspec.structs.replace(known, passed=count)
    else:
        after = Probation(node, ProbationStage.SPARE, now, count)
    return changed(state, probation={**state.probation, node: after})


def probation_ended(state: JobState, now: float) -> Step:
    """Nodes that were the last to be given ranks for long enough are like any other."""
    untested = state.policy is not None and state.policy.preflight is None  # nobody asks for tests any more
    over = [
        each.node
        for each in state.probation.values()
        if untested or (each.stage is ProbationStage.SPARE and now >= each.since + SPARE_S)
    ]
    if not over:
        return stay(state)
    kept = {node: each for node, each in state.probation.items() if node not in over}
    says = f"{', '.join(over)} trusted again"
    return Step(changed(state, probation=kept), (), Reason("probation over", says))


def next_probation_end(state: JobState) -> float | None:
    """When a probation is over."""
    ends = (each.since + SPARE_S for each in state.probation.values() if each.stage is ProbationStage.SPARE)
    return min(ends, default=None)


# A node of another job's bad word is left in good order: what it did for this job may be sound.
LEAVE_S = 300.0


def is_news_of_repute(state: JobState, node: str, *, quarantined: bool) -> bool:
    """Whether `reputed` would change anything: who is to leave in good order is told of again once it has left."""
    if not quarantined:
        return node in state.reputed or any(_is_of_distrust(each, node) for each in state.departures)
    if node in state.reputed or node in state.avoided_nodes:
        return False
    with_ranks = any(state.in_round(each.name) for each in state.members.on_nodes((node,)))
    return not (with_ranks and any(_is_of_distrust(each, node) for each in state.departures))


def reputed(state: JobState, event: Event, now: float) -> Step:
    """All jobs together know something of a node: keep away from it, or trust it again."""
    assert isinstance(event, NodeReputed)
    node, why = event.node, event.reason
    if not is_news_of_repute(state, node, quarantined=event.quarantined):
        return ignore(state, f"node {node}: nothing new ({why})")
    # Nobody is to leave it for its repute any more: it is left, or is trusted again.
    others = tuple(each for each in state.departures if not _is_of_distrust(each, node))
    if not event.quarantined:
        state = changed(state, departures=others)
        if node in state.reputed:
            return readmit(state, node, now, why)
        return Step(state, (), Reason("reputation", f"{node}: {why}"))
    own = any(each.culprit.node == node and not each.innocent for each in state.incidents)
    evidence = "its record" if own else "other jobs' evidence"
    if any(state.in_round(each.name) for each in state.members.on_nodes((node,))):
        says = f"node {node} is not trusted, on {evidence}: {why}"
        return expect(state, Departure(says, now + LEAVE_S, node=node, cause=DepartureCause.DISTRUST))
    # That is no eviction of this job's.
    avoided = (*(each for each in state.avoided if each.node != node), NodeOrder(node, f"{evidence}: {why}"))
    reputed = (*state.reputed, node)[-KEPT_REPUTED:]
    after = changed(state, avoided=avoided, reputed=reputed, departures=others)
    return Step(after, (), Reason("reputation", f"node {node}: {why}"))


def gathered(state: JobState, event: Event, now: float) -> Step:
    """Places behind which faults gather: nobody leaves one, and open incidents of nodes behind them say so."""
    assert isinstance(event, FaultsGathered)
    known = {(each.place, each.family) for each in state.gatherings}
    news = [each for each in event.gatherings if (each.place, each.family) not in known]
    state = changed(state, gatherings=event.gatherings)
    state, effects = gathers(state, news, now)
    says = "; ".join(each.says for each in event.gatherings) or "faults gather behind no place any more"
    return Step(state, effects, Reason("faults gather", says))


def _is_of_distrust(departure: Departure, node: str) -> bool:
    return departure.node == node and departure.cause is DepartureCause.DISTRUST
