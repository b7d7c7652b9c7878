"""Every number, text and list that a user writes has a bound in the CRD, and each wrong spec its answer."""

from collections.abc import Iterator
from typing import Any

import pytest

from holdfast.api.errors import InvalidSpec
from holdfast.api.interventionspec import InterventionSpec, read_intervention
from holdfast.api.trainingjob import JobSpec, read_trainingjob
from holdfast.operator.crdschema import Half, structural

# The pod template is the API server's to check.
OPEN = {"JobSpec.template"}


def unbounded(schema: dict[str, Any], path: str) -> Iterator[str]:
    """The leaves of a structural schema without bounds."""
    kind = schema.get("type")
    if schema.get("x-kubernetes-preserve-unknown-fields"):
        if path not in OPEN:
            yield f"{path}: anything is taken"
    elif kind in ("integer", "number"):
        if "maximum" not in schema or not ({"minimum", "exclusiveMinimum"} & schema.keys() or kind == "number"):
            yield path
    elif kind == "string":
        if "enum" not in schema and "maxLength" not in schema:
            yield path
    elif kind == "array":
        if "maxItems" not in schema:
            yield path
        yield from unbounded(schema["items"], f"{path}[]")
    elif kind == "object":
        values = schema.get("additionalProperties")
        if values is not None:
            if "maxProperties" not in schema:
                yield path
            yield from unbounded(values, f"{path}[*]")
        for name, field in schema.get("properties", {}).items():
            yield from unbounded(field, f"{path}.{name}")
    elif kind != "boolean":
        yield f"{path}: nobody has said how {kind} is bounded"


@pytest.mark.parametrize("model", [JobSpec, InterventionSpec])
def test_every_leaf_of_the_definitions_is_bounded(model: type[JobSpec] | type[InterventionSpec]) -> None:
    assert list(unbounded(structural(model, Half.SPEC), model.__name__)) == []


