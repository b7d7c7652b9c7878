"""Faults that come again: when one node has more of them than chance gives it.

What a script brings about by itself falls on any node alike, or goes with the ranks wherever they are. What a node
brings about stays with it. So a node is suspect by the number of its faults of one class

- within an hour, while no other node had one: a burst, for which no statistics are needed; or
- within a week, where so many of one node among all of the class would be rare by chance,

and by neither where the same ranks failed so on another node before: then the fault followed them.

By chance: each of `total` faults may be the last of `times` on one node, and each of those before it is there
with one chance in `nodes`. At most `total * P(Bin(total - 1, 1 / nodes) >= times - 1)` nodes are expected to have
as many, which bounds the chance that an innocent one has.

Source: https://arxiv.org/abs/2410.21680 (section V, lemon nodes: a history of weeks, and thresholds from how often
all nodes fail)
"""

from typing import Final

import msgspec

from holdfast.api.finding import Finding, FindingKind, Subject
from holdfast.watchdog.brain.gatherings import upper_tail
from holdfast.watchdog.brain.state import JobState, Suspicion

# A burst, and what is looked at beside a fault of another kind; the eviction budget's default window.
LATELY_S: Final = 3600.0
# A fault of one node is held against it for this long. The simulator's tuning session: docs/simulator.md.
MEMORY_S: Final = 7.0 * 86_400.0
# So many innocent nodes may be expected to have as many faults in that time, one class of fault alone.
CHANCE_MAX: Final = 1e-2
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


def remembered(state: JobState, now: float) -> tuple[Suspicion, ...]:
    """What is still held against nodes; of ranks that go on failing so, all that there is."""
    recent = [each for each in state.suspicions if each.at > now - MEMORY_S]
    going_on = {(each.cause, each.rank) for each in recent if each.rank is not None}
    return tuple(
        each for each in state.suspicions if each.at > now - MEMORY_S or (each.cause, each.rank) in going_on
    )


def strikes(state: JobState, finding: Finding, now: float) -> int:
    """How often this class of fault was held against the same node within the hour."""
    return sum(each.node == finding.subject.node for each in _held(state, finding, now - LATELY_S))


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
    times, total = sum(each.node == finding.subject.node for each in held) + 1, len(held) + 1
    if times < least or nodes < 2 or (chance := by_chance(times, total, nodes)) > CHANCE_MAX:
        return None
    says = f"{times} of {total} within a week on one of {nodes} nodes, {chance:.0e} such nodes expected by chance"
    return Repeated(times, str(total - times or "none"), "a week", f"repetition: {says}")


def by_chance(times: int, total: int, nodes: int) -> float:
    """How many nodes are expected to have at least `times` of `total` faults that may fall on any of `nodes` (two
    or more) alike; at most so, and never less than the chance that there is one.
    """
    return total * upper_tail(times - 1, {1: total - 1}, 1.0 / nodes)


def _followed(state: JobState, finding: Finding, now: float) -> bool:
    """Whether ranks that fail on the finding's node failed so on another one, again and again and not long before:
    as a fault does that comes as often wherever they are.
    """
    fault, subject = fault_class(finding), finding.subject
    alike = [each for each in state.suspicions if each.cause == fault and each.rank is not None]
    here = [(_rank(state, subject), now), *((each.rank, each.at) for each in alike if each.node == subject.node)]
    for node in {each.node for each in alike} - {subject.node}:
        there = [each for each in alike if each.node == node and each.rank in dict(here)]
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
