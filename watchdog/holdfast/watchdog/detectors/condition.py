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
        report, node = sample.report, sample.report.node
        proofs = [proof for each in report.conditions for proof in self._judge(node, each, now)]
        if report.all_clear:
            # Since when a node runs none of the job's ranks, by those reports that say what is clear.
            known = self._idle.get(node)
            if report.ranks:
                self._idle.pop(node, None)
            elif known is None or known.boot != report.boot:
                self._idle[node] = _Idle(report.boot, now)
                if len(self._idle) > CONDITIONS_REMEMBERED:
                    self._idle.popitem(last=False)
            raised = (each for each in report.conditions if each.state is ConditionState.RAISED)
            holds = {(each.kind, each.gpu, each.device) for each in raised}
            for clear in report.all_clear:
                proofs.extend(self._judge_clear(node, clear, holds, now))
        return proofs

    def _judge(self, node: str, condition: Condition, now: float) -> Iterator[Finding | ConditionOver]:
        kind, state, action = condition.kind, condition.state, self._actions[condition.kind]
        if action is XidAction.IGNORE:
            return
        key = (node, kind, condition.gpu, condition.device)
        known = self._known.get(key)
        if known is None:
            self._known[key] = known = _Known(state)
            # What ends unseen may have been found by an earlier watchdog.
            changed = state is ConditionState.RAISED or action is not XidAction.WATCH
        else:
            changed, known.state = known.state is not state, state
        self._known.move_to_end(key)
        if len(self._known) > CONDITIONS_REMEMBERED:
            forgotten, _ = self._known.popitem(last=False)
            self._is_found_no_more(forgotten)
        if not changed:
            return
        raised_at = known.raised_at
        if state is ConditionState.CLEARED:
            yield from self._judge_end(key, condition.says, unseen=not raised_at)
            return
        raised_at.append(now - max(0.0, condition.age_s))
        if action is XidAction.WATCH:
            if len(raised_at) < RAISES_THAT_CONDEMN or raised_at[-1] - raised_at[0] > REPETITION_S:
                return
            action = XidAction.WATCH if kind in SURROUNDINGS else XidAction.EVICT
        self._found.setdefault((node, kind), set()).add(key)
        *before, at = raised_at
        source = f"agent of node {node}"
        evidence = [Evidence(source, f"{kind.value} was raised here before", each) for each in before]
        part, meaning = _part(condition.gpu, condition.device), CONDITIONS[kind].meaning
        evidence.append(Evidence(source, f"{kind.value} on {part} ({meaning}): {condition.says}", at))
        yield Finding(
            kind=FindingKind.CONDITION,
            subject=Subject(self._job, node=node, gpu=condition.gpu or None),
            cause=kind.value,
            evidence=tuple(evidence),
            confidence=Confidence.PROBABLE if kind in SURROUNDINGS else Confidence.CERTAIN,
            began_at=at,
            error=condition.says,
            asks=action,
            own_rule=is_own_rule(self._actions[kind], CONDITIONS[kind].action),
        )

    def _judge_clear(
        self, node: str, clear: AllClear, holds: Container[tuple[ConditionKind, str, str]], now: float
    ) -> Iterator[ConditionOver]:
        """All is clear of a kind: what was found of it is over, but for the parts that are excepted."""
        kind, action = clear.kind, self._actions[clear.kind]
        if (found := self._found.get((node, kind))) is not None:
            for key in [key for key in found if key[2:] not in clear.but and key[1:] not in holds]:
                self._known[key].state = ConditionState.CLEARED
                _, _, gpu, device = key
                yield from self._judge_end(key, f"{_part(gpu, device)} is well", unseen=False)
            return
        # An earlier watchdog may have found it: then the node is avoided and idle. Once for each run of its agent.
        asks_nothing = action is XidAction.IGNORE or (action is XidAction.WATCH and kind in SURROUNDINGS)
        idle = self._idle.get(node)
        if clear.but or asks_nothing or idle is None or now - idle.since < IDLE_S or kind in idle.ended:
            return
        idle.ended.add(kind)
        yield ConditionOver(node, kind.value, f"nothing of it holds there now ({CONDITIONS[kind].clears})")

    def _judge_end(self, key: _Key, says: str, *, unseen: bool) -> Iterator[ConditionOver]:
        """It is over for the node when it holds of none of its other parts."""
        node, kind, _, _ = key
        was_found = self._is_found_no_more(key)
        if (was_found or unseen) and (node, kind) not in self._found:
            yield ConditionOver(node, kind.value, f"{says} ({CONDITIONS[kind].clears})")

    def _is_found_no_more(self, key: _Key) -> bool:
        """Whether it was until now."""
        found = self._found.get(key[:2], set())
        was_found = key in found
        found.discard(key)
        if not found:
            self._found.pop(key[:2], None)
        return was_found


def _part(gpu: str, device: str) -> str:
    return " ".join([*([f"GPU {gpu}"] if gpu else []), *([device] if device else [])]) or "the node"
