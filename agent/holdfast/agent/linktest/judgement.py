"""Which links are worse than the others of the same test, and which node they have in common. Pure.

What a link should reach is not in a table: it is what the other links of this fleet reach at this moment. A link
is bad where it lies far from the median, in units of the median absolute deviation: more than half of the links
would have to be bad to move both. Source: Leys et al. 2013, https://doi.org/10.1016/j.jesp.2013.03.013
"""

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from statistics import median_low
from typing import Final

import msgspec

from holdfast.api.selftest import BadLink, Judged, UsualLink, Verdict

# 3.5 is the usual limit (Iglewicz and Hoaglin, see
# https://www.itl.nist.gov/div898/handbook/eda/section3/eda35h.htm); twice as far, for a test of n nodes asks
# n log n questions and a sound node is not to be sent away.
SCORE_MAX: Final = 7.0
# The deviation of a normal distribution in units of its median absolute deviation; same source.
SIGMA_OF_MAD: Final = 1.4826
# Nothing is bad that is not at least this many times worse than the middle, however alike the others are.
TIMES_MIN: Final = 1.5
# A share of segments sent again that a sound link may have: TCP counts its own probes, and on busy hosts 0.14 %
# were seen. Less than half of what is to be found.
RESENT_FLOOR: Final = 4e-3
# What a round trip takes in the hosts themselves, more where their processors are busy: no fault of a link.
LATENCY_FLOOR_S: Final = 2e-4
# A part may be late for once: TCP waits for 0.2 s before it sends again what was lost, then twice as long, and a
# busy host waits for its processors. More than half of this is a stall.
# Source: https://github.com/torvalds/linux/blob/master/include/net/tcp.h (TCP_RTO_MIN)
STALL_FLOOR_S: Final = 1.0
# What is compared with another hour has to be so many times worse.
TIMES_UNUSUAL: Final = 3.0
# Four nodes, each with each. One bad node of them makes half of the links bad, which is as many as can be told.
LINKS_MIN: Final = 6


class Measured(msgspec.Struct, frozen=True, kw_only=True):
    """What two nodes saw of the way between them. `error`: they could not; the figures then mean nothing.

    `latency_s` is the median round trip of a small message, `rate` the bytes per second of the slower direction,
    `resent` the share of segments that TCP had to send again, of the worse direction. Of a way in a ring, from
    `one` to `other`: the median time of a part, the rate while one flows, and `stall_s`, the longest time of one.
    """

    one: str
    other: str
    latency_s: float = 0.0
    rate: float = 0.0
    resent: float = 0.0
    error: str = ""
    stall_s: float = 0.0


def judge(measured: Sequence[Measured], usual: UsualLink | None = None) -> Judged:
    """What the measurements of all pairs together say. A link that nothing came over needs no comparison, and few
    of them are compared with the fleet's `usual` one.
    """
    if usual is not None and len(measured) < LINKS_MIN:
        return _judged(measured, (partial(_unusual, usual=usual),), "links", compared_with="the fleet's usual one")
    return msgspec.structs.replace(_judged(measured, (_slow, _thin, _lossy), "links"), usual=_usual_of(measured))


def with_rings(pairs: Judged, measured: Sequence[Measured]) -> Judged:
    """What the pairs said, and what the ways of all rings add, each measured by the node that sends over it.

    A node has two ways in a ring and three partners or more: whom the pairs blame is not looked at again, for what
    its neighbours have of it would speak against them.
    """
    others = [each for each in measured if each.one not in pairs.nodes and each.other not in pairs.nodes]
    rings = _judged(others, (_thin, _lossy, _stalled), "ways in rings")
    nodes = {**rings.nodes, **pairs.nodes}
    links: dict[frozenset[str], BadLink] = {}
    for each in (*pairs.links, *rings.links):
        if each.one not in nodes and each.other not in nodes:
            links.setdefault(frozenset((each.one, each.other)), each)
    if nodes or links:
        told = _told(nodes, links.values())
        return Judged(Verdict.FAILED, nodes, tuple(links.values()), told, usual=pairs.usual)
    is_sound = Verdict.PASSED in (pairs.verdict, rings.verdict)
    verdict = Verdict.PASSED if is_sound else Verdict.UNKNOWN
    return Judged(verdict, says=f"{pairs.says}; {rings.says}", usual=pairs.usual)


def doubtful(measured: Iterable[Measured], judged: Judged) -> list[Measured]:
    """What speaks against a link alone: one measurement, which a host that was busy for a moment can have spoilt.

    Against a node speak those of all its partners, and silence is no noise: TCP waited for `SILENT_S`.
    """
    alone = {frozenset((each.one, each.other)) for each in judged.links}
    return [each for each in measured if not each.error and frozenset((each.one, each.other)) in alone]


def better(measured: Iterable[Measured], again: Iterable[Measured]) -> list[Measured]:
    """Each by the better of its two figures where it was measured again: what is wrong with a link stays wrong."""
    second = {(each.one, each.other): each for each in again}
    return [_better(each, second.get((each.one, each.other), each)) for each in measured]


def _better(one: Measured, other: Measured) -> Measured:
    if one.error or other.error:
        return one if one.error else other
    return Measured(
        one=one.one,
        other=one.other,
        latency_s=min(one.latency_s, other.latency_s),
        rate=max(one.rate, other.rate),
        resent=min(one.resent, other.resent),
        stall_s=min(one.stall_s, other.stall_s),
    )


