"""A GPU raised an XID error, or is gone.

The driver repeats itself and follows one error with others. Identical errors of one GPU within `MERGE_S` are one,
and what follows a finding on the same GPU that closely is its symptom, unless it asks for something worse. XID 45
is raised when a channel is torn down after another error, which may be logged after it: it is held back until
nobody else claims to be the cause. Source: https://arxiv.org/abs/2503.11901 (errors of one GPU within 5 s)

An error of the NVLinks concerns everybody on them: the finding also names the node's other GPUs. When the driver
takes its request for a recovery back, the GPU was reset: what it raised before is forgotten.

What an error asks for is decided here, once: by the job's overrides, the driver's recovery action, the status
words of an NVLink 5 error and the catalogue. The finding says it (`asks`), and the ladder goes by that.

A GPU sample alone, whatever health it claims, heals and evicts nothing: an agent that loses its driver reads
every GPU as Unknown, and a GPU that truly failed says so with an event.
"""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, field

from holdfast.api.finding import Confidence, Evidence, Finding, FindingKind, Subject
from holdfast.api.policy import Policy, XidAction
from holdfast.api.telemetry import GpuDisappeared, XidRaised
from holdfast.api.xid import (
    CATALOGUE,
    PREEMPTIVE_CLEANUP,
    RECOVERY_ACTION_CHANGED,
    RecoveryAction,
    XidClass,
    action_for,
    meaning_of,
)
from holdfast.watchdog.detectors.detector import Detector, Reported, Sample, is_own_rule

MERGE_S = 5.0
# A watched error that comes again on the same GPU within a day is no accident.
REPETITION_S = 86400.0
# An agent that was away for longer tells of what it finds in the log; the GPU may have been reset since.
OLD_S = 86400.0
# Only GPUs that raised something are remembered, and the least recent are forgotten first.
GPUS_REMEMBERED = 4096
XIDS_REMEMBERED = 64
PEERS_NAMED = 16
# What an error of the links is: NVLink up to the fourth generation, and the fifth.
_LINK_XIDS = frozenset((74, *range(144, 151)))
_DOMAIN_RECOVERIES = frozenset((RecoveryAction.DRAIN_P2P, RecoveryAction.RECOVER_IMEX_DOMAIN))

_SEVERITY = {action: place for place, action in enumerate(XidAction)}


@dataclass(slots=True)
class _Gpu:
    """What one GPU raised lately. `bursts`: when the newest run of identical errors began, by XID."""

    bursts: OrderedDict[int, float] = field(default_factory=OrderedDict)
    last_cause_at: float = float("-inf")  # any XID but the cleanup
    found: XidAction = XidAction.IGNORE  # what the last finding on it asks for
    found_at: float = float("-inf")  # when that was, or its newest symptom

    def is_explained(self, action: XidAction, at: float) -> bool:
        """Whether a finding just made on it covers another one that asks for `action`."""
        if abs(at - self.found_at) > MERGE_S or _SEVERITY[action] > _SEVERITY[self.found]:
            return False
        self.found_at = max(at, self.found_at)
        return True


@dataclass(frozen=True, slots=True)
class _Raised:
    """One XID on the watchdog's clock. `also`: who is on the same NVLinks, if it is about those."""

    subject: Subject
    event: XidRaised
    at: float
    action: XidAction
    also: tuple[Subject, ...] = ()
    own_rule: bool = False


