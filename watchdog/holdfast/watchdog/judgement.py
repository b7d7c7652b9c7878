"""A detector judged: whether that is news, of which round, and who is to deal with it."""

from holdfast.api.event import Event, FindingMade
from holdfast.api.finding import Confidence, Finding, FindingKind
from holdfast.api.incident import Incident
from holdfast.api.status import JobPhase
from holdfast.watchdog.casebook import join_finding, many_lost, same_fault, update
from holdfast.watchdog.healing import NODE_FAULTS, heal
from holdfast.watchdog.loss import lost
from holdfast.watchdog.nonfinite import concerns
from holdfast.watchdog.state import JobState
from holdfast.watchdog.step import Reason, Step, ignore


def found(state: JobState, event: Event, now: float) -> Step:
    """Deal with what was found. Judgements of rounds that are over are evidence at most (fencing)."""
    assert isinstance(event, FindingMade)
    finding = event.finding
    current = state.round.number if state.round else None
    if state.policy is None:
        return ignore(state, "the job is not submitted yet")
    if finding.kind is FindingKind.MEMBER_LOST:
        return lost(state, finding, now)
    if finding.round is not None and finding.round != current:
        if state.round is not None and concerns(state, finding, state.round):
            return heal(state, finding, now)
        return _late(state, finding, now)
    if finding.kind not in NODE_FAULTS and (state.phase is JobPhase.SUSPENDED or current is None):
        return ignore(state, "no round is running, so nothing of it can fail")
    if finding.kind in NODE_FAULTS and _is_known_bad(state, finding.subject.node):
        return _known_bad(state, finding, now)
    return heal(state, finding, now)


def _late(state: JobState, finding: Finding, now: float) -> Step:
    """A judgement about a round that is over: joins its incident while that is open, changes nothing else."""
    many = many_lost(state)
    for incident in state.open_incidents():
        same_round = incident.round == finding.round
        alike = same_round and incident.culprit.node == finding.subject.node
        if (alike or (same_round and _made_a_victim(finding, incident))) and incident is not many:
            state, effects = update(state, join_finding(incident, finding, now))
            return Step(state, effects, Reason("late evidence", f"round {finding.round} is over"))
    return ignore(state, f"round {finding.round} is over")


def _made_a_victim(finding: Finding, incident: Incident) -> bool:
    """Whether an exception of the script explains the incident: a worker that only told of its peer's end."""
    symptoms = (FindingKind.COLLECTIVE_FAILED, FindingKind.PROCESS_EXIT)
    is_symptom = incident.kind in symptoms and incident.confidence is Confidence.UNKNOWN
    return finding.kind is FindingKind.USER_CODE and is_symptom


def _is_known_bad(state: JobState, node: str | None) -> bool:
    """Whether the node is avoided for what this job found; what others know of it is no proof yet."""
    return node in state.avoided_nodes and node not in state.reputed


def _known_bad(state: JobState, finding: Finding, now: float) -> Step:
    """More bad news of a node that is already avoided."""
    incident = same_fault(state, finding)
    if incident is None:
        return ignore(state, f"node {finding.subject.node} is avoided already")
    state, effects = update(state, join_finding(incident, finding, now))
    return Step(state, effects, Reason("late evidence", f"node {finding.subject.node} is avoided already"))
