"""From the types people's objects are read with to the structural schema that the API server checks them by.

A structural schema has no references and one type per node. What cannot be said that way is refused loudly: a
definition that says less than the types would let mistakes through.
Source: https://kubernetes.io/docs/tasks/extend-kubernetes/custom-resources/custom-resource-definitions/
"""

from collections.abc import Iterator, Mapping
from enum import Enum
from typing import Any

from pydantic import TypeAdapter

from holdfast.api.section import Section
from holdfast.api.written import Written

Schema = dict[str, Any]

_COPIED = frozenset(
    {
        "type",
        "description",
        "enum",
        "minimum",
        "maximum",
        "pattern",
        "minLength",
        "maxLength",
        "minItems",
        "maxItems",
        "x-kubernetes-validations",
    }
)
# pydantic says these too: a structural schema has other words for them or none.
_READ = frozenset(
    {
        "title",
        "default",
        "$ref",
        "anyOf",
        "const",
        "properties",
        "propertyNames",
        "required",
        "items",
        "additionalProperties",
        "exclusiveMinimum",
        "maxProperties",
    }
)
# Defaults that depend on another field: a fixed one would hide that the field was left out.
_FOLLOWING = frozenset({("Nodes", "max"), ("CheckpointSpec", "memory")})
MAX_KEYS = 1024
"""Bound on mappings, for the cost estimate that newer servers make of every rule."""


class Half(Enum):
    """Which half of an object a schema is for."""

    SPEC = "spec"  # written by people: the server fills in defaults; a field left out is absent, never null
    STATUS = "status"  # written by the operator: no defaults; what is Unknown may be null


class NotStructural(Exception):
    """A type says something that a structural schema cannot say."""


def structural(model: type[Section | Written], half: Half) -> Schema:
    """The structural schema of `model`. Raises NotStructural."""
    document = TypeAdapter(model).json_schema(by_alias=True)
    return _Converter(document.pop("$defs", {}), half).convert(document, model.__name__)


class _Converter:
    def __init__(self, definitions: Mapping[str, Schema], half: Half) -> None:
        self._definitions = definitions
        self._sections = {section.__name__: section for section in _sections(Section)}
        self._half = half

    def convert(self, given: Schema, where: str) -> Schema:
        """One node. `where` names it in errors."""
        may_be_null = {"type": "null"} in given.get("anyOf", ())
        given = self._resolved(given, where)
        if unknown := sorted(set(given) - _COPIED - _READ):
            raise NotStructural(f"{where}: a structural schema is not known to say {', '.join(unknown)}")
        made: Schema = {key: value for key, value in given.items() if key in _COPIED}
        if may_be_null and self._half is Half.STATUS and "enum" not in made:
            made["nullable"] = True  # the server refuses null beside an enum, and null in one
        if "const" in given:
            made["enum"] = [given["const"]]
        if "exclusiveMinimum" in given:
            made |= {"minimum": given["exclusiveMinimum"], "exclusiveMinimum": True}
        match given.get("type"):
            case "object":
                made |= self._object(given, where)
            case "array":
                made["items"] = self.convert(given["items"], f"{where}[]")
                made["x-kubernetes-list-type"] = "atomic"
            case None:
                raise NotStructural(f"{where}: every node needs a type")
        return made

    def _resolved(self, given: Schema, where: str) -> Schema:
        """`given` without references, and without the null of a field that may be left out."""
        if "anyOf" in given:
            kinds = [kind for kind in given["anyOf"] if kind != {"type": "null"}]
            if len(kinds) != 1:
                raise NotStructural(f"{where}: a field has one type, not one of {len(kinds)}")
            rest = {key: value for key, value in given.items() if key != "anyOf"}
            return self._resolved({**kinds[0], **rest}, where)
        if "$ref" in given:
            name = given["$ref"].removeprefix("#/$defs/")
            rest = {key: value for key, value in given.items() if key != "$ref"}
            return self._resolved({**self._definitions[name], **rest}, where)
        return given

    def _object(self, given: Schema, where: str) -> Schema:
        if "properties" not in given:
            values = given.get("additionalProperties", {})
            if values in ({}, True) or values == {"$ref": "#/$defs/JsonValue"}:
                return {"x-kubernetes-preserve-unknown-fields": True}
            # What names there are (propertyNames) a structural schema cannot say; the operator refuses others.
            return {"additionalProperties": self.convert(values, f"{where}[*]"), "maxProperties": MAX_KEYS}
        # Fields that nobody knows are dropped by the server, and refused with --validate=strict.
        section = self._sections.get(given["title"])
        written: Mapping[str, Any] = {}  # the section's defaults as a user would write them
        if section is not None and self._half is Half.SPEC:
            written = section.model_construct().model_dump(mode="json", by_alias=True, warnings=False)
        properties = {}
        for name, field in given["properties"].items():
            made = self.convert(field, f"{where}.{name}")
            # What the server fills in. A whole section is filled in field by field.
            value = written.get(name)
            if "default" in field and value is not None and (given["title"], name) not in _FOLLOWING:
                if "properties" in made:
                    made["default"] = {}
                elif value not in ({}, []):
                    made["default"] = value
            properties[name] = made
        required = {"required": given["required"]} if "required" in given else {}
        return {"properties": properties, **required}


def _sections(root: type[Section]) -> Iterator[type[Section]]:
    for section in root.__subclasses__():
        yield section
        yield from _sections(section)
