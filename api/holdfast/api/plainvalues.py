"""Plain values out of a file that a user wrote, as what they are to be; what is wrong is told by its place."""

import re
from typing import Any, Final, TypeVar

import msgspec

from holdfast.api.errors import InvalidInput, Problem
from holdfast.api.section import MISSING

T = TypeVar("T")
WORDS: Final = {
    "int": "give a whole number",
    "float": "give a number",
    "str": "give a text",
    "bool": "give true or false",
    "array": "give a list",
    "object": "give a mapping of names to values",
}
_PATH: Final = re.compile(r" - at `\$(\S*)`$")
_PLACE: Final = re.compile(r"\.(\w+)|\[(\d+)\]")
_EXPECTED: Final = re.compile(r"Expected `(\w+)[^`]*`(?: ([<>]=? \S+))?")
_OF_OBJECT: Final = re.compile(r"Object (missing required|contains unknown) field `(.*)`")


def read_plain(given: object, kind: type[T], field: str) -> T:
    """`given`, of mappings, lists, texts and numbers, as `kind`. A text that is a number is taken for it where one
    is to be: YAML 1.1 has `1e3` for a word.

    Raises InvalidInput naming the place behind `field`, what is there, and what to give.
    """
    try:
        return msgspec.convert(given, kind, strict=False)
    except msgspec.ValidationError as error:
        raise InvalidInput(_told(str(error), given, field)) from None


def _told(says: str, given: Any, field: str) -> Problem:
    path = found[1] if (found := _PATH.search(says)) is not None else ""
    says = says[: found.start()] if found is not None else says
    value = given
    for name, place in _PLACE.findall(path):
        value = value[name] if name else value[int(place)]
    field += path
    if (of_object := _OF_OBJECT.match(says)) is not None:
        is_missing, name = of_object[1].startswith("missing"), of_object[2]
        if is_missing:
            return Problem(f"{field}.{name}", MISSING, "add it")
        return Problem(f"{field}.{name}", value.get(name), "leave it out; there is none of that name")
    if (expected := _EXPECTED.match(says)) is not None and expected[1] in WORDS:
        bound = f", {expected[2]}" if expected[2] else ""
        return Problem(field, value, f"{WORDS[expected[1]]}{bound}")
    return Problem(field, value, says[:1].lower() + says[1:])
