"""What the operator writes into the status of an object, and people and later operators read.

Who wrote it may have been of another version, and somebody may have edited it: it is read loosely.
"""

from collections.abc import Mapping
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Self

import msgspec

if TYPE_CHECKING:  # who only reads a status needs no pydantic
    from pydantic import GetCoreSchemaHandler
    from pydantic_core import CoreSchema


class Written(msgspec.Struct, frozen=True, rename="camel"):
    """A mapping of a status. In a file of a user it is checked as a section is, and then read by nobody."""

    @classmethod
    def decode(cls, written: object) -> Self:
        """From plain data. A field that nobody knows is passed over, one that is damaged counts as not written."""
        if not isinstance(written, Mapping):
            return cls()
        try:
            return msgspec.convert(written, cls)
        except msgspec.ValidationError:
            sound = {}
            for name, value in written.items():
                with suppress(msgspec.ValidationError):
                    msgspec.convert({name: value}, cls)
                    sound[name] = value
            return msgspec.convert(sound, cls)

    def encode(self) -> dict[str, Any]:
        """In plain data, as the API server keeps it: what is Unknown is not there."""
        encoded: dict[str, Any] = without_nulls(msgspec.to_builtins(self))
        return encoded

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic import Field, create_model

        from holdfast.api.section import Section

        fields: dict[str, Any] = {}
        for field in msgspec.structs.fields(cls):
            told = next((each.description for each in getattr(field.type, "__metadata__", ())), None)
            default = ... if field.required else field.default
            fields[field.name] = (field.type, Field(default, description=told))
        return handler.generate_schema(create_model(cls.__name__, __base__=Section, __doc__=cls.__doc__, **fields))


class WrittenFreely(msgspec.Struct, frozen=True, rename="camel", gc=False):
    """A mapping of a status that a file may hold with whatever is in it."""

    @classmethod
    def __get_pydantic_core_schema__(cls, _: object, handler: "GetCoreSchemaHandler") -> "CoreSchema":
        from pydantic import JsonValue

        return handler.generate_schema(dict[str, JsonValue])


def without_nulls(value: Any) -> Any:
    """The document as the API server keeps it: what is null is not there. Merge patches cannot say null."""
    if isinstance(value, dict):
        return {key: without_nulls(each) for key, each in value.items() if each is not None}
    if isinstance(value, list | tuple):
        return [without_nulls(each) for each in value]
    return value