MINIMAL: dict[str, Any] = {"entrypoint": ["train.py"]}
BEYOND: list[tuple[str, Any, str]] = [
    ("nodes.max", 1_000_000, "at most 32768"),
    ("nodes.min", 40_000, "at most 32768"),
    ("nodes.spares", 2**63, "at most 32768"),
    ("nodes.spares", -1, "at least 0"),
    ("processesPerNode", 1025, "at most 1024"),
    ("processesPerNode", 0, "at least 1"),
    ("parallelism.tensor", 10**12, "at most 1024"),
    ("parallelism.tensor", 0, "at least 1"),
    ("parallelism.context", 10**12, "at most 1024"),
    ("parallelism.context", 0, "at least 1"),
    ("parallelism.pipeline", 10**12, "at most 16384"),
    ("checkpoint.keep", 10**9, "at most 10000"),
    ("checkpoint.keep", 0, "at least 1"),
    ("checkpoint.memory.everySteps", 10**10, "at most 1000000000"),
    ("checkpoint.memory.replicas", 65, "at most 64"),
    ("checkpoint.memory.replicas", -1, "at least 0"),
    ("checkpoint.uri", "file:///" + "a" * 5000, "at most 1024 characters"),
    ("checkpoint.uri", "", "not empty"),
    ("checkpoint.interval", "1" * 70 + "s", "write auto"),
    ("checkpoint.interval", "400000d", "write auto"),
    ("checkpoint.interval", 600, "write auto"),
    ("startup.timeout", "10", "with a unit"),
    ("startup.timeout", "0s", "longer than zero"),
    ("startup.timeout", "-1s", "with a unit"),
    ("startup.timeout", "1s" * 40, "with a unit"),
    ("startup.timeout", "\u0661s", "with a unit"),
    ("startup.preflight", "heavy", "one of"),
    ("placement.pack", ["rack"] * 17, "at most 16 entries"),
    ("placement.pack", ["a" * 4097], "at most 4096 characters"),
    ("placement.pack", "rack", "write a list"),
    ("cost.gpuHour", 1e9, "at most 1000000"),
    ("cost.gpuHour", 0, "above 0"),
    ("cost.gpuHour", float("nan"), "finite"),
    ("cost.gpuHour", float("inf"), "finite"),
    ("cost.currency", "EURO", "of the form"),
    ("utilization.gigaflopsPerToken", 1e10, "at most 1000000000"),
    ("utilization.peakTeraflopsPerGpu", -1, "above 0"),
    ("faultPolicy.budget.evictions", 10**7, "at most 1000000"),
    ("faultPolicy.budget.evictions", True, "whole number"),
    ("faultPolicy.budget.clusterFraction", "101%", "percentage"),
    ("faultPolicy.budget.per", "9" * 13 + "s", "with a unit"),
    ("faultPolicy.restarts.max", -1, "at least 0"),
    ("faultPolicy.restarts.max", 10**7, "at most 1000000"),
    ("faultPolicy.heartbeat.interval", "2s", "twice the interval"),
    ("faultPolicy.thermal.slowdownMarginC", 51, "at most 50"),
    ("faultPolicy.corruption.fingerprintEverySteps", 10**10, "at most 1000000000"),
    ("faultPolicy.xid", {"1024": "Evict"}, "at most 1023"),
    ("faultPolicy.xid", {"x": "Evict"}, "whole number"),
    ("faultPolicy.conditions", {"Sunny": "Evict"}, "one of"),
    ("faultPolicy.hang.timeout", 30, "write auto"),
    ("entrypoint", [], "at least one entry"),
    ("entrypoint", ["a"] * 1025, "at most 1024 entries"),
    ("entrypoint", ["a" * 5000], "at most 4096 characters"),
    ("entrypoint", "train.py", "write a list"),
    (
        "template",
        {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": 99_999}}}]}},
        "at most 1024",
    ),
    ("suspend", "yes", "true or false"),
    ("ttlAfterFinished", "24", "with a unit"),
]


def spec_with(path: str, value: Any) -> dict[str, Any]:
    """A job whose spec holds `value` at `path`, with what else its sections need."""
    *above, last = path.split(".")
    spec: dict[str, Any] = dict(MINIMAL)
    section = spec
    for name in above:
        section[name] = {"gpuHour": 1.0} if name == "cost" else {}
        if name == "utilization":
            section[name] = {"gigaflopsPerToken": 1.0, "peakTeraflopsPerGpu": 1.0}
        section = section[name]
    section[last] = value
    return {
        "apiVersion": "holdfast.dev/v1alpha1",
        "kind": "TrainingJob",
        "metadata": {"name": "gpt"},
        "spec": spec,
    }


@pytest.mark.parametrize(
    ("path", "value", "limit"), BEYOND, ids=[f"{path}={value!r:.24}" for path, value, _ in BEYOND]
)
def test_a_wrong_spec_is_answered_with_field_value_and_limit(path: str, value: Any, limit: str) -> None:
    with pytest.raises(InvalidSpec) as caught:
        read_trainingjob(spec_with(path, value))
    told = str(caught.value)
    assert limit in told
    assert f"spec.{path.split('.')[0]}" in told


def test_the_table_has_fifty() -> None:
    assert len(BEYOND) >= 50


def nested(depth: int) -> dict[str, Any]:
    inner: dict[str, Any] = {}
    for _ in range(depth):
        inner = {"a": inner}
    return inner


@pytest.mark.parametrize("odd", [nested(500), nested(50_000), {"a": 10**5000}], ids=["deep", "too deep", "huge"])
def test_a_document_that_no_parser_takes_is_refused_like_any_other(odd: dict[str, Any]) -> None:
    document = spec_with("template", odd)
    with pytest.raises(InvalidSpec):
        read_trainingjob(document)


@pytest.mark.parametrize("count", ["\u00b2", "9" * 5000, "-1", " 8"])
def test_a_number_of_gpus_that_is_none_is_asked_for(count: str) -> None:
    containers = [{"resources": {"limits": {"nvidia.com/gpu": count}}}]
    document = spec_with("template", {"spec": {"containers": containers}})
    with pytest.raises(InvalidSpec, match=r"spec\.processesPerNode") as caught:
        read_trainingjob(document)
    assert "no whole number" in str(caught.value)
    document["spec"]["processesPerNode"] = 4
    assert read_trainingjob(document).spec.local_size() == 4


@pytest.mark.parametrize(
    ("fields", "limit"),
    [
        ({"action": "Resize", "nodes": 10**6}, "at most 32768"),
        ({"action": "SkipBatches", "skipBatches": 10**10}, "at most 1000000000"),
        ({"action": "Rewind", "rewind": {"toStep": 2**63}}, "at most 9007199254740991"),
        ({"action": "Evict", "node": "n" * 300}, "at most 253 characters"),
        ({"action": "Pause", "reason": "r" * 5000}, "at most 4096 characters"),
    ],
)
def test_a_wrong_intervention_is_answered_with_the_limit(fields: dict[str, Any], limit: str) -> None:
    spec = {"job": "gpt", "reason": "on call", **fields}
    with pytest.raises(InvalidSpec, match=limit):
        read_intervention(
            {"apiVersion": "holdfast.dev/v1alpha1", "kind": "Intervention", "metadata": {}, "spec": spec}
        )
