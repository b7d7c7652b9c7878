"""Places behind which faults gather: a switch, a rack, a rail that is named as such.

A node is judged by what it does (`reputation.py`). A switch that drops packets makes each of its nodes look bad
once and none of them often. So faults are also counted by place: were all places alike, a fault would fall behind
one of them in proportion to the GPU time that was spent there. How likely as many or more are there by chance is
exact: the upper tail of a sum of independent trials (binomial where each fault names one node; a fault between two
nodes falls behind a place with either of them). That chance, times the number of places that were looked at, is to
be `CHANCE_MAX` at most (Bonferroni's correction: https://en.wikipedia.org/wiki/Bonferroni_correction).

One node that fails again and again is a bad node, and no bad switch: a place needs faults of `NODES_MIN` nodes,
and the worst of them counts for no more than the next worst. What was told at once by several jobs is one fault.
The likeliest place is named first; its faults then count no more, so that neither the switches above it nor
racks that share some of its nodes are named for them.

Naming a place holds nothing against any of its nodes. A place is named for as long as the faults of the window say
so and one of them is not older than `QUIET_S`: a week without one is a repaired switch.
"""

from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from math import exp, lgamma, log, log1p
from typing import Final

import msgspec

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind, Subject
from holdfast.api.place import FaultFamily, Gathering, Place
from holdfast.watchdog.brain.reputation import SAME_S

QUIET_S: Final = 7 * 86400.0
# Every fault is another look, and there are hundreds of them: `make bench NAME=fleet` counts the false alarms.
CHANCE_MAX: Final = 3e-3
FAULTS_MIN: Final = 4
NODES_MIN: Final = 3
# As many as expected, and this many times more: with years of data a tenth more would be certain, and of no use.
EXCESS_MIN: Final = 2.0
NAMED_MAX: Final = 8
# Of places with the very same nodes, the one that can break in the way is told first.
FIRST: Final[Mapping[FaultFamily, tuple[str, ...]]] = {
    FaultFamily.NETWORK: ("switch", "rail"),
    FaultFamily.SUPPLY: ("rack",),
}


OF_NETWORK: Final = frozenset({FindingKind.HANG, FindingKind.COLLECTIVE_FAILED})
OF_SUPPLY: Final = frozenset({FindingKind.MEMBER_LOST, FindingKind.THERMAL})
# As the agent tells them, and as the cluster's own conditions are called; those of NVLink are inside of a node.
OF_LINKS: Final = frozenset(
    {
        ConditionKind.LINK_DOWN,
        ConditionKind.LINK_FLAPPING,
        ConditionKind.LINK_ERRORS,
        ConditionKind.LINK_DEGRADED,
    }
)


def family_of(kind: FindingKind, culprit: Subject, cause: str) -> FaultFamily | None:
    """What outside of nodes could bring about such a fault, None for one that has its cause inside of its node."""
    if kind in OF_NETWORK or culprit.peer is not None or (kind is FindingKind.CONDITION and cause in OF_LINKS):
        return FaultFamily.NETWORK
    return FaultFamily.SUPPLY if kind in OF_SUPPLY else None


def nodes_of(culprit: Subject) -> tuple[str, ...]:
    """The nodes that a fault names: none, one, or both ends of a link."""
    return tuple(each for each in (culprit.node, culprit.peer) if each is not None)


class Located(msgspec.Struct, frozen=True):
    """One fault at `at` (seconds), by the nodes it names and the places these are behind."""

    at: float
    family: FaultFamily
    where: dict[str, tuple[Place, ...]]


class Exposure(msgspec.Struct, frozen=True):
    """GPU time, in any one unit: behind each place, and by kind that of all nodes with a place of the kind."""

    behind: Mapping[Place, float]
    of_kind: Mapping[str, float]

    def share(self, place: Place) -> float:
        """The part of the GPU time of its kind that was spent behind it; 0 where none was."""
        total = self.of_kind.get(place.kind, 0.0)
        return min(1.0, self.behind.get(place, 0.0) / total) if total > 0.0 else 0.0

    def less(self, share: float) -> "Exposure":
        """What is left of each kind without the nodes of a place with this share of the GPU time."""
        return Exposure(self.behind, {kind: total * (1.0 - share) for kind, total in self.of_kind.items()})


def gatherings(faults: Iterable[Located], exposure: Exposure, now: float) -> tuple[Gathering, ...]:
    """The places that are to be named now, the least likely by chance first. The faults and the GPU time are those
    of one window.
    """
    ordered = sorted(faults, key=lambda each: each.at)
    found: list[Gathering] = []
    for family in FaultFamily:
        left, without = merged([each for each in ordered if each.family is family]), exposure
        while len(found) < NAMED_MAX and (gathering := _likeliest(left, without, now)) is not None:
            found.append(msgspec.structs.replace(gathering, share=exposure.share(gathering.place)))
            named = {gathering.place, *gathering.also}
            left = [each for each in left if named.isdisjoint(_places(each))]
            without = without.less(gathering.share)
    return tuple(sorted(found, key=lambda each: each.chance))


