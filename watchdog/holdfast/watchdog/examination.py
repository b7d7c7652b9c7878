"""What members answer about their devices, and what other jobs know of a node: who may have ranks."""

from holdfast.api.event import Event, FindingMade, MemberTested, NodeReputed
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.plan import NodeOrder
from holdfast.api.policy import XidAction
from holdfast.api.selftest import Verdict
from holdfast.watchdog.avoidance import avoid_reputed
from holdfast.watchdog.departure import expect
from holdfast.watchdog.judgement import found
from holdfast.watchdog.misfit import misfit_of, unfit
from holdfast.watchdog.probation import advanced, readmit
from holdfast.watchdog.roster import Member
from holdfast.watchdog.state import Departure, DepartureCause, JobState
from holdfast.watchdog.step import Reason, Step, changed, ignore
from holdfast.watchdog.trial import (
    admitted,
    again,
    awaited,
    compared,
    examine,
    failed_checks,
    not_asked,
    passed,
    without_misfits,
)

# A node of another job's bad word is left in good order: what it did for this job may be sound.
LEAVE_S = 300.0


def tested(state: JobState, event: Event, now: float) -> Step:
    """A member answered the test it was asked for."""
    assert isinstance(event, MemberTested)
    trial, member = awaited(state, event), state.member(event.member)
    if trial is None or member is None:
        return not_asked(state, event)
    asked_in = state
    # Devices of one node that differ are Unknown to the node itself; what others of their kind computed may tell.
    state, against, doubted = compared(state, member.node, event.checks)
    if not against and (says := misfit_of(event)) is not None:
        return unfit(state, member, says, now).then(lambda after: again(after, doubted, now))
    if event.verdict is Verdict.PASSED:
        state = without_misfits(state, {member.name})
    state = admitted(state, member.name, now)
    against = failed_checks(event) + against
    if event.verdict is Verdict.UNKNOWN and not against:
        says = f"{member.name} could not be tested: {event.says or 'no reason given'}"
        # Who is to be trusted again proves it: it is asked once more when the time for this answer is up.
        kept = asked_in if state.is_canary(member.name) else state
        return Step(kept, (), Reason("self-test", says))
    if event.verdict is Verdict.FAILED or against:
        return found(state, FindingMade(_finding(state, member, event, against, now)), now)
    state = advanced(passed(state, member, now), member.node, now)
    step = Step(state, (), Reason("self-test", f"{member.name} passed: {trial.reason}"))
    if state.is_canary(member.name):
        step = step.then(lambda after: examine(after, member.name, now))
    return step.then(lambda after: again(after, doubted, now)) if doubted else step


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
    if not is_news_of_repute(state, event.node, quarantined=event.quarantined):
        return ignore(state, f"node {event.node}: nothing new ({event.reason})")
    if not event.quarantined and event.node in state.reputed:
        return readmit(_unsuspected(state, event.node), event.node, now, event.reason)
    if not event.quarantined:
        return Step(_unsuspected(state, event.node), (), Reason("reputation", f"{event.node}: {event.reason}"))
    if not any(state.in_round(each.name) for each in state.members.on_nodes((event.node,))):
        order = NodeOrder(event.node, f"{_whose_evidence(state, event.node)}: {event.reason}")
        state = _unsuspected(avoid_reputed(state, order), event.node)
        return Step(state, (), Reason("reputation", f"node {event.node}: {event.reason}"))
    says = f"node {event.node} is not trusted, on {_whose_evidence(state, event.node)}: {event.reason}"
    return expect(state, Departure(says, now + LEAVE_S, node=event.node, cause=DepartureCause.DISTRUST))


def _whose_evidence(state: JobState, node: str) -> str:
    """In words: whether this job found anything itself that is held against the node."""
    own = any(each.culprit.node == node and not each.innocent for each in state.incidents)
    return "its record" if own else "other jobs' evidence"


def _is_of_distrust(departure: Departure, node: str) -> bool:
    return departure.node == node and departure.cause is DepartureCause.DISTRUST


def _unsuspected(state: JobState, node: str) -> JobState:
    """The state in which nobody is to leave the node for its repute: it is left, or is trusted again."""
    return changed(state, departures=tuple(each for each in state.departures if not _is_of_distrust(each, node)))


def _finding(state: JobState, member: Member, event: MemberTested, against: list[str], now: float) -> Finding:
    says = "; ".join(against[:8]) or event.says or "failed"
    return Finding(
        kind=FindingKind.SELF_TEST,
        subject=Subject(state.job, node=member.node, member=member.name, gpu=_device(event)),
        cause="self-test failed",
        evidence=(Evidence(f"self-test of {member.name}", says, now),),
        confidence=Confidence.CERTAIN,
        began_at=now,
        error=says,
        asks=XidAction.EVICT,
    )


def _device(event: MemberTested) -> str | None:
    """The one device that failed, None when several did or none is named."""
    devices = {check.device for check in event.checks if check.verdict is Verdict.FAILED}
    return devices.pop() if len(devices) == 1 else None
