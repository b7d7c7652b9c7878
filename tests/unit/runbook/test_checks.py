"""Each check: a job in which it suspects something, one in which it is fine, one in which nobody can tell."""

from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace
from watchedjob import JOB, WatchedJob, a_manifest, a_policy

from holdfast.api.condition import Condition, ConditionKind, ConditionState
from holdfast.api.event import (
    CheckpointRecorded,
    Event,
    InterventionRequested,
    JobSubmitted,
    Journaled,
    MemberEntered,
    MemberTested,
    PodChanged,
    RestoreReported,
    RoundProgressed,
    RunRecorded,
)
from holdfast.api.finding import Confidence, Evidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Rung, Slowed
from holdfast.api.intervention import InterventionAction, InterventionRequest
from holdfast.api.learningrate import LearningRateCut
from holdfast.api.plan import NodeOrder, Plan, PodState
from holdfast.api.policy import LossPolicy, MemoryPolicy
from holdfast.api.rankrecord import Phase
from holdfast.api.selftest import TestLevel
from holdfast.api.selftest import Verdict as Judged
from holdfast.api.status import Cadence, Checkpoint, Hearing, JobPhase, Membership, NotFinite, PendingTest
from holdfast.api.telemetry import GpuHealth, GpuSample, ProcessState, Unreadable
from holdfast.console.runbook.answer import Verdict
from holdfast.console.runbook.known import Known
from holdfast.console.runbook.table import CHECKS

BASE = WatchedJob().train(400).known()
NOW = BASE.now
AGO = NOW - 60.0
assert BASE.status is not None
assert BASE.ranks is not None
assert BASE.nodes is not None
assert BASE.journal is not None
STATUS, RANKS, NODES, JOURNAL, ROUND = BASE.status, BASE.ranks, BASE.nodes, BASE.journal, BASE.round


def an_incident(kind: FindingKind, cause: str = "", **changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": "inc-0001",
        "job": JOB,
        "kind": kind,
        "culprit": Subject(JOB, node="b", rank=3),
        "confidence": Confidence.CERTAIN,
        "cause": cause,
        "state": IncidentState.RECOVERED,
        "began_at": AGO,
        "detected_at": AGO,
        "evidence": (Evidence("test", "it was seen", AGO),),
    }
    return Incident(**{**fields, **changes})


def having(*incidents: Incident) -> Known:
    return replace(BASE, incidents=incidents)


def found(kind: FindingKind, cause: str = "", **changes: Any) -> Known:
    return having(an_incident(kind, cause, **changes))


def being(**changes: Any) -> Known:
    """A status that says something else; the phase and the reason are also the job's."""
    told = {name: changes[name] for name in ("phase", "reason") if name in changes}
    return replace(BASE, status=replace(STATUS, **changes), **told)


def ranks_with(number: int | None = None, **changes: Any) -> Known:
    """All ranks, or one, are otherwise."""
    told = tuple(replace(each, **changes) if number in (None, each.rank) else each for each in RANKS)
    return replace(BASE, ranks=told)


def nodes_with(name: str = "b", **changes: Any) -> Known:
    return replace(BASE, nodes=tuple(replace(each, **changes) if each.node == name else each for each in NODES))


def raised(kind: ConditionKind) -> Known:
    return nodes_with(conditions=(Condition(kind, ConditionState.RAISED, 60.0, "seen"),))


def telling(*events: Event, at: float = AGO) -> Known:
    """The journal goes on with these."""
    more = tuple(Journaled(JOURNAL[-1].offset + 1 + place, at, event) for place, event in enumerate(events))
    return replace(BASE, journal=(*JOURNAL, *more))


def only(*events: tuple[float, Event], first: int = 1) -> Known:
    """The journal is these lines."""
    return replace(BASE, journal=tuple(Journaled(first + i, at, each) for i, (at, each) in enumerate(events)))


def asked(action: InterventionAction, **fields: Any) -> InterventionRequested:
    return InterventionRequested(InterventionRequest("i1", JOB, action, "because", **fields))


