"""From the types to the structural schema, and the files that are made of it."""

import re
from pathlib import Path
from typing import Annotated, Any, Literal

import pytest
import yaml
from pydantic import Field, JsonValue

from holdfast.api.section import Section
from holdfast.operator import crd
from holdfast.operator.crdschema import Half, NotStructural, structural

ROOT = Path(__file__).parents[3]


class Inner(Section):
    """An inner section."""

    least: Annotated[int, Field(ge=1, le=9)] = 3
    """How few."""


class Outer(Section):
    """An outer section."""

    name: str
    inner: Inner = Inner()
    maybe: Annotated[float, Field(gt=0)] | None = None
    kind: Literal["One"] = "One"
    by_number: dict[int, Inner] = Field(default_factory=dict)
    anything: dict[str, JsonValue] | None = None
    words: tuple[str, ...] = ()


class Either(Section):
    value: int | str = 1


def _nodes(schema: Any, path: str = "") -> list[tuple[str, dict[str, Any]]]:
    """Every node of a schema, with its path."""
    found = [(path, schema)]
    for name, field in schema.get("properties", {}).items():
        found += _nodes(field, f"{path}.{name}")
    for key in ("items", "additionalProperties"):
        if isinstance(schema.get(key), dict):
            found += _nodes(schema[key], f"{path}[]")
    return found


DEFINITIONS = crd.definitions()


def _schema_of(plural: str) -> dict[str, Any]:
    version = DEFINITIONS[plural]["spec"]["versions"][0]
    schema = version["schema"]["openAPIV3Schema"]
    assert isinstance(schema, dict)
    return schema


DEFINED = [(plural, path, node) for plural in DEFINITIONS for path, node in _nodes(_schema_of(plural))]


def test_a_section_becomes_one_schema_without_references() -> None:
    made = structural(Outer, Half.SPEC)["properties"]
    assert made["inner"] == {
        "description": "An inner section.",
        "type": "object",
        "properties": {
            "least": {"description": "How few.", "type": "integer", "minimum": 1, "maximum": 9, "default": 3}
        },
        "default": {},
    }
    assert made["kind"] == {"type": "string", "enum": ["One"], "default": "One"}
    assert made["byNumber"]["additionalProperties"]["properties"]["least"]["type"] == "integer"
    assert made["anything"] == {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    assert made["words"] == {"type": "array", "items": {"type": "string"}, "x-kubernetes-list-type": "atomic"}


def test_a_spec_has_defaults_and_no_null_and_a_status_the_other_way_round() -> None:
    spec, status = (structural(Outer, half)["properties"] for half in Half)
    assert spec["maybe"] == {"type": "number", "minimum": 0, "exclusiveMinimum": True}
    assert status["maybe"] == {**spec["maybe"], "nullable": True}
    assert not [path for path, node in _nodes(structural(Outer, Half.STATUS)) if "default" in node]
    assert "default" not in status["inner"]


def test_a_field_of_two_types_is_refused() -> None:
    with pytest.raises(NotStructural, match=r"Either\.value: a field has one type, not one of 2"):
        structural(Either, Half.SPEC)


def test_what_a_structural_schema_cannot_say_is_refused() -> None:
    class Odd(Section):
        even: Annotated[int, Field(multiple_of=2)] = 2

    with pytest.raises(NotStructural, match=r"Odd\.even: .* multipleOf"):
        structural(Odd, Half.SPEC)


@pytest.mark.parametrize(("plural", "path", "node"), DEFINED, ids=[f"{each[0]}{each[1]}" for each in DEFINED])
def test_every_node_is_one_a_server_takes(plural: str, path: str, node: dict[str, Any]) -> None:
    if not node.get("x-kubernetes-int-or-string"):
        assert node["type"] in {"object", "array", "string", "integer", "number", "boolean"}
    forbidden = {"$ref", "anyOf", "oneOf", "allOf", "title", "const", "definitions"}
    assert not forbidden & set(node)
    if "enum" in node:
        assert None not in node["enum"]
    if "pattern" in node and "default" in node:
        assert re.search(node["pattern"], node["default"]), "a default has to be one a user may write"


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_every_field_is_explained(plural: str) -> None:
    silent = [path for path, node in _nodes(_schema_of(plural)) if "description" not in node]
    # A list's entries and a mapping's values are explained by the list and the mapping.
    assert [path for path in silent if not path.endswith("[]") and path != ".metadata"] == []


def test_the_upper_end_of_the_range_has_no_default_of_its_own() -> None:
    nodes = _schema_of("trainingjobs")["properties"]["spec"]["properties"]["nodes"]["properties"]
    assert nodes["min"]["default"] == 1
    assert "default" not in nodes["max"]


def test_a_pod_template_is_kept_as_it_is_and_asked_for() -> None:
    spec = _schema_of("trainingjobs")["properties"]["spec"]
    template = spec["properties"]["template"]
    assert template["properties"]["spec"]["x-kubernetes-preserve-unknown-fields"] is True
    assert "x-kubernetes-preserve-unknown-fields" not in {*template, *template["properties"]["metadata"]}
    assert spec["required"] == ["entrypoint", "template"]


def test_conditions_are_merged_by_type() -> None:
    conditions = _schema_of("trainingjobs")["properties"]["status"]["properties"]["conditions"]
    assert (conditions["x-kubernetes-list-type"], conditions["x-kubernetes-list-map-keys"]) == ("map", ["type"])


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_the_chart_carries_what_the_types_say(plural: str) -> None:
    file = ROOT / crd.TEMPLATES / f"{plural}.yaml"
    assert file.read_text() == crd.template(DEFINITIONS[plural]), "run python -m holdfast.operator.crd"


@pytest.mark.parametrize("plural", DEFINITIONS)
def test_a_template_without_its_conditions_is_the_definition(plural: str) -> None:
    definition = DEFINITIONS[plural]
    plain = re.sub(r"^ *\{\{-.*\}\}\n", "", crd.template(definition), flags=re.MULTILINE)
    assert yaml.safe_load(plain)["spec"] == definition["spec"]


def test_the_command_writes_templates_and_prints_manifests(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    crd.main(["--into", str(tmp_path)])
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        "interventions.yaml",
        "noderemediations.yaml",
        "trainingjobs.yaml",
    ]
    crd.main(["--plain"])
    printed = list(yaml.safe_load_all(capsys.readouterr().out))
    assert printed == list(DEFINITIONS.values())
