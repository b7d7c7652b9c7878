"""Lost members whose node had no part in it: who ended a pod is known to the operator, and its word counts.

The word may come before the loss is seen, or some seconds after it; then what was held against the node is taken
back. A deletion excuses no node that is not ready, and nobody who only fell silent: the pod of a dead node is
deleted too, after the fact.
"""

from collections.abc import Mapping
from types import MappingProxyType

import msgspec

from holdfast.api.event import PodChanged
from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import Incident, Moment
from holdfast.api.plan import PodEnd
from holdfast.watchdog.avoidance import evict_no_more
from holdfast.watchdog.casebook import update
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import Reason, Step, changed, stay

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
    incident = _loss(state, event.member)
    if incident is None or (incident.confidence is not Confidence.CERTAIN and event.end is not PodEnd.OWN_LIMIT):
        return stay(state)
    suspicions = tuple(each for each in state.suspicions if each.incident != incident.id)
    state = evict_no_more(changed(state, suspicions=suspicions), incident.id)
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


def _loss(state: JobState, member: str) -> Incident | None:
    """The incident of a member's loss; None where it came back, or where something else explains its end."""
    missing = state.missing.get(member)
    if missing is None:
        return None
    incident = next((each for each in reversed(state.incidents) if each.id == missing.incident), None)
    if incident is None or incident.kind is not FindingKind.MEMBER_LOST:
        return None
    return incident if incident.culprit.member == member else None