def specified(**changes: Any) -> Known:
    return telling(JobSubmitted(a_policy(**changes)))


def saved(
    *seconds: float, stall_s: float | None = 0.1, took_s: float | None = 1.0
) -> tuple[tuple[float, Event], ...]:
    """Checkpoints committed so many seconds ago."""
    return tuple(
        (NOW - each, CheckpointRecorded(2, place, "/ckpt", None, stall_s, took_s))
        for place, each in enumerate(seconds, start=1)
    )


NO_INCIDENTS = replace(BASE, incidents=None)
NO_STATUS = replace(BASE, status=None, phase=None)
NO_RANKS = replace(BASE, ranks=None)
NO_NODES = replace(BASE, nodes=None)
NO_JOURNAL = replace(BASE, journal=None)
UNHEARD = ranks_with(3, heard_age_s=300.0)
AWAY = nodes_with(hearing=Hearing.SILENT)
MUTE = ranks_with(batch_step=None)
YOUNG = telling(RestoreReported(3, 390))
DARK = nodes_with(unreadable=(Unreadable("NVML", "no driver"),))
PASSED = MemberTested("b", 1, TestLevel.LIGHT, Judged.PASSED)
NEVER = replace(BASE, journal=tuple(each for each in JOURNAL if not isinstance(each.event, CheckpointRecorded)))
K = FindingKind
STILL = {"progress_age_s": 300.0}
SKIP = (Action(Rung.SKIP_STEP, AGO, "step 9 skipped", "all ranks left it out"),)
BARS = PendingTest("b", "b", TestLevel.LIGHT, "before it is given ranks", AGO, bars=True)


def nan(step: int, **changes: Any) -> Incident:
    return an_incident(K.NON_FINITE, "loss is nan", error=f"at step {step}: the loss is not finite", **changes)


Cases = tuple[Known, Known, Known]
OF_ALL = {"culprit": Subject(JOB)}


def by_incident(suspect: Known, blind: Known = NO_INCIDENTS) -> Cases:
    return suspect, BASE, blind


