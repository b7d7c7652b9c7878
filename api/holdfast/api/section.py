"""The base of every section of a user-facing object, and how a refused one is explained.

A section is frozen, knows its fields and refuses others. Field names are camelCase in files and snake_case in
code. Whatever is wrong ends as `InvalidSpec`, which names each field by its path, the value given and the fix.
"""

import ast
import difflib
import inspect
import itertools
import json
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

from pydantic import BaseModel, ConfigDict, GetJsonSchemaHandler, ValidationError
from pydantic.alias_generators import to_camel
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, ErrorDetails, PydanticCustomError

from holdfast.api.errors import InvalidSpec, Problem


class Section(BaseModel):
    """One mapping of a job file."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        strict=True,
        alias_generator=to_camel,
        serialize_by_alias=True,
        allow_inf_nan=False,
    )

    @classmethod
    def __get_pydantic_json_schema__(cls, core: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        """Each field is described by the string below it. Only a schema needs that, and it takes long to find."""
        schema = handler(core)
        properties = handler.resolve_ref_schema(schema).get("properties", {})
        for each in reversed(cls.__mro__):
            if issubclass(each, Section) and each is not Section:
                for name, told in _described(each).items():
                    field = properties[cls.model_fields[name].alias]
                    if handler.resolve_ref_schema(field).get("description") != told:
                        field["description"] = told
        return schema


def _described(section: type[Section]) -> dict[str, str]:
    """What stands as a string below a field in the source of `section`. Nothing of one that has no source."""
    try:
        (definition,) = ast.parse(textwrap.dedent(inspect.getsource(section))).body
    except OSError:  # made by a program
        return {}
    found = {}
    assert isinstance(definition, ast.ClassDef)
    for field, below in itertools.pairwise(definition.body):
        match field, below:
            case (
                ast.AnnAssign(target=ast.Name(id=name)),
                ast.Expr(value=ast.Constant(value=str(told))),
            ) if name in section.model_fields:
                found[name] = inspect.cleandoc(told)
    return found


class _Missing:
    def __repr__(self) -> str:
        return "(missing)"


MISSING = _Missing()
UNREADABLE = Problem(
    "the document", "one that no reader takes", "write less deeply nested mappings and numbers of ordinary length"
)
Parsed = TypeVar("Parsed", bound=Section)


def contradiction(field: str, value: object, fix: str) -> PydanticCustomError:
    """What a validator of a whole section raises: `field` is the path inside that section."""
    return PydanticCustomError("contradiction", "{fix}", {"field": field, "value": value, "fix": fix})


def parse(model: type[Parsed], document: Mapping[str, Any], context: object = None) -> Parsed:
    """Read a decoded document as `model`; `context` is for its validators. Raises InvalidSpec with every problem
    found.
    """
    try:
        # Strict validation of JSON takes a list for a tuple and a text for an enum, and nothing looser.
        return model.model_validate_json(json.dumps(document, default=str), context=context)
    except ValidationError as error:
        raise InvalidSpec(*_problems(model, error.errors(include_url=False))) from None
    except (RecursionError, ValueError):
        raise InvalidSpec(UNREADABLE) from None


def _problems(model: type[Section], errors: Sequence[ErrorDetails]) -> list[Problem]:
    # A list is also called too short when its only entry is wrong; the entry is what to fix.
    parents = {error["loc"][:-1] for error in errors}
    told = [error for error in errors if not (error["type"] == "too_short" and error["loc"] in parents)]
    return [_problem(model, error) for error in told]


def _problem(model: type[Section], error: ErrorDetails) -> Problem:
    context = error.get("ctx", {})
    kind, location = error["type"], error["loc"]
    if kind == "contradiction":
        return Problem(_path((*location, context["field"])), context["value"], str(context["fix"]))
    if kind == "json_invalid":  # we wrote the JSON, so its depth is all that can be wrong
        return UNREADABLE
    if kind == "missing":
        return Problem(_path(location), MISSING, "add it")
    if kind == "extra_forbidden":
        return Problem(_path(location), error["input"], _why_unknown(model, location))
    return Problem(_path(location), error["input"], _FIXES.get(kind, _plain)(error["msg"], context))


def _path(location: Sequence[int | str]) -> str:
    """`spec.entrypoint[0]`; pydantic marks a mapping's key with "[key]", which says nothing to a user."""
    text = ""
    for part in location:
        if part == "[key]":
            continue
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text or "the document"


def _why_unknown(model: type[Section], location: Sequence[int | str]) -> str:
    section, name = _section_at(model, location[:-1]), str(location[-1])
    known = fields_of(section) if section is not None else {}
    near = nearest(name, known)
    if near is not None:
        return f"there is no such field; did you mean {near}?"
    return f"there is no such field; known here: {', '.join(sorted(known))}"


def fields_of(section: type[Section]) -> dict[str, type[Section] | None]:
    """The fields of a section as files spell them, each with the section that it is, None where it is none."""
    fields = section.model_fields.items()
    return {field.alias or to_camel(name): _section_of(field.annotation) for name, field in fields}


def nearest(name: str, known: Iterable[str]) -> str | None:
    """The one of `known` that `name` may be a misspelling of."""
    close = difflib.get_close_matches(name, sorted(known), n=1, cutoff=0.6)
    return close[0] if close else None


def _section_at(model: type[Section], location: Sequence[int | str]) -> type[Section] | None:
    """The section at `location` below `model`, None where there is none."""
    for part in location:
        if isinstance(part, int):
            continue  # a place in a list of that section
        section = fields_of(model).get(part)
        if section is None:
            return None
        model = section
    return model


def _section_of(annotation: object) -> type[Section] | None:
    for candidate in (annotation, *getattr(annotation, "__args__", ())):
        if isinstance(candidate, type) and issubclass(candidate, Section):
            return candidate
    return None


Fix = Callable[[str, Mapping[str, Any]], str]


def _plain(message: str, _: Mapping[str, Any]) -> str:
    return message[:1].lower() + message[1:]


def _says(text: str) -> Fix:
    return lambda _, context: text.format(**context)


_FIXES: Mapping[str, Fix] = {
    "int_type": _says("write a whole number"),
    "int_parsing": _says("write a whole number"),
    "int_from_float": _says("write a whole number"),
    "float_type": _says("write a number"),
    "finite_number": _says("write a finite number"),
    "bool_type": _says("write true or false"),
    "string_type": _says("write a text; put it in quotes if it looks like a number"),
    "string_too_long": _says("write a text of at most {max_length} characters"),
    "too_long": _says("list at most {max_length} entries"),
    "string_too_short": _says("write a text that is not empty"),
    "tuple_type": _says("write a list"),
    "dict_type": _says("write a mapping of names to values"),
    "model_type": _says("write a mapping of names to values"),
    "enum": _says("write one of: {expected}"),
    "literal_error": _says("write {expected}"),
    "string_pattern_mismatch": _says("write a text of the form {pattern}"),
    "too_short": _says("list at least one entry"),
    "greater_than": _says("write a number above {gt:g}"),
    "greater_than_equal": _says("write a number of at least {ge:.16g}"),
    "less_than_equal": _says("write a number of at most {le:.16g}"),
}
