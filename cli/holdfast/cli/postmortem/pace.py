"""What of an incident could have been faster, and which setting would have helped.

A phase is remarked on when it took longer than is promised, or clearly longer than the same phase of the job's
other incidents. The promises are our own targets (docs/postmortem.md), or what the job's own settings allow.
"""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from types import MappingProxyType
from typing import Final

import msgspec

from holdfast.api.finding import FindingKind
from holdfast.api.incident import CAUSE_WITHIN_S, Incident, Rung
from holdfast.api.policy import Policy
from holdfast.cli.postmortem.phases import Phase, Stage

PEERS_LEAST: Final = 3
"""With fewer other incidents of the job nobody can say what is usual."""
LONGER: Final = 1.5
"""Times the median of the others; and by a second at least, which is what reports are apart."""
LONGER_S: Final = 1.0
TARGETS_S: Final[Mapping[Stage, float]] = MappingProxyType(
    {
        Stage.DETECTING: 10.0,
        Stage.KNOWING: CAUSE_WITHIN_S,
        Stage.DECIDING: 2.0,
        Stage.FORMING: 30.0,
        Stage.LOADING: 60.0,
        Stage.RECOVERING: 90.0,
        Stage.COMPUTING_AGAIN: 60.0,
    }
)
"""Our own targets; nobody has published these by phase. Of DETECTING a job's settings may allow more."""
LOOKS_A_WHILE: Final = frozenset(
    {FindingKind.THERMAL, FindingKind.STRAGGLER, FindingKind.DIVERGENCE, FindingKind.CORRUPTION, FindingKind.DATA}
)
"""What is looked at for a while by design: only that it took longer than usual is a remark."""


class Remark(msgspec.Struct, frozen=True):
    """One phase that took long. `usual_s` is the median of the job's other incidents, `target_s` what is promised;
    None: nobody can say. `setting` is a field of the spec or a command, empty where none helps; `says` is how.
    """

    stage: Stage
    took_s: float
    usual_s: float | None
    target_s: float | None
    setting: str
    says: str


def remarks(
    incident: Incident, phases: Sequence[Phase], others: Sequence[Sequence[Phase]], policy: Policy | None
) -> tuple[Remark, ...]:
    """The phases of `incident` that took too long, the longest first. `others` are the phases of the job's other
    incidents. A phase that goes on is not judged.
    """
    found = []
    for phase in phases:
        took_s = phase.took_s
        if took_s is None:
            continue
        usual_s, target_s = _usual(phase.stage, others), _target(phase.stage, incident, policy)
        is_late = target_s is not None and took_s > target_s
        is_unusual = usual_s is not None and took_s > LONGER * usual_s and took_s > usual_s + LONGER_S
        if is_late or is_unusual:
            setting, says = next(_advice(phase.stage, incident, policy), ("", "no setting is known to help"))
            found.append(Remark(phase.stage, took_s, usual_s, target_s, setting, says))
    return tuple(sorted(found, key=lambda each: -each.took_s))


def _usual(stage: Stage, others: Sequence[Sequence[Phase]]) -> float | None:
    took = [each.took_s for phases in others for each in phases if each.stage is stage and each.took_s is not None]
    return median(took) if len(took) >= PEERS_LEAST else None


def _target(stage: Stage, incident: Incident, policy: Policy | None) -> float | None:
    if stage is not Stage.DETECTING:
        return TARGETS_S[stage]
    if incident.kind in LOOKS_A_WHILE:
        return None
    allowed = TARGETS_S[stage]
    if policy is not None and incident.kind is FindingKind.MEMBER_LOST:
        allowed = max(allowed, policy.lost_after_s + policy.heartbeat_interval_s)
    return allowed


Advice = Iterator[tuple[str, str]]


def _advice(stage: Stage, incident: Incident, policy: Policy | None) -> Advice:
    """Settings that help, the best first. What the job has already is not advised."""
    match stage:
        case Stage.DETECTING:
            yield from _sooner(incident, policy)
        case Stage.KNOWING:
            yield (
                "docs/evidence.md",
                "what names a culprit: stacks and flight records of all ranks, agents on all nodes",
            )
        case Stage.DECIDING:
            yield from _decided(incident, policy)
        case Stage.FORMING | Stage.RECOVERING:
            if policy is None or policy.spares == 0:
                yield "nodes.spares", "a warm spare takes the ranks of a lost node at once; none was asked for"
            if policy is not None and policy.preflight is not None and _is_moved(incident):
                yield (
                    "startup.preflight",
                    "a new member is tested before it gets ranks: light takes less than full",
                )
        case Stage.LOADING:
            yield from _loaded(incident, policy)
        case Stage.COMPUTING_AGAIN:
            if policy is None or policy.memory is None or policy.memory.every_steps == 0:
                yield "checkpoint.memory.everySteps", "a snapshot in memory after each step loses one step at most"
            yield "checkpoint.interval", "shorter; auto weighs the cost of a save against the faults there were"


def _is_moved(incident: Incident) -> bool:
    return incident.rung in (Rung.SWAP, Rung.SHRINK)


def _sooner(incident: Incident, policy: Policy | None) -> Advice:
    match incident.kind:
        case FindingKind.HANG if policy is not None and policy.hang_timeout_s is not None:
            yield (
                "faultPolicy.hang.timeout",
                f"auto goes by the job's own step times; {policy.hang_timeout_s:g} s is set",
            )
        case FindingKind.HANG:
            yield "run.step", "steps and phases that the script publishes are what a hang is found by"
        case FindingKind.MEMBER_LOST:
            yield "faultPolicy.heartbeat.lost", "a shorter silence counts as lost; twice the interval at least"
        case FindingKind.THERMAL:
            yield "faultPolicy.thermal.sustained", "shorter"
        case FindingKind.CORRUPTION:
            yield "faultPolicy.corruption.fingerprintEverySteps", "replicas are compared more often"
        case FindingKind.DIVERGENCE:
            yield "faultPolicy.loss.rewindAfter", "fewer steps"
        case FindingKind.STRAGGLER:
            yield "faultPolicy.straggler.sustained", "fewer steps; auto waits until it cannot be chance"
        case _:
            return


def _decided(incident: Incident, policy: Policy | None) -> Advice:
    if sum(1 for each in incident.actions if each.round is not None) > 1:
        yield "faultPolicy.restarts.backoff", "the wait before a second restart without progress; it doubles"
    if policy is None or policy.spares == 0:
        yield "nodes.spares", "without a spare a round waits for capacity, or for nodes.min"


def _loaded(incident: Incident, policy: Policy | None) -> Advice:
    if incident.rung in (Rung.RESPAWN, Rung.SWAP, Rung.SHRINK):
        yield "run.enter", "processes that are healthy enter again and import nothing anew; only the dead start"
    if policy is None or policy.memory is None or policy.memory.every_steps == 0:
        yield "checkpoint.memory.everySteps", "a snapshot in a node's memory is restored without the storage"