class GpuFaultDetector(Detector):
    """Judges the events of `Reported`."""

    subscribes_to: tuple[type[Sample], ...] = (Reported,)

    def __init__(self, policy: Policy) -> None:
        self._policy = policy
        self._gpus: OrderedDict[tuple[str, str], _Gpu] = OrderedDict()
        self._held: dict[tuple[str, str], tuple[float, _Raised]] = {}  # cleanups, and until when, oldest first

    def observe(self, sample: Sample, now: float) -> Sequence[Finding]:
        """Findings for the errors of a report that ask for something."""
        if not isinstance(sample, Reported):
            return ()
        findings: list[Finding] = []
        for event in sample.report.events:
            if not isinstance(event, XidRaised | GpuDisappeared) or event.age_s > OLD_S:
                continue
            key = (sample.report.node, event.gpu)
            gpu, at = self._gpu(key), now - max(0.0, event.age_s)
            subject = Subject(self._policy.job, node=sample.report.node, gpu=event.gpu)
            if isinstance(event, GpuDisappeared):
                if not gpu.is_explained(XidAction.EVICT, at):
                    gpu.found, gpu.found_at = XidAction.EVICT, at
                    findings.append(_loss(subject, event, at))
                continue
            if event.xid == RECOVERY_ACTION_CHANGED and event.recovery_action == RecoveryAction.NONE:
                self._gpus.pop(key, None)
                self._held.pop(key, None)
                continue
            clusters = self._policy.cluster_xid_actions
            own, standing = (
                action_for(event.xid, event.recovery_action, overrides, event.link_fault)
                for overrides in ({**clusters, **self._policy.xid_actions}, clusters)
            )
            also: tuple[Subject, ...] = ()
            if event.xid in _LINK_XIDS or event.recovery_action in _DOMAIN_RECOVERIES:
                others = (other.uuid for other in sample.report.gpus if other.uuid != event.gpu)
                also = tuple(Subject(subject.job, node=subject.node, gpu=uuid) for uuid in others)
            raised = _Raised(subject, event, at, own, also, is_own_rule(own, standing))
            if event.xid != PREEMPTIVE_CLEANUP:
                gpu.last_cause_at = at
                if key in self._held and abs(at - self._held[key][1].at) <= MERGE_S:
                    del self._held[key]
                findings.extend(_judge(raised, gpu))
            elif abs(at - gpu.last_cause_at) > MERGE_S:
                self._held.setdefault(key, (now + MERGE_S, raised))
        return findings

    def elapse(self, now: float) -> Sequence[Finding]:
        """Judge the cleanups that nobody else explained."""
        findings: list[Finding] = []
        for key, (until, raised) in list(self._held.items()):
            if until <= now:
                del self._held[key]
                findings.extend(_judge(raised, self._gpu(key)))
        return findings

    def next_wakeup(self) -> float | None:
        return min((until for until, _ in self._held.values()), default=None)

    def _gpu(self, key: tuple[str, str]) -> _Gpu:
        gpu = self._gpus.setdefault(key, _Gpu())
        self._gpus.move_to_end(key)
        if len(self._gpus) > GPUS_REMEMBERED:
            forgotten, _ = self._gpus.popitem(last=False)
            self._held.pop(forgotten, None)
        return gpu


def _loss(subject: Subject, event: GpuDisappeared, at: float) -> Finding:
    says = f"GPU {event.gpu} answers no more" + (f": {event.text}" if event.text else "")
    return Finding(
        kind=FindingKind.GPU_LOST,
        subject=subject,
        cause="GPU lost",
        evidence=(Evidence(f"GPU driver of node {subject.node}", says, at),),
        confidence=Confidence.CERTAIN,
        began_at=at,
        error=event.text,
    )


def _judge(raised: _Raised, gpu: _Gpu) -> Sequence[Finding]:
    """A watched error is a finding only when it repeats, and then the node is to leave.

    Certain where the catalogue blames the hardware, probable where the software may be at fault as well.
    """
    event, at = raised.event, raised.at
    before = gpu.bursts.get(event.xid)
    same_burst = before is not None and at - before <= MERGE_S
    if not same_burst:
        gpu.bursts[event.xid] = at
        gpu.bursts.move_to_end(event.xid)
        if len(gpu.bursts) > XIDS_REMEMBERED:
            gpu.bursts.popitem(last=False)
    if raised.action is XidAction.IGNORE or gpu.is_explained(raised.action, at):
        return ()
    source, evidence = f"GPU driver of node {raised.subject.node}", []
    if raised.action is XidAction.WATCH:
        if same_burst or before is None or at - before > REPETITION_S:
            return ()
        evidence.append(Evidence(source, f"XID {event.xid} the time before", before))
    gpu.found, gpu.found_at = raised.action, at
    says = f"XID {event.xid} ({meaning_of(event.xid)}) on GPU {event.gpu}"
    if event.recovery_action is not None:
        says += f", recovery action {event.recovery_action}"
    if raised.also:
        says += f", which shares NVLinks with {', '.join(str(each.gpu) for each in raised.also[:PEERS_NAMED])}"
    evidence.append(Evidence(source, f"{says}: {event.text}" if event.text else says, at))
    confidence = Confidence.UNKNOWN
    if (entry := CATALOGUE.get(event.xid)) is not None:
        confidence = Confidence.CERTAIN if entry.blames is XidClass.HARDWARE else Confidence.PROBABLE
    finding = Finding(
        kind=FindingKind.XID,
        subject=raised.subject,
        cause=f"xid {event.xid}",
        evidence=tuple(evidence),
        confidence=confidence,
        began_at=at,
        error=event.text,
        xid=event.xid,
        recovery_action=event.recovery_action,
        also=raised.also,
        asks=XidAction.EVICT if raised.action is XidAction.WATCH else raised.action,
        own_rule=raised.own_rule,
    )
    return (finding,)
