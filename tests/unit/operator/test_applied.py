"""Fields that kubectl was given and that the API server dropped."""

import json
from typing import Any

import msgspec
import pytest
from operator_builders import TEMPLATE, document, job_object

from holdfast.operator.decide.observed import FIELDS_TOLD_MAX, left_out
from holdfast.operator.kube.objects import APPLIED_LENGTH_MAX, LAST_APPLIED, SPEC_BYTES_MAX, Job

# As an API server keeps it: what has a default is there, and whole sections are.
STORED: dict[str, Any] = document()["spec"] | {
    "checkpoint": {"keep": 3, "memory": {"everySteps": 1, "replicas": 1}},
    "faultPolicy": {"heartbeat": {"interval": "1s", "lost": "3s"}, "xid": {"79": "Evict"}},
}


def told(stored: dict[str, Any] = STORED, **applied: Any) -> tuple[str, ...] | None:
    """Of a job that was applied with these fields, the other ones as in `document`."""
    return left_out(job_object(applied=json.dumps(document(**applied)), spec=stored))


@pytest.mark.parametrize(
    ("applied", "says"),
    [
        ({"faultPolcy": {"hang": {"timeout": "5m"}}}, "spec.faultPolcy (did you mean faultPolicy?)"),
        ({"fault_policy": {}}, "spec.fault_policy (did you mean faultPolicy?)"),
        ({"replicas": 4}, "spec.replicas"),
        ({"zzz": None}, "spec.zzz"),
        ({"checkpoint": {"kep": 5}}, "spec.checkpoint.kep (did you mean keep?)"),
        (
            {"checkpoint": {"memory": {"everyStep": 5}}},
            "spec.checkpoint.memory.everyStep (did you mean everySteps?)",
        ),
        ({"a\nline": 1}, r"'spec.a\nline'"),
        ({"x" * 500: 1}, f"spec.{'x' * 155}..."),
    ],
    ids=["a letter", "a snake", "another's word", "no value", "a section", "deeper", "a line", "a long one"],
)
def test_a_field_that_was_applied_and_dropped_is_named_with_the_nearest_one(
    applied: dict[str, Any], says: str
) -> None:
    assert told(**applied) == (says,)


def test_all_are_named_up_to_a_number() -> None:
    assert told(nodez={}, checkpoint={"kep": 1}) == (
        "spec.nodez (did you mean nodes?)",
        "spec.checkpoint.kep (did you mean keep?)",
    )
    many = told(**{f"zzz{number}": 1 for number in range(FIELDS_TOLD_MAX + 7)})
    assert many is not None
    assert (len(many), many[-1]) == (FIELDS_TOLD_MAX + 1, "7 more")


@pytest.mark.parametrize(
    "applied",
    [
        {},
        {"processesPerNode": 4},
        {"cost": {"gpuHuor": 2}},
        {"checkpoint": 3},
        {"template": {**TEMPLATE, "specc": {}}},
        {"faultPolicy": {"xid": {"79": "Restart", "80": "Evict"}, "conditions": {"LinkErrors": "Evict"}}},
    ],
    ids=["as stored", "removed", "a section removed", "no section", "the template", "free names"],
)
def test_a_field_that_is_known_says_nothing_whether_or_not_it_is_there(applied: dict[str, Any]) -> None:
    assert told(**applied) == ()


def test_a_field_that_the_server_kept_was_not_dropped() -> None:
    assert told({**STORED, "faultPolcy": {}}, faultPolcy={}) == ()


@pytest.mark.parametrize(
    "text",
    [None, "", "{", "[]", "null", "{}", '{"spec": 3}', '{"spec": [1]}', '{"spec": {"faultPolcy": NaN}}'],
)
def test_nothing_is_known_of_what_nobody_wrote_down_in_a_way_that_can_be_read(text: str | None) -> None:
    assert left_out(job_object(applied=text, spec=STORED)) is None


def test_one_that_is_nested_without_end_is_read_as_far_as_it_goes() -> None:
    deep = '{"spec": {"faultPolcy": ' + '{"a": ' * 5_000 + "1" + "}" * 5_002
    assert left_out(job_object(applied=deep, spec=STORED)) == ("spec.faultPolcy (did you mean faultPolicy?)",)


def test_nothing_is_known_of_a_spec_that_is_too_long_to_be_kept() -> None:
    job = job_object(applied=json.dumps(document(faultPolcy={})), spec={"entrypoint": ["x" * SPEC_BYTES_MAX]})
    assert job.oversize
    assert left_out(job) is None


@pytest.mark.parametrize(("length", "kept"), [(APPLIED_LENGTH_MAX, True), (APPLIED_LENGTH_MAX + 1, False)])
def test_what_was_applied_is_kept_beside_our_own_annotations_unless_it_is_too_long(
    length: int, kept: bool
) -> None:
    ours = {"holdfast.dev/roll-to": "abc"}
    given = {**ours, LAST_APPLIED: "x" * length, "team/owner": "ml"}
    job = msgspec.json.decode(msgspec.json.encode({"metadata": {"name": "gpt", "annotations": given}}), type=Job)
    assert set(job.metadata.annotations) == set(ours) | ({LAST_APPLIED} if kept else set())
