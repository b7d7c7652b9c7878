"""The plan: what the operator should make true of pods and nodes, as far as it follows from the state."""

import msgspec

from holdfast.api.plan import Plan
from holdfast.api.policy import Policy
from holdfast.api.status import JobPhase
from holdfast.watchdog.absence import is_given_up, released
from holdfast.watchdog.effect import Publish
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import Reason, Step, changed, stay


def plan(state: JobState, policy: Policy, now: float) -> Step:
    """What the operator should make true."""
    if state.phase is JobPhase.SUCCEEDED or state.phase is JobPhase.FAILED:
        return stay(state)
    known = state.plan
    given_up = is_given_up(state)
    wanted = Plan(
        job=state.job,
        number=known.number if known else 1,
        members=0 if given_up else policy.nodes_max,
        spares=0 if given_up else policy.spares,
        avoid=state.avoided,
        cordon=tuple(order for order in state.avoided if order.incident is not None),
        returned=state.returned,
        release=() if given_up else released(state, policy, now),
    )
    if wanted == known:
        return stay(state)
    if known is not None:
        wanted = msgspec.structs.replace(wanted, number=known.number + 1)
    return Step(changed(state, plan=wanted), (Publish(wanted),), Reason("plan", f"plan {wanted.number}"))
