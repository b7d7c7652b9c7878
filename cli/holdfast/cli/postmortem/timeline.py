"""What was seen, decided and done around an incident, in one list, by time."""

from collections.abc import Iterator, Sequence
from enum import StrEnum

import msgspec

from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    FindingMade,
    InterventionRequested,
    Journaled,
    MemberDeparting,
    MemberJoined,
    MemberLeft,
    NodeDeparting,
    RestoreReported,
    RunRecorded,
)
from holdfast.api.incident import Incident


class Sort(StrEnum):
    SEEN = "seen"
    DECIDED = "decided"
    DONE = "done"
    ASKED = "asked"  # by a person


class Line(msgspec.Struct, frozen=True, order=True):
    """`at` is the watchdog's clock."""

    at: float
    sort: Sort
    says: str


def timeline_of(incident: Incident, journal: Sequence[Journaled], ended: float) -> tuple[Line, ...]:
    """Everything told of `incident`, and what the journal has from its beginning to `ended`. Nothing twice."""
    lines = set(_of_incident(incident))
    for each in journal:
        if incident.began_at <= each.at <= ended:
            lines |= set(_of_event(each.event, each.at, incident))
    return tuple(sorted(lines))


def _of_incident(incident: Incident) -> Iterator[Line]:
    for each in incident.evidence:
        yield Line(each.at, Sort.SEEN, f"{each.source}: {each.says}")
    done = {(each.at, each.does) for each in incident.actions}
    for action in incident.actions:
        yield Line(action.at, Sort.DECIDED, f"{action.does}, because {action.reason}")
    for moment in incident.timeline:
        if (moment.at, moment.what) not in done:
            yield Line(moment.at, Sort.SEEN, moment.what)
    if incident.known_at is not None and incident.known_at > incident.detected_at:
        yield Line(incident.known_at, Sort.DECIDED, f"the cause is known: {incident.kind}, {incident.blamed}")


def _of_event(event: Event, at: float, incident: Incident) -> Iterator[Line]:
    """What an incident does not tell by itself."""
    match event:
        case InterventionRequested(request=request):
            yield Line(at, Sort.ASKED, f"{request.action} was asked for: {request.reason}")
        case FindingMade(finding=finding) if finding.subject.node != incident.culprit.node:
            yield Line(at, Sort.SEEN, f"{finding.kind} of {finding.subject}: {finding.cause}")
        case MemberLeft(member=member, reason=reason) | MemberDeparting(member=member, reason=reason):
            yield Line(at, Sort.SEEN, f"member {member} leaves: {reason}")
        case MemberJoined(member=member, node=node):
            yield Line(at, Sort.SEEN, f"member {member} joined on node {node}")
        case NodeDeparting(node=node, reason=reason):
            yield Line(at, Sort.SEEN, f"node {node} is taken away: {reason}")
        case RestoreReported(round=number, step=step, tier=tier):
            what = "began anew" if step is None else f"restored step {step} from {tier.value}"
            yield Line(at, Sort.DONE, f"round {number} {what}")
        case CheckpointRecorded(step=step):
            yield Line(at, Sort.DONE, f"checkpoint of step {step} committed")
        case RunRecorded(round=number):
            yield Line(at, Sort.SEEN, f"round {number} was started otherwise than the one before")
        case _:
            return
