"""Trust regained step by step: several self-tests, then a spare, then ranks.

A node that was taken out of service does not come back into the middle of a run because it booted or because
somebody said so: what is wrong with it may show one time in fifty.
"""

import msgspec

from holdfast.api.event import ConditionOver, Event
from holdfast.api.finding import FindingKind
from holdfast.watchdog.avoidance import take_back
from holdfast.watchdog.state import JobState, Probation, ProbationStage
from holdfast.watchdog.step import Reason, Step, changed, ignore, stay
from holdfast.watchdog.trial import examine

# A part that computes wrong now and then passes one test easily; each test repeats its own checks many times.
# Source: https://arxiv.org/abs/2102.11245 and AEGIS-SDC (OSDI 2026): one run of fifty diverged.
CANARY_TESTS = 3
# How long a node that passed them is the last to be given ranks.
SPARE_S = 600.0
KEPT = 4096
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
    while len(probation) > KEPT:
        del probation[next(iter(probation))]
    step = Step(changed(state, probation=probation), (), Reason("readmitted", f"node {node} on probation: {says}"))
    for member in state.members.on_nodes((node,)):
        name = member.name
        step = step.then(lambda after, name=name: examine(after, name, now))  # type: ignore[misc]
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


def ended(state: JobState, now: float) -> Step:
    """Nodes that were the last to be given ranks for long enough are like any other."""
    untested = state.policy is not None and state.policy.preflight is None  # nobody asks for tests any more
    over = [each.node for each in state.probation.values() if untested or _is_over(each, now)]
    if not over:
        return stay(state)
    kept = {node: each for node, each in state.probation.items() if node not in over}
    says = f"{', '.join(over)} trusted again"
    return Step(changed(state, probation=kept), (), Reason("probation over", says))


def next_end(state: JobState) -> float | None:
    """When a probation is over."""
    ends = (each.since + SPARE_S for each in state.probation.values() if each.stage is ProbationStage.SPARE)
    return min(ends, default=None)


def _is_over(each: Probation, now: float) -> bool:
    return each.stage is ProbationStage.SPARE and now >= each.since + SPARE_S