LOSSES: Mapping[str, Cases] = {
    "rank-apart": (ranks_with(3, loss=9.0), BASE, ranks_with(loss=None)),
    "corruption": by_incident(found(K.CORRUPTION, "fingerprint vote"), being(verified_step=None)),
    "nan-before": by_incident(found(K.NON_FINITE), ranks_with(loss=None, grad_norm=None)),
    "nan-of-one-rank": by_incident(found(K.NON_FINITE), UNHEARD),
    "nan-of-all-ranks": by_incident(found(K.NON_FINITE, **OF_ALL), UNHEARD),
    "nan-again": (having(nan(9), nan(9, id="inc-0002")), having(nan(9), nan(12)), UNHEARD),
    "batches-wrong": by_incident(found(K.DATA, "a batch comes again"), MUTE),
    "wrong-sample": by_incident(found(K.DATA, "restart at the wrong sample"), MUTE),
    "amounts": by_incident(found(K.DATA, "ranks have different amounts of work"), ranks_with(tokens=None)),
    "gradients": (found(K.NON_FINITE, actions=SKIP), BASE, ranks_with(grad_norm=None)),
    "diverged": (
        found(K.DIVERGENCE, "the loss rose and stays", **OF_ALL),
        specified(loss=LossPolicy(rewind_after=20)),
        BASE,
    ),
}
CHANGES: Mapping[str, Cases] = {
    "changed-run": (
        telling(RunRecorded(3, "x", a_manifest(seed="2"))),
        BASE,
        only((NOW - 100.0, RunRecorded(3, "x", a_manifest())), first=50),
    ),
    "learning-rate": (
        telling(RunRecorded(3, "x", a_manifest(lr="0.1"))),
        BASE,
        only((NOW - 9000.0, RestoreReported(2, None))),
    ),
    "world-changed": (telling(MemberEntered("a", 3, reentrant=True)), BASE, only((AGO, RestoreReported(3, 5)))),
    "went-back": (
        replace(telling(RestoreReported(3, 60)), status=replace(STATUS, step=90)),
        BASE,
        only((AGO, RoundProgressed(2, 9))),
    ),
}
STANDSTILL: Mapping[str, Cases] = {
    "held": (being(phase=JobPhase.SUSPENDED), BASE, NO_STATUS),
    "over": (being(phase=JobPhase.FAILED), BASE, NO_STATUS),
    "undecided": (being(reason="trains; nothing can be decided: the disk is full"), BASE, NO_STATUS),
    "too-few-members": (being(phase=JobPhase.PENDING, members=Membership(4, 2, 0, 2)), BASE, NO_STATUS),
    "backing-off": (being(reason="backing off for 10 s: it failed"), BASE, NO_STATUS),
    "self-test-waits": (being(tests=(BARS,), tests_total=1), BASE, NO_STATUS),
    "stopped-process": (
        ranks_with(3, process=ProcessState.STOPPED),
        BASE,
        ranks_with(3, process=ProcessState.UNKNOWN),
    ),
    "absent-rank": (ranks_with(3, phase=Phase.DATA, **STILL), BASE, ranks_with(**STILL)),
    "all-wait": by_incident(found(K.COLLECTIVE_FAILED, **OF_ALL), UNHEARD),
    "in-checkpoint": (ranks_with(phase=Phase.CHECKPOINT, **STILL), BASE, UNHEARD),
    "in-data": (ranks_with(3, phase=Phase.DATA, **STILL), BASE, UNHEARD),
    "in-start-up": (ranks_with(phase=Phase.STARTUP, **STILL), BASE, UNHEARD),
    "member-lost": by_incident(found(K.MEMBER_LOST)),
    "process-ended": by_incident(found(K.PROCESS_EXIT, "signal 9 (SIGKILL)")),
    "disk": (raised(ConditionKind.DISK_FULL), BASE, AWAY),
}
BEGINNING: Mapping[str, Cases] = {
    "spec-refused": (being(phase=JobPhase.INVALID), BASE, NO_STATUS),
    "pods-pending": (
        telling(PodChanged("b", "", PodState.PENDING, "no room")),
        telling(PodChanged("b", "b", PodState.RUNNING)),
        BASE,
    ),
    "script-fails": by_incident(found(K.USER_CODE, "KeyError: 'lr'")),
    "nothing-to-restore": by_incident(found(K.NOTHING_TO_RESTORE)),
    "budget": (being(avoided_nodes=("b", "c", "d", "e")), BASE, NO_JOURNAL),
}
SLOWING: Mapping[str, Cases] = {
    "slow-machine": by_incident(found(K.STRAGGLER, "slow: machine"), ranks_with(waited_s=None)),
    "slow-data": by_incident(found(K.DATA, "the data come too slowly"), UNHEARD),
    "slow-shape": by_incident(found(K.STRAGGLER, "slow: shape"), UNHEARD),
    "slow-software": by_incident(found(K.STRAGGLER, "slow: software"), being(step_time_s=None)),
    "slow-everybody": by_incident(found(K.STRAGGLER, "slow: everybody"), YOUNG),
    "checkpoint-stalls": (only(*saved(90, 60, 30, stall_s=10.0)), BASE, only(*saved(90, 60, 30, stall_s=None))),
    "restarts": by_incident(found(K.PROCESS_EXIT, recovered_round=3)),
    "fewer-nodes": (being(members=Membership(4, 3, 0, 3)), BASE, NO_STATUS),
}
HARDWARE: Mapping[str, Cases] = {
    "device": (raised(ConditionKind.ECC_UNCORRECTED), BASE, DARK),
    "link": (raised(ConditionKind.NVLINK_DOWN), BASE, AWAY),
    "heat": (
        nodes_with(gpus=(GpuSample("GPU-b", 0, GpuHealth.HEALTHY, 90.0, margin_c=1.0),)),
        BASE,
        replace(BASE, nodes=tuple(replace(each, gpus=()) for each in NODES)),
    ),
    "self-test": (found(K.SELF_TEST), telling(PASSED), BASE),
    "same-node-again": (having(an_incident(K.HANG), an_incident(K.XID)), found(K.HANG), NO_INCIDENTS),
    "same-fault-on-many-nodes": (
        having(*(an_incident(K.XID, "xid 13", culprit=Subject(JOB, node=each)) for each in "abc")),
        having(*(an_incident(K.XID, "xid 13", culprit=Subject(JOB, node=each)) for each in "ab")),
        NO_INCIDENTS,
    ),
    "agent-silent": (DARK, BASE, NO_NODES),
    "node-avoided": (nodes_with(avoided="xid 79"), BASE, NO_NODES),
    "pod-ended-by-others": (found(K.MEMBER_LOST, innocent=True), BASE, NO_INCIDENTS),
}
TOO_LARGE = "torch.OutOfMemoryError: CUDA out of memory"
KILLED = "out of memory"
MEMORY: Mapping[str, Cases] = {
    "gpu-memory": by_incident(found(K.USER_CODE, TOO_LARGE)),
    "killed-by-the-kernel": by_incident(found(K.PROCESS_EXIT, KILLED), AWAY),
    "own-limit": by_incident(found(K.PROCESS_EXIT, "out of memory: the pod's own limit", innocent=True)),
    "node-memory-low": (raised(ConditionKind.MEMORY_LOW), BASE, AWAY),
    "needs-more": (
        having(*(an_incident(K.PROCESS_EXIT, KILLED, culprit=Subject(JOB, node=each, rank=1)) for each in "ab")),
        found(K.PROCESS_EXIT, KILLED),
        NO_INCIDENTS,
    ),
    "one-node": (
        having(an_incident(K.PROCESS_EXIT, KILLED), an_incident(K.PROCESS_EXIT, KILLED)),
        found(K.PROCESS_EXIT, KILLED),
        NO_INCIDENTS,
    ),
    "shared-memory": by_incident(found(K.PROCESS_EXIT, "signal 7 (SIGBUS)")),
    "snapshots": (
        replace(specified(memory=MemoryPolicy()), incidents=(an_incident(K.PROCESS_EXIT, KILLED),)),
        specified(memory=MemoryPolicy()),
        NO_JOURNAL,
    ),
}
SAVING: Mapping[str, Cases] = {
    "no-steps": (being(step_age_s=600.0), BASE, NO_STATUS),
    "never-saved": (
        replace(NEVER, status=replace(STATUS, last_checkpoint=None)),
        BASE,
        replace(NO_JOURNAL, status=replace(STATUS, last_checkpoint=None)),
    ),
    "cadence": (
        replace(
            only(*saved(900, 870, 840)),
            status=replace(STATUS, cadence=None, last_checkpoint=Checkpoint(3, "/ckpt", 2, NOW - 840.0)),
        ),
        BASE,
        replace(only(*saved(60)), status=replace(STATUS, cadence=Cadence("the script alone says when"))),
    ),
    "slow-storage": (
        replace(BASE, journal=only(*saved(300, 200)).journal + only(*saved(90, took_s=60.0)).journal),
        BASE,
        only(*saved(90)),
    ),
    "rounds-too-short": (telling(*(RestoreReported(each, 180) for each in (3, 4, 5)), at=NOW), BASE, NO_JOURNAL),
    "unhealthy": (being(unhealthy_from=100), BASE, NO_STATUS),
}
SPENDING: Mapping[str, Cases] = {
    "ettr": (being(ettr=0.5), BASE, being(ettr=None)),
    "trained-again": (found(K.HANG, lost_steps=100), BASE, found(K.HANG, recovered_round=3)),
    "slow-ranks": (found(K.STRAGGLER, "slow: data", slowed=Slowed(1.0, 100, 3600.0)), BASE, UNHEARD),
    "stands-still": (being(phase=JobPhase.RECOVERING, step_age_s=None), BASE, NO_STATUS),
    "spares": (being(members=Membership(4, 4, 2, 4)), BASE, NO_STATUS),
    "asked-for": (telling(asked(InterventionAction.REWIND)), BASE, only(*saved(90), first=50)),
}
CASES = {**LOSSES, **CHANGES, **STANDSTILL, **BEGINNING, **SLOWING, **HARDWARE, **MEMORY, **SAVING, **SPENDING}


