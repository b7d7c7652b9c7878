"""What all jobs together know of each node: evidence that fades, and whether the node is to be trusted.

A node that fails one job after another looks innocent to each of them. Every incident whose culprit a node was
leaves a mark; a mark loses half of its weight in two weeks, so that nothing is held against anybody for ever. One
proof that a part is broken is enough to keep away from a node, things that also happen to sound nodes have to add
up. A human's Return, or the finding that the software was to blame, wipes the marks.

Signals and the time they are looked back over follow the lemon nodes of two research clusters: 28 days, of which
two weeks are the middle. Source: https://arxiv.org/abs/2410.21680
"""

from collections.abc import Iterable, Mapping
from types import MappingProxyType

import msgspec

from holdfast.api.finding import Confidence, FindingKind
from holdfast.api.incident import Incident
from holdfast.api.policy import XidAction
from holdfast.api.xid import CATALOGUE, XidClass

HALF_LIFE_S = 14 * 86400.0
QUARANTINE_AT = 1.0
# Lower than where it began, so that a node at the edge is not sent to and fro.
TRUST_BELOW = 0.5
# Several jobs on one node tell of one fault within this time.
SAME_S = 60.0
# The blast radius: however bad their names, no more than this share of the nodes (and always two) is kept away
# from.
SHARE_MAX = 0.05
NODES_MIN = 2
MARKS_KEPT = 32
NODES_KEPT = 16_384

# What proves that a part is broken counts for four weeks, unless a human says otherwise.
PROOF = 2.0
WEIGHTS: Mapping[FindingKind, float] = MappingProxyType(
    {
        FindingKind.SELF_TEST: PROOF,
        FindingKind.CORRUPTION: PROOF,
        FindingKind.GPU_LOST: PROOF,
        FindingKind.CONDITION: 0.7,
        FindingKind.THERMAL: 0.3,
        FindingKind.MEMBER_LOST: 0.3,
        FindingKind.HANG: 0.3,
        FindingKind.PROCESS_EXIT: 0.1,
    }
)
OTHER_XID = 0.4
# Nothing was done about it but to say so.
REPORTED = 0.2


class Mark(msgspec.Struct, frozen=True):
    """What one incident says of a node."""

    job: str
    incident: str
    cause: str
    weight: float
    at: float


class Repute(msgspec.Struct, frozen=True):
    """Whether a node is kept away from, its score (1 and more is bad), and why."""

    quarantined: bool
    score: float
    reason: str


class Fleet(msgspec.Struct, frozen=True):
    """Every node that was ever the culprit of something that still counts; `quarantined` are kept away from.

    What was found before `pardoned_at` counts no more, also when its incident is only closed afterwards.
    """

    marks: dict[str, tuple[Mark, ...]] = {}
    quarantined: tuple[str, ...] = ()
    pardoned_at: dict[str, float] = {}


def marked(fleet: Fleet, incident: Incident) -> Fleet:
    """The fleet that knows of this incident. Told again, or of its later versions, it is the same mark."""
    node = incident.culprit.node
    if node is None or incident.detected_at <= fleet.pardoned_at.get(node, float("-inf")):
        return fleet
    # The next job of the same name counts its incidents from one again: the time is part of what names a mark.
    same = (incident.job, incident.id, incident.detected_at)
    others = tuple(each for each in fleet.marks.get(node, ()) if (each.job, each.incident, each.at) != same)
    weight = weight_of(incident)
    mark = Mark(incident.job, incident.id, incident.cause, weight, incident.detected_at)
    marks = (*others, mark)[-MARKS_KEPT:] if weight else others
    if marks == fleet.marks.get(node, ()):
        return fleet
    after = dict(fleet.marks)
    after.pop(node, None)
    if marks:
        after[node] = marks
    while len(after) > NODES_KEPT:
        del after[next(iter(after))]
    return msgspec.structs.replace(fleet, marks=after)


def pardoned(fleet: Fleet, node: str, now: float) -> Fleet:
    """The fleet in which nothing that happened until now is held against the node."""
    pardoned_at = {known: at for known, at in fleet.pardoned_at.items() if known != node}
    pardoned_at[node] = now
    while len(pardoned_at) > NODES_KEPT:
        del pardoned_at[next(iter(pardoned_at))]
    return Fleet(
        {known: marks for known, marks in fleet.marks.items() if known != node},
        tuple(each for each in fleet.quarantined if each != node),
        pardoned_at,
    )


def judged(fleet: Fleet, now: float, *, nodes: int) -> Fleet:
    """The fleet with the nodes that are to be kept away from, of `nodes` that are known: the worst first."""
    room = max(NODES_MIN, int(SHARE_MAX * nodes))
    scores = {node: score(fleet.marks.get(node, ()), now) for node in {*fleet.marks, *fleet.quarantined}}
    limit = {node: TRUST_BELOW if node in fleet.quarantined else QUARANTINE_AT for node in scores}
    bad = [node for node, value in scores.items() if value >= limit[node]]
    worst = sorted(bad, key=lambda node: (node not in fleet.quarantined, -scores[node], node))
    # Nobody is trusted again because jobs ended and fewer nodes are known.
    room = max(room, sum(1 for node in bad if node in fleet.quarantined))
    quarantined = tuple(sorted(worst[:room]))
    return fleet if quarantined == fleet.quarantined else msgspec.structs.replace(fleet, quarantined=quarantined)


def score(marks: Iterable[Mark], now: float) -> float:
    """What the marks weigh now. Those of one moment are one fault, told by several."""
    total, last_at, last = 0.0, float("-inf"), 0.0
    for mark in sorted(marks, key=lambda each: each.at):
        weight = mark.weight * 0.5 ** (max(0.0, now - mark.at) / HALF_LIFE_S)
        if mark.at - last_at <= SAME_S:
            total += max(0.0, weight - last)
            last = max(last, weight)
        else:
            total, last_at, last = total + weight, mark.at, weight
    return total


def repute_of(fleet: Fleet, node: str, now: float) -> Repute:
    """What is known of a node, in a number and in words."""
    marks = fleet.marks.get(node, ())
    heaviest = sorted(marks, key=lambda each: -each.weight)[:3]
    told = "; ".join(f"{each.cause} in {each.job}" for each in heaviest)
    return Repute(node in fleet.quarantined, score(marks, now), told or "nothing is known against it")


def weight_of(incident: Incident) -> float:
    """How much an incident says against its culprit. What cannot be pinned on the node says nothing."""
    if incident.confidence is Confidence.UNKNOWN and incident.kind is not FindingKind.XID:
        return 0.0
    weight = WEIGHTS.get(incident.kind, 0.0)
    if incident.kind is FindingKind.XID:
        weight = PROOF if _blames_hardware(incident.cause) else OTHER_XID
    elif incident.kind is FindingKind.PROCESS_EXIT and not incident.cause.startswith("signal"):
        weight = 0.0
    return weight if incident.actions else min(weight, REPORTED)


def _blames_hardware(cause: str) -> bool:
    number = cause.removeprefix("xid ")
    entry = CATALOGUE.get(int(number)) if number.isdecimal() else None
    return entry is not None and entry.blames is XidClass.HARDWARE and entry.action is XidAction.EVICT
