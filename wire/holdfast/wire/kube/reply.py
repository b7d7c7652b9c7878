"""What an API server answers, and what it means when it does not do what was asked.

HoldfastError
|-- Unavailable           it is away, overloaded or broken; trying again may help
`-- Declined              it understood and said no
    |-- Absent            there is no such object (404)
    |-- Conflicting       the object changed meanwhile, or one of that name is there (409)
    `-- Expired           the version asked for is too old to go on from (410)
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

import msgspec

from holdfast.api.decoding import decode_json
from holdfast.api.errors import HoldfastError, Malformed, Unavailable

TEXT_LENGTH_MAX: Final = 1000


class Declined(HoldfastError):
    """The API server said no. `message` is its own words."""

    def __init__(self, code: int, reason: str, message: str) -> None:
        self.code = code
        self.reason = reason
        self.message = message
        super().__init__(f"the API server answered {code} {reason}: {message}")


class Absent(Declined):
    """There is no such object."""


class Conflicting(Declined):
    """The object is not as the writer thought, or there already."""


class Expired(Declined):
    """The version is too old."""


class Details(msgspec.Struct, frozen=True):
    """Of a `Said`: what it is about."""

    kind: str = ""
    name: str = ""


class Said(msgspec.Struct, frozen=True):
    """A `Status` object of the API server, as far as it is read."""

    kind: str = ""
    code: int = 0
    reason: str = ""
    message: str = ""
    details: Details | None = None


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer, whatever it says. `headers` take names in any case."""

    status: int
    content: bytes
    headers: Mapping[str, str] = field(default_factory=dict)

    def said(self) -> Said | None:
        """The API server's own words; None when these are not its, or not words."""
        try:
            said = decode_json(self.content, Said)
        except Malformed:
            return None
        return said if said.kind == "Status" else None


_KINDS: dict[int, type[Declined]] = {404: Absent, 409: Conflicting, 410: Expired}


def refusal(code: int, content: bytes) -> HoldfastError:
    """The error of an answer with that HTTP status."""
    try:
        said = decode_json(content, Said)
    except Malformed:
        said = Said(code=code, message=content[:TEXT_LENGTH_MAX].decode("utf-8", "replace").strip())
    code, message = said.code or code, said.message[:TEXT_LENGTH_MAX]
    if code >= 500 or code == 429:
        return Unavailable(f"the API server answered {code} {said.reason}: {message}")
    return _KINDS.get(code, Declined)(code, said.reason, message)