def test_every_check_has_its_cases() -> None:
    assert sorted(CASES) == sorted(each.id for each in CHECKS)


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.id)
def test_a_check_suspects_calls_fine_and_says_unknown(check: Any) -> None:
    symptom = next(iter(check.likely))
    said = [check.look(known) for known in CASES[check.id]]
    assert [each.verdict for each in said] == [Verdict.SUSPECT, Verdict.FINE, Verdict.UNKNOWN], said
    for known, each in zip(CASES[check.id], said, strict=True):
        assert each.evidence, check.id
        assert "the check itself failed" not in check.answer(symptom, known).evidence
        assert "{" not in check.command(each.about)


@pytest.mark.parametrize("check", CHECKS, ids=lambda each: each.id)
@pytest.mark.parametrize("field", ["status", "ranks", "nodes", "incidents", "journal", "desired", "plan"])
def test_what_cannot_be_read_never_makes_a_check_fail(check: Any, field: str) -> None:
    gone = {"phase": None} if field == "status" else {}
    check.look(replace(BASE, **{field: None}, **gone))


def test_a_cut_of_the_learning_rate_and_a_request_for_one_are_told() -> None:
    look = next(each.look for each in CHECKS if each.id == "learning-rate")
    said = look(telling(asked(InterventionAction.REWIND, learning_rate_scale=0.5)))
    assert "somebody asked for 0.5 times the learning rate" in said.evidence
    assert ROUND is not None
    cuts = msgspec.structs.replace(ROUND.restore, learning_rate_cuts=(LearningRateCut(0.5, 40),))
    said = look(replace(BASE, desired=replace(ROUND, restore=cuts)))
    assert "began with 0.5 times the learning rate from step 40 on" in said.evidence


