"""Whether an installed CustomResourceDefinition is the one this version was built for."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

SHOWN_MAX: Final = 4


def difference(installed: Mapping[str, Any], expected: Mapping[str, Any]) -> str:
    """What differs, in a few words; empty when the same versions have the same fields of the same types.

    Descriptions, and rules that an old server drops, are not compared: they change nothing that is stored.
    """
    mine, theirs = _versions(expected), _versions(installed)
    for name, schema in mine.items():
        if name not in theirs:
            return f"version {name} is missing"
        wanted, found = dict(_fields(schema)), dict(_fields(theirs[name]))
        differing = [
            *(f"{path} is missing" for path in wanted if path not in found),
            *(f"{path} is unknown to this version" for path in found if path not in wanted),
            *(f"{path} is of another type" for path in wanted if path in found and wanted[path] != found[path]),
        ]
        if differing:
            more = f" and {len(differing) - SHOWN_MAX} more" if len(differing) > SHOWN_MAX else ""
            return ", ".join(differing[:SHOWN_MAX]) + more
    return ""


def _versions(definition: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    versions = definition.get("spec", {}).get("versions", [])
    return {each["name"]: each.get("schema", {}).get("openAPIV3Schema", {}) for each in versions}


def _fields(schema: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, str]]:
    """Every field's path and type."""
    for name, field in schema.get("properties", {}).items():
        if not path and name not in ("spec", "status"):
            continue  # every object has these
        here = f"{path}.{name}" if path else name
        yield here, str(field.get("type", ""))
        yield from _fields(field, here)
    for part in ("items", "additionalProperties"):
        if isinstance(schema.get(part), Mapping):
            yield from _fields(schema[part], f"{path}[]")
