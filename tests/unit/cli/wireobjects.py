"""Builders of what a watchdog says."""

from typing import Any

from holdfast.api.finding import Confidence, Evidence, FindingKind, Subject
from holdfast.api.incident import Action, Incident, IncidentState, Moment, Rung
from holdfast.api.rankrecord import Phase
from holdfast.api.status import Checkpoint, JobPhase, JobStatus, Membership, RankStatus
from holdfast.api.telemetry import ProcessState
from holdfast.api.workeroutput import KeptOutput

JOB = "research/gpt"


def a_status(**changes: Any) -> JobStatus:
    fields: dict[str, Any] = {
        "job": JOB,
        "phase": JobPhase.RUNNING,
        "reason": "every rank trains",
        "round": 3,
        "members": Membership(wanted=2, ready=2, spares=1),
        "world_size": 2,
        "step": 120,
        "loss": 2.345678,
        "step_time_s": 0.034,
        "restarts": 1,
        "evictions": 0,
        "incidents_open": 0,
        "incidents_total": 1,
        "last_checkpoint": Checkpoint(step=110, uri="/c", round=2, at=1000.0),
        "avoided_nodes": (),
        "now": 1002.5,
    }
    return JobStatus(**{**fields, **changes})


def a_rank(rank: int, **changes: Any) -> RankStatus:
    fields: dict[str, Any] = {
        "rank": rank,
        "member": f"node-{rank + 1}",
        "node": f"node-{rank + 1}",
        "process": ProcessState.RUNNING,
        "phase": Phase.FORWARD,
        "step": 120,
        "loss": 2.3,
        "step_time_s": 0.034,
        "progress_age_s": 0.01,
        "heard_age_s": 0.5,
        "pid": 4711,
    }
    return RankStatus(**{**fields, **changes})


def an_incident(**changes: Any) -> Incident:
    fields: dict[str, Any] = {
        "id": "incident-1",
        "job": JOB,
        "kind": FindingKind.PROCESS_EXIT,
        "culprit": Subject(job=JOB, node="node-2", rank=1),
        "confidence": Confidence.CERTAIN,
        "cause": "signal 9 (SIGKILL)",
        "state": IncidentState.RECOVERED,
        "began_at": 100.0,
        "detected_at": 100.004,
        "evidence": (Evidence("launcher node-2", "rank 1 ended", 100.004),),
        "actions": (Action(Rung.RESPAWN, 100.005, "round 3 with a new process", "a worker died", 3),),
        "timeline": (Moment(100.2, "every rank completed a new step"),),
        "round": 2,
        "recovered_round": 3,
        "recovered_at": 100.2,
        "lost_steps": 4,
        "error": "Traceback\nValueError: bad",
        "note": "",
    }
    return Incident(**{**fields, **changes})


def an_output(rank: int, **changes: Any) -> KeptOutput:
    fields: dict[str, Any] = {
        "rank": rank,
        "member": "gpt-1",
        "node": "n2",
        "pid": 7,
        "round": 2,
        "started_at": 100.0,
        "ended_at": 200.0,
        "ended_with": "signal 9",
        "omitted_bytes": 0,
        "tail": "one\ntwo\n",
    }
    return KeptOutput(**{**fields, **changes})
