"""Others say that something is wrong with a node: conditions that an installation's map makes count.

Node problem detectors and cloud agents look at what agents do not, and say it as conditions of the node; the
operator tells of those that mean something. One that asks for eviction is found when it is raised. A suspicion is
reported when it is raised, and condemns the node the third time within a day. What is evidence only, or
maintenance, is found by nobody here. That one is over is seen by the brain, which knows for what it left a node
also after a restart.
"""

from collections import OrderedDict, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.nodecondition import FaultPart, Meaning, NodeCondition
from holdfast.api.policy import Policy, XidAction
from holdfast.api.xid import Recovery
from holdfast.watchdog.detectors.condition import CONDITIONS_REMEMBERED, RAISES_THAT_CONDEMN, REPETITION_S
from holdfast.watchdog.detectors.detector import Detector, NodeNoted, Sample

SOURCE = "condition of node"
REMEDIES: Mapping[FaultPart, Recovery] = MappingProxyType(
    {
        FaultPart.GPU: Recovery.RESET_GPU,
        FaultPart.LINK: Recovery.REBOOT_NODE,
        FaultPart.MEMORY: Recovery.REPLACE,
        FaultPart.DISK: Recovery.REPLACE,
        FaultPart.KERNEL: Recovery.REBOOT_NODE,
        FaultPart.RUNTIME: Recovery.REBOOT_NODE,
        FaultPart.MAINTENANCE: Recovery.NOTHING,
    }
)


@dataclass(slots=True)
class _Known:
    """One condition of one node: since when, by its author's word, and when it was raised the last times."""

    since: str
    raised_at: deque[float] = field(default_factory=lambda: deque(maxlen=RAISES_THAT_CONDEMN))


class NodeConditionDetector(Detector):
    """Judges `NodeNoted`: each condition once when it is raised."""

    subscribes_to: tuple[type[Sample], ...] = (NodeNoted,)

    def __init__(self, policy: Policy) -> None:
        self._job = policy.job
        self._known: OrderedDict[tuple[str, str], _Known] = OrderedDict()

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """What the conditions that hold now ask for, as far as they were not raised before."""
        if not isinstance(sample, NodeNoted):
            return ()
        found = (self._judge(sample.node, each, now) for each in sample.conditions)
        proofs = [each for each in found if each is not None]
        holding = {each.type for each in sample.conditions}
        for key, known in self._known.items():
            if key[0] == sample.node and key[1] not in holding:
                known.since = ""  # it ended: whatever comes next was raised anew
        return proofs

    def _judge(self, node: str, condition: NodeCondition, now: float) -> Finding | None:
        if condition.means not in (Meaning.SUSPECT, Meaning.EVICT) or condition.part is FaultPart.MAINTENANCE:
            return None
        key, since = (node, condition.type), condition.since or "now"
        known = self._known.setdefault(key, _Known(""))
        self._known.move_to_end(key)
        if len(self._known) > CONDITIONS_REMEMBERED:
            self._known.popitem(last=False)
        if known.since == since:
            return None
        known.since = since
        known.raised_at.append(now)
        first, *_ = raised = tuple(known.raised_at)
        again = len(raised) == RAISES_THAT_CONDEMN and now - first <= REPETITION_S
        evicts = condition.means is Meaning.EVICT or again
        source, part = f"{SOURCE} {node}", condition.part.value
        evidence = [Evidence(source, f"{condition.type} was raised here before", at) for at in raised[:-1]]
        reason = f" ({condition.reason})" if condition.reason else ""
        evidence.append(Evidence(source, f"{condition.type}{reason}, about its {part}: {condition.says}", now))
        return Finding(
            kind=FindingKind.CONDITION,
            subject=Subject(self._job, node=node),
            cause=condition.cause,
            evidence=tuple(evidence),
            confidence=Confidence.PROBABLE,
            began_at=now,
            error=condition.says,
            asks=XidAction.EVICT if evicts else XidAction.WATCH,
            remedy=REMEDIES[condition.part],
        )
