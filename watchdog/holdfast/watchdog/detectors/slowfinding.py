"""Slow ranks, places and jobs in the words of findings: whom each blames, for what, and what it costs."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, SlowCause, Slowness, Subject
from holdfast.api.policy import Policy, SlowAction, XidAction
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.detectors.detector import RoundInForce
from holdfast.watchdog.detectors.exceedances import Mark
from holdfast.watchdog.detectors.jobpace import Slower
from holdfast.watchdog.detectors.peers import MATTERS, Compared
from holdfast.watchdog.detectors.slowcause import (
    OF_THE_NODE,
    TOLD_PEERS_MAX,
    Excess,
    Parts,
    added,
    cause_of,
    excess,
    grown,
    of_peers,
    parts,
    sensed,
)
from holdfast.watchdog.detectors.steadiness import UNKNOWN, Steadiness

SUBJECTS_NAMED = 16


class Slow(NamedTuple):
    """One that is slow, as far as the findings differ."""

    subject: Subject
    slow: Slowness
    sure: Confidence
    says: str
    since: Mark
    source: str = "rank records"
    sensors: Sequence[str] = ()
    also: Sequence[Subject] = ()
    may_move: bool = False


class Apart(NamedTuple):
    """Ranks of one node that are slow, in order. `is_first`: in the first looks of the round too; `lasts`: in most
    of their steps, and for long. `report` is the newest of the node.
    """

    ranks: Sequence[int]
    since: Mark
    is_first: bool
    steadiness: Steadiness = UNKNOWN
    lasts: bool = False
    report: NodeReport | None = None

    @property
    def is_by_script(self) -> bool:
        """Whether, with no other cause, it is as a rule the script that does more on it: now and then, where only
        a few steps are long, or on rank 0, which evaluates and logs from the begin on.
        """
        steadiness, is_zero = self.steadiness, [*self.ranks] == [0]
        return steadiness.is_spiky or (is_zero and (self.is_first or not steadiness.is_steady))


class SlowFindings:
    """Makes the findings of one round."""

    def __init__(self, policy: Policy, round_: RoundInForce) -> None:
        self._job, self._round = policy.job, round_
        self._model_ranks = policy.model_ranks
        self._matters = MATTERS if (least := policy.straggler.slower_than) is None else min(MATTERS, least)
        self._may_act = policy.straggler.action is not SlowAction.REPORT

    def of_node(self, compared: Compared, apart: Apart) -> Finding:
        """Ranks of one node."""
        ranks, since, report = apart.ranks, apart.since, apart.report
        found = _excess(compared, ranks)
        cause, does = cause_of(found)
        if cause is SlowCause.MACHINE and apart.is_by_script:
            when = "in a few long steps, " if apart.steadiness.is_spiky else ""
            cause, does = SlowCause.SOFTWARE, f"computes {when}as where the script does more there than elsewhere"
        who = self._round.subject(ranks[0])
        rest = [self._round.subject(rank) for rank in ranks[1:SUBJECTS_NAMED]]
        subject = Subject(self._job, node=who.node, member=who.member) if rest else who
        longer_s, others = found.total / len(ranks), len(compared.peers.of(ranks[0])) - 1
        says = f"{subject} is {longer_s:.3g} s of a step longer than its {others} peers, for it {does}"
        sensors = sensed(report) if report is not None and cause is SlowCause.MACHINE else []
        return self._finding(
            compared.now.mark,
            Slow(
                subject,
                Slowness(cause, compared.step_s, _saved_s(compared, ranks)),
                Confidence.CERTAIN if sensors else Confidence.PROBABLE,
                says,
                since,
                f"rank records of {subject}",
                sensors,
                (who, *rest) if rest else (),
                does in OF_THE_NODE and apart.lasts,
            ),
        )

    def of_many(self, compared: Compared, nodes: Mapping[str, Sequence[int]], since: Mark, rack: str) -> Finding:
        """Ranks of several nodes that became slow at once, or of one rack (empty: not of one)."""
        ranks = [rank for each in nodes.values() for rank in each]
        _, does = cause_of(_excess(compared, ranks[:TOLD_PEERS_MAX]))
        where = f"all in rack {rack}" if rack else "at once"
        says = f"{len(ranks)} ranks of {len(nodes)} nodes became slow, {where}: each {does}"
        slow = Slowness(SlowCause.EVERYBODY, compared.step_s, _saved_s(compared, ranks))
        also = [Subject(self._job, node=node) for node in sorted(nodes)[:SUBJECTS_NAMED]]
        nobody = Subject(self._job)
        return self._finding(compared.now.mark, Slow(nobody, slow, Confidence.UNKNOWN, says, since, also=also))

    def of_place(self, compared: Compared, place: int) -> Finding:
        """All ranks of one place in the model."""
        mine_s, slow_ones = compared.usual_s[place], {place, *compared.peers.places.suspected()}
        # A stage has several places, as tensor parallelism divides it, and all of them are slow.
        others = [each for other, each in enumerate(compared.usual_s) if other not in slow_ones]
        others_s = max(others, default=min(compared.usual_s))
        last = ", the last of the model," if place == self._model_ranks - 1 else ""
        says = (
            f"all {len(compared.peers.of(place))} ranks of place {place} of {self._model_ranks}{last} are busy "
            f"{mine_s:.3g} s of a step, those of others {others_s:.3g} s at most: the model is divided unevenly"
        )
        slow = Slowness(SlowCause.SHAPE, compared.step_s, max(0.0, mine_s - others_s))
        since = compared.peers.places.suspects[place].since
        return self._finding(compared.now.mark, Slow(Subject(self._job), slow, Confidence.CERTAIN, says, since))

    def of_all(self, slower: Slower, mark: Mark) -> Finding:
        """The whole job, with nobody apart."""
        usual, now = slower.usual, slower.now
        says = f"a step takes {now.step_s:.3g} s, {usual.step_s:.3g} s as usual before, and no rank is apart: "
        says += grown(usual.of, now.of, now.step_s - usual.step_s, is_told=now.is_told)
        slow = Slowness(SlowCause.EVERYBODY, now.step_s, now.step_s - usual.step_s)
        return self._finding(mark, Slow(Subject(self._job), slow, Confidence.UNKNOWN, says, slower.since))

    def _finding(self, mark: Mark, of: Slow) -> Finding:
        slow, sensors = of.slow, of.sensors
        told = [Evidence(f"sensors of node {of.subject.node}", each, mark.at) for each in sensors]
        evidence = (Evidence(of.source, of.says, mark.at), *told)
        says = f"{of.says}; {', '.join(sensors)}" if sensors else of.says
        says += f"; since step {of.since.step}, {slow.share:.0%} of each step"
        costs = slow.share >= self._matters
        may_act = self._may_act and of.may_move and costs
        return Finding(
            kind=FindingKind.STRAGGLER,
            subject=of.subject,
            cause=slow.says,
            evidence=evidence,
            confidence=of.sure,
            began_at=of.since.at,
            round=self._round.number,
            error=says,
            also=tuple(of.also),
            asks=None if may_act else XidAction.WATCH,
            step=mark.step,
            slow=slow,
        )


def _parts(compared: Compared, rank: int) -> Parts | None:
    before, now = compared.before.works[rank], compared.now.works[rank]
    return None if before is None or now is None else parts(before, now)


def _excess(compared: Compared, ranks: Sequence[int]) -> Excess:
    """What these ranks are beyond their peers, together."""
    found, slow = [], {*ranks}
    for rank in ranks:
        spent, mine = compared.busy_s[rank], _parts(compared, rank)
        others = [other for other in compared.peers.of(rank) if other not in slow][:TOLD_PEERS_MAX]
        usual = of_peers(each for other in others if (each := _parts(compared, other)) is not None)
        if spent is not None and mine is not None:
            found.append(excess(mine, usual or mine, spent - compared.usual_s[compared.peers.place_of(rank)]))
    return added(found)


def _saved_s(compared: Compared, ranks: Sequence[int]) -> float:
    """How much shorter a step would be without these and others that are slow, be it by chance and this once: from
    when the rest are ready.
    """
    slow = {*ranks, *compared.peers.ranks.suspects}
    others = max((x for rank, x in enumerate(compared.busy_s) if x is not None and rank not in slow), default=0.0)
    return max(0.0, max(compared.busy_s[rank] or 0.0 for rank in ranks) - others)
