"""Faults that come again: when one node has more of them than chance gives it.

What a script brings about by itself falls on any node alike, or goes with the ranks wherever they are. What a node
brings about stays with it. So a node is suspect by the number of its faults of one class

- within an hour, while no other node had one: a burst, for which no statistics are needed; or
- within a week, where so many of one node among all of the class would be rare by chance,

and by neither where the same ranks failed so on another node before: then the fault followed them.

By chance: each of the week's `total` faults may be the last of `times` on one node among `row` in a row, and each
of those before it in the row was on that node with one chance in `nodes`. So
`total * P(Bin(row - 1, 1 / nodes) >= times - 1)` such rows are expected. Rows are taken from the newest fault back
to each earlier one of the node, so that a machine that has just gone bad shows against a week of others. That the
rarest of several counts costs a factor: of 140 crashes a week on any of 16 to 2,048 nodes alike, an innocent node
was condemned once in 65 to 250 weeks.

Source: https://arxiv.org/abs/2410.21680 (section V, lemon nodes: a history of weeks, and thresholds from how often
all nodes fail)
"""

from typing import Final

import msgspec

from holdfast.api.finding import Finding, FindingKind, Subject
from holdfast.api.incident import Incident
from holdfast.watchdog.brain.gatherings import upper_tail
from holdfast.watchdog.brain.state import JobState, Suspicion
from holdfast.watchdog.brain.step import changed

# A burst, and what is looked at beside a fault of another kind; the eviction budget's default window.
LATELY_S: Final = 3600.0
# A fault of one node is held against it for this long. The simulator's tuning session: docs/simulator.md.
MEMORY_S: Final = 7.0 * 86_400.0
KEPT_SUSPICIONS: Final = 1024
# So many rows of faults as long as a node's may be expected by chance, of one class in that time.
CHANCE_MAX: Final = 3e-3
# As often as this on another node, the same ranks were not unlucky there; what they brought along shows within so
# many times what it had shown in there.
FOLLOWS: Final = 2
FOLLOWS_WITHIN: Final = 2.0


class Repeated(msgspec.Struct, frozen=True):
    """So many faults of a class on one node, the newest included; `elsewhere` how many more, and `within` which
    time, in words. `guard` says why that condemns it.
    """

    times: int
    elsewhere: str
    within: str
    guard: str


def fault_class(finding: Finding) -> str:
    """The class under which a fault is remembered."""
    exact = finding.kind in (FindingKind.XID, FindingKind.PROCESS_EXIT)
    return finding.cause if exact else finding.kind.value


def suspicion(state: JobState, finding: Finding, subject: Subject, now: float, incident: str) -> Suspicion:
    """The fault as it is held against the subject's node, which is to be known."""
    assert subject.node is not None
    return Suspicion(subject.node, fault_class(finding), now, incident, _rank(state, subject))


def held_against_node(state: JobState, incident: Incident, now: float) -> JobState:
    """With an incident held against its culprit's node, where that is known, which first seemed not to be its."""
    culprit = incident.culprit
    if culprit.node is None:
        return state
    held = Suspicion(culprit.node, incident.kind.value, now, incident.id, _rank(state, culprit))
    return changed(state, suspicions=(*remembered(state, now), held)[-KEPT_SUSPICIONS:])


def remembered(state: JobState, now: float) -> tuple[Suspicion, ...]:
    """What is still held against nodes; of ranks that go on failing so, all that there is."""
    recent = [each for each in state.suspicions if each.at > now - MEMORY_S]
    going_on = {(each.cause, each.rank) for each in recent if each.rank is not None}
    return tuple(
        each for each in state.suspicions if each.at > now - MEMORY_S or (each.cause, each.rank) in going_on
    )


def of_gone(state: JobState, node: str) -> tuple[Suspicion, ...]:
    """What is held against nodes once this one is gone: whatever comes back under its name may be another one."""
    return tuple(
        msgspec.structs.replace(each, gone=True) if each.node == node and not each.gone else each
        for each in state.suspicions
    )


def strikes(state: JobState, finding: Finding, now: float) -> int:
    """How often this class of fault was held against the same node within the hour."""
    lately = _held(state, finding, now - LATELY_S)
    return sum(each.node == finding.subject.node and not each.gone for each in lately)


def elsewhere(state: JobState, finding: Finding, now: float) -> tuple[str, ...]:
    """Other nodes that showed this class of fault within the hour."""
    lately = _held(state, finding, now - LATELY_S)
    return tuple(sorted({each.node for each in lately if each.node != finding.subject.node}))


def repeated(state: JobState, finding: Finding, least: int, now: float) -> Repeated | None:
    """The faults of the finding's node, where they are at least so many and their number condemns it."""
    if _followed(state, finding, now):
        return None
    times = strikes(state, finding, now) + 1
    if times >= least and not elsewhere(state, finding, now):
        return Repeated(times, "none", "an hour", "follow the fault: only this node")
    held, nodes = _held(state, finding, now - MEMORY_S), _nodes(state)
    times, row = 1, 1
    for each in reversed(held) if nodes > 1 else ():
        row += 1
        if each.node != finding.subject.node or each.gone:
            continue
        times += 1
        if times >= least and (chance := by_chance(times, row, len(held) + 1, nodes)) <= CHANCE_MAX:
            says = f"{times} of {row} in a row within a week on one of {nodes} nodes, {chance:.0e} by chance"
            return Repeated(times, str(row - times or "none"), "a week", f"repetition: {says}")
    return None


def by_chance(times: int, row: int, total: int, nodes: int) -> float:
    """How often at least `times` of `row` faults in a row are expected on the node of the last one, among `total`
    faults that may fall on any of `nodes` (two or more) alike.
    """
    return total * upper_tail(times - 1, {1: row - 1}, 1.0 / nodes)


def _followed(state: JobState, finding: Finding, now: float) -> bool:
    """Whether ranks that fail on the finding's node failed so on another one, again and again and not long before:
    as a fault does that comes as often wherever they are.
    """
    fault, subject = fault_class(finding), finding.subject
    alike = [each for each in state.suspicions if each.cause == fault and each.rank is not None]
    ours = [each for each in alike if each.node == subject.node and not each.gone]
    here = [*((each.rank, each.at) for each in ours), (_rank(state, subject), now)]
    others = {(each.node, each.gone) for each in alike} - {(subject.node, False)}
    for other in others:
        there = [each for each in alike if (each.node, each.gone) == other and each.rank in dict(here)]
        if len(there) < FOLLOWS:
            continue
        span_s = there[-1].at - there[0].at
        moved_at = min(at for rank, at in here if rank in {each.rank for each in there})
        if moved_at - there[-1].at <= FOLLOWS_WITHIN * max(span_s, LATELY_S):
            return True
    return False


def _held(state: JobState, finding: Finding, since: float) -> list[Suspicion]:
    """This class of fault, whoever showed it since then."""
    fault = fault_class(finding)
    return [each for each in state.suspicions if each.cause == fault and each.at > since]


def _nodes(state: JobState) -> int:
    return len({share.node for share in state.round.ranks}) if state.round is not None else 0


def _rank(state: JobState, subject: Subject) -> int | None:
    """The subject's rank, or the first of its node's in the newest round."""
    if subject.rank is not None or state.round is None:
        return subject.rank
    return min((each.first_rank for each in state.round.ranks if each.node == subject.node), default=None)