def _judged(
    measured: Sequence[Measured], looks: Sequence["Look"], what: str, *, compared_with: str = ""
) -> Judged:
    """`compared_with`: what a few can be compared with, in words; empty when they have each other alone."""
    sound = [each for each in measured if not each.error]
    too_few = len(measured) < LINKS_MIN and not compared_with
    if too_few and len(sound) == len(measured):
        says = f"{len(measured)} {what} are too few to compare with each other: {LINKS_MIN} are needed"
        return Judged(Verdict.UNKNOWN, {}, (), says)
    faults: dict[tuple[str, str], list[str]] = {}
    for each in measured:
        if each.error:
            faults[each.one, each.other] = [each.error]
    for look in () if too_few else looks:
        for each, says in look(sound):
            faults.setdefault((each.one, each.other), []).append(says)
    bad = [BadLink(one, other, ", ".join(says)) for (one, other), says in faults.items()]
    nodes, rest = _blamed(bad, measured)
    if not bad:
        return Judged(Verdict.PASSED, {}, (), f"{len(measured)} {what}, all like {compared_with or 'each other'}")
    return Judged(Verdict.FAILED, nodes, tuple(rest), _told(nodes, rest))


def _usual_of(measured: Sequence[Measured]) -> UsualLink | None:
    sound = [each for each in measured if not each.error]
    if len(sound) < LINKS_MIN:
        return None
    return UsualLink(median_low(each.latency_s for each in sound), median_low(each.rate for each in sound))


def _unusual(measured: Sequence[Measured], usual: UsualLink) -> Iterable["Fault"]:
    """Far from what was usual at another hour, for the others may have been idle then."""
    for each in measured:
        if each.latency_s + LATENCY_FLOOR_S > TIMES_UNUSUAL * (usual.latency_s + LATENCY_FLOOR_S):
            yield each, f"round trip {each.latency_s * 1e3:.2f} ms, usual {usual.latency_s * 1e3:.2f} ms"
        if each.rate * TIMES_UNUSUAL < usual.rate:
            yield each, f"{each.rate / 1e6:.0f} MB/s, usual {usual.rate / 1e6:.0f} MB/s"
        if each.resent + RESENT_FLOOR > TIMES_UNUSUAL * RESENT_FLOOR:
            yield each, f"{each.resent:.2%} of segments sent again"


def _told(nodes: Mapping[str, str], links: Iterable[BadLink]) -> str:
    told = [f"node {node}: {says}" for node, says in nodes.items()]
    told += [f"link {each.one} - {each.other}: {each.says}" for each in links]
    return "; ".join(told)


Fault = tuple[Measured, str]
Look = Callable[[Sequence[Measured]], Iterable[Fault]]


def _slow(measured: Sequence[Measured]) -> Iterable[Fault]:
    middle, found = _far([each.latency_s + LATENCY_FLOOR_S for each in measured])
    others_ms = (middle - LATENCY_FLOOR_S) * 1e3
    for at in found:
        yield measured[at], f"round trip {measured[at].latency_s * 1e3:.2f} ms, others {others_ms:.2f} ms"


def _thin(measured: Sequence[Measured]) -> Iterable[Fault]:
    middle, found = _far([1.0 / max(each.rate, 1.0) for each in measured])
    for at in found:
        yield measured[at], f"{measured[at].rate / 1e6:.0f} MB/s, others {1e-6 / middle:.0f} MB/s"


def _lossy(measured: Sequence[Measured]) -> Iterable[Fault]:
    _, found = _far([each.resent + RESENT_FLOOR for each in measured])
    middle = median_low(each.resent for each in measured) if measured else 0.0
    for at in found:
        yield measured[at], f"{measured[at].resent:.2%} of segments sent again, others {middle:.2%}"


def _stalled(measured: Sequence[Measured]) -> Iterable[Fault]:
    middle, found = _far([each.stall_s + STALL_FLOOR_S for each in measured])
    for at in found:
        says = f"a part took {measured[at].stall_s:.2f} s, most others {middle - STALL_FLOOR_S:.2f} s"
        yield measured[at], says


def _far(values: Sequence[float]) -> tuple[float, list[int]]:
    """The middle, and the places of what is far above it. On a log scale: a link is so many times worse."""
    if not values:
        return 0.0, []
    logs = [math.log(max(each, 1e-12)) for each in values]
    middle = median_low(logs)
    deviation = SIGMA_OF_MAD * median_low(abs(each - middle) for each in logs)
    limit = max(math.log(TIMES_MIN), SCORE_MAX * deviation)
    return math.exp(middle), [at for at, each in enumerate(logs) if each - middle > limit]


def _blamed(bad: Sequence[BadLink], measured: Sequence[Measured]) -> tuple[dict[str, str], list[BadLink]]:
    """The nodes whose every link is bad, by intersection; and the bad links that are left.

    The node with the most bad links first: what it explains speaks against none of its partners any more. A node
    that has a good link, or one link alone, is not blamed: then the way between two is what is bad.
    """
    nodes: dict[str, str] = {}
    left = list(bad)
    while left:
        count = Counter(node for each in left for node in (each.one, each.other))
        others = {node: _judgeable(node, measured, nodes) for node in count}
        whole = [node for node in count if count[node] >= max(2, others[node])]
        if not whole:
            break
        worst = max(whole, key=lambda node: (count[node], node))
        mine = [each for each in left if worst in (each.one, each.other)]
        nodes[worst] = f"all {len(mine)} links bad: {mine[0].says}"
        left = [each for each in left if each not in mine]
    return nodes, left


def _judgeable(node: str, measured: Sequence[Measured], blamed: Mapping[str, str]) -> int:
    """How many links of a node do not end at one that is blamed already."""
    ends = ((each.one, each.other) for each in measured)
    return sum(node in pair and not any(end in blamed for end in pair if end != node) for pair in ends)
