"""Something is wrong with a node for a while: what holds, what comes again and again, and what is over.

An agent repeats a condition in every report while it holds, also after it was restarted itself. So one that was
raised is the same one until the agent says that it cleared; a report without it is no news, because its source may
not have been readable. An agent that does not know what it had raised before, or whose word was not heard, says of
which kinds all is clear by their rules: that ends what it does not except. Nothing ends by silence.

What is to be watched is found when it was raised for the third time within a day. That condemns the node, except
for what its surroundings or the job bring about (`SURROUNDINGS`): a full disk or a supply that brakes would be
found again on the next node. Those are reported.
"""

from collections import OrderedDict, deque
from collections.abc import Container, Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.api.condition import CONDITIONS, AllClear, Condition, ConditionKind, ConditionState, condition_action
from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.detectors.detector import Detector, Reported, Sample, is_own_rule

# A watched condition that was raised so often within a day is no accident.
RAISES_THAT_CONDEMN = 3
REPETITION_S = 86400.0
# All nodes of the largest job may share a condition (the time server is away). The least recent are forgotten.
CONDITIONS_REMEMBERED = 32_768
# What the hardware of a node does not explain: another node in its place may show the same.
SURROUNDINGS = frozenset(
    (
        ConditionKind.POWER_BRAKE,
        ConditionKind.DISK_FULL,
        ConditionKind.MEMORY_LOW,
        ConditionKind.CLOCK_UNSYNCHRONISED,
    )
)

# A node that is avoided runs no ranks. Whole fleets are idle for as long as a job takes to form.
IDLE_S = 600.0

_Key = tuple[str, ConditionKind, str, str]  # node, kind, GPU, device


@dataclass(slots=True)
class _Known:
    """One condition of one part. `raised_at`: when it was raised the last times, newest last."""

    state: ConditionState
    raised_at: deque[float] = field(default_factory=lambda: deque(maxlen=RAISES_THAT_CONDEMN))


@dataclass(slots=True)
class _Idle:
    """A node without ranks, in one run of its agent. `ended`: what was told as over without being found here."""

    boot: str
    since: float
    ended: set[ConditionKind] = field(default_factory=set)