def merged(faults: Sequence[Located]) -> list[Located]:
    """The faults of one family, in order; those of one moment that share a place are one, told by several."""
    kept: list[Located] = []
    for fault in faults:
        before = kept[-1] if kept and fault.at - kept[-1].at <= SAME_S else None
        if before is not None and not _places(before).isdisjoint(_places(fault)):
            kept[-1] = Located(before.at, fault.family, {**before.where, **fault.where})
        else:
            kept.append(fault)
    return kept


def _places(fault: Located) -> frozenset[Place]:
    return frozenset(place for places in fault.where.values() for place in places)


def _likeliest(faults: Sequence[Located], exposure: Exposure, now: float) -> Gathering | None:
    """The place that chance explains least, None where none is to be named."""
    behind: dict[Place, list[Located]] = {}
    for fault in faults:
        for place in _places(fault):
            behind.setdefault(place, []).append(fault)
    looked_at = max(len(behind), len(exposure.behind))
    judged = [
        gathering
        for place, there in behind.items()
        if there[-1].at > now - QUIET_S
        and (gathering := _judged(place, there, faults, exposure, looked_at)) is not None
    ]
    if not judged:
        return None
    best = min(judged, key=lambda each: (each.chance, _rank(each), each.place))
    alike = (each for each in judged if (each.nodes, each.faults) == (best.nodes, best.faults))
    also = tuple(sorted(each.place for each in alike if each is not best and each.share == best.share))
    return msgspec.structs.replace(best, also=also)


def _rank(gathering: Gathering) -> int:
    first = FIRST[gathering.family]
    return first.index(gathering.place.kind) if gathering.place.kind in first else len(first)


def _judged(
    place: Place, there: Sequence[Located], faults: Sequence[Located], exposure: Exposure, looked_at: int
) -> Gathering | None:
    """The gathering behind one place, None where there is none."""
    count = Counter(node for fault in there for node, places in fault.where.items() if place in places)
    share = exposure.share(place)
    if len(there) < FAULTS_MIN or len(count) < NODES_MIN or not 0.0 < share < 1.0:
        return None
    # Only where a place of the kind is known can a fault be behind one.
    of_kind = [each for each in faults if _of_kind(each, place.kind)]
    (_, worst), (_, next_worst) = count.most_common(2)
    excess = worst - next_worst
    many = len(there) - excess
    trials = Counter(_of_kind(each, place.kind) for each in of_kind)
    trials[1] -= min(excess, trials[1])
    expected = sum(times * (1.0 - (1.0 - share) ** nodes) for nodes, times in trials.items())
    if many < FAULTS_MIN or many < EXCESS_MIN * expected:
        return None
    chance = min(1.0, upper_tail(many, trials, share) * looked_at)
    if chance > CHANCE_MAX:
        return None
    return Gathering(place, there[0].family, len(there), len(of_kind), share, chance, tuple(sorted(count)))


def _of_kind(fault: Located, kind: str) -> int:
    """How many of the nodes it names are behind a place of the kind."""
    return sum(any(each.kind == kind for each in places) for places in fault.where.values())


# How likely so many or more are, exactly.


def upper_tail(many: int, trials: Mapping[int, int], share: float) -> float:
    """The probability that `many` or more faults fall behind a place with `share` (above 0, below 1) of the time.

    `trials` says how many faults name how many nodes: one of n nodes falls there with probability
    1 - (1 - share)^n.
    """
    known = [1.0]  # by how many are there, the probability, of the faults so far
    for nodes, times in sorted(trials.items()):
        if times > 0 and nodes > 0:
            known = _convolved(known, binomial(times, 1.0 - (1.0 - share) ** nodes))
    return min(1.0, sum(known[many:]))


def binomial(times: int, p: float) -> list[float]:
    """By how many of `times` independent trials succeed, the probability; each does with `p`."""
    if p >= 1.0:
        return [0.0] * times + [1.0]
    whole = lgamma(times + 1)
    return [
        exp(whole - lgamma(k + 1) - lgamma(times - k + 1) + k * log(p) + (times - k) * log1p(-p))
        for k in range(times + 1)
    ]


def _convolved(one: Sequence[float], other: Sequence[float]) -> list[float]:
    if len(one) == 1:
        return [one[0] * each for each in other]
    total = [0.0] * (len(one) + len(other) - 1)
    for i, left in enumerate(one):
        for j, right in enumerate(other):
            total[i + j] += left * right
    return total


def behind(named: Collection[Gathering], places: Collection[Place]) -> tuple[Gathering, ...]:
    """Those of the named places that a node with these places is behind."""
    return tuple(each for each in named if not {each.place, *each.also}.isdisjoint(places))
