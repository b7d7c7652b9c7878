"""What all jobs together know of each node: evidence that fades, and whether the node is to be trusted.

A node that fails one job after another looks innocent to each of them. Every incident whose culprit a node was
leaves a mark; a mark loses half of its weight in two weeks, so that nothing is held against anybody for ever. One
proof that a part is broken is enough to keep away from a node, things that also happen to sound nodes have to add
up. A human's Return, or the finding that the software was to blame, wipes the marks.

Where jobs of several owners share the nodes, what only a job's own processes say counts among the jobs of its
namespace. For all it counts for no more than what a second namespace says too: nobody's word alone takes a node
away from others.

Signals and the time they are looked back over follow the lemon nodes of two research clusters: 28 days, of which
two weeks are the middle. Source: https://arxiv.org/abs/2410.21680
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import SENSED, Confidence, FindingKind
from holdfast.api.incident import Incident
from holdfast.api.nodecondition import is_by_jobs
from holdfast.api.policy import XidAction
from holdfast.api.xid import CATALOGUE, XidClass, XidEntry

BY_JOBS: Final = frozenset({ConditionKind.DISK_FULL, ConditionKind.MEMORY_LOW})

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


# What agents' sensors read that no job can bring about: only that is believed by all where owners share nodes.
#
# A faulty kernel of a job raises an XID as broken memory does, and a job can use up a node's memory and disk.


def is_of_the_node(kind: FindingKind, cause: str) -> bool:
    """Whether a finding or incident of this kind and cause tells of the node, whatever runs on it."""
    if kind is FindingKind.XID:
        entry = xid_of(cause)
        return entry is not None and entry.blames is XidClass.HARDWARE
    return kind in SENSED and cause not in BY_JOBS and not is_by_jobs(cause)


def xid_of(cause: str) -> XidEntry | None:
    """The catalogue's entry for "xid N"; None when there is none."""
    number = cause.removeprefix("xid ")
    return CATALOGUE.get(int(number)) if number.isdecimal() else None


class Mark(msgspec.Struct, frozen=True):
    """What one incident says of a node. `word_of` is the namespace whose processes or specs alone say it; empty:
    not theirs alone, it counts for all.
    """

    job: str
    incident: str
    cause: str
    weight: float
    at: float
    word_of: str = ""


class Repute(msgspec.Struct, frozen=True):
    """Whether a node is kept away from, its score (1 and more is bad), and why."""

    quarantined: bool
    score: float
    reason: str


class Fleet(msgspec.Struct, frozen=True):
    """Every node that was ever the culprit of something that still counts; all keep away from the `quarantined`,
    the jobs of a namespace from those `among` it too.

    What was found before `pardoned_at` counts no more, also when its incident is only closed afterwards. It is by
    namespace/node where a namespace pardoned what its own jobs found, else by node.
    """

    marks: dict[str, tuple[Mark, ...]] = {}
    quarantined: tuple[str, ...] = ()
    pardoned_at: dict[str, float] = {}
    among: dict[str, tuple[str, ...]] = {}

    def kept_from(self, job: str) -> frozenset[str]:
        """The nodes that this job is to keep away from."""
        return frozenset((*self.quarantined, *self.among.get(namespace_of(job), ())))


def namespace_of(job: str) -> str:
    return job.partition("/")[0]


def marked(fleet: Fleet, incident: Incident, *, by_word: bool = True) -> Fleet:
    """The fleet that knows of this incident. Told again, or of its later versions, it is the same mark.

    `by_word`: what a job's own processes say is believed for all.
    """
    node = incident.culprit.node
    if node is None or incident.culprit.peer is not None:  # of a link, nobody knows which end it is
        return fleet
    keys = (node, f"{namespace_of(incident.job)}/{node}")
    if incident.detected_at <= max(fleet.pardoned_at.get(key, float("-inf")) for key in keys):
        return fleet
    # The next job of the same name counts its incidents from one again: the time is part of what names a mark.
    same = (incident.job, incident.id, incident.detected_at)
    others = tuple(each for each in fleet.marks.get(node, ()) if (each.job, each.incident, each.at) != same)
    weight = weight_of(incident)
    for_all = by_word or (is_of_the_node(incident.kind, incident.cause) and not incident.own_rule)
    word_of = "" if for_all else namespace_of(incident.job)
    mark = Mark(incident.job, incident.id, incident.cause, weight, incident.detected_at, word_of)
    marks = _kept((*others, mark)) if weight else others
    if marks == fleet.marks.get(node, ()):
        return fleet
    after = dict(fleet.marks)
    after.pop(node, None)
    if marks:
        after[node] = marks
    while len(after) > NODES_KEPT:
        # Who invents nodes makes room with what was invented first, not with what sensors found.
        said = (name for name, each in after.items() if all(one.word_of for one in each))
        del after[next(said, next(iter(after)))]
    return msgspec.structs.replace(fleet, marks=after)


def _kept(marks: tuple[Mark, ...]) -> tuple[Mark, ...]:
    """As many as are kept: the oldest of whoever has most to say goes, so that nobody talks others' marks away."""
    while len(marks) > MARKS_KEPT:
        [(voice, _)] = Counter(each.word_of for each in marks).most_common(1)
        oldest = next(number for number, each in enumerate(marks) if each.word_of == voice)
        marks = (*marks[:oldest], *marks[oldest + 1 :])
    return marks


