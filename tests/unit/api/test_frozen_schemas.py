"""The user-facing objects and the wire types are promises: a change must be meant, and seen in review.

After a change that is meant: `python tests/unit/api/test_frozen_schemas.py` writes the files under golden/ anew.
"""

import inspect
import json
from collections.abc import Callable
from pathlib import Path
from types import UnionType
from typing import Any

import msgspec
import pytest

from holdfast.api import control, event, membership, plan, round, status, telemetry
from holdfast.api.fleet import FleetReport
from holdfast.api.incident import Incident
from holdfast.api.intervention import InterventionOutcome, InterventionRequest
from holdfast.api.interventionspec import Intervention
from holdfast.api.trainingjob import TrainingJob

GOLDEN = Path(__file__).parent / "golden"

WIRE: dict[str, tuple[UnionType | type, ...]] = {
    "membership": (membership.FromLauncher, membership.ToLauncher),
    "telemetry": (telemetry.FromAgent, telemetry.ToAgent),
    "control": (control.ToWorker, control.FromWorker),
    "round": (round.Desired,),
    "plan": (plan.FromOperator, plan.ToOperator),
    "event": (event.Event, event.Journaled),
    "reads": (status.JobStatus, status.RankStatus, status.NodeStatus, Incident),
    "fleet": (FleetReport,),
    "intervention": (InterventionRequest, InterventionOutcome),
}


def _wire(name: str) -> Callable[[], Any]:
    def schema() -> Any:
        types, components = msgspec.json.schema_components(WIRE[name], ref_template="#/{name}")
        return _clean({"types": types, "components": components})

    return schema


def _clean(schema: Any) -> Any:
    """With descriptions as Python 3.13 and newer have them: older ones keep the indents of docstrings, and so does
    msgspec; pydantic, FastAPI and click clean what they publish.

    Source: https://docs.python.org/3/whatsnew/3.13.html#other-language-changes
    """
    match schema:
        case dict():
            described = {key: _clean(value) for key, value in schema.items()}
            if isinstance(told := described.get("description"), str):
                described["description"] = inspect.cleandoc(told)
            return described
        case list() | tuple():
            return [_clean(each) for each in schema]
    return schema


SCHEMAS: dict[str, Callable[[], Any]] = {
    "trainingjob": TrainingJob.model_json_schema,
    "intervention-object": Intervention.model_json_schema,
    **{f"wire-{name}": _wire(name) for name in WIRE},
}


def _text(name: str) -> str:
    return json.dumps(SCHEMAS[name](), indent=1, sort_keys=True) + "\n"


@pytest.mark.parametrize("name", SCHEMAS)
def test_the_schema_is_the_promised_one(name: str) -> None:
    assert _text(name) == (GOLDEN / f"{name}.json").read_text(), "meant? see the docstring of this file"


if __name__ == "__main__":
    for each in SCHEMAS:
        (GOLDEN / f"{each}.json").write_text(_text(each))
