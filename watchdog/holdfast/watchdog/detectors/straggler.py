"""The rank that all others wait for, and why it is slow.

Agents report at different moments, so a look takes of each rank its first sample at or after the same step. There
is one in three reports, or in a step that is longer; in a large world fewer, so that together they cost about a
thousandth of a core. While somebody is under suspicion who is seldom so by chance, there is one in every step.
Ranks are compared over one look, over four and over sixteen: what is slow now and then costs as much as what is
slow all the time, and shows in the average. But only who is slow all the time, and has been for a while
(steadiness.py), is told again as one about whom something may be done; and for whom it is over, that is told.

Who is far beyond is no fault of a machine when something else explains it (slowcause.py), when several nodes
became slow at once, or when all are slower than they were: then something is shared, as storage or a switch.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from math import ceil

import msgspec

from holdfast.api.event import ConditionOver
from holdfast.api.finding import SHORTEST_STEP_S, Finding
from holdfast.api.policy import Policy, SlowAction
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.detectors.detector import ROUNDS, Detector, Placed, Reported, RoundInForce, Sample
from holdfast.watchdog.detectors.exceedances import Exceedances, Mark
from holdfast.watchdog.detectors.jobpace import JobPace, pace_of
from holdfast.watchdog.detectors.muster import Muster
from holdfast.watchdog.detectors.peers import Compared, Look, Peers, busy_of
from holdfast.watchdog.detectors.slowfinding import Apart, SlowFindings
from holdfast.watchdog.detectors.steadiness import Steadiness, Steadinesses

LOOKS_SETTLING = 3  # of a round: caches fill, kernels are chosen
SPANS = (1, 4, 16)  # looks
LOOK_REPORTS, LOOK_S_A_RANK = 3.0, 1.2e-3
SHORT_LOOK_REPORTS = 2.5  # while somebody is under suspicion, and a report tells of several steps
BY_CHANCE = 0.5  # of so many in every look that are beyond only by chance, none is looked at more often for it
STEPS_A_LOOK_MAX = 1e6
NODES_AT_ONCE = 3
AT_ONCE_LOOKS = 3
FIRST_LOOKS = 8
TOLD_MAX = 8  # of a round
ENDS_MAX = 2  # of a node and round
NODES_SENSED = 64
RACKS_KNOWN = 65_536


class Named(msgspec.Struct, gc=False):
    """Ranks of a node that were named, and for which cause. `waits`: nothing may be done about it yet."""

    node: str
    apart: Apart
    cause: str
    waits: bool


class StragglerDetector(Detector):
    """Compares the ranks of the round that runs, and the job with itself."""

    subscribes_to: tuple[type[Sample], ...] = (Reported, Placed, *ROUNDS)

    def __init__(self, policy: Policy) -> None:
        self._policy, self._wanted = policy, policy.straggler
        self._report_s = policy.heartbeat_interval_s
        self._round = RoundInForce(policy.job)
        self._findings = SlowFindings(policy, self._round)
        self._rack_of: dict[str, str] = {}
        self._begin()

    def _begin(self) -> None:
        self._world_size = size = self._round.world_size
        self._muster = Muster(size)
        self._looks = 0
        self._first_judged = 0
        self._spans = tuple(Peers(self._policy.model_ranks, size, self._wanted, every=every) for every in SPANS)
        self._pace = JobPace()
        self._told: set[int] = set()
        self._told_places: set[int] = set()
        self._told_count = 0
        self._named: dict[int, Named] = {}  # by the first of them
        self._ended: Counter[str] = Counter()
        self._steadiness = Steadinesses()
        self._watched: dict[str, NodeReport | None] = {}  # of nodes under suspicion the newest report

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ConditionOver]:
        """Keep what a report says of the step that is looked at; look once all have told."""
        if not isinstance(sample, Reported):
            if isinstance(sample, Placed):
                if len(self._rack_of) < RACKS_KNOWN or sample.node in self._rack_of:
                    self._rack_of[sample.node] = sample.rack
            elif self._round.follow(sample):
                self._begin()
            return ()
        if self._watched and sample.report.node in self._watched:
            self._watched[sample.report.node] = sample.report
        return list(self._look(now)) if self._muster.take(self._round.samples_in(sample), now) else ()

    def _look(self, now: float) -> Iterator[Finding | ConditionOver]:
        """Everybody has told, or is waited for no longer."""
        told = self._muster.end(partial(self._steps_a_look, LOOK_REPORTS * self._report_s))
        if 2 * told.missing > self._world_size:
            return  # of most nothing is known
        mark = Mark(told.newest + told.step_before, now)
        look = Look(mark, told.works, busy_of(told.works), told.steps)
        self._looks += 1
        if self._looks <= LOOKS_SETTLING:
            return
        self._first_judged = self._first_judged or look.mark.step
        newest_of: Compared | None = None
        for peers in self._spans:
            if (self._looks - LOOKS_SETTLING - 1) % peers.every == 0:
                compared = peers.take(look)
                newest_of = newest_of or compared
                if compared is None:
                    continue
                if peers.every == 1:
                    self._steadiness.take(compared, {rank for each in self._spans for rank in each.ranks.suspects})
                yield from self._judge(compared)
        yield from self._over(mark)
        is_apart = any(peers.ranks.certain() for peers in self._spans)
        pace = pace_of(newest_of) if newest_of is not None and not is_apart else None
        slower = self._pace.take(pace, look.mark) if pace is not None else None
        if slower is not None:
            yield self._findings.of_all(slower, look.mark)
        suspects = [rank for peers in self._spans for rank in peers.ranks.suspected()][:NODES_SENSED]
        nodes = {self._round.subject(rank).node for rank in suspects}
        self._watched = {node: self._watched.get(node) for node in nodes if node is not None}
        test = self._spans[0].ranks
        if test.suspects and test.rate * self._world_size < BY_CHANCE:
            least_s = SHORT_LOOK_REPORTS * self._report_s if told.step_s < self._report_s else 0.0
            self._muster.target = told.newest + self._steps_a_look(least_s, told.step_s)

    def _steps_a_look(self, least_s: float, step_s: float) -> int:
        least_s = max(least_s, self._world_size * LOOK_S_A_RANK)
        # A rank may tell of steps that take next to nothing.
        return max(1, ceil(min(least_s / step_s, STEPS_A_LOOK_MAX))) if step_s >= SHORTEST_STEP_S else 1

    def _judge(self, compared: Compared) -> Iterator[Finding]:
        peers, mark = compared.peers, compared.now.mark
        yield from self._lasting(compared)
        for place in compared.slow_places:
            if place not in self._told_places and self._is_sustained(peers.places, place, mark):
                self._told_places.add(place)
                yield self._findings.of_place(compared, place)
        slow = [rank for rank in compared.slow if self._is_sustained(peers.ranks, rank, mark)]
        if self._told.issuperset(slow) or self._told_count >= TOLD_MAX:
            return
        # Others of the same moment may be a look or two short of certain: of a host, or of a rack.
        nodes: dict[str, list[int]] = {}
        for rank in sorted({*slow, *peers.ranks.suspected()} - self._told):
            nodes.setdefault(self._round.subject(rank).node or "", []).append(rank)
        since = {node: self._since(peers, ranks) for node, ranks in nodes.items()}
        a_look = mark.step - compared.before.mark.step
        early = self._first_judged + 2 * a_look
        if len(nodes) >= NODES_AT_ONCE and self._is_shared(since, early, a_look):
            self._told.update(*nodes.values())
            self._told_count += 1
            yield self._findings.of_many(compared, nodes, self._first(since.values()), self._rack(nodes))
            return
        certain = {node: ranks for node, ranks in nodes.items() if not set(slow).isdisjoint(ranks)}
        for node, ranks in list(certain.items())[: TOLD_MAX - self._told_count]:
            self._told.update(ranks)
            self._told_count += 1
            first = self._first_judged + max(2 * a_look, FIRST_LOOKS * a_look // peers.every)
            apart = Apart(ranks, since[node], is_first=since[node].step <= first)
            found = self._name(compared, node, apart)
            self._named[ranks[0]] = Named(node, apart, found.cause, waits=found.asks is not None)
            yield found

    def _name(self, compared: Compared, node: str, apart: Apart) -> Finding:
        steadiness = self._steadiness.of(apart.ranks, compared.now.mark.at)
        lasts, report = self._lasts(node, steadiness), self._watched.get(node)
        return self._findings.of_node(compared, apart._replace(steadiness=steadiness, lasts=lasts, report=report))

    def _lasts(self, node: str, steadiness: Steadiness) -> bool:
        """Whether a swap would tell something. For how long it has to last is the policy's word, where it says so
        and nobody is evicted for what the swap tells.
        """
        is_said = self._wanted.sustained is not None and self._wanted.action is SlowAction.SWAP
        return steadiness.is_steady and (steadiness.lasts or is_said) and not self._ended[node]

    def _lasting(self, compared: Compared) -> Iterator[Finding]:
        """Those named before for whom it lasts, once more: now something may be done about it."""
        for named in self._named.values():
            ranks = named.apart.ranks
            if not named.waits or set(compared.slow).isdisjoint(ranks):
                continue
            if self._lasts(named.node, self._steadiness.of(ranks, compared.now.mark.at)):
                named.waits = False
                found = self._name(compared, named.node, named.apart)
                if found.asks is None:
                    yield found

    def _over(self, mark: Mark) -> Iterator[ConditionOver]:
        """Those named before who are beyond their peers no more. Who comes back again and again stays named."""
        for named in [*self._named.values()]:
            node, ranks = named.node, named.apart.ranks
            if self._ended[node] >= ENDS_MAX or any(map(self._is_beyond, ranks)):
                continue
            self._ended[node] += 1
            del self._named[ranks[0]]
            self._told.difference_update(ranks)
            for peers in self._spans:
                peers.ranks.forget(ranks)
            says = f"its ranks are beyond their peers no more, at step {mark.step}"
            yield ConditionOver(node, named.cause, says)

    def _is_beyond(self, rank: int) -> bool:
        shortest, *longer = self._spans
        return rank in shortest.ranks.suspects or any(each.ranks.is_beyond(rank) for each in longer)

    def _is_shared(self, since: Mapping[str, Mark], early: int, a_look: int) -> bool:
        """Whether it is what these nodes share: one rack, or the moment at which they became slow."""
        steps = [each.step for each in since.values()]
        is_at_once = max(steps) - min(steps) <= AT_ONCE_LOOKS * a_look and max(steps) > early
        return bool(self._rack(since)) or is_at_once

    def _is_sustained(self, test: Exceedances, key: int, mark: Mark) -> bool:
        wanted = self._wanted.sustained
        return wanted is None or mark.step - test.suspects[key].since.step >= wanted

    def _since(self, peers: Peers, ranks: Sequence[int]) -> Mark:
        return self._first(peers.ranks.suspects[rank].since for rank in ranks)

    def _first(self, marks: Iterable[Mark]) -> Mark:
        return min(marks, key=lambda mark: mark.step)

    def _rack(self, nodes: Iterable[str]) -> str:
        """The rack that all are in; empty: there is none that is known."""
        racks = {self._rack_of.get(node, "") for node in nodes}
        return racks.pop() if len(racks) == 1 else ""
