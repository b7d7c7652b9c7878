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
        return plan_after_end(state)
    known = state.plan
    given_up = is_given_up(state)
    wanted = Plan(
        job=state.job,
        number=known.number if known else 1,
        members=0 if given_up else policy.nodes_max,
        spares=0 if given_up else policy.spares,
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
    wanted = msgspec.structs.replace(wanted, avoid=state.avoided, cordon=cordon, returned=state.returned)
    if wanted == known:
        return stay(state)
    if known is not None:
        wanted = msgspec.structs.replace(wanted, number=known.number + 1)
    return Step(changed(state, plan=wanted), (Publish(wanted),), Reason("plan", f"plan {wanted.number}"))
