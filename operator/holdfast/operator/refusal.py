"""What an API server answers when it does not do what was asked.

HoldfastError
|-- Unavailable           it is away, overloaded or broken; trying again may help
`-- Declined              it understood and said no
    |-- Absent            there is no such object (404)
    |-- Conflicting       the object changed meanwhile, or one of that name is there (409)
    `-- Expired           the version asked for is too old to go on from (410)
"""

import msgspec

from holdfast.api.errors import HoldfastError, Unavailable

TEXT_LENGTH_MAX = 1000


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


class Said(msgspec.Struct, frozen=True):
    """The `Status` object of an answer, as far as it is read."""

    code: int = 0
    reason: str = ""
    message: str = ""


_KINDS: dict[int, type[Declined]] = {404: Absent, 409: Conflicting, 410: Expired}


def refusal(code: int, content: bytes) -> HoldfastError:
    """The error of an answer with that HTTP status."""
    try:
        said = msgspec.json.decode(content, type=Said)
    except msgspec.MsgspecError:
        said = Said(code, "", content[:TEXT_LENGTH_MAX].decode("utf-8", "replace").strip())
    code, message = said.code or code, said.message[:TEXT_LENGTH_MAX]
    if code >= 500 or code == 429:
        return Unavailable(f"the API server answered {code} {said.reason}: {message}")
    return _KINDS.get(code, Declined)(code, said.reason, message)