class ConditionDetector(Detector):
    """Judges the conditions of `Reported`: once when raised, once when over."""

    subscribes_to: tuple[type[Sample], ...] = (Reported,)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        given = policy.condition_actions
        overrides = {kind: given[kind] for kind in ConditionKind if kind in given}
        self._actions = {kind: condition_action(kind, overrides) for kind in ConditionKind}
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._idle: OrderedDict[str, _Idle] = OrderedDict()
        self._found: dict[tuple[str, ConditionKind], set[_Key]] = {}  # by node and kind, the parts it holds of

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ConditionOver]:
        """What the conditions of a report ask for, and which of those found before are over."""
        if not isinstance(sample, Reported) or not (sample.report.conditions or sample.report.all_clear):
            return ()
        report = sample.report
        proofs = [proof for each in report.conditions for proof in self._judge(report.node, each, now)]
        holds = {(each.kind, each.gpu, each.device) for each in report.conditions if _is_raised(each)}
        if report.all_clear:
            self._follow_idle(report, now)
        for clear in report.all_clear:
            proofs.extend(self._judge_clear(report, clear, holds, now))
        return proofs

    def _judge(self, node: str, condition: Condition, now: float) -> Iterator[Finding | ConditionOver]:
        action = self._actions[condition.kind]
        if action is XidAction.IGNORE:
            return
        key = (node, condition.kind, condition.gpu, condition.device)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = _Known(condition.state)
            # What ends unseen may have been found by an earlier watchdog.
            changed = condition.state is ConditionState.RAISED or action is not XidAction.WATCH
        else:
            changed = known.state is not condition.state
            known.state = condition.state
        self._forget_the_least_recent(key)
        if not changed:
            return
        if condition.state is ConditionState.CLEARED:
            yield from self._judge_end(key, condition, unseen=not known.raised_at)
            return
        known.raised_at.append(now - max(0.0, condition.age_s))
        asks = action if action is not XidAction.WATCH else _asked_by_repetition(condition.kind, known)
        if asks is not None:
            self._found.setdefault((node, condition.kind), set()).add(key)
            yield self._finding(node, condition, tuple(known.raised_at), asks)

    def _judge_clear(
        self, report: NodeReport, clear: AllClear, holds: Container[tuple[ConditionKind, str, str]], now: float
    ) -> Iterator[ConditionOver]:
        """All is clear of a kind: what was found of it is over, but for the parts that are excepted."""
        node, kind = report.node, clear.kind
        found = self._found.get((node, kind))
        if found is None:
            if not clear.but and self._may_have_been_found(report, kind, now):
                yield ConditionOver(node, kind.value, f"nothing of it holds there now ({CONDITIONS[kind].clears})")
            return
        for key in [key for key in found if key[2:] not in clear.but and key[1:] not in holds]:
            _, _, gpu, device = key
            self._known[key].state = ConditionState.CLEARED
            says = f"{_part(gpu, device)} is well"
            yield from self._judge_end(
                key, Condition(kind, ConditionState.CLEARED, 0.0, says, gpu, device), unseen=False
            )

    def _may_have_been_found(self, report: NodeReport, kind: ConditionKind, now: float) -> bool:
        """By an earlier watchdog: then the node is avoided and idle. True once for each run of its agent."""
        action = self._actions[kind]
        if action is XidAction.IGNORE or (action is XidAction.WATCH and kind in SURROUNDINGS):
            return False
        idle = self._idle.get(report.node)
        if idle is None or now - idle.since < IDLE_S or kind in idle.ended:
            return False
        idle.ended.add(kind)
        return True

    def _follow_idle(self, report: NodeReport, now: float) -> None:
        """Since when a node runs none of the job's ranks, by those reports that say what is clear."""
        known = self._idle.get(report.node)
        if report.ranks:
            self._idle.pop(report.node, None)
        elif known is None or known.boot != report.boot:
            self._idle[report.node] = _Idle(report.boot, now)
            if len(self._idle) > CONDITIONS_REMEMBERED:
                self._idle.popitem(last=False)

    def _judge_end(self, key: _Key, condition: Condition, *, unseen: bool) -> Iterator[ConditionOver]:
        """It is over for the node when it holds of none of its other parts."""
        node, kind, _, _ = key
        was_found = self._is_found_no_more(key)
        if (was_found or unseen) and (node, kind) not in self._found:
            yield ConditionOver(node, kind.value, f"{condition.says} ({CONDITIONS[kind].clears})")

    def _is_found_no_more(self, key: _Key) -> bool:
        """Whether it was until now."""
        found = self._found.get(key[:2], set())
        was_found = key in found
        found.discard(key)
        if not found:
            self._found.pop(key[:2], None)
        return was_found

    def _forget_the_least_recent(self, key: _Key) -> None:
        self._known.move_to_end(key)
        if len(self._known) > CONDITIONS_REMEMBERED:
            forgotten, _ = self._known.popitem(last=False)
            self._is_found_no_more(forgotten)

    def _finding(self, node: str, condition: Condition, raised_at: tuple[float, ...], asks: XidAction) -> Finding:
        kind, source = condition.kind, f"agent of node {node}"
        *before, at = raised_at
        evidence = [Evidence(source, f"{kind.value} was raised here before", each) for each in before]
        evidence.append(Evidence(source, _in_words(condition), at))
        return Finding(
            kind=FindingKind.CONDITION,
            subject=Subject(self._job, node=node, gpu=condition.gpu or None),
            cause=kind.value,
            evidence=tuple(evidence),
            confidence=Confidence.PROBABLE if kind in SURROUNDINGS else Confidence.CERTAIN,
            began_at=at,
            error=condition.says,
            asks=asks,
            own_rule=is_own_rule(self._actions[kind], CONDITIONS[kind].action),
        )


def _asked_by_repetition(kind: ConditionKind, known: _Known) -> XidAction | None:
    raised_at = known.raised_at
    if len(raised_at) < RAISES_THAT_CONDEMN or raised_at[-1] - raised_at[0] > REPETITION_S:
        return None
    return XidAction.WATCH if kind in SURROUNDINGS else XidAction.EVICT


def _is_raised(condition: Condition) -> bool:
    return condition.state is ConditionState.RAISED


def _in_words(condition: Condition) -> str:
    meaning = CONDITIONS[condition.kind].meaning
    return f"{condition.kind.value} on {_part(condition.gpu, condition.device)} ({meaning}): {condition.says}"


def _part(gpu: str, device: str) -> str:
    return " ".join([*([f"GPU {gpu}"] if gpu else []), *([device] if device else [])]) or "the node"
