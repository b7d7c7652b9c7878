"""Bytes that somebody else sent or wrote, decoded in one way, with one error.

What is no message raises `Malformed`. Decoders raise more than they say: text that is no UTF-8, nesting deeper
than the stack and numbers beyond every range each end in an error of their own. Whoever decodes what it did not
write itself calls these.
"""

import re
from typing import Any, Protocol, TypeVar, get_args

import msgspec

from holdfast.api.errors import Malformed

T = TypeVar("T")
T_co = TypeVar("T_co", covariant=True)
FAILURES = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, OverflowError, MemoryError)
SHOWN_LENGTH_MAX = 64
_PATH = re.compile(r" - at `\$(\S*)`$")
_PLACE = re.compile(r"\.(\w+)|\[(\d+)\]")


class UnknownMessage(Malformed):
    """A whole message, of a kind that another version has and this one has not."""


class Tagged(msgspec.Struct):
    """Any message of a union, as far as its kind."""

    type: str


class Decoder(Protocol[T_co]):
    """What decodes one type of message, as those of msgspec."""

    def decode(self, body: Any, /) -> T_co: ...


_TAGGED: msgspec.msgpack.Decoder[Tagged] = msgspec.msgpack.Decoder(Tagged)
Body = bytes | bytearray | memoryview | str


def decode(decoder: Decoder[T], body: Body) -> T:
    """The message in `body`. Raises Malformed, which names the field, the value and what is accepted there."""
    try:
        return decoder.decode(body)
    except FAILURES as error:
        raise Malformed(_told(error, body, isinstance(decoder, msgspec.json.Decoder))) from error


def tags_of(union: object) -> frozenset[str]:
    """The kinds of message in a union of tagged ones."""
    return frozenset(str(each.__struct_config__.tag) for each in get_args(union))


def decode_any(decoder: Decoder[T], body: Body, kinds: frozenset[str]) -> T:
    """The same of a msgpack message that another version may have sent. Raises UnknownMessage where its kind is
    none of `kinds`, and Malformed.
    """
    try:
        return decode(decoder, body)
    except Malformed:
        try:
            kind = decode(_TAGGED, body).type
        except Malformed:
            kind = ""
        if kind and kind not in kinds:
            raise UnknownMessage(f"{kind[:SHOWN_LENGTH_MAX]} is no kind of message of this version") from None
        raise


def decode_json(body: Body, kind: type[T]) -> T:
    """The `kind` that the JSON in `body` is. Raises Malformed."""
    return decode(msgspec.json.Decoder(kind), body)


def decode_msgpack(body: Body, kind: type[T]) -> T:
    """The `kind` that the msgpack in `body` is. Raises Malformed."""
    return decode(msgspec.msgpack.Decoder(kind), body)


def _told(error: BaseException, body: Body, is_json: bool) -> str:
    says = str(error) or type(error).__name__
    found = _PATH.search(says)
    if found is None:
        return says
    try:
        value: Any = msgspec.json.decode(body) if is_json else msgspec.msgpack.decode(body)  # type: ignore[arg-type]
        for name, index in _PLACE.findall(found[1]):
            value = value[name] if name else value[int(index)]
        shown = repr(value)[:SHOWN_LENGTH_MAX]
    except (*FAILURES, LookupError, TypeError, ValueError):
        return says  # what is not there, or cannot be shown
    return f"{found[1].lstrip('.')}: {shown} is not accepted; {says[: found.start()]}"