def pardoned(fleet: Fleet, node: str, now: float, *, namespace: str | None = None) -> Fleet:
    """The fleet in which nothing that happened until now is held against the node; with a namespace, nothing that
    its jobs found.
    """
    key = node if namespace is None else f"{namespace}/{node}"
    pardoned_at = {known: at for known, at in fleet.pardoned_at.items() if known != key}
    pardoned_at[key] = now
    while len(pardoned_at) > NODES_KEPT:
        del pardoned_at[next(iter(pardoned_at))]
    marks = {known: each for known, each in fleet.marks.items() if known != node}
    others = tuple(each for each in fleet.marks.get(node, ()) if namespace_of(each.job) != namespace)
    if namespace is not None and others:
        marks[node] = others
        # The node is judged anew: what others found may be enough by itself.
        return msgspec.structs.replace(fleet, marks=marks, pardoned_at=pardoned_at)
    trusted = {name: tuple(each for each in bad if each != node) for name, bad in fleet.among.items()}
    return Fleet(marks, tuple(each for each in fleet.quarantined if each != node), pardoned_at, trusted)


def judged(fleet: Fleet, now: float, *, nodes: int) -> Fleet:
    """The fleet with the nodes that are to be kept away from, of `nodes` that are known: the worst first."""
    quarantined = _worst(fleet, now, None, {*fleet.marks, *fleet.quarantined}, nodes)
    # Without a word of its own a node weighs for a namespace what it weighs for all, and is not looked at again.
    spoken_of = {name: {*bad} for name, bad in fleet.among.items()}
    for node, marks in fleet.marks.items():
        for mark in marks:
            if mark.word_of:
                spoken_of.setdefault(mark.word_of, set()).add(node)
    among = {name: _worst(fleet, now, name, of, nodes) for name, of in sorted(spoken_of.items())}
    among = {name: bad for name, bad in among.items() if bad}
    if (quarantined, among) == (fleet.quarantined, fleet.among):
        return fleet
    return msgspec.structs.replace(fleet, quarantined=quarantined, among=among)


def _worst(fleet: Fleet, now: float, namespace: str | None, of: Collection[str], nodes: int) -> tuple[str, ...]:
    """Whom `of` these a namespace is to keep away from; None: all of them."""
    known = fleet.quarantined if namespace is None else fleet.among.get(namespace, ())
    limit = {node: TRUST_BELOW if node in known else QUARANTINE_AT for node in of}
    marks = {node: fleet.marks.get(node, ()) for node in of}
    # Marks only fade: those that never weighed enough need not be weighed.
    heavy = [node for node in of if sum(each.weight for each in marks[node]) >= limit[node]]
    scores = {node: weight_for(marks[node], namespace, now) for node in heavy}
    bad = [node for node, value in scores.items() if value >= limit[node]]
    worst = sorted(bad, key=lambda node: (node not in known, -scores[node], node))
    # Nobody is trusted again because jobs ended and fewer nodes are known.
    room = max(NODES_MIN, int(SHARE_MAX * nodes), sum(1 for node in bad if node in known))
    return tuple(sorted(worst[:room]))


def _counting(marks: tuple[Mark, ...], namespace: str) -> tuple[Mark, ...]:
    """The marks that a namespace is told of."""
    words = {each.word_of for each in marks if each.word_of}
    if len(words) > 1:
        return marks
    return tuple(each for each in marks if each.word_of in ("", namespace))


def weight_for(marks: tuple[Mark, ...], namespace: str | None, now: float) -> float:
    """What the marks weigh for a namespace; None: for all of them.

    What the loudest namespace says beyond what the next one says counts for nobody else: or its proof would count
    for all as soon as another namespace had any small thing to say of the node.
    """
    heard = score((each for each in marks if each.word_of in ("", namespace)), now)
    voices = {each.word_of for each in marks if each.word_of}
    if len(voices) < 2:
        return heard
    loud = sorted(score((each for each in marks if each.word_of == voice), now) for voice in voices)
    return max(heard, score(marks, now) - (loud[-1] - loud[-2]))


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


def repute_of(fleet: Fleet, node: str, now: float, job: str) -> Repute:
    """What this job is told of a node, in a number and in words. Jobs of other namespaces are not named."""
    marks = _counting(fleet.marks.get(node, ()), namespace_of(job))
    heaviest = sorted(marks, key=lambda each: -each.weight)[:3]
    ours = {each.job: each.job for each in heaviest if namespace_of(each.job) == namespace_of(job)}
    told = "; ".join(f"{each.cause} in {ours.get(each.job, 'a job of another namespace')}" for each in heaviest)
    weight = weight_for(fleet.marks.get(node, ()), namespace_of(job), now)
    return Repute(node in fleet.kept_from(job), weight, told or "nothing is known against it")


def weight_of(incident: Incident) -> float:
    """How much an incident says against its culprit. What cannot be pinned on the node says nothing."""
    if incident.innocent:
        return 0.0
    if incident.confidence is Confidence.UNKNOWN and incident.kind is not FindingKind.XID:
        return 0.0
    weight = WEIGHTS.get(incident.kind, 0.0)
    if incident.kind is FindingKind.XID:
        entry = xid_of(incident.cause)
        blames = entry is not None and entry.blames is XidClass.HARDWARE and entry.action is XidAction.EVICT
        weight = PROOF if blames else OTHER_XID
    elif incident.kind is FindingKind.PROCESS_EXIT and not incident.cause.startswith("signal"):
        weight = 0.0
    return weight if incident.actions else min(weight, REPORTED)
