"""What a TrainingJob's status comes to when it is read back, whoever wrote it."""

from typing import Any

import pytest

from holdfast.api.jobstatus import (
    CheckpointStatus,
    Condition,
    Goodput,
    MembersStatus,
    RecordedIncident,
    TrainingJobStatus,
)
from holdfast.api.status import JobPhase

WHOLE = TrainingJobStatus(
    observed_generation=3,
    phase=JobPhase.RUNNING,
    conditions=(Condition("Ready", "True", "Running", "2 of 2", "2026-01-01T00:00:00Z", 3),),
    round=4,
    members=MembersStatus(2, None, 1, 3),
    step=100,
    last_checkpoint=CheckpointStatus(90, "file:///90"),
    goodput=Goodput(0.9),
    recent_incidents=(RecordedIncident("incident-1", "Xid", "n1", "XID 79", "", "Open"),),
    pods_created=3,
)


def test_what_was_written_is_read_back() -> None:
    written = WHOLE.encode()
    assert TrainingJobStatus.decode(written) == WHOLE
    assert written["members"] == {"wanted": 2, "spares": 1, "pods": 3}  # what is Unknown is not there
    assert written["recentIncidents"][0]["action"] == ""


@pytest.mark.parametrize(
    ("field", "damaged", "lost"),
    [
        ("step", "many", {"step": None}),
        ("phase", "Levitating", {"phase": None}),
        ("conditions", [{"type": "Ready", "status": True}], {"conditions": ()}),
        ("conditions", {"Ready": "True"}, {"conditions": ()}),
        ("members", {"wanted": None}, {"members": None}),
        ("lastCheckpoint", {"step": 90}, {"last_checkpoint": None}),
        ("recentIncidents", ["incident-1"], {"recent_incidents": ()}),
    ],
)
def test_a_damaged_field_is_lost_alone(field: str, damaged: Any, lost: dict[str, Any]) -> None:
    read = TrainingJobStatus.decode({**WHOLE.encode(), field: damaged})
    assert {name for name in WHOLE.__struct_fields__ if getattr(read, name) != getattr(WHOLE, name)} == set(lost)
    assert {name: getattr(read, name) for name in lost} == lost


def test_what_nobody_knows_is_passed_over() -> None:
    written = WHOLE.encode()
    written |= {"mood": "good", "members": {**written["members"], "absent": 1}}
    written["conditions"][0]["severity"] = "low"
    assert TrainingJobStatus.decode(written) == WHOLE


@pytest.mark.parametrize("written", [None, [], "Running", 5, {}])
def test_what_is_no_status_is_an_empty_one(written: object) -> None:
    assert TrainingJobStatus.decode(written) == TrainingJobStatus()