def test_a_value_that_is_not_finite_now_is_told_by_its_rank() -> None:
    looks = {each.id: each.look for each in CHECKS}
    assert "rank 3 is not finite now" in looks["nan-before"](ranks_with(3, loss=NotFinite.NAN)).evidence
    assert "rank 3 is not finite now" in looks["gradients"](ranks_with(3, grad_norm=NotFinite.INFINITE)).evidence


def test_a_round_that_began_and_whose_batches_nobody_compared_is_unknown() -> None:
    look = next(each.look for each in CHECKS if each.id == "wrong-sample")
    said = look(replace(telling(RestoreReported(3, 90)), ranks=MUTE.ranks))
    assert said.verdict is Verdict.UNKNOWN
    assert (
        "round 3 began 60 s ago after step 90, and 8 of 8 ranks do not tell what is in their batches"
        in said.evidence
    )


def test_an_avoided_node_that_reports_no_more_is_named_by_the_plan() -> None:
    look = next(each.look for each in CHECKS if each.id == "node-avoided")
    plan = Plan(JOB, 3, 4, 0, avoid=(NodeOrder("x", "xid 79"),))
    assert "x is avoided: xid 79" in look(replace(BASE, plan=plan)).evidence


def test_what_is_long_over_is_no_more_than_a_hint() -> None:
    look = next(each.look for each in CHECKS if each.id == "device")
    said = look(found(K.GPU_LOST, detected_at=NOW - 3600.0))
    assert (said.verdict, said.weight.name) == (Verdict.SUSPECT, "HINTED")
    assert look(found(K.GPU_LOST, detected_at=NOW - 3 * 3600.0)).verdict is Verdict.FINE
    paged = found(K.GPU_LOST, detected_at=NOW - 3 * 3600.0, state=IncidentState.PAGED)
    assert look(paged).verdict is Verdict.FINE, "the job went on since"
    said = look(replace(paged, phase=JobPhase.FAILED))
    assert said.weight.name == "PROVED", "it is what the job failed of"
    said = look(replace(paged, status=replace(STATUS, ended_at=NOW), phase=JobPhase.FAILED))
    assert "3 h before its end" in said.evidence
