"""Something is wrong with a node for a while: what holds, what comes again and again, and what is over.

An agent repeats a condition in every report while it holds, also after it was restarted itself. So one that was
raised is the same one until the agent says that it cleared; a report without it is no news, because its source may
not have been readable. An agent that was restarted does not know what it had raised before: what it does not raise
anew within `AFRESH_S`, with every source readable, is over.

What is to be watched is found when it was raised for the third time within a day. That condemns the node, except
for what its surroundings or the job bring about (`SURROUNDINGS`): a full disk or a supply that brakes would be
found again on the next node. Those are reported.
"""

from collections import OrderedDict, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from holdfast.api.condition import CONDITIONS, Condition, ConditionKind, ConditionState, condition_action
from holdfast.api.event import ConditionOver
from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import NodeReport
from holdfast.watchdog.sample import Reported, Sample

# A watched condition that was raised so often within a day is no accident.
RAISES_THAT_CONDEMN = 3
# Longer than any condition takes to be raised again by what raised it (the worst waits for some minutes' rate).
AFRESH_S = 600.0
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

# Only who saw the link up can say that it went down, so an agent that started anew raises these no more.
RAISED_BY_A_CHANGE = frozenset((ConditionKind.NVLINK_DOWN, ConditionKind.LINK_DOWN))

_Key = tuple[str, ConditionKind, str, str]  # node, kind, GPU, device


@dataclass(slots=True)
class _Known:
    """One condition of one part. `raised_at`: when it was raised the last times, newest last."""

    state: ConditionState
    raised_at: deque[float] = field(default_factory=lambda: deque(maxlen=RAISES_THAT_CONDEMN))


class ConditionDetector:
    """Judges the conditions of `Reported`: once when raised, once when over."""

    heeds = (Reported,)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        given = policy.condition_actions
        overrides = {kind: given[kind] for kind in ConditionKind if kind in given}
        self._actions = {kind: condition_action(kind, overrides) for kind in ConditionKind}
        self._known: OrderedDict[_Key, _Known] = OrderedDict()
        self._raised_by: dict[str, str] = {}  # by node with a finding: the run of its agent that answers for it
        self._afresh: dict[str, tuple[str, float]] = {}  # by such a node: a later run, and since when it sees all
        self._found: dict[tuple[str, ConditionKind], set[_Key]] = {}  # by node and kind, the parts it holds of

    def observe(self, sample: Sample, now: float) -> Sequence[Finding | ConditionOver]:
        """What the conditions of a report ask for, and which of those found before are over."""
        if not isinstance(sample, Reported) or not (sample.report.conditions or self._raised_by):
            return ()
        report = sample.report
        proofs = [proof for each in report.conditions for proof in self._judge(report.node, each, now)]
        if self._raised_by.get(report.node, report.boot) != report.boot:
            proofs.extend(self._judge_afresh(report, now))
        elif any(isinstance(proof, Finding) for proof in proofs):
            self._raised_by[report.node] = report.boot
        return proofs

    def elapse(self, now: float) -> Sequence[Finding | ConditionOver]:
        """Nothing: what is silent is Unknown."""
        return ()

    def next_wakeup(self) -> float | None:
        return None

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

    def _judge_afresh(self, report: NodeReport, now: float) -> Iterator[ConditionOver]:
        """What an earlier run of the agent had raised, and this one does not see."""
        node = report.node
        boot, since = self._afresh.get(node, ("", now))
        if boot != report.boot or report.unreadable:
            self._afresh[node] = (report.boot, now)
            return
        if now - since < AFRESH_S:
            return
        del self._afresh[node]
        self._raised_by[node] = report.boot  # what holds on is its own now, for the run after it to see or not
        held = {(each.kind, each.gpu, each.device) for each in report.conditions}
        found = (key for keys in self._found.values() for key in keys if key[0] == node)
        unseen = [key for key in found if key[1:] not in held and key[1] not in RAISED_BY_A_CHANGE]
        for key in unseen:
            _, kind, gpu, device = key
            self._known[key].state = ConditionState.CLEARED
            says = f"an agent that started anew has not seen it for {AFRESH_S / 60:.0f} minutes"
            yield from self._judge_end(
                key, Condition(kind, ConditionState.CLEARED, 0.0, says, gpu, device), unseen=False
            )

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
        )


def _asked_by_repetition(kind: ConditionKind, known: _Known) -> XidAction | None:
    raised_at = known.raised_at
    if len(raised_at) < RAISES_THAT_CONDEMN or raised_at[-1] - raised_at[0] > REPETITION_S:
        return None
    return XidAction.WATCH if kind in SURROUNDINGS else XidAction.EVICT


def _in_words(condition: Condition) -> str:
    of = [f"GPU {condition.gpu}"] if condition.gpu else []
    of += [condition.device] if condition.device else []
    meaning = CONDITIONS[condition.kind].meaning
    return f"{condition.kind.value} on {' '.join(of) or 'the node'} ({meaning}): {condition.says}"
