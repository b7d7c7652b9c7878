"""What somebody is called about, and what of a job's own words fits which."""

from collections.abc import Iterator, Mapping
from enum import StrEnum
from types import MappingProxyType
from typing import Final

from holdfast.api.condition import ConditionKind
from holdfast.api.finding import FindingKind
from holdfast.api.incident import Incident
from holdfast.api.status import JobPhase
from holdfast.console.runbook.known import Known


class Symptom(StrEnum):
    """As it is said at three in the morning."""

    LOSS_SPIKED = "loss-spiked"
    HUNG = "hung"
    SLOW = "slow"
    WILL_NOT_START = "will-not-start"
    OUT_OF_MEMORY = "out-of-memory"
    NODE_SUSPECT = "node-suspect"
    NAN = "nan"
    CHECKPOINT_STALE = "checkpoint-stale"
    COST = "cost"


SAYS: Final[Mapping[Symptom, str]] = MappingProxyType(
    {
        Symptom.LOSS_SPIKED: "the loss rose",
        Symptom.HUNG: "the job makes no steps",
        Symptom.SLOW: "steps take longer than they should",
        Symptom.WILL_NOT_START: "the job does not come to its first step",
        Symptom.OUT_OF_MEMORY: "a process was killed for memory, or could not get any",
        Symptom.NODE_SUSPECT: "a machine may be broken",
        Symptom.NAN: "a loss or gradient norm is not finite",
        Symptom.CHECKPOINT_STALE: "the newest checkpoint is old",
        Symptom.COST: "the job costs more than its steps are worth",
    }
)
OF_NOW: Final = frozenset(
    {Symptom.LOSS_SPIKED, Symptom.HUNG, Symptom.SLOW, Symptom.WILL_NOT_START, Symptom.CHECKPOINT_STALE}
)
"""What the job does now. The others are of what happened: a node that failed is suspect also once it is left."""
_OF_KIND: Final[Mapping[FindingKind, Symptom]] = MappingProxyType(
    {
        FindingKind.PROCESS_EXIT: Symptom.HUNG,
        FindingKind.USER_CODE: Symptom.WILL_NOT_START,
        FindingKind.NOTHING_TO_RESTORE: Symptom.WILL_NOT_START,
        FindingKind.COLLECTIVE_FAILED: Symptom.HUNG,
        FindingKind.MEMBER_LOST: Symptom.HUNG,
        FindingKind.HANG: Symptom.HUNG,
        FindingKind.XID: Symptom.NODE_SUSPECT,
        FindingKind.GPU_LOST: Symptom.NODE_SUSPECT,
        FindingKind.CONDITION: Symptom.NODE_SUSPECT,
        FindingKind.THERMAL: Symptom.NODE_SUSPECT,
        FindingKind.SELF_TEST: Symptom.NODE_SUSPECT,
        FindingKind.NON_FINITE: Symptom.NAN,
        FindingKind.DIVERGENCE: Symptom.LOSS_SPIKED,
        FindingKind.STRAGGLER: Symptom.SLOW,
        FindingKind.DATA: Symptom.LOSS_SPIKED,
        FindingKind.CORRUPTION: Symptom.NODE_SUSPECT,
        FindingKind.CRASH_LOOP: Symptom.WILL_NOT_START,
    }
)
_OF_CONDITION: Final[Mapping[str, Symptom]] = MappingProxyType(
    {
        ConditionKind.MEMORY_LOW.value: Symptom.OUT_OF_MEMORY,
        ConditionKind.DISK_FULL.value: Symptom.CHECKPOINT_STALE,
        ConditionKind.DISK_READ_ONLY.value: Symptom.CHECKPOINT_STALE,
    }
)
_BEFORE_THE_FIRST_STEP: Final = (JobPhase.PENDING, JobPhase.PREFLIGHT, JobPhase.FORMING, JobPhase.INVALID)
_STANDS: Final = (JobPhase.STALLED, JobPhase.RECOVERING)
OLD_CHECKPOINT: Final = 3.0  # times the cadence
ETTR_LOW: Final = 0.9
YOUNG_S: Final = 3600.0


def symptom_of(incident: Incident) -> Symptom:
    """The symptom whose runbook is about a fault of this kind."""
    if "memory" in incident.cause and incident.kind in (FindingKind.PROCESS_EXIT, FindingKind.MEMBER_LOST):
        return Symptom.OUT_OF_MEMORY
    if incident.kind is FindingKind.USER_CODE and "OutOfMemory" in f"{incident.cause} {incident.error}":
        return Symptom.OUT_OF_MEMORY
    return _OF_CONDITION.get(incident.cause, _OF_KIND[incident.kind])


def fitting(known: Known) -> Mapping[Symptom, str]:
    """The symptoms that the job shows now, each with what says so, the most pressing first. Empty: none is seen,
    which does not mean that all is well.
    """
    found: dict[Symptom, str] = {}
    for symptom, why in (*_by_phase(known), *_by_incidents(known), *_by_nodes(known), *_by_figures(known)):
        found.setdefault(symptom, why)
    return found


def _by_phase(known: Known) -> Iterator[tuple[Symptom, str]]:
    says = f"the phase is {known.phase}: {known.reason}"
    never = known.status is not None and known.status.step is None and known.status.last_checkpoint is None
    if known.phase in _BEFORE_THE_FIRST_STEP or (never and known.phase in (*_STANDS, JobPhase.FAILED)):
        yield Symptom.WILL_NOT_START, says
    elif known.phase in _STANDS:
        yield Symptom.HUNG, says
    if known.status is not None and known.status.unhealthy_from is not None:
        yield Symptom.NAN, f"what was trained from step {known.status.unhealthy_from} on is not finite"


def _by_incidents(known: Known) -> Iterator[tuple[Symptom, str]]:
    pressing = [each for each in known.incidents or () if known.is_pressing(each)]
    for each in reversed(pressing):
        yield symptom_of(each), f"{each.id} is {each.state}: {each.kind}, {each.cause}"


def _by_nodes(known: Known) -> Iterator[tuple[Symptom, str]]:
    for node, condition in known.raised():
        symptom = _OF_CONDITION.get(condition.kind.value, Symptom.NODE_SUSPECT)
        yield symptom, f"{condition.kind} holds on {node.node}: {condition.says}"


def _by_figures(known: Known) -> Iterator[tuple[Symptom, str]]:
    status = known.status
    if status is None or status.ended_at is not None:
        return
    saved, every = status.last_checkpoint, status.cadence
    if saved is not None and every is not None and every.every_s:
        age_s = status.now - saved.at
        if age_s > OLD_CHECKPOINT * every.every_s:
            yield Symptom.CHECKPOINT_STALE, f"the newest checkpoint is {age_s:.0f} s old; {every.says}"
    is_young = known.age_s is not None and known.age_s < YOUNG_S  # its start weighs more than anything else
    if status.ettr is not None and status.ettr < ETTR_LOW and not is_young:
        yield Symptom.COST, f"the effective training time ratio (ETTR) is {status.ettr:.0%}"
